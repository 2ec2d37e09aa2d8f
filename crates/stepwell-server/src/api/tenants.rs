//! Tenants: made, suspended, held to a pace and deleted by whoever administers the server.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepwell::catalogue::CatalogueError;
use stepwell::core::Timestamp;
use stepwell::store::{Expect, HandleQuery, RecordQuery, RunQuery, Store, TenantId, TenantScope};
use stepwell::{Engine, EngineError};
use uuid::Uuid;

use super::apikeys::{ApiKey, CreateApiKey, made};
use super::call::{Call, Json, Nothing};
use super::quota::TenantQuota;
use super::records::{Kept, Records};
use super::reply::Reply;
use super::route::{Needs, Route, delete, get, post, put};
use super::shapes::{Id, Instant as At, Listing, Page, named};
use super::{Caller, Server};
use crate::routes::problem::Problem;

/// Whose cells tenants are, in the server's own tenant.
const OWNER: &str = "stepwell.tenants";
/// How long what tenants are called holds.
const NAMED_FOR: Duration = Duration::from_secs(5);
/// Tenants that are read at a time.
const PAGE: u32 = 1_000;

/// A tenant as it is kept.
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

/// What is known of tenants. One that nothing is known of is let in with its keys: they say enough.
pub(crate) struct Tenants {
    records: Records<Record>,
    named: tokio::sync::Mutex<Option<Named>>,
}

/// Which tenants there were at a moment, by what they are called; `None` = more than one is called so.
struct Named {
    at: Instant,
    tenants: HashMap<String, Option<TenantId>>,
}

impl Tenants {
    pub(crate) fn new(engine: Engine) -> Self {
        Tenants { records: Records::new(engine, OWNER, "tenant"), named: tokio::sync::Mutex::default() }
    }

    /// There is this tenant: it was made here, or it is the server's own.
    pub(crate) async fn known(&self, tenant: TenantId) -> Result<bool, Problem> {
        let is_own = tenant == TenantScope::SINGLE;
        Ok(is_own || self.records.known(TenantScope::single(), &tenant.to_string()).await?.is_some())
    }

    /// The tenant that is meant by an id or a name, if that is one; the server's own never is.
    pub(crate) async fn called(&self, said: &str) -> Result<Option<TenantId>, Problem> {
        if let Ok(id) = Uuid::try_parse(said) {
            let tenant = TenantId::new(id);
            return Ok((tenant != TenantScope::SINGLE && self.known(tenant).await?).then_some(tenant));
        }
        // Whoever has it reads the names, the others wait for what comes of it.
        let mut named = self.named.lock().await;
        match named.as_ref().filter(|named| named.at.elapsed() < NAMED_FOR) {
            Some(named) => Ok(named.tenants.get(said).copied().flatten()),
            None => {
                let tenants = self.names().await?;
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

    /// Lets a tenant in, unless it is suspended; gives its own rate, if it has one.
    pub(crate) async fn admit(&self, tenant: TenantId) -> Result<Option<u32>, Problem> {
        if tenant == TenantScope::SINGLE {
            return Ok(None);
        }
        match self.records.known(TenantScope::single(), &tenant.to_string()).await? {
            Some(record) if record.suspended => {
                let detail = "Your tenant is suspended: ask whoever runs the server.";
                Err(Problem::new(StatusCode::FORBIDDEN, "tenantSuspended", detail))
            }
            record => Ok(record.and_then(|record| record.requests_per_second)),
        }
    }

    /// What a tenant may have, where that is not what others may.
    pub(super) async fn quota(&self, tenant: TenantId) -> Result<TenantQuota, Problem> {
        if tenant == TenantScope::SINGLE {
            return Ok(TenantQuota::default());
        }
        let known = self.records.known(TenantScope::single(), &tenant.to_string()).await?;
        Ok(known.map(|record| record.quota).unwrap_or_default())
    }

    async fn read(&self, tenant: Uuid) -> Result<Kept<Record>, Problem> {
        let kept = self.records.read(TenantScope::single(), &tenant.to_string()).await?;
        kept.ok_or_else(|| {
            Problem::new(StatusCode::NOT_FOUND, "noTenant", format!("There is no tenant {tenant}."))
        })
    }

    async fn write(
        &self,
        tenant: Uuid,
        record: Option<&Record>,
        expect: Expect,
        by: &Caller,
    ) -> Result<u64, stepwell::DataError> {
        let by = by.actor().map(|actor| actor.id.as_str());
        self.records.write(TenantScope::single(), &tenant.to_string(), record, expect, by).await
    }
}

/// Which tenant.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfTenant {
    /// The tenant's id.
    #[schemars(with = "Id")]
    tenant: Uuid,
}

/// A tenant that is to be there.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CreateTenant {
    /// What people call it.
    #[schemars(length(min = 1, max = 100))]
    name: String,
    /// The id it is to have; without this the server makes one.
    #[schemars(with = "Option<Id>")]
    id: Option<Uuid>,
    /// Its first API key.
    key: Option<CreateApiKey>,
}

/// What is to change of a tenant; what is not named stays.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UpdateTenant {
    /// What people call it.
    #[schemars(length(min = 1, max = 100))]
    name: Option<String>,
    /// Nobody gets in with its keys. Its runs go on.
    suspended: Option<bool>,
    /// Requests per second that it may make on average; 0 = any number, `null` = as many as others.
    #[serde(default, deserialize_with = "named")]
    #[schemars(with = "Option<u32>")]
    requests_per_second: Option<Option<u32>>,
    /// How much it may have, in place of the quota before; what is not named is as for others.
    quota: Option<TenantQuota>,
}

/// A tenant.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TenantShown {
    /// Its id.
    #[schemars(with = "Id")]
    id: String,
    /// What people call it.
    name: String,
    /// Nobody gets in with its keys.
    suspended: bool,
    /// Requests per second that it may make on average, if not as many as others; 0 = any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_per_second: Option<u32>,
    /// How much it may have, if not as much as others.
    quota: TenantQuota,
    /// Counts its changes.
    revision: u64,
    /// When it was made.
    #[schemars(with = "At")]
    created_at: Timestamp,
    /// By whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_by: Option<String>,
}

/// A tenant that was made.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TenantMade {
    /// The tenant.
    #[serde(flatten)]
    tenant: TenantShown,
    /// Its first API key, with its secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<ApiKey>,
}

impl From<Kept<Record>> for TenantShown {
    fn from(kept: Kept<Record>) -> Self {
        let Kept { id, revision, record } = kept;
        let Record { name, created_at, created_by, suspended, requests_per_second, quota } = record;
        TenantShown { id, name, suspended, requests_per_second, quota, revision, created_at, created_by }
    }
}

pub(super) fn routes() -> Vec<Route> {
    let host = Needs::Host;
    vec![
        get("/v1/tenants", "listTenants", host, "Lists the tenants that were made here.")
            .ok::<Page<TenantShown>>("The tenants.")
            .to(list),
        post("/v1/tenants", "createTenant", host, "Makes a tenant, and its first API key if asked.")
            .notes("The key is in the answer, and only there: it is stored as a hash.")
            .gives::<TenantMade>(StatusCode::CREATED, "The tenant.")
            .leads("/v1/tenants/{tenant}", "tenant", "/id")
            .to(create),
        get("/v1/tenants/{tenant}", "showTenant", host, "Shows a tenant.")
            .notes("`ETag` is its revision.")
            .ok::<TenantShown>("The tenant.")
            .to(show),
        put("/v1/tenants/{tenant}", "updateTenant", host, "Changes what a tenant is called, whether it gets in, how often it may ask and how much it may have.")
            .notes("What is not named stays as it is. In other processes it holds two seconds later. Runs of a suspended tenant go on, and links to them lead there.")
            .checks_tag()
            .ok::<TenantShown>("The tenant.")
            .to(update),
        delete("/v1/tenants/{tenant}", "deleteTenant", host, "Deletes a tenant that has nothing any more.")
            .notes("Refused while it has API keys, workflows that can be started, runs, handles, keys with a value or links. Its audit trail stays.")
            .checks_tag()
            .gives_nothing("It is gone.")
            .to(remove),
        post("/v1/tenants/{tenant}/apikeys", "createTenantApiKey", host, "Makes an API key of a tenant.")
            .notes("The key is in the answer, and only there: it is stored as a hash.")
            .gives::<ApiKey>(StatusCode::CREATED, "The key, with its secret.")
            .to(create_key),
    ]
}

async fn list(call: Call<Nothing, Listing>) -> Result<Reply, Problem> {
    let (limit, cursor) = (call.query.limit(), call.query.cursor());
    let page = call.server.tenants.records.list(TenantScope::single(), limit, cursor).await?;
    Reply::ok(&Page::of(page, TenantShown::from))
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
        let detail = format!("There is a tenant {tenant} already.");
        Problem::new(StatusCode::CONFLICT, "exists", detail)
    };
    if TenantId::new(tenant) == TenantScope::SINGLE {
        return Err(taken());
    }
    let written = call.server.tenants.write(tenant, Some(&record), Expect::Absent, &call.caller).await;
    let revision = written.map_err(|error| match error {
        stepwell::DataError::Conflict { .. } => taken(),
        other => other.into(),
    })?;
    let key = match key {
        Some(asked) => Some(made(&call.server, scope_of(tenant), asked, &call.caller).await?),
        None => None,
    };
    let tenant = TenantShown::from(Kept { id: tenant.to_string(), revision, record });
    let path = format!("/v1/tenants/{}", tenant.id);
    Ok(Reply::json(StatusCode::CREATED, &TenantMade { tenant, key })?.tagged(revision).at(&path))
}

fn scope_of(tenant: Uuid) -> TenantScope {
    TenantScope::vouched(TenantId::new(tenant))
}

fn shown(kept: Kept<Record>) -> Result<Reply, Problem> {
    let tenant = TenantShown::from(kept);
    Ok(Reply::ok(&tenant)?.tagged(tenant.revision))
}

async fn show(call: Call<OfTenant>) -> Result<Reply, Problem> {
    shown(call.server.tenants.read(call.path.tenant).await?)
}

async fn update(call: Call<OfTenant, Nothing, Json<UpdateTenant>>) -> Result<Reply, Problem> {
    let tenants = &call.server.tenants;
    let mut kept = tenants.read(call.path.tenant).await?;
    let Json(UpdateTenant { name, suspended, requests_per_second, quota }) = &call.body;
    let record = &mut kept.record;
    record.name = name.clone().unwrap_or_else(|| record.name.clone());
    record.suspended = suspended.unwrap_or(record.suspended);
    record.requests_per_second = requests_per_second.unwrap_or(record.requests_per_second);
    record.quota = quota.unwrap_or(record.quota);
    let expect = Expect::Live(call.seen()?.unwrap_or(kept.revision));
    kept.revision = tenants.write(call.path.tenant, Some(record), expect, &call.caller).await?;
    shown(kept)
}

async fn remove(call: Call<OfTenant>) -> Result<Reply, Problem> {
    let tenants = &call.server.tenants;
    let kept = tenants.read(call.path.tenant).await?;
    let has = contents(&call.server, scope_of(call.path.tenant)).await?;
    if !has.is_empty() {
        let detail =
            format!("Tenant {} still has {}: take them away first.", call.path.tenant, has.join(", "));
        return Err(Problem::new(StatusCode::CONFLICT, "notEmpty", detail).param("has", has));
    }
    let expect = Expect::Live(call.seen()?.unwrap_or(kept.revision));
    tenants.write(call.path.tenant, None, expect, &call.caller).await?;
    Ok(Reply::nothing())
}

/// What a tenant has that somebody could still use.
async fn contents(server: &Server, scope: TenantScope) -> Result<Vec<&'static str>, Problem> {
    let engine = server.engine.for_tenant(scope);
    let handles = RecordQuery::Handles(HandleQuery { limit: 1, ..HandleQuery::default() });
    let active = engine.catalogue().active().await.map_err(|error| match error {
        CatalogueError::Engine(error) => error,
        other => EngineError::Invalid(other.to_string()),
    })?;
    let has = [
        ("API keys", !server.keys.list(scope, 1, None).await?.items.is_empty()),
        ("workflows that can be started", !active.is_empty()),
        ("runs", !engine.runs(RunQuery { limit: 1, ..RunQuery::default() }).await?.items.is_empty()),
        ("handles", !engine.store().records(scope, handles).await?.items.is_empty()),
        ("keys with a value", !engine.kv_namespaces(Some(1), None).await?.items.is_empty()),
        ("links", !engine.link_namespaces(Some(1), None).await?.items.is_empty()),
    ];
    Ok(has.into_iter().filter(|(_, is_there)| *is_there).map(|(what, _)| what).collect())
}

async fn create_key(call: Call<OfTenant, Nothing, Json<CreateApiKey>>) -> Result<Reply, Problem> {
    call.server.tenants.read(call.path.tenant).await?;
    let key = made(&call.server, scope_of(call.path.tenant), &call.body.0, &call.caller).await?;
    Reply::json(StatusCode::CREATED, &key)
}
