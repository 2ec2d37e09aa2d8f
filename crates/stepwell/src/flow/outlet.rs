//! Outlets: how what resumes a flow reaches somebody. Whatever is sent out is committed before; it is sent at least once.

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

/// What is to be sent out at the next pause.
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
    /// Through this outlet, to this address.
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

    /// In these words: a template that the outlet knows.
    #[must_use]
    pub fn template(mut self, template: impl Into<String>) -> Self {
        self.template = Some(template.into());
        self
    }

    /// What the template may show.
    #[must_use]
    pub fn data(mut self, data: Value) -> Self {
        self.data = data;
        self
    }

    /// Only these outcomes can be answered by it; without this, all that the place takes.
    #[must_use]
    pub fn outcome(mut self, outcome: impl Into<Name>) -> Self {
        self.outcomes.push(outcome.into());
        self
    }

    /// How long it is good; without this, as long as its strategy says.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl_ms = Some(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        self
    }

    pub(crate) fn check(&self) -> Result<(), ActionError> {
        let wrong = |why: String| Err(ActionError::new("invalidOutgoing", why).finally());
        if !is_id(&self.outlet) {
            return wrong(format!("`{}` is not the name of an outlet", self.outlet));
        }
        if self.to.trim().is_empty() {
            return wrong(format!("`{}` has to be told to whom it sends", self.outlet));
        }
        if self.ttl_ms == Some(0) {
            return wrong("what is sent out has to be good for some time: its TTL is 0".to_owned());
        }
        Ok(())
    }
}

/// What an outlet sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// The same however often it is sent: whoever receives it twice can tell.
    pub id: String,
    /// Whose flow it is.
    pub tenant: TenantId,
    /// The flow.
    pub flow: RunId,
    /// The workflow.
    pub workflow: Name,
    /// Where it waits.
    pub place: Name,
    /// What may be answered.
    pub outcomes: Vec<Name>,
    /// To whom.
    pub to: String,
    /// In which words.
    pub template: Option<String>,
    /// What those may show.
    pub data: Value,
    /// What resumes the flow. A secret: whoever has it can.
    pub token: String,
    /// When that is over.
    pub expires_at: Option<Timestamp>,
}

/// Why something was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct OutletError {
    why: String,
    is_final: bool,
}

impl OutletError {
    /// It may be tried again.
    pub fn new(why: impl Into<String>) -> Self {
        OutletError { why: why.into(), is_final: false }
    }

    /// Trying again is of no use.
    #[must_use]
    pub fn finally(mut self) -> Self {
        self.is_final = true;
        self
    }

    /// Trying again is of no use.
    pub fn is_final(&self) -> bool {
        self.is_final
    }
}

/// A way to reach somebody: mail, a webhook, a letter.
pub trait Outlet: Send + Sync {
    /// Sends. It is asked again when it fails, and may be asked twice for the same message after a crash.
    fn send(&self, message: Message) -> BoxFuture<Result<(), OutletError>>;
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

/// The outlets by name.
pub(crate) type Outlets = BTreeMap<String, Arc<dyn Outlet>>;

/// What is kept of a message until it is sent, sealed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Posted {
    pub(crate) outlet: String,
    pub(crate) message: Message,
    /// How often it was tried in vain.
    pub(crate) tries: u32,
}

/// How often a message is tried before it is given up.
pub(crate) const MAX_SENDS: u32 = 8;
/// How long whoever sends a message has for it before somebody else tries.
pub(crate) const SEND_LEASE_MS: u64 = 60_000;

/// How long to wait after so many tries in vain.
pub(crate) fn pause_ms(tries: u32) -> u64 {
    5_000_u64.saturating_mul(1 << tries.min(10)).min(3_600_000)
}
