//! API keys: made, listed, rotated and revoked per tenant; only hashes are stored, and a key names its tenant.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant as Moment};

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use stepwell::core::Timestamp;
use stepwell::store::{
    CellFilter, CellKey, CellOp, CellQuery, CellWrite, Commit, CommitError, CommitId, Expect, Refused, Space,
    Store, TenantId, TenantScope, Ttl, ValueType,
};
use stepwell::{Actor, Engine, EngineError, Permission};
use uuid::Uuid;

use super::Caller;
use super::call::{Call, Json, Nothing, Perhaps};
use super::reply::Reply;
use super::route::{Route, delete, get, post};
use super::shapes::{Instant, Listing, Page, span};
use crate::routes::problem::Problem;

/// Whose cells keys are: the engine's own, which nobody writes by other ways.
const OWNER: &str = "stepwell.apikeys";
/// What a key begins with, so that scanners for leaked secrets find it.
const PREFIX: &str = "swk";
/// How long what is known of a key holds: so long a key that was revoked in another process may still be good here.
const KNOWN_FOR: Duration = Duration::from_secs(2);
/// Keys that are remembered at a time.
const KNOWN_MAX: usize = 10_000;
/// How long the old secret of a rotated key is good, unless that is said.
const OVERLAP: Duration = Duration::from_secs(24 * 3_600);

/// A key as it is stored: everything but the secret.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    name: String,
    permissions: BTreeSet<Permission>,
    created_at: Timestamp,
    created_by: Option<String>,
    expires_at: Option<Timestamp>,
    secrets: Vec<Secret>,
}

/// A secret that a key is good with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Secret {
    /// SHA-256: the secret has 256 random bits, so there is nothing to guess that a slow hash would protect.
    hash: String,
    /// After a rotation the old one is good until then.
    until: Option<Timestamp>,
}

/// A key as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// Its id; it is part of the key.
    pub id: String,
    /// What people call it; the actor of what is done with it is `apikey:` and this.
    pub name: String,
    /// What may be done with it.
    pub permissions: Vec<String>,
    /// When it was made.
    #[schemars(with = "Instant")]
    pub created_at: Timestamp,
    /// By whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// Until when it is good.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    pub expires_at: Option<Timestamp>,
    /// The key itself; shown once, when it is made or rotated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// A key that is to be made.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// What people call it.
    pub name: String,
    /// What may be done with it.
    pub permissions: BTreeSet<Permission>,
    /// How long it is good; `None` = until it is revoked.
    pub ttl: Option<Duration>,
}

/// What is known of a key at a moment.
struct Known {
    at: Moment,
    record: Option<Record>,
}

/// The API keys of all tenants.
pub struct ApiKeys {
    engine: Engine,
    known: Mutex<HashMap<(TenantId, String), Known>>,
}

/// A key's text, taken apart.
struct Parsed<'a> {
    tenant: TenantId,
    id: &'a str,
    secret: &'a str,
}

impl<'a> Parsed<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let mut parts = text.splitn(4, '_');
        let (prefix, tenant, id, secret) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_id = id.len() == 16 && id.bytes().all(|b| b.is_ascii_hexdigit());
        let tenant = Uuid::try_parse(tenant).ok().filter(|_| tenant.len() == 32)?;
        (prefix == PREFIX && is_id && secret.len() == 43).then_some(Parsed {
            tenant: TenantId::new(tenant),
            id,
            secret,
        })
    }
}

impl Record {
    fn shown(self, id: String, secret: Option<String>) -> ApiKey {
        let permissions = self.permissions.iter().map(ToString::to_string).collect();
        let Record { name, created_at, created_by, expires_at, .. } = self;
        ApiKey { id, name, permissions, created_at, created_by, expires_at, secret }
    }

    /// The key is good with this secret.
    fn has(&self, secret: &str, now: Timestamp) -> bool {
        let hash = hash(secret);
        let is_in_time = |until: Option<Timestamp>| until.is_none_or(|until| now < until);
        let is_same =
            |known: &Secret| is_equal(known.hash.as_bytes(), hash.as_bytes()) && is_in_time(known.until);
        is_in_time(self.expires_at) && self.secrets.iter().any(is_same)
    }
}

/// Two texts are equal; how long this takes says nothing of where they differ.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

fn hash(secret: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(secret.as_bytes()))
}

fn random<const N: usize>() -> Result<[u8; N], EngineError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| EngineError::Invalid(format!("no random bytes: {error}")))?;
    Ok(bytes)
}

fn cell(id: &str) -> CellKey {
    CellKey { space: Space::Workflow, owner: OWNER.to_owned(), key: id.to_owned() }
}

impl ApiKeys {
    /// The keys in an engine's store.
    pub fn new(engine: Engine) -> Self {
        ApiKeys { engine, known: Mutex::default() }
    }

    /// Makes a key. The answer has it in clear, once.
    pub async fn create(
        &self,
        scope: TenantScope,
        new: NewKey,
        by: Option<&str>,
    ) -> Result<ApiKey, EngineError> {
        let id: String = random::<8>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let (text, secret) = self.fresh(scope, &id)?;
        let now = self.engine.now();
        let ttl_ms = |ttl: Duration| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let record = Record {
            name: new.name,
            permissions: new.permissions,
            created_at: now,
            created_by: by.map(str::to_owned),
            expires_at: new.ttl.map(|ttl| now.plus_ms(ttl_ms(ttl))),
            secrets: vec![Secret { hash: hash(&secret), until: None }],
        };
        self.write(scope, &id, Some(&record), Expect::Absent, by).await?;
        Ok(record.shown(id, Some(text)))
    }

    /// Gives a key another secret; the old one is good for a while longer. `None` = there is no such key.
    pub async fn rotate(
        &self,
        scope: TenantScope,
        id: &str,
        overlap: Duration,
        by: Option<&str>,
    ) -> Result<Option<ApiKey>, EngineError> {
        let Some((revision, mut record)) = self.read(scope, id).await? else { return Ok(None) };
        let (text, secret) = self.fresh(scope, id)?;
        let now = self.engine.now();
        let until = now.plus_ms(u64::try_from(overlap.as_millis()).unwrap_or(u64::MAX));
        record.secrets.retain(|secret| secret.until.is_none_or(|until| now < until));
        for old in &mut record.secrets {
            old.until = Some(old.until.map_or(until, |before| before.min(until)));
        }
        record.secrets.push(Secret { hash: hash(&secret), until: None });
        self.write(scope, id, Some(&record), Expect::Live(revision), by).await?;
        Ok(Some(record.shown(id.to_owned(), Some(text))))
    }

    /// Takes a key away; says whether there was one.
    pub async fn revoke(&self, scope: TenantScope, id: &str, by: Option<&str>) -> Result<bool, EngineError> {
        let Some((revision, _)) = self.read(scope, id).await? else { return Ok(false) };
        self.write(scope, id, None, Expect::Live(revision), by).await?;
        Ok(true)
    }

    /// The keys of a tenant.
    pub async fn list(
        &self,
        scope: TenantScope,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<stepwell::store::Page<ApiKey>, EngineError> {
        let query = CellQuery { limit, cursor, ..self.query(CellFilter::Prefix(String::new())) };
        let page = self.engine.store().cells(scope, query).await?;
        let shown = |cell: stepwell::store::Cell| {
            let record: Record = serde_json::from_value(cell.value?).ok()?;
            Some(record.shown(cell.key.key, None))
        };
        Ok(stepwell::store::Page {
            items: page.items.into_iter().filter_map(shown).collect(),
            next: page.next,
        })
    }

    /// Who asks with a key, if it is good.
    pub(crate) async fn caller(&self, text: &str) -> Result<Option<Caller>, Problem> {
        let Some(Parsed { tenant, id, secret }) = Parsed::of(text) else { return Ok(None) };
        // The key names its tenant, and is looked up there and nowhere else.
        let scope = TenantScope::vouched(tenant);
        let record = match self.remembered(tenant, id) {
            Some(record) => record,
            None => {
                let record = self.read(scope, id).await?.map(|(_, record)| record);
                self.remember(tenant, id, record.clone());
                record
            }
        };
        let Some(record) = record.filter(|record| record.has(secret, self.engine.now())) else {
            return Ok(None);
        };
        let actor = Actor::new(format!("apikey:{}", record.name), record.permissions);
        Ok(Some(Caller::new(scope, actor)))
    }

    fn remembered(&self, tenant: TenantId, id: &str) -> Option<Option<Record>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get(&(tenant, id.to_owned())).filter(|known| known.at.elapsed() < KNOWN_FOR)?;
        Some(known.record.clone())
    }

    fn remember(&self, tenant: TenantId, id: &str, record: Option<Record>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.retain(|_, known| known.at.elapsed() < KNOWN_FOR);
        }
        // Somebody who tries very many keys does not fill the memory, and is asked for in the store each time.
        if known.len() < KNOWN_MAX {
            known.insert((tenant, id.to_owned()), Known { at: Moment::now(), record });
        }
    }

    fn query(&self, filter: CellFilter) -> CellQuery {
        let (space, owner) = (Space::Workflow, OWNER.to_owned());
        CellQuery { space, owner, filter, now: self.engine.now(), with_dead: false, limit: 1, cursor: None }
    }

    async fn read(&self, scope: TenantScope, id: &str) -> Result<Option<(u64, Record)>, EngineError> {
        let query = self.query(CellFilter::Key(id.to_owned()));
        let Some(cell) = self.engine.store().cells(scope, query).await?.items.pop() else { return Ok(None) };
        let record = cell.value.map(serde_json::from_value).transpose();
        let record = record
            .map_err(|error| EngineError::Invalid(format!("API key `{id}` cannot be read: {error}")))?;
        Ok(record.map(|record| (cell.revision, record)))
    }

    async fn write(
        &self,
        scope: TenantScope,
        id: &str,
        record: Option<&Record>,
        expect: Expect,
        by: Option<&str>,
    ) -> Result<(), EngineError> {
        let op = match record {
            Some(record) => {
                let value = serde_json::to_value(record).expect("a key's record is plain data");
                CellOp::Set { value, value_type: ValueType::Json, ttl: Ttl::Forever }
            }
            None => CellOp::Delete,
        };
        let mut commit = Commit::new(CommitId(Uuid::now_v7()), self.engine.now());
        commit.actor = by.map(str::to_owned);
        commit.cells.push(CellWrite { key: cell(id), op, expect, initial: None, by: None });
        let committed = self.engine.store().commit(scope, commit).await;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&(scope.tenant(), id.to_owned()));
        committed.map(drop).map_err(|error| match error {
            CommitError::Refused(Refused::Cell { .. }) => {
                EngineError::Invalid(format!("API key `{id}` was changed by somebody else: look at it again"))
            }
            other => other.into(),
        })
    }

    /// A new secret, and the key it makes.
    fn fresh(&self, scope: TenantScope, id: &str) -> Result<(String, String), EngineError> {
        let secret = URL_SAFE_NO_PAD.encode(random::<32>()?);
        Ok((format!("{PREFIX}_{}_{id}_{secret}", scope.tenant().uuid().simple()), secret))
    }
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiKeys").finish_non_exhaustive()
    }
}

/// Which key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfKey {
    /// The key's id.
    #[schemars(regex(pattern = r"^[0-9a-f]{16}$"))]
    id: String,
}

/// A key that is to be made.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CreateApiKey {
    /// What people call it.
    #[schemars(length(min = 1, max = 100))]
    name: String,
    /// What may be done with it; each permission is given by itself.
    #[schemars(with = "Vec<PermissionName>", length(min = 1))]
    permissions: BTreeSet<Permission>,
    /// How long it is good; without this until it is revoked.
    #[schemars(with = "Option<super::shapes::Span>")]
    ttl: Option<String>,
}

/// The name of a permission, in schemas.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
enum PermissionName {
    #[serde(rename = "workflow:view")]
    View,
    #[serde(rename = "workflow:read")]
    Read,
    #[serde(rename = "workflow:manage")]
    Manage,
    #[serde(rename = "workflow:publish")]
    Publish,
    #[serde(rename = "workflow:admin")]
    Admin,
}

/// How a key is rotated.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RotateApiKey {
    /// How long the old secret stays good; a day unless this says otherwise.
    #[schemars(with = "Option<super::shapes::Span>")]
    overlap: Option<String>,
}

pub(super) fn routes() -> Vec<Route> {
    let admin = Permission::Admin;
    vec![
        get("/v1/apikeys", "listApiKeys", admin, "Lists the API keys of the tenant.")
            .ok::<Page<ApiKey>>("The keys, without their secrets.")
            .to(list),
        post("/v1/apikeys", "createApiKey", admin, "Makes an API key.")
            .notes("The key is in the answer, and only there: it is stored as a hash.")
            .gives::<ApiKey>(StatusCode::CREATED, "The key, with its secret.")
            .to(create),
        post("/v1/apikeys/{id}/rotate", "rotateApiKey", admin, "Gives an API key another secret.")
            .ok::<ApiKey>("The key, with its new secret.")
            .to(rotate),
        delete("/v1/apikeys/{id}", "revokeApiKey", admin, "Revokes an API key.")
            .notes("In other processes it may be good for two more seconds.")
            .gives_nothing("It is revoked.")
            .to(revoke),
    ]
}

async fn list(call: Call<Nothing, Listing>) -> Result<Reply, Problem> {
    let (limit, cursor) = (call.query.limit(), call.query.cursor());
    let page = call.server.keys.list(call.caller.scope(), limit, cursor).await?;
    Reply::ok(&Page::of(page, |key| key))
}

async fn create(call: Call<Nothing, Nothing, Json<CreateApiKey>>) -> Result<Reply, Problem> {
    let Json(CreateApiKey { name, permissions, ttl }) = call.body;
    // Nobody gives away more than they have.
    let more = permissions.iter().find(|one| !call.caller.actor().is_some_and(|actor| actor.may(**one)));
    if let Some(permission) = more {
        let detail = format!("You do not have `{permission}` yourself, so you cannot give it away.");
        return Err(
            Problem::new(StatusCode::FORBIDDEN, "denied", detail).param("permission", permission.as_str())
        );
    }
    let ttl = ttl.as_deref().map(span).transpose()?;
    if ttl.is_some_and(|ttl| ttl.is_zero()) {
        let detail = "A key has to be good for some time: `ttl` is more than nothing.";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail));
    }
    let by = call.caller.actor().map(|actor| actor.id.clone());
    let key = call
        .server
        .keys
        .create(call.caller.scope(), NewKey { name, permissions, ttl }, by.as_deref())
        .await?;
    Ok(Reply::json(StatusCode::CREATED, &key)?.at(&format!("/v1/apikeys/{}", key.id)))
}

async fn rotate(call: Call<OfKey, Nothing, Perhaps<RotateApiKey>>) -> Result<Reply, Problem> {
    let Perhaps(RotateApiKey { overlap }) = &call.body;
    let overlap = overlap.as_deref().map(span).transpose()?.unwrap_or(OVERLAP);
    let by = call.caller.actor().map(|actor| actor.id.as_str());
    let key = call.server.keys.rotate(call.caller.scope(), &call.path.id, overlap, by).await?;
    Reply::ok(&key.ok_or_else(|| no_key(&call.path.id))?)
}

async fn revoke(call: Call<OfKey>) -> Result<Reply, Problem> {
    let by = call.caller.actor().map(|actor| actor.id.as_str());
    match call.server.keys.revoke(call.caller.scope(), &call.path.id, by).await? {
        true => Ok(Reply::nothing()),
        false => Err(no_key(&call.path.id)),
    }
}

fn no_key(id: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "noApiKey", format!("There is no API key `{id}`."))
}
