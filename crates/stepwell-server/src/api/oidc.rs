//! Verifies tokens of OpenID Connect issuers and maps their claims to a tenant and an actor.

mod keys;
mod token;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use stepwell::core::Timestamp;
use stepwell::core::answerer::name_problem;
use stepwell::store::TenantId;
use stepwell::{Actor, Grants};

use crate::outlets::SetupError;
use keys::{IssuerUnavailable, Keys};
use token::Token;

pub use token::Algorithm;

/// Maximum allowed clock difference between an issuer and this server.
const LEEWAY_MAX: Duration = Duration::from_secs(300);
/// Maximum length of the actor claim, in characters.
const ACTOR_CHARS: usize = 256;

/// Source of an issuer's public keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// Discovery: `/.well-known/openid-configuration` under the issuer's URL names the key set.
    Discovery,
    /// The URL of the key set.
    Url(String),
    /// A fixed key set as JSON (RFC 7517). It is never fetched.
    Set(String),
}

/// Rule that assigns a token to a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantOf {
    /// All tokens belong to this tenant.
    Fixed(TenantId),
    /// The claim of this name holds the tenant's id or name. It never selects the server's own tenant.
    Claim(String),
}

/// An accepted issuer and the meaning of its claims. A claim is given by name, or by JSON pointer if it starts with
/// `/`.
#[derive(Debug, Clone)]
pub struct IssuerOptions {
    /// Name of the issuer on this server. Actors are recorded as `oidc:NAME:CLAIM`. 1 to 64 letters, digits, `-`, `_`
    /// and `.`.
    pub name: String,
    /// Required value of `iss`, compared exactly.
    pub issuer: String,
    /// Accepted audiences: `aud` must contain at least one of these.
    pub audiences: BTreeSet<String>,
    /// Source of the issuer's public keys. Default: discovery.
    pub keys: KeySource,
    /// Accepted signature algorithms. Default: all.
    pub algorithms: BTreeSet<Algorithm>,
    /// Allowed difference between the issuer's clock and ours. Default: 30 s, at most 5 minutes.
    pub leeway: Duration,
    /// Rule that assigns the issuer's tokens to a tenant.
    pub tenant: TenantOf,
    /// Claim with the permissions or roles: a list, or text separated by spaces. Default: `scope`.
    pub permissions_claim: String,
    /// Permissions of each role. Unlisted values grant nothing. If the map is empty, the claim's values are names of
    /// permissions.
    pub roles: BTreeMap<String, Grants>,
    /// Claim with the roles that waits name as `role:NAME`: a list, or text separated by spaces. Default: the claim with
    /// the permissions if [`IssuerOptions::roles`] is set, else none.
    pub roles_claim: Option<String>,
    /// Claim that identifies the user, which waits name as `user:ID`. Default: `sub`.
    pub actor_claim: String,
    /// Age after which keys are fetched again. Default: 5 minutes.
    pub refresh: Duration,
    /// Maximum age of keys that could not be fetched again. Default: 24 hours.
    pub max_stale: Duration,
    /// Minimum time between two requests to the issuer. Default: 10 s.
    pub pause: Duration,
}

impl IssuerOptions {
    /// Creates the options of an issuer with the defaults of the fields.
    pub fn new(
        name: impl Into<String>,
        issuer: impl Into<String>,
        audience: impl Into<String>,
        tenant: TenantOf,
    ) -> Self {
        IssuerOptions {
            name: name.into(),
            issuer: issuer.into(),
            audiences: [audience.into()].into(),
            keys: KeySource::Discovery,
            algorithms: Algorithm::ALL.into(),
            leeway: Duration::from_secs(30),
            tenant,
            permissions_claim: "scope".to_owned(),
            roles: BTreeMap::new(),
            roles_claim: None,
            actor_claim: "sub".to_owned(),
            refresh: Duration::from_secs(300),
            max_stale: Duration::from_secs(24 * 3_600),
            pause: Duration::from_secs(10),
        }
    }

    fn check(&self) -> Result<(), SetupError> {
        let wrong = |why: &str| Err(SetupError::new(format!("issuer `{}`: {why}", self.name)));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(is_plain) {
            return wrong("`name` must have 1 to 64 characters: letters, digits, `-`, `_` and `.`");
        }
        if self.issuer.is_empty() {
            return wrong("`issuer` must not be empty: it is the required value of `iss`");
        }
        if self.audiences.is_empty() || self.audiences.contains("") {
            return wrong("`audience` must name at least one audience of accepted tokens");
        }
        if self.algorithms.is_empty() {
            return wrong("`algorithms` must name at least one signature algorithm");
        }
        if self.leeway > LEEWAY_MAX {
            return wrong("`leeway` must be at most 5 minutes");
        }
        let is_empty = |claim: &Option<String>| claim.as_ref().is_some_and(String::is_empty);
        if self.permissions_claim.is_empty() || self.actor_claim.is_empty() || is_empty(&self.roles_claim) {
            return wrong("`permissions_claim`, `roles_claim` and `actor_claim` must not be empty");
        }
        Ok(())
    }
}

/// The configured issuers. Tokens of all others are rejected.
#[derive(Default)]
pub(crate) struct Issuers(Vec<Issuer>);

struct Issuer {
    options: IssuerOptions,
    keys: Arc<Keys>,
}

/// Tenant and actor of a verified token.
pub(crate) struct VerifiedToken {
    pub(crate) tenant: TenantClaim,
    pub(crate) actor: Actor,
}

/// The tenant of a verified token.
pub(crate) enum TenantClaim {
    /// The tenant comes from the server's configuration.
    Fixed(TenantId),
    /// The tenant's id or name comes from a claim and is not looked up yet.
    Claimed(String),
}

/// Reason for rejecting a token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    /// The token was valid and has expired.
    #[error("the token has expired")]
    Expired,
    /// The token is invalid. The text is for the server's log only.
    #[error("{0}")]
    Bad(&'static str),
    /// The issuer does not answer and no valid keys are cached.
    #[error("the issuer's keys cannot be fetched")]
    IssuerUnavailable,
}

impl From<&'static str> for TokenError {
    fn from(why: &'static str) -> Self {
        TokenError::Bad(why)
    }
}

impl From<IssuerUnavailable> for TokenError {
    fn from(_: IssuerUnavailable) -> Self {
        TokenError::IssuerUnavailable
    }
}

impl Issuers {
    pub(crate) fn new(all: Vec<IssuerOptions>) -> Result<Self, SetupError> {
        let (mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
        let mut issuers = Vec::with_capacity(all.len());
        for options in all {
            options.check()?;
            if !names.insert(options.name.clone()) || !addresses.insert(options.issuer.clone()) {
                let why = "another issuer has the same name or URL: both must be unique";
                return Err(SetupError::new(format!("issuer `{}`: {why}", options.name)));
            }
            let keys = Arc::new(Keys::new(&options)?);
            issuers.push(Issuer { options, keys });
        }
        Ok(Issuers(issuers))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Verifies a token and returns its tenant and actor. Logs the reason for a rejection, never the token.
    pub(crate) async fn trusted(&self, text: &str, now: Timestamp) -> Result<VerifiedToken, TokenError> {
        let checked = self.checked(text, now).await;
        if let Err(why) = &checked {
            tracing::debug!(%why, "token rejected");
        }
        checked
    }

    async fn checked(&self, text: &str, now: Timestamp) -> Result<VerifiedToken, TokenError> {
        let token = Token::read(text)?;
        let said = token.claims.get("iss").and_then(Value::as_str);
        let issuer = self.0.iter().find(|issuer| Some(issuer.options.issuer.as_str()) == said);
        let Issuer { options, keys } = issuer.ok_or("the issuer is not configured")?;
        if !options.algorithms.contains(&token.algorithm) {
            return Err(TokenError::Bad("the signature algorithm is not accepted for this issuer"));
        }
        let key = keys.of(&token).await?.ok_or("the issuer has no matching key")?;
        if !token.is_by(key.key()) {
            return Err(TokenError::Bad("the signature is invalid"));
        }
        options.trusted(&token.claims, now)
    }
}

impl IssuerOptions {
    /// Checks audience and validity period of signed claims, then reads the actor and the tenant.
    fn trusted(&self, claims: &Map<String, Value>, now: Timestamp) -> Result<VerifiedToken, TokenError> {
        if !words(claims.get("aud"), false).any(|audience| self.audiences.contains(audience)) {
            return Err(TokenError::Bad("the audience is not accepted"));
        }
        // Seconds as a float, because the claims may have a fraction. `f64` is more precise than clocks are.
        let (now, leeway) = (now.micros() as f64 / 1e6, self.leeway.as_secs_f64());
        let time = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(time) => time.as_f64().map(Some).ok_or(TokenError::Bad("a time claim is not a number")),
        };
        let is_ahead = |time: Option<f64>| time.is_some_and(|time| time > now + leeway);
        if is_ahead(time("nbf")?) || is_ahead(time("iat")?) {
            return Err(TokenError::Bad("the token is not valid yet"));
        }
        let expires = time("exp")?.ok_or("`exp` is missing")?;
        if now >= expires + leeway {
            return Err(TokenError::Expired);
        }
        let who = claim(claims, &self.actor_claim).and_then(Value::as_str);
        let is_name = |who: &&str| {
            (1..=ACTOR_CHARS).contains(&who.chars().count()) && !who.chars().any(char::is_control)
        };
        let who = who.filter(is_name).ok_or("the actor claim is missing or invalid")?;
        let mut actor =
            Actor::granted(format!("oidc:{}:{who}", self.name), self.grants(claims)).with_user(who);
        actor.roles = self.answering_roles(claims);
        let tenant = match &self.tenant {
            TenantOf::Fixed(tenant) => TenantClaim::Fixed(*tenant),
            TenantOf::Claim(name) => {
                let said =
                    claim(claims, name).and_then(Value::as_str).ok_or("the tenant claim is missing")?;
                TenantClaim::Claimed(said.to_owned())
            }
        };
        Ok(VerifiedToken { tenant, actor })
    }

    /// Returns the roles that waits can name. Values that cannot be the name of a role are ignored.
    fn answering_roles(&self, claims: &Map<String, Value>) -> BTreeSet<String> {
        let mapped = (!self.roles.is_empty()).then_some(&self.permissions_claim);
        let Some(name) = self.roles_claim.as_ref().or(mapped) else { return BTreeSet::new() };
        let roles = words(claim(claims, name), true).filter(|role| name_problem(role).is_none());
        roles.map(str::to_owned).collect()
    }

    /// Returns the permissions that the claims grant.
    fn grants(&self, claims: &Map<String, Value>) -> Grants {
        let mut grants = Grants::default();
        for word in words(claim(claims, &self.permissions_claim), true) {
            match self.roles.get(word) {
                Some(role) => grants.extend(role),
                // Ignores names that are not permissions: scopes of other services share the claim.
                None if self.roles.is_empty() => grants.add(word).unwrap_or_default(),
                None => {}
            }
        }
        grants
    }
}

/// Looks up a claim by its name or by a JSON pointer.
fn claim<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let Some(path) = name.strip_prefix('/') else { return claims.get(name) };
    let part = |part: &str| part.replace("~1", "/").replace("~0", "~");
    let mut parts = path.split('/');
    let first = claims.get(&part(parts.next()?))?;
    parts.try_fold(first, |value, next| value.as_object()?.get(&part(next)))
}

/// Returns the texts of a claim that is a list or a single text. With `is_split`, a single text is split at spaces.
fn words(value: Option<&Value>, is_split: bool) -> impl Iterator<Item = &str> {
    let (one, many) = match value {
        Some(Value::String(text)) => (Some(text.as_str()), None),
        Some(Value::Array(list)) => (None, Some(list.iter().filter_map(Value::as_str))),
        _ => (None, None),
    };
    let one = one.into_iter().flat_map(move |text| {
        let parts: Vec<&str> = if is_split { text.split_ascii_whitespace().collect() } else { vec![text] };
        parts
    });
    one.chain(many.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stepwell::store::TenantScope;
    use stepwell::{Grants, Permission};

    use super::{IssuerOptions, TenantOf, claim};

    fn options() -> IssuerOptions {
        let tenant = TenantOf::Fixed(TenantScope::SINGLE);
        IssuerOptions::new("main", "https://id.example.com", "stepwell", tenant)
    }

    #[test]
    fn only_mapped_roles_grant_permissions() {
        let permitted =
            |options: &IssuerOptions, claims: serde_json::Value| options.grants(claims.as_object().unwrap());
        let plain = options();
        let both = Grants::from([Permission::View, Permission::Manage]);
        assert_eq!(permitted(&plain, json!({"scope": "openid workflow:manage workflow:view"})), both);
        assert_eq!(permitted(&plain, json!({"scope": ["workflow:view", "workflow:manage"]})), both);
        for nothing in [json!({}), json!({"scope": 7}), json!({"scope": "*"}), json!({"scope": "workflow:"})]
        {
            assert!(permitted(&plain, nothing).is_empty());
        }
        let mut mapped = options();
        mapped.permissions_claim = "/realm/roles".to_owned();
        mapped.roles.insert("viewer".to_owned(), [Permission::View].into());
        let roles = json!({"realm": {"roles": ["viewer", "workflow:admin", "other"]}});
        assert_eq!(
            permitted(&mapped, roles),
            [Permission::View].into(),
            "the name of a permission is not a role"
        );
    }

    #[test]
    fn roles_for_waits_come_from_their_claim() {
        let roles = |options: &IssuerOptions, claims: serde_json::Value| {
            let roles = options.answering_roles(claims.as_object().unwrap());
            roles.into_iter().collect::<Vec<_>>().join(",")
        };
        let mut plain = options();
        assert_eq!(roles(&plain, json!({"scope": "workflow:view manager"})), "", "scopes are not roles");
        plain.roles_claim = Some("/realm/roles".to_owned());
        let claims = json!({"realm": {"roles": ["manager", "head of finance", " ", 7]}});
        assert_eq!(roles(&plain, claims), "head of finance,manager");
        let mut mapped = options();
        mapped.roles.insert("viewer".to_owned(), [Permission::View].into());
        assert_eq!(roles(&mapped, json!({"scope": "viewer manager"})), "manager,viewer");
    }

    #[test]
    fn claim_is_found_by_name_or_pointer() {
        let claims = json!({"https://example.com/org": "a", "x": {"y/z": "b"}, "list": ["c"]});
        let claims = claims.as_object().unwrap();
        let text = |name: &str| claim(claims, name).and_then(serde_json::Value::as_str);
        assert_eq!(text("https://example.com/org"), Some("a"));
        assert_eq!(text("/x/y~1z"), Some("b"));
        assert_eq!((text("/x/none"), text("/list/0"), text("/"), text("none")), (None, None, None, None));
    }

    #[test]
    fn invalid_issuer_options_are_refused() {
        let wrong = |change: fn(&mut IssuerOptions)| {
            let mut options = options();
            change(&mut options);
            super::Issuers::new(vec![options]).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(wrong(|options| options.name = "a:b".to_owned()).contains("`name`"));
        assert!(wrong(|options| options.audiences.clear()).contains("`audience`"));
        assert!(wrong(|options| options.leeway = super::LEEWAY_MAX * 2).contains("`leeway`"));
        assert!(wrong(|options| options.issuer = "http://id.example.com".to_owned()).contains("https"));
        assert!(
            wrong(|options| options.keys = super::KeySource::Set("{}".to_owned())).contains("not a key set")
        );
        let twice = super::Issuers::new(vec![options(), options()]).err().unwrap().to_string();
        assert!(twice.contains("must be unique"), "{twice}");
    }
}
