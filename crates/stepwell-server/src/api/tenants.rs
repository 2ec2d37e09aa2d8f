//! Routes of tenants: create, suspend, limit and delete them, as an administrator of the server.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepwell::catalogue::CatalogueError;
use stepwell::core::Timestamp;
use stepwell::store::{
    BadRow, HandleQuery, Precondition, RecordQuery, RunQuery, Store, TenantId, TenantScope,
};
use stepwell::{Engine, EngineError};
use uuid::Uuid;

use super::apikeys::{ApiKey, CreateApiKey, made};
use super::call::{Call, Json, Nothing};
use super::quota::TenantQuota;
use super::records::{Kept, Records, Stored};
use super::reply::Reply;
use super::route::{Needs, Route, delete, get, post, put};
use super::shapes::{Id, Instant as At, Listing, Page, named};
use super::{Caller, Server};
use crate::routes::problem::Problem;

/// Owner of the cells that store tenants, in the server's own tenant.
const OWNER: &str = "stepwell.tenants";
/// Time for which the cached names of tenants are used.
const NAMED_FOR: Duration = Duration::from_secs(5);
/// Number of tenants read per page.
const PAGE: u32 = 1_000;

/// The stored data of a tenant.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    name: String,
    created_at: Timestamp,
    created_by: Option<String>,
    suspended: bool,
    requests_per_second: Option<u32>,
    #[serde(default)]
    quota: TenantQuota,
}

/// The tenants created on this server. A tenant without a record is admitted with valid API keys, because a key names
/// its tenant.
pub(crate) struct Tenants {
    records: Arc<Records<Record>>,
    named: tokio::sync::Mutex<Option<Named>>,
}

/// Cached tenants by name; `None` = several tenants have this name.
struct Named {
    at: Instant,
    tenants: HashMap<String, Option<TenantId>>,
}

impl Tenants {
    pub(crate) fn new(engine: Engine) -> Self {
        let records = Arc::new(Records::new(engine, OWNER, "tenant"));
        Tenants { records, named: tokio::sync::Mutex::default() }
    }

    /// Returns true if the tenant was created here or is the server's own.
    pub(crate) async fn known(&self, tenant: TenantId) -> Result<bool, Problem> {
        if tenant == TenantScope::SINGLE {
            return Ok(true);
        }
        // A tenant whose record is unreadable was created too.
        Ok(self.records.known_or_last(TenantScope::single(), &tenant.to_string()).await?.is_some())
    }

    /// Returns the record of a tenant, or its last known value. All records are in the server's own tenant, whose
    /// database node may be down while those of the other tenants work.
    ///
    /// An unreadable record counts as missing, so that the tenant is served with the server's limits: its API keys are
    /// valid without a record. The doctor names the row.
    async fn record(&self, tenant: TenantId) -> Result<Option<Record>, EngineError> {
        let known = self.records.known_or_last(TenantScope::single(), &tenant.to_string()).await?;
        Ok(match known {
            Some(Stored::Readable(record)) => Some(record),
            Some(Stored::Unreadable(_)) | None => None,
        })
    }

    /// Looks up a tenant by id or name. Never returns the server's own tenant.
    pub(crate) async fn called(&self, said: &str) -> Result<Option<TenantId>, Problem> {
        if let Ok(id) = Uuid::try_parse(said) {
            let tenant = TenantId::new(id);
            return Ok((tenant != TenantScope::SINGLE && self.known(tenant).await?).then_some(tenant));
        }
        // One request reads the names while it holds the lock; the others wait for its result.
        let mut named = self.named.lock().await;
        match named.as_ref().filter(|named| named.at.elapsed() < NAMED_FOR) {
            Some(named) => Ok(named.tenants.get(said).copied().flatten()),
            None => {
                let tenants = match (self.names().await, named.take()) {
                    (Ok(tenants), _) => tenants,
                    // The server's own tenant cannot be read. The names known last are used for some time again.
                    (Err(problem), Some(last)) if problem.status == StatusCode::SERVICE_UNAVAILABLE => {
                        last.tenants
                    }
                    (Err(problem), last) => {
                        *named = last;
                        return Err(problem);
                    }
                };
                let found = tenants.get(said).copied().flatten();
                *named = Some(Named { at: Instant::now(), tenants });
                Ok(found)
            }
        }
    }

    async fn names(&self) -> Result<HashMap<String, Option<TenantId>>, Problem> {
        let (mut names, mut cursor) = (HashMap::new(), None);
        loop {
            let page = self.records.list(TenantScope::single(), PAGE, cursor).await?;
            for row in &page.bad {
                tracing::error!(%row, "a stored tenant is unreadable");
            }
            for Kept { id, record, .. } in page.items {
                let Ok(id) = Uuid::try_parse(&id) else { continue };
                let tenant = Some(TenantId::new(id));
                names.entry(record.name).and_modify(|known| *known = None).or_insert(tenant);
            }
            cursor = page.next;
            if cursor.is_none() {
                return Ok(names);
            }
        }
    }

    /// Returns the rows of tenants that cannot be read.
    pub(crate) async fn unreadable(&self) -> Result<Vec<BadRow>, EngineError> {
        self.records.unreadable(TenantScope::single()).await
    }

    /// Rejects a suspended tenant. Returns the tenant's own rate limit, if it has one.
    pub(crate) async fn admit(&self, tenant: TenantId) -> Result<Option<u32>, Problem> {
        if tenant == TenantScope::SINGLE {
            return Ok(None);
        }
        match self.record(tenant).await? {
            Some(record) if record.suspended => {
                let detail = "Your tenant is suspended. Contact the administrator of the server.";
                Err(Problem::new(StatusCode::FORBIDDEN, "tenantSuspended", detail))
            }
            record => Ok(record.and_then(|record| record.requests_per_second)),
        }
    }

    /// Returns the limits of a tenant that override the server's.
    pub(super) async fn quota(&self, tenant: TenantId) -> Result<TenantQuota, Problem> {
        if tenant == TenantScope::SINGLE {
            return Ok(TenantQuota::default());
        }
        Ok(self.record(tenant).await?.map(|record| record.quota).unwrap_or_default())
    }

    async fn read(&self, tenant: Uuid) -> Result<Kept<Record>, Problem> {
        let kept = self.records.read(TenantScope::single(), &tenant.to_string()).await?;
        kept.ok_or_else(|| {
            Problem::new(StatusCode::NOT_FOUND, "noTenant", format!("There is no tenant {tenant}."))
        })
    }

    /// Returns true if the tenant's record exists but cannot be read.
    async fn is_unreadable(&self, tenant: Uuid) -> Result<bool, Problem> {
        Ok(self.records.is_unreadable(TenantScope::single(), &tenant.to_string()).await?)
    }

    async fn write(
        &self,
        tenant: Uuid,
        record: Option<&Record>,
        expect: Precondition,
        by: &Caller,
    ) -> Result<u64, stepwell::DataError> {
        let by = by.actor().map(|actor| actor.id.as_str());
        self.records.write(TenantScope::single(), &tenant.to_string(), record, expect, by, None).await
    }
}

/// Path parameter that selects a tenant.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TenantPath {
    /// Id of the tenant, a UUID.
    #[schemars(with = "Id")]
    tenant: Uuid,
}

/// Request to create a tenant.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CreateTenant {
    /// Name of the tenant, 1 to 100 characters.
    #[schemars(length(min = 1, max = 100))]
    name: String,
    /// Id of the new tenant, a UUID. Default: generated by the server.
    #[schemars(with = "Option<Id>")]
    id: Option<Uuid>,
    /// First API key of the tenant. Default: none is created.
    key: Option<CreateApiKey>,
}

/// Request to change a tenant. Absent fields stay unchanged.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UpdateTenant {
    /// Name of the tenant, 1 to 100 characters.
    #[schemars(length(min = 1, max = 100))]
    name: Option<String>,
    /// True = the tenant's credentials are rejected. Its runs continue.
    suspended: Option<bool>,
    /// Average number of requests per second; 0 = unlimited, `null` = the server's limit.
    #[serde(default, deserialize_with = "named")]
    #[schemars(with = "Option<u32>")]
    requests_per_second: Option<Option<u32>>,
    /// Quota that replaces the previous one. Absent limits are the server's.
    quota: Option<TenantQuota>,
}

/// A tenant of the server.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TenantView {
    /// Id of the tenant, a UUID.
    #[schemars(with = "Id")]
    id: String,
    /// Name of the tenant.
    name: String,
    /// True if the tenant's credentials are rejected.
    suspended: bool,
    /// Average number of requests per second; 0 = unlimited. Absent = the server's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_per_second: Option<u32>,
    /// Quota of the tenant. Absent limits are the server's.
    quota: TenantQuota,
    /// Revision of the tenant; every change increases it.
    revision: u64,
    /// Time at which the tenant was created.
    #[schemars(with = "At")]
    created_at: Timestamp,
    /// Actor that created the tenant; absent if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_by: Option<String>,
}

/// Result of creating a tenant.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TenantCreated {
    /// Data of the new tenant.
    #[serde(flatten)]
    tenant: TenantView,
    /// First API key of the tenant, with its secret; absent if none was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<ApiKey>,
}

impl From<Kept<Record>> for TenantView {
    fn from(kept: Kept<Record>) -> Self {
        let Kept { id, revision, record } = kept;
        let Record { name, created_at, created_by, suspended, requests_per_second, quota } = record;
        TenantView { id, name, suspended, requests_per_second, quota, revision, created_at, created_by }
    }
}

pub(super) fn routes() -> Vec<Route> {
    let host = Needs::Host;
    vec![
        get("/v1/tenants", "listTenants", host, "List the tenants of the server.")
            .ok::<Page<TenantView>>("The tenants.")
            .to(list),
        post("/v1/tenants", "createTenant", host, "Create a tenant and, if requested, its first API key.")
            .notes("Only this response contains the key: the server stores its hash.")
            .gives::<TenantCreated>(StatusCode::CREATED, "The tenant.")
            .links_to("/v1/tenants/{tenant}", "tenant", "/id")
            .to(create),
        get("/v1/tenants/{tenant}", "showTenant", host, "Show a tenant.")
            .notes("`ETag` is the tenant's revision.")
            .ok::<TenantView>("The tenant.")
            .to(show),
        put("/v1/tenants/{tenant}", "updateTenant", host, "Change the name, the suspension, the rate limit or the quota of a tenant.")
            .notes("Absent fields stay unchanged. A record that cannot be read is replaced; this requires `name`. Other processes apply the change within two seconds. Runs of a suspended tenant continue, and their answer links stay valid.")
            .checks_tag()
            .ok::<TenantView>("The tenant.")
            .to(update),
        delete("/v1/tenants/{tenant}", "deleteTenant", host, "Delete an empty tenant.")
            .notes("Refused while the tenant has API keys, workflows that can be started, runs, handles, keys with a value or links. Its audit trail stays.")
            .checks_tag()
            .gives_nothing("The tenant is deleted.")
            .to(remove),
        post("/v1/tenants/{tenant}/apikeys", "createTenantApiKey", host, "Create an API key of a tenant.")
            .notes("Only this response contains the key: the server stores its hash.")
            .gives::<ApiKey>(StatusCode::CREATED, "The key, with its secret.")
            .to(create_key),
    ]
}

async fn list(call: Call<Nothing, Listing>) -> Result<Reply, Problem> {
    let (limit, cursor) = (call.query.limit(), call.query.cursor());
    let page = call.server.tenants.records.list(TenantScope::single(), limit, cursor).await?;
    Reply::ok(&Page::of(page, TenantView::from))
}

async fn create(call: Call<Nothing, Nothing, Json<CreateTenant>>) -> Result<Reply, Problem> {
    let Json(CreateTenant { name, id, key }) = &call.body;
    let tenant = id.unwrap_or_else(Uuid::now_v7);
    let record = Record {
        name: name.clone(),
        created_at: call.server.engine.now(),
        created_by: call.caller.actor().map(|actor| actor.id.clone()),
        suspended: false,
        requests_per_second: None,
        quota: TenantQuota::default(),
    };
    let taken = || {
        let detail = format!("A tenant {tenant} already exists.");
        Problem::new(StatusCode::CONFLICT, "exists", detail)
    };
    if TenantId::new(tenant) == TenantScope::SINGLE {
        return Err(taken());
    }
    let written = call.server.tenants.write(tenant, Some(&record), Precondition::Absent, &call.caller).await;
    let revision = written.map_err(|error| match error {
        stepwell::DataError::Conflict { .. } => taken(),
        other => other.into(),
    })?;
    let key = match key {
        Some(asked) => Some(made(&call.server, scope_of(tenant), asked, &call.caller).await?),
        None => None,
    };
    let tenant = TenantView::from(Kept { id: tenant.to_string(), revision, record });
    let path = format!("/v1/tenants/{}", tenant.id);
    Ok(Reply::json(StatusCode::CREATED, &TenantCreated { tenant, key })?.tagged(revision).at(&path))
}

fn scope_of(tenant: Uuid) -> TenantScope {
    TenantScope::trusted(TenantId::new(tenant))
}

fn shown(kept: Kept<Record>) -> Result<Reply, Problem> {
    let tenant = TenantView::from(kept);
    Ok(Reply::ok(&tenant)?.tagged(tenant.revision))
}

async fn show(call: Call<TenantPath>) -> Result<Reply, Problem> {
    shown(call.server.tenants.read(call.path.tenant).await?)
}

async fn update(call: Call<TenantPath, Nothing, Json<UpdateTenant>>) -> Result<Reply, Problem> {
    let tenants = &call.server.tenants;
    let Json(UpdateTenant { name, suspended, requests_per_second, quota }) = &call.body;
    let (mut kept, is_lost) = match tenants.is_unreadable(call.path.tenant).await? {
        false => (tenants.read(call.path.tenant).await?, false),
        true => (replacement(&call)?, true),
    };
    let record = &mut kept.record;
    record.name = name.clone().unwrap_or_else(|| record.name.clone());
    record.suspended = suspended.unwrap_or(record.suspended);
    record.requests_per_second = requests_per_second.unwrap_or(record.requests_per_second);
    record.quota = quota.unwrap_or(record.quota);
    let expect = match call.seen()? {
        None if is_lost => Precondition::Anything,
        seen => Precondition::Live(seen.unwrap_or(kept.revision)),
    };
    kept.revision = tenants.write(call.path.tenant, Some(record), expect, &call.caller).await?;
    shown(kept)
}

/// Creates the record that replaces an unreadable one. Only the name has no default.
fn replacement(call: &Call<TenantPath, Nothing, Json<UpdateTenant>>) -> Result<Kept<Record>, Problem> {
    let Some(name) = call.body.0.name.clone() else {
        let detail = format!(
            "The record of tenant {} is unreadable: send all its fields, with `name`, to replace it.",
            call.path.tenant
        );
        return Err(Problem::new(StatusCode::CONFLICT, "unreadable", detail));
    };
    let record = Record {
        name,
        created_at: call.server.engine.now(),
        created_by: call.caller.actor().map(|actor| actor.id.clone()),
        suspended: false,
        requests_per_second: None,
        quota: TenantQuota::default(),
    };
    Ok(Kept { id: call.path.tenant.to_string(), revision: 0, record })
}

async fn remove(call: Call<TenantPath>) -> Result<Reply, Problem> {
    let tenants = &call.server.tenants;
    let known = match tenants.is_unreadable(call.path.tenant).await? {
        false => Precondition::Live(tenants.read(call.path.tenant).await?.revision),
        true => Precondition::Anything,
    };
    let has = contents(&call.server, scope_of(call.path.tenant)).await?;
    if !has.is_empty() {
        let detail = format!("Tenant {} still has {}: delete them first.", call.path.tenant, has.join(", "));
        return Err(Problem::new(StatusCode::CONFLICT, "notEmpty", detail).param("has", has));
    }
    let expect = call.seen()?.map_or(known, Precondition::Live);
    tenants.write(call.path.tenant, None, expect, &call.caller).await?;
    Ok(Reply::nothing())
}

/// Returns the kinds of objects that the tenant still has.
async fn contents(server: &Server, scope: TenantScope) -> Result<Vec<&'static str>, Problem> {
    let engine = server.engine.for_tenant(scope);
    let handles = RecordQuery::Handles(HandleQuery { limit: 1, ..HandleQuery::default() });
    let active = engine.catalogue().active().await.map_err(|error| match error {
        CatalogueError::Engine(error) => error,
        other => EngineError::Invalid(other.to_string()),
    })?;
    let has = [
        ("API keys", !server.keys.list(scope, 1, None).await?.items.is_empty()),
        ("workflows that can be started", !active.items.is_empty() || !active.bad.is_empty()),
        ("runs", !engine.runs(RunQuery { limit: 1, ..RunQuery::default() }).await?.items.is_empty()),
        ("handles", !engine.store().records(scope, handles).await?.items.is_empty()),
        ("keys with a value", !engine.kv_namespaces(Some(1), None).await?.items.is_empty()),
        ("links", !engine.link_namespaces(Some(1), None).await?.items.is_empty()),
    ];
    Ok(has.into_iter().filter(|(_, is_there)| *is_there).map(|(what, _)| what).collect())
}

async fn create_key(call: Call<TenantPath, Nothing, Json<CreateApiKey>>) -> Result<Reply, Problem> {
    call.server.tenants.read(call.path.tenant).await?;
    let key = made(&call.server, scope_of(call.path.tenant), &call.body.0, &call.caller).await?;
    Reply::json(StatusCode::CREATED, &key)
}
