//! API keys of a tenant: create, list, rotate and revoke them. A key contains its tenant's id, and only hashes of
//! secrets are stored.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use stepwell::core::Timestamp;
use stepwell::core::answerer::name_problem;
use stepwell::store::{
    BadRow, CellKey, CellOp, CellWrite, Precondition, Space, StoreError, TenantId, TenantScope, Ttl,
    ValueType,
};
use stepwell::{Actor, DataError, Engine, EngineError, Grants, Permission};
use uuid::Uuid;

use super::call::{Call, Json, Nothing, OptionalBody};
use super::quota::QuotaKind;
use super::records::{Kept, Records, Stored};
use super::reply::Reply;
use super::route::{Route, delete, get, post};
use super::shapes::{Instant, Listing, Page, span};
use super::{Caller, Server};
use crate::routes::problem::Problem;

/// Owner of the cells that store API keys.
const OWNER: &str = "stepwell.apikeys";
/// Owner of the cells that reserve the names of API keys.
const NAMES: &str = "stepwell.apikeyNames";
/// Prefix of every key, so that scanners for leaked secrets find it.
const PREFIX: &str = "swk";
/// Default time for which the old secret stays valid after a rotation.
const OVERLAP: Duration = Duration::from_secs(24 * 3_600);

/// The stored part of a key: everything except the secret.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    name: String,
    permissions: Grants,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    roles: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    created_at: Timestamp,
    created_by: Option<String>,
    expires_at: Option<Timestamp>,
    secrets: Vec<Secret>,
}

/// A secret that a key is valid with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Secret {
    /// SHA-256 of the secret. A slow hash would protect guessable secrets, but this one has 256 random bits.
    hash: String,
    /// End of validity after a rotation; `None` for the current secret.
    until: Option<Timestamp>,
}

/// An API key of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// Id of the key, 16 hexadecimal digits. It is part of the key.
    pub id: String,
    /// Name of the key. The audit trail records its changes under the actor `apikey:NAME`.
    pub name: String,
    /// Names of the permissions that the key grants.
    pub permissions: Vec<String>,
    /// Roles of the caller, which waits name as `role:NAME`; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// Id of the user, which waits name as `user:ID`; absent if the key belongs to no user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Time at which the key was created.
    #[schemars(with = "Instant")]
    pub created_at: Timestamp,
    /// Actor that created the key; absent if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// Time at which the key expires; absent if it never expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    pub expires_at: Option<Timestamp>,
    /// The complete key. It is shown once, when the key is created or rotated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// Name, permissions, roles and lifetime of a new key.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// The name, unique within the tenant. The audit trail records the actor `apikey:NAME`.
    pub name: String,
    pub permissions: Grants,
    /// Roles of the caller, which waits name as `role:NAME`.
    pub roles: BTreeSet<String>,
    /// Id of the user, which waits name as `user:ID`.
    pub user: Option<String>,
    /// Lifetime of the key; `None` = it never expires.
    pub ttl: Option<Duration>,
}

impl NewKey {
    /// Describes a key without roles that never expires.
    pub fn new(name: impl Into<String>, permissions: Grants) -> Self {
        NewKey { name: name.into(), permissions, roles: BTreeSet::new(), user: None, ttl: None }
    }

    /// Rejects a name, a role or a user that could not be told apart in the audit trail or in a wait.
    fn check(&self) -> Result<(), EngineError> {
        let named = [("name", &self.name)].into_iter();
        let roles = self.roles.iter().map(|role| ("role", role));
        for (what, text) in named.chain(roles).chain(self.user.iter().map(|user| ("user", user))) {
            if let Some(why) = name_problem(text) {
                return Err(EngineError::Invalid(format!("`{text}` is not a valid {what}: {why}")));
            }
        }
        Ok(())
    }
}

/// The API keys of all tenants.
pub struct ApiKeys {
    engine: Engine,
    records: Records<Record>,
}

/// The parts of a key's text.
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
        let Record { name, roles, user, created_at, created_by, expires_at, .. } = self;
        let roles = roles.into_iter().collect();
        ApiKey { id, name, permissions, roles, user, created_at, created_by, expires_at, secret }
    }

    /// Returns true if neither the key nor this secret has expired and the secret is one of the key's.
    fn has(&self, secret: &str, now: Timestamp) -> bool {
        let hash = hash(secret);
        let is_in_time = |until: Option<Timestamp>| until.is_none_or(|until| now < until);
        let is_same =
            |known: &Secret| is_equal(known.hash.as_bytes(), hash.as_bytes()) && is_in_time(known.until);
        is_in_time(self.expires_at) && self.secrets.iter().any(is_same)
    }
}

/// Compares two texts in constant time, so that the time does not reveal where they differ.
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
    /// Opens the API keys in the engine's store.
    pub fn new(engine: Engine) -> Self {
        ApiKeys { records: Records::new(engine.clone(), OWNER, "API key"), engine }
    }

    /// Creates a key. Only this result contains the key in plain text.
    pub async fn create(
        &self,
        scope: TenantScope,
        new: NewKey,
        by: Option<&str>,
    ) -> Result<ApiKey, DataError> {
        new.check()?;
        let id: String = random::<8>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let (text, secret) = self.fresh(scope, &id)?;
        let now = self.engine.now();
        let ttl_ms = |ttl: Duration| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let record = Record {
            name: new.name,
            permissions: new.permissions,
            roles: new.roles,
            user: new.user,
            created_at: now,
            created_by: by.map(str::to_owned),
            expires_at: new.ttl.map(|ttl| now.plus_ms(ttl_ms(ttl))),
            secrets: vec![Secret { hash: hash(&secret), until: None }],
        };
        let name = self.name_cell(&record.name, Some(&id));
        self.records.write(scope, &id, Some(&record), Precondition::Absent, by, Some(name)).await?;
        Ok(record.shown(id, Some(text)))
    }

    /// Returns the permissions of a key, which never change. `None` = no key has this id.
    pub async fn grants(&self, scope: TenantScope, id: &str) -> Result<Option<Grants>, EngineError> {
        Ok(self.records.read(scope, id).await?.map(|kept| kept.record.permissions))
    }

    /// Replaces the secret of a key; the old one stays valid for `overlap`. Returns `None` if no key has this id.
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
        self.records.write(scope, id, Some(&record), Precondition::Live(revision), by, None).await?;
        Ok(Some(record.shown(id.to_owned(), Some(text))))
    }

    /// Revokes a key. Returns false if no key has this id.
    pub async fn revoke(&self, scope: TenantScope, id: &str, by: Option<&str>) -> Result<bool, EngineError> {
        let (expect, name) = match self.records.read(scope, id).await {
            Ok(None) => return Ok(false),
            Ok(Some(Kept { revision, record, .. })) => {
                (Precondition::Live(revision), Some(self.name_cell(&record.name, None)))
            }
            // An unreadable key can be revoked. Its name is unknown, so the name stays reserved.
            Err(EngineError::Store(StoreError::Bad(_))) => (Precondition::Anything, None),
            Err(error) => return Err(error),
        };
        self.records.write(scope, id, None, expect, by, name).await?;
        Ok(true)
    }

    /// Returns the write that reserves the name of a key, or frees it. Two keys with one name would be one actor.
    fn name_cell(&self, name: &str, id: Option<&str>) -> CellWrite {
        let key = CellKey { space: Space::Workflow, owner: NAMES.to_owned(), key: name.to_owned() };
        let (op, expect) = match id {
            Some(id) => {
                let (value, value_type) = (id.into(), ValueType::String);
                (CellOp::Set { value, value_type, ttl: Ttl::Forever }, Precondition::Absent)
            }
            None => (CellOp::Delete, Precondition::Anything),
        };
        CellWrite { key, op, expect, initial: None, by: None }
    }

    /// Returns the rows of a tenant's keys that cannot be read.
    pub(crate) async fn unreadable(&self, scope: TenantScope) -> Result<Vec<BadRow>, EngineError> {
        self.records.unreadable(scope).await
    }

    /// Lists the keys of a tenant, without secrets.
    pub async fn list(
        &self,
        scope: TenantScope,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<stepwell::store::Page<ApiKey>, EngineError> {
        let page = self.records.list(scope, limit, cursor).await?;
        Ok(page.map(|kept| kept.record.shown(kept.id, None)))
    }

    /// Returns the key whose complete text this is, without its secret. `None` = no valid key has this text.
    pub async fn valid(&self, text: &str) -> Result<Option<ApiKey>, EngineError> {
        let Some(Parsed { tenant, id, secret }) = Parsed::of(text) else { return Ok(None) };
        let kept = match self.records.read(TenantScope::trusted(tenant), id).await {
            // An unreadable key grants nothing.
            Err(EngineError::Store(StoreError::Bad(_))) => None,
            kept => kept?,
        };
        let record = kept.map(|kept| kept.record).filter(|record| record.has(secret, self.engine.now()));
        Ok(record.map(|record| record.shown(id.to_owned(), None)))
    }

    /// Returns the caller that a key authenticates, or `None` if the key is invalid.
    pub(crate) async fn caller(&self, text: &str) -> Result<Option<Caller>, Problem> {
        let Some(Parsed { tenant, id, secret }) = Parsed::of(text) else { return Ok(None) };
        // The key names its tenant and is looked up in that tenant only.
        let scope = TenantScope::trusted(tenant);
        // An unreadable key grants nothing.
        let Some(Stored::Readable(record)) = self.records.known(scope, id).await? else { return Ok(None) };
        if !record.has(secret, self.engine.now()) {
            return Ok(None);
        }
        let mut actor = Actor::granted(format!("apikey:{}", record.name), record.permissions);
        (actor.roles, actor.user) = (record.roles, record.user);
        Ok(Some(Caller::new(scope, actor)))
    }

    /// Generates a secret. Returns the complete key and the secret.
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

/// Path parameter that selects an API key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct KeyPath {
    /// Id of the key, 16 hexadecimal digits.
    #[schemars(regex(pattern = r"^[0-9a-f]{16}$"))]
    id: String,
}

/// Request to create an API key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreateApiKey {
    /// Name of the key, 1 to 100 characters, unique within the tenant.
    #[schemars(length(min = 1, max = 100))]
    name: String,
    /// Permissions to grant. No permission includes another.
    #[schemars(with = "Vec<PermissionName>", length(min = 1))]
    permissions: Grants,
    /// Roles of the caller. A wait with the answerer `role:NAME` can be answered with this key. Default: none.
    #[serde(default)]
    #[schemars(inner(length(min = 1, max = 256)))]
    roles: BTreeSet<String>,
    /// Id of the user that the key belongs to, 1 to 256 characters. A wait with the answerer `user:ID` can be answered
    /// with this key. Default: none.
    #[schemars(length(min = 1, max = 256))]
    user: Option<String>,
    /// Lifetime of the key, more than zero. Default: it never expires.
    #[schemars(with = "Option<super::shapes::Span>")]
    ttl: Option<String>,
}

/// A permission, such as `workflow:view`, or `worker:ACTION` for the tasks of a remote action (`worker:*` for all).
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
#[schemars(transparent)]
struct PermissionName(
    #[schemars(regex(
        pattern = r"^(workflow:(view|read|manage|publish|answer|admin)|worker:[!-~]{1,256})$"
    ))]
    String,
);

/// Options of a rotation.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RotateApiKey {
    /// Time for which the old secret stays valid. Default: `24h`.
    #[schemars(with = "Option<super::shapes::Span>")]
    overlap: Option<String>,
}

pub(super) fn routes() -> Vec<Route> {
    let admin = Permission::Admin;
    vec![
        get("/v1/apikeys", "listApiKeys", admin, "List the API keys of the tenant.")
            .ok::<Page<ApiKey>>("The keys, without their secrets.")
            .to(list),
        post("/v1/apikeys", "createApiKey", admin, "Create an API key.")
            .notes("Only this response contains the key: the server stores its hash. The caller needs every permission that the key grants.")
            .gives::<ApiKey>(StatusCode::CREATED, "The key, with its secret.")
            .links_to("/v1/apikeys/{id}", "id", "/id")
            .to(create),
        post("/v1/apikeys/{id}/rotate", "rotateApiKey", admin, "Replace the secret of an API key.")
            .notes("The caller needs every permission that the key grants, because the response contains the new secret.")
            .ok::<ApiKey>("The key, with its new secret.")
            .to(rotate),
        delete("/v1/apikeys/{id}", "revokeApiKey", admin, "Revoke an API key.")
            .notes("Other processes may accept the key for up to two more seconds.")
            .gives_nothing("The key is revoked.")
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

/// Rejects a caller who lacks one of these permissions. It applies to new keys and to rotations, because both hand out
/// a secret that grants them.
fn has_all(caller: &Caller, given: &Grants) -> Result<(), Problem> {
    let own = caller.actor().map(|actor| actor.grants.clone()).unwrap_or_default();
    let Some(word) = own.lacking(given) else { return Ok(()) };
    let detail = format!("You cannot grant `{word}`, because you do not have this permission.");
    Err(Problem::new(StatusCode::FORBIDDEN, "denied", detail).param("permission", word))
}

/// Creates the requested key in a tenant, within the tenant's quota.
pub(super) async fn made(
    server: &Server,
    scope: TenantScope,
    asked: &CreateApiKey,
    by: &Caller,
) -> Result<ApiKey, Problem> {
    let CreateApiKey { name, permissions, roles, user, ttl } = asked;
    let ttl = ttl.as_deref().map(span).transpose()?;
    if ttl.is_some_and(|ttl| ttl.is_zero()) {
        let detail = "`ttl` must be greater than zero.";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail));
    }
    server.check_quota(scope, QuotaKind::ApiKeys).await?;
    let (roles, user) = (roles.clone(), user.clone());
    let new = NewKey { name: name.clone(), permissions: permissions.clone(), roles, user, ttl };
    match server.keys.create(scope, new, by.actor().map(|actor| actor.id.as_str())).await {
        Err(DataError::Conflict { .. }) => {
            let detail = format!("An API key named `{name}` exists: revoke it, or choose another name.");
            Err(Problem::new(StatusCode::CONFLICT, "exists", detail))
        }
        made => Ok(made?),
    }
}

async fn rotate(call: Call<KeyPath, Nothing, OptionalBody<RotateApiKey>>) -> Result<Reply, Problem> {
    let OptionalBody(RotateApiKey { overlap }) = &call.body;
    let overlap = overlap.as_deref().map(span).transpose()?.unwrap_or(OVERLAP);
    let (scope, id) = (call.caller.scope(), &call.path.id);
    let known = call.server.keys.grants(scope, id).await?.ok_or_else(|| no_key(id))?;
    has_all(&call.caller, &known)?;
    let by = call.caller.actor().map(|actor| actor.id.as_str());
    let key = call.server.keys.rotate(scope, id, overlap, by).await?;
    Reply::ok(&key.ok_or_else(|| no_key(id))?)
}

async fn revoke(call: Call<KeyPath>) -> Result<Reply, Problem> {
    let by = call.caller.actor().map(|actor| actor.id.as_str());
    match call.server.keys.revoke(call.caller.scope(), &call.path.id, by).await? {
        true => Ok(Reply::nothing()),
        false => Err(no_key(&call.path.id)),
    }
}

fn no_key(id: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "noApiKey", format!("There is no API key `{id}`."))
}
