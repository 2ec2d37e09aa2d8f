//! API keys: made, listed, rotated and revoked per tenant; only hashes are stored, and a key names its tenant.

use std::time::Duration;

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use stepwell::core::Timestamp;
use stepwell::store::{Expect, TenantId, TenantScope};
use stepwell::{Actor, Engine, EngineError, Grants, Permission};
use uuid::Uuid;

use super::call::{Call, Json, Nothing, Perhaps};
use super::quota::Counted;
use super::records::{Kept, Records};
use super::reply::Reply;
use super::route::{Route, delete, get, post};
use super::shapes::{Instant, Listing, Page, span};
use super::{Caller, Server};
use crate::routes::problem::Problem;

/// Whose cells keys are.
const OWNER: &str = "stepwell.apikeys";
/// What a key begins with, so that scanners for leaked secrets find it.
const PREFIX: &str = "swk";
/// How long the old secret of a rotated key is good, unless that is said.
const OVERLAP: Duration = Duration::from_secs(24 * 3_600);

/// A key as it is stored: everything but the secret.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    name: String,
    permissions: Grants,
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
    pub permissions: Grants,
    /// How long it is good; `None` = until it is revoked.
    pub ttl: Option<Duration>,
}

/// The API keys of all tenants.
pub struct ApiKeys {
    engine: Engine,
    records: Records<Record>,
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
        let permissions = self.permissions.words();
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

impl ApiKeys {
    /// The keys in an engine's store.
    pub fn new(engine: Engine) -> Self {
        ApiKeys { records: Records::new(engine.clone(), OWNER, "API key"), engine }
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
        self.records.write(scope, &id, Some(&record), Expect::Absent, by).await?;
        Ok(record.shown(id, Some(text)))
    }

    /// What may be done with a key; `None` = there is no such key. It never changes.
    pub async fn grants(&self, scope: TenantScope, id: &str) -> Result<Option<Grants>, EngineError> {
        Ok(self.records.read(scope, id).await?.map(|kept| kept.record.permissions))
    }

    /// Gives a key another secret; the old one is good for a while longer. `None` = there is no such key.
    pub async fn rotate(
        &self,
        scope: TenantScope,
        id: &str,
        overlap: Duration,
        by: Option<&str>,
    ) -> Result<Option<ApiKey>, EngineError> {
        let Some(Kept { revision, mut record, .. }) = self.records.read(scope, id).await? else {
            return Ok(None);
        };
        let (text, secret) = self.fresh(scope, id)?;
        let now = self.engine.now();
        let until = now.plus_ms(u64::try_from(overlap.as_millis()).unwrap_or(u64::MAX));
        record.secrets.retain(|secret| secret.until.is_none_or(|until| now < until));
        for old in &mut record.secrets {
            old.until = Some(old.until.map_or(until, |before| before.min(until)));
        }
        record.secrets.push(Secret { hash: hash(&secret), until: None });
        self.records.write(scope, id, Some(&record), Expect::Live(revision), by).await?;
        Ok(Some(record.shown(id.to_owned(), Some(text))))
    }

    /// Takes a key away; says whether there was one.
    pub async fn revoke(&self, scope: TenantScope, id: &str, by: Option<&str>) -> Result<bool, EngineError> {
        let Some(Kept { revision, .. }) = self.records.read(scope, id).await? else { return Ok(false) };
        self.records.write(scope, id, None, Expect::Live(revision), by).await?;
        Ok(true)
    }

    /// The keys of a tenant.
    pub async fn list(
        &self,
        scope: TenantScope,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<stepwell::store::Page<ApiKey>, EngineError> {
        let page = self.records.list(scope, limit, cursor).await?;
        Ok(page.map(|kept| kept.record.shown(kept.id, None)))
    }

    /// Who asks with a key, if it is good.
    pub(crate) async fn caller(&self, text: &str) -> Result<Option<Caller>, Problem> {
        let Some(Parsed { tenant, id, secret }) = Parsed::of(text) else { return Ok(None) };
        // The key names its tenant, and is looked up there and nowhere else.
        let scope = TenantScope::vouched(tenant);
        let record = self.records.known(scope, id).await?;
        let Some(record) = record.filter(|record| record.has(secret, self.engine.now())) else {
            return Ok(None);
        };
        let actor = Actor::granted(format!("apikey:{}", record.name), record.permissions);
        Ok(Some(Caller::new(scope, actor)))
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
pub(super) struct CreateApiKey {
    /// What people call it.
    #[schemars(length(min = 1, max = 100))]
    name: String,
    /// What may be done with it; each permission is given by itself.
    #[schemars(with = "Vec<PermissionWord>", length(min = 1))]
    permissions: Grants,
    /// How long it is good; without this until it is revoked.
    #[schemars(with = "Option<super::shapes::Span>")]
    ttl: Option<String>,
}

/// A permission, or `worker:ACTION` for the tasks of a remote action (`worker:*` for those of all).
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
#[schemars(transparent)]
struct PermissionWord(
    #[schemars(regex(pattern = r"^(workflow:(view|read|manage|publish|admin)|worker:[!-~]{1,256})$"))] String,
);

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
            .leads("/v1/apikeys/{id}", "id", "/id")
            .to(create),
        post("/v1/apikeys/{id}/rotate", "rotateApiKey", admin, "Gives an API key another secret.")
            .notes("The new secret is as good as the key: who rotates it needs every permission that it has.")
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
    has_all(&call.caller, &call.body.0.permissions)?;
    let key = made(&call.server, call.caller.scope(), &call.body.0, &call.caller).await?;
    Ok(Reply::json(StatusCode::CREATED, &key)?.at(&format!("/v1/apikeys/{}", key.id)))
}

/// Nobody gives away more than they have themselves, with a new key or with the secret of another.
fn has_all(caller: &Caller, given: &Grants) -> Result<(), Problem> {
    let own = caller.actor().map(|actor| actor.grants.clone()).unwrap_or_default();
    let Some(word) = own.lacking(given) else { return Ok(()) };
    let detail = format!("You do not have `{word}` yourself, so you cannot give it away.");
    Err(Problem::new(StatusCode::FORBIDDEN, "denied", detail).param("permission", word))
}

/// Makes a key in a tenant, as somebody asked for it.
pub(super) async fn made(
    server: &Server,
    scope: TenantScope,
    asked: &CreateApiKey,
    by: &Caller,
) -> Result<ApiKey, Problem> {
    let CreateApiKey { name, permissions, ttl } = asked;
    let ttl = ttl.as_deref().map(span).transpose()?;
    if ttl.is_some_and(|ttl| ttl.is_zero()) {
        let detail = "A key has to be good for some time: `ttl` is more than nothing.";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail));
    }
    server.room(scope, Counted::ApiKeys).await?;
    let new = NewKey { name: name.clone(), permissions: permissions.clone(), ttl };
    Ok(server.keys.create(scope, new, by.actor().map(|actor| actor.id.as_str())).await?)
}

async fn rotate(call: Call<OfKey, Nothing, Perhaps<RotateApiKey>>) -> Result<Reply, Problem> {
    let Perhaps(RotateApiKey { overlap }) = &call.body;
    let overlap = overlap.as_deref().map(span).transpose()?.unwrap_or(OVERLAP);
    let (scope, id) = (call.caller.scope(), &call.path.id);
    let known = call.server.keys.grants(scope, id).await?.ok_or_else(|| no_key(id))?;
    has_all(&call.caller, &known)?;
    let by = call.caller.actor().map(|actor| actor.id.as_str());
    let key = call.server.keys.rotate(scope, id, overlap, by).await?;
    Reply::ok(&key.ok_or_else(|| no_key(id))?)
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
