//! Messages in the inbox of a run, as the engine reads and writes them.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::admission::LimitKind;
use stepwell_core::snapshot::{ActivationId, ChildEnd};
use stepwell_core::{Name, RunId, Timestamp};
use stepwell_store::{NewMessage, OnMissingRun, SendMessage, StoredMessage};

use crate::admission::Verdict;

/// A message in a run's inbox.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InboxMessage {
    pub(crate) seq: u64,
    pub(crate) at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) body: MessageBody,
}

/// The body of an inbox message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub(crate) enum MessageBody {
    /// A signal from outside or from another run.
    Signal {
        name: Name,
        payload: Value,
        /// Id of the sender; `None` for the embedding program.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// The end or failure of a child run.
    Child { activation: ActivationId, child: u32, end: ChildEnd },
    /// The parent run was cancelled.
    Cancel,
    /// An event that a wait of this run subscribes to.
    Event {
        activation: ActivationId,
        /// The id of the event, which is stored as a run.
        event: RunId,
        name: Name,
        /// Time at which the event was accepted.
        accepted: Timestamp,
        payload: Value,
    },
    /// To a gate: a run has joined its queue, or the numbers of the limit may have changed.
    JoinedQueue,
    /// To a gate: a run has left its queue, or no longer counts.
    LeftGate {
        run: RunId,
        /// The request under which the gate knows the run.
        request: u32,
    },
    /// From a gate: its answer to a request.
    Admission { limit: LimitKind, request: u32, verdict: Verdict },
}

impl MessageBody {
    fn topic(&self) -> String {
        match self {
            MessageBody::Signal { name, .. } => format!("signal:{name}"),
            MessageBody::Child { .. } => "child".to_owned(),
            MessageBody::Cancel => "cancel".to_owned(),
            MessageBody::Event { name, .. } => format!("event:{name}"),
            MessageBody::JoinedQueue | MessageBody::LeftGate { .. } => "gate".to_owned(),
            MessageBody::Admission { .. } => "admission".to_owned(),
        }
    }

    fn message(&self, expires_at: Option<Timestamp>) -> NewMessage {
        NewMessage {
            topic: self.topic(),
            body: serde_json::to_vec(self).map(Bytes::from).expect("a message is plain data"),
            expires_at,
            counts: matches!(self, MessageBody::Signal { .. }),
        }
    }

    /// Addresses the message to a run that may have ended. In that case it is dropped.
    pub(crate) fn to(&self, run: RunId) -> SendMessage {
        SendMessage { to: run, message: self.message(None), missing: OnMissingRun::Drop }
    }

    /// Addresses the message to a run that must exist. The message expires at `expires_at`.
    pub(crate) fn buffered(&self, run: RunId, expires_at: Timestamp) -> SendMessage {
        SendMessage { to: run, message: self.message(Some(expires_at)), missing: OnMissingRun::Refuse }
    }
}

impl InboxMessage {
    pub(crate) fn read(message: &StoredMessage) -> Result<Self, serde_json::Error> {
        let StoredMessage { seq, topic: _, body, received_at, expires_at } = message;
        let body = serde_json::from_slice(body)?;
        Ok(InboxMessage { seq: *seq, at: *received_at, expires_at: *expires_at, body })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FORMAT: &str = include_str!("../tests/formats/inbox.json");

    /// Databases contain this format: the topic and the body of every kind of message.
    #[test]
    fn topic_and_body_of_every_message_are_fixed() {
        let bodies = [
            MessageBody::Signal {
                name: "PAY".into(),
                payload: json!({"by": "ann"}),
                by: Some("apikey:ann".to_owned()),
            },
            MessageBody::Child { activation: 4, child: 2, end: ChildEnd::Completed { output: json!(7) } },
            MessageBody::Cancel,
            MessageBody::Event {
                activation: 5,
                event: RunId::nil(),
                name: "PAID".into(),
                accepted: Timestamp::from_millis(1_700_000_000_000),
                payload: json!({"invoice": "i-1"}),
            },
            MessageBody::JoinedQueue,
            MessageBody::LeftGate { run: RunId::nil(), request: 2 },
            MessageBody::Admission { limit: LimitKind::Concurrency, request: 1, verdict: Verdict::Admitted },
            MessageBody::Admission { limit: LimitKind::Rate, request: 1, verdict: Verdict::Refused },
            MessageBody::Admission { limit: LimitKind::Rate, request: 1, verdict: Verdict::Superseded },
        ];
        let written: Vec<Value> = bodies
            .iter()
            .map(|body| {
                let message = body.message(None);
                let body: Value = serde_json::from_slice(&message.body).expect("it is JSON");
                json!({"topic": message.topic, "body": body})
            })
            .collect();
        let fixed: Vec<Value> = serde_json::from_str(FORMAT).expect("the file is JSON");
        let shown = serde_json::to_string_pretty(&written).expect("plain data");
        assert_eq!(written, fixed, "{shown}");
        let read = fixed.into_iter().map(|message| serde_json::from_value(message["body"].clone()));
        assert_eq!(read.collect::<Result<Vec<MessageBody>, _>>().expect("they are messages"), bodies);
    }
}
