//! Outlets send the token that resumes a flow to a person or system.
//!
//! A message with a row in the store is committed before it is sent, and is sent at least once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::TenantId;

use super::keys::is_id;
use crate::action::ActionError;
use crate::host::BoxFuture;

/// A message to send at the next pause.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outgoing {
    pub(crate) outlet: String,
    pub(crate) to: String,
    pub(crate) template: Option<String>,
    pub(crate) data: Value,
    pub(crate) outcomes: Vec<Name>,
    pub(crate) ttl_ms: Option<u64>,
}

impl Outgoing {
    /// Creates a message through this outlet to this address.
    pub fn new(outlet: impl Into<String>, to: impl Into<String>) -> Self {
        Outgoing {
            outlet: outlet.into(),
            to: to.into(),
            template: None,
            data: Value::Null,
            outcomes: Vec::new(),
            ttl_ms: None,
        }
    }

    /// Names a template that the outlet knows.
    #[must_use]
    pub fn template(mut self, template: impl Into<String>) -> Self {
        self.template = Some(template.into());
        self
    }

    /// Sets the data for the template.
    #[must_use]
    pub fn data(mut self, data: Value) -> Self {
        self.data = data;
        self
    }

    /// Allows this outcome as the answer. Default: every outcome that the place accepts.
    #[must_use]
    pub fn outcome(mut self, outcome: impl Into<Name>) -> Self {
        self.outcomes.push(outcome.into());
        self
    }

    /// Sets the lifetime of the sent token. Default: the strategy's.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl_ms = Some(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        self
    }

    pub(crate) fn check(&self) -> Result<(), ActionError> {
        let wrong = |why: String| Err(ActionError::new("invalidOutgoing", why).non_retryable());
        if !is_id(&self.outlet) {
            return wrong(format!("`{}` is not a valid outlet name", self.outlet));
        }
        if self.to.trim().is_empty() {
            return wrong(format!("the message through outlet `{}` has no recipient: set `to`", self.outlet));
        }
        if self.ttl_ms == Some(0) {
            return wrong("the TTL of a sent token must be greater than 0".to_owned());
        }
        Ok(())
    }
}

/// The message that an outlet sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// Message id, the same for every attempt, so that receivers can drop duplicates.
    pub id: String,
    pub tenant: TenantId,
    pub flow: RunId,
    pub workflow: Name,
    /// The place where the flow waits.
    pub place: Name,
    /// The outcomes that this message may answer with.
    pub outcomes: Vec<Name>,
    /// Recipient address, in the outlet's format.
    pub to: String,
    /// Name of the outlet's template.
    pub template: Option<String>,
    /// Data for the template.
    pub data: Value,
    /// Token that resumes the flow. It is a secret: anyone who has it can resume the flow.
    pub token: String,
    /// Expiry of the token; `None` if it never expires.
    pub expires_at: Option<Timestamp>,
}

/// The reason why an outlet did not send a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct OutletError {
    why: String,
    is_final: bool,
}

impl OutletError {
    /// Creates an error after which sending is retried.
    pub fn new(why: impl Into<String>) -> Self {
        OutletError { why: why.into(), is_final: false }
    }

    /// Marks the error as non-retryable.
    #[must_use]
    pub fn non_retryable(mut self) -> Self {
        self.is_final = true;
        self
    }

    /// Returns true if the error is non-retryable.
    pub fn is_final(&self) -> bool {
        self.is_final
    }
}

/// A channel to people or systems, such as mail or a webhook.
pub trait Outlet: Send + Sync {
    /// Sends a message. It is called again after a retryable failure, and may be called twice for one message after a
    /// crash.
    fn send(&self, message: Message) -> BoxFuture<Result<(), OutletError>>;

    /// Fails if the outlet has no such template. Workflow documents that name it are then refused.
    fn check_template(&self, _name: &str) -> Result<(), String> {
        Ok(())
    }
}

impl<F, Fut> Outlet for F
where
    F: Fn(Message) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), OutletError>> + Send + 'static,
{
    fn send(&self, message: Message) -> BoxFuture<Result<(), OutletError>> {
        Box::pin(self(message))
    }
}

/// The registered outlets by name.
pub(crate) type Outlets = BTreeMap<String, Arc<dyn Outlet>>;

/// A message that waits to be sent. It is stored sealed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct QueuedMessage {
    pub(crate) outlet: String,
    pub(crate) message: Message,
    /// Number of failed attempts.
    pub(crate) attempts: u32,
}

/// Maximum number of attempts before a message is given up.
pub(crate) const MAX_SENDS: u32 = 8;
/// Time that a process has for sending a message before another may try, in milliseconds.
pub(crate) const SEND_LEASE_MS: u64 = 60_000;

/// Returns the delay after `attempts` failed attempts, in milliseconds: exponential, at most one hour.
pub(crate) fn pause_ms(attempts: u32) -> u64 {
    5_000_u64.saturating_mul(1 << attempts.min(10)).min(3_600_000)
}
