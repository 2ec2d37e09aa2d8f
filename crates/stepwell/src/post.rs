//! What runs are sent: the engine's reading of the messages in an inbox.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::snapshot::{ActivationId, ChildEnd};
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::{Message, Missing, NewMessage, Send};

/// A message in a run's inbox.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Letter {
    pub(crate) seq: u64,
    pub(crate) at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) says: Says,
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub(crate) enum Says {
    /// A signal.
    Signal { name: Name, payload: Value },
    /// A child has ended.
    Child { activation: ActivationId, child: u32, end: ChildEnd },
    /// Its parent was cancelled.
    Cancel,
    /// An event has come that a wait is for.
    Event {
        activation: ActivationId,
        /// The event.
        event: RunId,
        name: Name,
        /// When it was accepted.
        accepted: Timestamp,
        payload: Value,
    },
}

impl Says {
    fn topic(&self) -> String {
        match self {
            Says::Signal { name, .. } => format!("signal:{name}"),
            Says::Child { .. } => "child".to_owned(),
            Says::Cancel => "cancel".to_owned(),
            Says::Event { name, .. } => format!("event:{name}"),
        }
    }

    fn message(&self, expires_at: Option<Timestamp>) -> NewMessage {
        NewMessage {
            topic: self.topic(),
            body: serde_json::to_vec(self).map(Bytes::from).expect("a message is plain data"),
            expires_at,
            counts: matches!(self, Says::Signal { .. }),
        }
    }

    /// Posts it to a run that may have ended: then nobody reads it.
    pub(crate) fn to(&self, run: RunId) -> Send {
        Send { to: run, message: self.message(None), missing: Missing::Drop }
    }

    /// Posts it to a run that must be there, for a time.
    pub(crate) fn kept(&self, run: RunId, expires_at: Timestamp) -> Send {
        Send { to: run, message: self.message(Some(expires_at)), missing: Missing::Refuse }
    }
}

impl Letter {
    pub(crate) fn read(message: &Message) -> Result<Self, serde_json::Error> {
        let Message { seq, topic: _, body, received_at, expires_at } = message;
        let says = serde_json::from_slice(body)?;
        Ok(Letter { seq: *seq, at: *received_at, expires_at: *expires_at, says })
    }
}
