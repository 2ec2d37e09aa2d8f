//! Webhooks: an HTTP call from outside starts a workflow. A call becomes an event for one trigger. So it is accepted
//! once, delivered like other events, and recorded in the trigger's log.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Map, Value, json};
use sha2::Sha256;
use stepwell_core::Name;
use stepwell_core::spec::{OnWebhook, Signature, TriggerKind};
use stepwell_core::topic::digest;
use stepwell_store::{TenantId, TenantScope};

use super::{Emitted, Event};
use crate::actor::Permission;
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::secrets;

/// Name of the events that webhook calls become.
pub const EVENT: &str = "webhook";
/// Maximum difference between the time of a signed call and the engine's clock, in seconds.
const TOLERANCE_S: i64 = 300;
/// Prefix of Standard Webhooks secrets.
const SECRET: &str = "whsec_";
/// Headers with credentials. They are not passed on to workflows.
const PRIVATE: [&str; 4] = ["authorization", "cookie", "proxy-authorization", "set-cookie"];

/// An HTTP call to a webhook.
#[derive(Debug, Clone, Copy)]
pub struct HookCall<'a> {
    /// Path of the call, relative to the root of webhooks.
    pub path: &'a str,
    pub method: &'a str,
    /// Query parameters, in order.
    pub query: &'a [(String, String)],
    /// Headers, with lower-case names.
    pub headers: &'a [(String, String)],
    pub body: &'a [u8],
}

impl HookCall<'_> {
    fn header(&self, wanted: &str) -> Option<&str> {
        let is_it = |name: &str| name.eq_ignore_ascii_case(wanted);
        self.headers.iter().find(|(name, _)| is_it(name)).map(|(_, value)| value.as_str())
    }
}

/// A webhook call that was not accepted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HookError {
    /// No workflow has a webhook at this path.
    #[error("there is no webhook at `{0}`")]
    Unknown(String),
    /// The signature is missing or invalid. The caller gets no details.
    #[error("the signature is missing or invalid")]
    Unsigned,
    /// The body does not have its declared content type.
    #[error("the body does not match its `Content-Type`: {0}")]
    Body(String),
    /// The engine or the store failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A webhook trigger of a workflow.
struct Hook {
    workflow: Name,
    trigger: Name,
    on: OnWebhook,
}

impl Engine {
    /// Accepts a webhook call for a tenant. Each trigger at this path whose signature is valid gets it, once per id of
    /// the call. An unknown tenant gives the same error as an unknown path.
    pub async fn hook(&self, scope: TenantScope, call: HookCall<'_>) -> Result<Vec<Emitted>, HookError> {
        self.permit(Permission::Manage)?;
        self.scoped(scope).called(call).await
    }

    async fn called(&self, call: HookCall<'_>) -> Result<Vec<Emitted>, HookError> {
        let path = call.path.trim_matches('/');
        // The tenant comes from the caller and may not exist. Cache nothing and start nothing for it.
        let hooks =
            if self.inner.is_tenant(self.scope).await? { self.hooks_at(path).await? } else { Vec::new() };
        if hooks.is_empty() {
            return Err(HookError::Unknown(path.to_owned()));
        }
        let (mut signed, mut broken) = (Vec::new(), None);
        for hook in hooks {
            match self.checked(&hook.on, &call).await {
                Ok(Some(id)) => signed.push((hook, id)),
                Ok(None) => {}
                // A fault of one trigger must not affect the others.
                Err(error) => broken = Some(error),
            }
        }
        if signed.is_empty() {
            return Err(broken.map_or(HookError::Unsigned, HookError::Engine));
        }
        let data = data(&call)?;
        let mut emitted = Vec::new();
        for (hook, id) in signed {
            let source = format!("webhook/{}/{}", hook.workflow, hook.trigger);
            let mut event = Event::new(EVENT).source(source).with(&data).only(hook.workflow, hook.trigger);
            if let Some(id) = id {
                event = event.id(id);
            }
            emitted.push(self.emit(event).await?);
        }
        Ok(emitted)
    }

    async fn hooks_at(&self, path: &str) -> Result<Vec<Hook>, EngineError> {
        let mut found = Vec::new();
        for workflow in self.inner.triggered(self.scope).await?.items {
            let definition = &workflow.definition;
            for trigger in definition.triggers() {
                if let TriggerKind::Webhook(on) = &trigger.on
                    && on.path.trim_matches('/') == path
                {
                    let (workflow, trigger) = (definition.name().clone(), trigger.id.clone());
                    found.push(Hook { workflow, trigger, on: on.clone() });
                }
            }
        }
        Ok(found)
    }

    /// Checks the signature. Returns `None` if it is invalid, otherwise the id of the call, if it has one.
    async fn checked(
        &self,
        on: &OnWebhook,
        call: &HookCall<'_>,
    ) -> Result<Option<Option<String>>, EngineError> {
        let Some(name) = &on.secret else { return Ok(Some(own_id(&on.signature, call))) };
        let missing = |why: String| EngineError::Invalid(format!("secret `{name}` of a webhook: {why}"));
        if !secrets::is_name(name) {
            return Err(missing("a name consists of letters, digits and `_`".to_owned()));
        }
        let secrets = self.inner.registry.secrets.as_ref();
        let secrets = secrets.ok_or_else(|| missing("this engine has no source of secrets".to_owned()))?;
        let secret = secrets.secret(self.scope, name).await.map_err(missing)?;
        let secret = secret.filter(|secret| !secret.is_empty());
        let secret = secret.ok_or_else(|| missing("it does not exist or is empty".to_owned()))?;
        let now_s = self.now().micros() / 1_000_000;
        Ok(is_signed(&on.signature, call, &secret, now_s).then(|| own_id(&on.signature, call)))
    }
}

impl Inner {
    /// Returns `true` if the tenant exists: this process has used it, or it has rows in the store.
    async fn is_tenant(&self, scope: TenantScope) -> Result<bool, EngineError> {
        let tenant = scope.tenant();
        if self.lock_tenants().contains(&tenant) {
            return Ok(true);
        }
        let before = tenant.uuid().as_u128().checked_sub(1);
        let before = before.map(|id| TenantId::new(uuid::Uuid::from_u128(id)));
        Ok(self.store.tenants(before, 1).await?.first() == Some(&tenant))
    }
}

/// Returns the id by which duplicates of a call are recognised.
fn own_id(signature: &Signature, call: &HookCall<'_>) -> Option<String> {
    let id = match signature {
        Signature::Standard => call.header("webhook-id"),
        Signature::Github => call.header("x-github-delivery"),
        Signature::Header { id: Some(id), .. } => call.header(id),
        // Without an id header, the same body is the same call.
        Signature::Header { id: None, header, .. } => {
            call.header(header)?;
            return Some(digest(call.body));
        }
    };
    id.filter(|id| !id.is_empty()).map(str::to_owned)
}

fn is_signed(signature: &Signature, call: &HookCall<'_>, secret: &str, now_s: i64) -> bool {
    match signature {
        Signature::Standard => is_standard(call, secret, now_s),
        Signature::Github => {
            let given = call.header("x-hub-signature-256").and_then(|given| given.strip_prefix("sha256="));
            given.is_some_and(|given| matches_hex(secret.as_bytes(), &[call.body], given))
        }
        Signature::Header { header, prefix, .. } => {
            let given = call.header(header).and_then(|given| given.strip_prefix(prefix.as_str()));
            given.is_some_and(|given| matches_hex(secret.as_bytes(), &[call.body], given))
        }
    }
}

/// Checks a Standard Webhooks signature and its age.
fn is_standard(call: &HookCall<'_>, secret: &str, now_s: i64) -> bool {
    let (Some(id), Some(time), Some(given)) =
        (call.header("webhook-id"), call.header("webhook-timestamp"), call.header("webhook-signature"))
    else {
        return false;
    };
    let is_now = time.parse::<i64>().is_ok_and(|at| at.abs_diff(now_s) <= TOLERANCE_S as u64);
    let key = match secret.strip_prefix(SECRET) {
        Some(coded) => STANDARD.decode(coded).unwrap_or_default(),
        None => secret.as_bytes().to_vec(),
    };
    if !is_now || key.is_empty() {
        return false;
    }
    let head = format!("{id}.{time}.");
    given.split(' ').filter_map(|one| one.strip_prefix("v1,")).any(|one| {
        let given = STANDARD.decode(one);
        given.is_ok_and(|given| matches(&key, &[head.as_bytes(), call.body], &given))
    })
}

/// Checks an HMAC-SHA256 of the concatenated parts, in constant time.
fn matches(key: &[u8], parts: &[&[u8]], given: &[u8]) -> bool {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return false };
    parts.iter().for_each(|part| mac.update(part));
    mac.verify_slice(given).is_ok()
}

fn matches_hex(key: &[u8], parts: &[&[u8]], given: &str) -> bool {
    unhex(given).is_some_and(|given| matches(key, parts, &given))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// Builds the payload of the event from the call.
fn data(call: &HookCall<'_>) -> Result<Value, HookError> {
    let shown = call.headers.iter().filter(|(name, _)| {
        let name = name.to_ascii_lowercase();
        !PRIVATE.contains(&name.as_str()) && !name.contains("signature")
    });
    let headers: Map<String, Value> =
        shown.map(|(name, value)| (name.to_ascii_lowercase(), value.as_str().into())).collect();
    let query: Map<String, Value> =
        call.query.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
    let kind = call.header("content-type").unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let body = match kind.as_str() {
        _ if call.body.is_empty() => Value::Null,
        "application/json" => json_of(call.body)?,
        other if other.ends_with("+json") => json_of(call.body)?,
        _ => match std::str::from_utf8(call.body) {
            Ok(text) => text.into(),
            Err(_) => STANDARD.encode(call.body).into(),
        },
    };
    let path = call.path.trim_matches('/');
    Ok(json!({ "method": call.method, "path": path, "query": query, "headers": headers, "body": body }))
}

fn json_of(body: &[u8]) -> Result<Value, HookError> {
    serde_json::from_slice(body).map_err(|error| HookError::Body(error.to_string()))
}
