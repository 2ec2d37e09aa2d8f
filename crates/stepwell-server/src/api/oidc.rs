//! Tokens of OpenID Connect issuers: whose they are, whether they are good, and who asks with one.

mod keys;
mod token;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use stepwell::core::Timestamp;
use stepwell::store::TenantId;
use stepwell::{Actor, Grants};

use crate::outlets::SetupError;
use keys::{Away, Keys};
use token::Token;

pub use token::Algorithm;

/// How far the clocks of an issuer and of this server may be apart at most.
const LEEWAY_MAX: Duration = Duration::from_secs(300);
/// Characters that the name of somebody has at most.
const ACTOR_CHARS: usize = 256;

/// Where an issuer's keys come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// The issuer says where: `/.well-known/openid-configuration` under its address.
    Discovery,
    /// This address.
    Url(String),
    /// They are these and do not change: the JSON of a key set.
    Set(String),
}

/// Which tenant whoever brings a token belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantOf {
    /// This one, all of them.
    Fixed(TenantId),
    /// The claim of this name has the tenant's id or name. It never leads to the server's own tenant.
    Claim(String),
}

/// An issuer whose tokens are taken, and what their claims mean. A claim is called by its name, or, if that begins with `/`,
/// by a JSON pointer.
#[derive(Debug, Clone)]
pub struct IssuerOptions {
    /// What it is called here; the actor of what is done with its tokens is `oidc:`, this, and `:` and the claim.
    pub name: String,
    /// What `iss` has to be, exactly.
    pub issuer: String,
    /// One of these has to be in `aud`.
    pub audiences: BTreeSet<String>,
    /// Where its keys come from.
    pub keys: KeySource,
    /// The algorithms by which it signs.
    pub algorithms: BTreeSet<Algorithm>,
    /// How far its clock may be from ours.
    pub leeway: Duration,
    /// Which tenant.
    pub tenant: TenantOf,
    /// The claim that says what somebody may do: a list, or words with spaces between them.
    pub permissions_claim: String,
    /// What each of its values permits; what is not in here permits nothing. If this is empty, the values are the names of permissions.
    pub roles: BTreeMap<String, Grants>,
    /// The claim that says who it is.
    pub actor_claim: String,
    /// Keys that are older than this are fetched again.
    pub refresh: Duration,
    /// Keys that could not be fetched again are good for so long.
    pub keep: Duration,
    /// The issuer is not asked again within this time.
    pub pause: Duration,
}

impl IssuerOptions {
    /// An issuer, by what it is called here and by its address, for an audience and a tenant; everything else as usual.
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
            actor_claim: "sub".to_owned(),
            refresh: Duration::from_secs(300),
            keep: Duration::from_secs(24 * 3_600),
            pause: Duration::from_secs(10),
        }
    }

    fn check(&self) -> Result<(), SetupError> {
        let wrong = |why: &str| Err(SetupError::new(format!("issuer `{}`: {why}", self.name)));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(is_plain) {
            return wrong("its name has 1 to 64 letters, digits, `-`, `_` and `.`");
        }
        if self.issuer.is_empty() {
            return wrong("`issuer` is what `iss` has to be: it cannot be empty");
        }
        if self.audiences.is_empty() || self.audiences.contains("") {
            return wrong("`audience` says for whom tokens have to be made: name at least one");
        }
        if self.algorithms.is_empty() {
            return wrong("`algorithms` says how tokens are signed: name at least one");
        }
        if self.leeway > LEEWAY_MAX {
            return wrong("`leeway` is 5 minutes at most");
        }
        if self.permissions_claim.is_empty() || self.actor_claim.is_empty() {
            return wrong("claims have names");
        }
        Ok(())
    }
}

/// The issuers whose tokens are taken.
#[derive(Default)]
pub(crate) struct Issuers(Vec<Issuer>);

struct Issuer {
    options: IssuerOptions,
    keys: Arc<Keys>,
}

/// What a good token says.
pub(crate) struct Vouched {
    pub(crate) tenant: TenantSaid,
    pub(crate) actor: Actor,
}

/// The tenant that a token leads to.
pub(crate) enum TenantSaid {
    /// Whoever runs the server says so.
    Fixed(TenantId),
    /// A claim says this.
    Claimed(String),
}

/// Why a token is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotTaken {
    /// It was good, and its time is over.
    #[error("it has expired")]
    Expired,
    /// It is not good; why is for those who run the server.
    #[error("{0}")]
    Bad(&'static str),
    /// Its issuer does not answer, and nobody knows its keys.
    #[error("its issuer's keys are not known")]
    Away,
}

impl From<&'static str> for NotTaken {
    fn from(why: &'static str) -> Self {
        NotTaken::Bad(why)
    }
}

impl From<Away> for NotTaken {
    fn from(_: Away) -> Self {
        NotTaken::Away
    }
}

impl Issuers {
    pub(crate) fn new(all: Vec<IssuerOptions>) -> Result<Self, SetupError> {
        let (mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
        let mut issuers = Vec::with_capacity(all.len());
        for options in all {
            options.check()?;
            if !names.insert(options.name.clone()) || !addresses.insert(options.issuer.clone()) {
                let why = "there is another one of the same name or address: each is named once";
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

    /// What a token says, if it is good now. The reason why not goes to the log, the token does not.
    pub(crate) async fn vouched(&self, text: &str, now: Timestamp) -> Result<Vouched, NotTaken> {
        let checked = self.checked(text, now).await;
        if let Err(why) = &checked {
            tracing::debug!(%why, "a token was not taken");
        }
        checked
    }

    async fn checked(&self, text: &str, now: Timestamp) -> Result<Vouched, NotTaken> {
        let token = Token::read(text)?;
        let said = token.claims.get("iss").and_then(Value::as_str);
        let issuer = self.0.iter().find(|issuer| Some(issuer.options.issuer.as_str()) == said);
        let Issuer { options, keys } = issuer.ok_or("its issuer is none of ours")?;
        if !options.algorithms.contains(&token.algorithm) {
            return Err(NotTaken::Bad("its issuer does not sign by this algorithm"));
        }
        let key = keys.of(&token).await?.ok_or("its issuer has no such key")?;
        if !token.is_by(key.key()) {
            return Err(NotTaken::Bad("its signature is not good"));
        }
        options.vouched(&token.claims, now)
    }
}

impl IssuerOptions {
    /// What claims say that the issuer has signed.
    fn vouched(&self, claims: &Map<String, Value>, now: Timestamp) -> Result<Vouched, NotTaken> {
        if !words(claims.get("aud"), false).any(|audience| self.audiences.contains(audience)) {
            return Err(NotTaken::Bad("it is for somebody else"));
        }
        // Seconds, perhaps with a fraction: more exact than clocks are.
        let (now, leeway) = (now.micros() as f64 / 1e6, self.leeway.as_secs_f64());
        let time = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(time) => time.as_f64().map(Some).ok_or(NotTaken::Bad("a time in it is no number")),
        };
        let is_ahead = |time: Option<f64>| time.is_some_and(|time| time > now + leeway);
        if is_ahead(time("nbf")?) || is_ahead(time("iat")?) {
            return Err(NotTaken::Bad("its time has not come"));
        }
        let expires = time("exp")?.ok_or("it does not say when it expires")?;
        if now >= expires + leeway {
            return Err(NotTaken::Expired);
        }
        let who = claim(claims, &self.actor_claim).and_then(Value::as_str);
        let is_name = |who: &&str| {
            (1..=ACTOR_CHARS).contains(&who.chars().count()) && !who.chars().any(char::is_control)
        };
        let who = who.filter(is_name).ok_or("it does not say who it is")?;
        let actor = Actor::granted(format!("oidc:{}:{who}", self.name), self.grants(claims));
        let tenant = match &self.tenant {
            TenantOf::Fixed(tenant) => TenantSaid::Fixed(*tenant),
            TenantOf::Claim(name) => {
                let said = claim(claims, name).and_then(Value::as_str).ok_or("it names no tenant")?;
                TenantSaid::Claimed(said.to_owned())
            }
        };
        Ok(Vouched { tenant, actor })
    }

    /// What whoever has these claims may do: nothing that is not said here.
    fn grants(&self, claims: &Map<String, Value>) -> Grants {
        let mut grants = Grants::default();
        for word in words(claim(claims, &self.permissions_claim), true) {
            match self.roles.get(word) {
                Some(role) => grants.extend(role),
                // Words that mean nothing here are others' affair.
                None if self.roles.is_empty() => grants.add(word).unwrap_or_default(),
                None => {}
            }
        }
        grants
    }
}

/// A claim, by its name or a pointer to it.
fn claim<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let Some(path) = name.strip_prefix('/') else { return claims.get(name) };
    let part = |part: &str| part.replace("~1", "/").replace("~0", "~");
    let mut parts = path.split('/');
    let first = claims.get(&part(parts.next()?))?;
    parts.try_fold(first, |value, next| value.as_object()?.get(&part(next)))
}

/// The texts of a claim that is a list of them or one; one may have several words in it.
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
    fn only_what_is_mapped_is_permitted() {
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
            "a permission's own name is no role"
        );
    }

    #[test]
    fn a_claim_is_found_by_its_name_or_a_pointer() {
        let claims = json!({"https://example.com/org": "a", "x": {"y/z": "b"}, "list": ["c"]});
        let claims = claims.as_object().unwrap();
        let text = |name: &str| claim(claims, name).and_then(serde_json::Value::as_str);
        assert_eq!(text("https://example.com/org"), Some("a"));
        assert_eq!(text("/x/y~1z"), Some("b"));
        assert_eq!((text("/x/none"), text("/list/0"), text("/"), text("none")), (None, None, None, None));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let wrong = |change: fn(&mut IssuerOptions)| {
            let mut options = options();
            change(&mut options);
            super::Issuers::new(vec![options]).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(wrong(|options| options.name = "a:b".to_owned()).contains("its name has"));
        assert!(wrong(|options| options.audiences.clear()).contains("`audience`"));
        assert!(wrong(|options| options.leeway = super::LEEWAY_MAX * 2).contains("`leeway`"));
        assert!(wrong(|options| options.issuer = "http://id.example.com".to_owned()).contains("https"));
        assert!(
            wrong(|options| options.keys = super::KeySource::Set("{}".to_owned())).contains("no set of keys")
        );
        let twice = super::Issuers::new(vec![options(), options()]).err().unwrap().to_string();
        assert!(twice.contains("each is named once"), "{twice}");
    }
}
