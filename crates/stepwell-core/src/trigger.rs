//! Triggers: events, schedules and webhook calls that start runs of a workflow.
//!
//! A [`Trigger`] is part of a definition. This module decides whether an occurrence starts a run, and with which
//! input. The engine starts the run, exactly once.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::definition::Definition;
use crate::expr::{Budget, Expr, Scope};
use crate::ids::Name;
use crate::limits::json_bytes;
use crate::refusal::DecideError;
use crate::template::Template;
use crate::time::Timestamp;

/// A trigger of a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Trigger {
    /// The id of the trigger, unique in the workflow: 1 to 64 letters, digits, `_` and `-`.
    pub id: Name,
    /// The kind of the trigger and its settings.
    pub on: TriggerKind,
    /// The input of the run. `{"$expr": …}` marks parts computed from `event`. Default: the data of the event, or the
    /// body of a webhook call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// The kind of a trigger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TriggerKind {
    /// A person or a program starts the run explicitly.
    Manual {},
    /// An event with a given name.
    Event(OnEvent),
    /// Firings of a cron schedule.
    Schedule(OnSchedule),
    /// An HTTP call from another system.
    Webhook(OnWebhook),
}

/// A trigger by an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnEvent {
    pub event_name: Name,
    /// Expression on the event. Only events for which it is true start a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Expression on the event that computes its key. While a run exists for a key, events with the same key start no
    /// other run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<String>,
}

/// A trigger by a cron schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnSchedule {
    /// Cron expression with five fields, or with six if the first is seconds.
    pub cron: String,
    /// Time zone of the cron expression (default: UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Policy for missed firings: `skip`, `once` or `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<String>,
    /// Policy while the previous run is still active: `start` or `skip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<String>,
}

/// A trigger by an HTTP call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnWebhook {
    /// Path of the webhook, below the host's base path for webhooks.
    pub path: String,
    /// Name of the secret that signs the calls. Without it, calls are not authenticated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Signature scheme of the calls (default: Standard Webhooks).
    #[serde(default, skip_serializing_if = "is_standard")]
    pub signature: Signature,
    /// Expression on the call. Only calls for which it is true start a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Expression on the call that computes its key. While a run exists for a key, calls with the same key start no
    /// other run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<String>,
}

/// The signature scheme of a webhook. All schemes use HMAC with SHA-256.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Signature {
    /// Standard Webhooks: the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`.
    #[default]
    Standard,
    /// GitHub: `X-Hub-Signature-256` over the body, and `X-GitHub-Delivery` as the id of the call.
    Github,
    /// A custom header with the signature of the body in hex digits.
    Header {
        /// Name of the header with the signature.
        header: String,
        /// Text before the hex digits in the header.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        prefix: String,
        /// Name of the header that identifies the call. Default: the body identifies the call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
    },
}

fn is_standard(signature: &Signature) -> bool {
    *signature == Signature::Standard
}

impl TriggerKind {
    /// Returns the name of the event, if this is a trigger by an event.
    pub fn event(&self) -> Option<&Name> {
        match self {
            TriggerKind::Event(on) => Some(&on.event_name),
            _ => None,
        }
    }

    pub(crate) fn filter(&self) -> Option<&String> {
        match self {
            TriggerKind::Event(on) => on.filter.as_ref(),
            TriggerKind::Webhook(on) => on.filter.as_ref(),
            TriggerKind::Manual {} | TriggerKind::Schedule(_) => None,
        }
    }

    pub(crate) fn correlation(&self) -> Option<&String> {
        match self {
            TriggerKind::Event(on) => on.correlation.as_ref(),
            TriggerKind::Webhook(on) => on.correlation.as_ref(),
            TriggerKind::Manual {} | TriggerKind::Schedule(_) => None,
        }
    }
}

/// A trigger with its parsed expressions.
#[derive(Debug, Default)]
pub(crate) struct TriggerNode {
    pub(crate) filter: Option<Expr>,
    pub(crate) correlation: Option<Expr>,
    pub(crate) input: Option<Template>,
}

/// An event, webhook call or firing of a schedule, as a trigger evaluates it.
#[derive(Debug, Clone, Copy)]
pub struct Occurrence<'a> {
    /// The data of the occurrence: `event` in expressions.
    pub data: &'a Value,
    /// Metadata of the occurrence: `meta` in expressions.
    pub meta: &'a Value,
    /// The current time of the engine.
    pub now: Timestamp,
}

impl Scope for Occurrence<'_> {
    fn root(&self, name: &str) -> Option<&Value> {
        match name {
            "event" => Some(self.data),
            "meta" => Some(self.meta),
            _ => None,
        }
    }

    fn names(&self) -> Vec<&str> {
        vec!["event", "meta"]
    }

    fn now(&self) -> Option<Timestamp> {
        Some(self.now)
    }
}

/// The decision of a trigger about an occurrence.
#[derive(Debug, Clone, PartialEq)]
pub enum TriggerMatch {
    /// A run must be started.
    Starts {
        /// The input of the run.
        input: Value,
        /// The key. Occurrences with the same key share one run.
        key: Option<Value>,
    },
    /// The filter rejects the occurrence.
    Filtered(Filtered),
}

/// The reason why a filter rejects an occurrence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Filtered {
    /// The source of the filter expression.
    pub filter: String,
    /// The fields of the event that the filter reads, with their values.
    pub values: Map<String, Value>,
    /// The error, if the filter could not be evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Definition {
    /// Returns the triggers of the workflow.
    pub fn triggers(&self) -> &[Trigger] {
        &self.spec().triggers
    }

    /// Decides whether a trigger starts a run for an occurrence, and with which input.
    pub fn match_trigger(
        &self,
        trigger: usize,
        occurrence: Occurrence<'_>,
    ) -> Result<TriggerMatch, DecideError> {
        let (Some(trigger), Some(node)) =
            (self.spec().triggers.get(trigger), self.compiled().triggers.get(trigger))
        else {
            let filter = "false".to_owned();
            return Ok(TriggerMatch::Filtered(Filtered { filter, values: Map::new(), error: None }));
        };
        let (data, scope) = (occurrence.data, occurrence);
        if let Some(filter) = &node.filter
            && let Some(filtered) = filtered(filter, &scope)
        {
            return Ok(TriggerMatch::Filtered(filtered));
        }
        let at = |what: &str| format!("{what} of trigger `{}`", trigger.id);
        let key = match &node.correlation {
            None => None,
            Some(expr) => {
                let found = expr.eval(&scope, &mut Budget::default());
                let found =
                    found.map_err(|error| DecideError::Expression { at: at("correlation"), error })?;
                Some(found.ok_or_else(|| DecideError::Undefined {
                    at: at("correlation"),
                    expr: expr.source().to_owned(),
                    missing: expr.missing(&scope, &mut Budget::default()),
                })?)
            }
        };
        let input = match (&node.input, &trigger.on) {
            (Some(input), _) => input
                .render(&scope, &mut Budget::default())
                .map_err(|error| DecideError::Template { at: at("input"), error })?,
            (None, TriggerKind::Webhook(_)) => data.get("body").cloned().unwrap_or_default(),
            (None, _) => data.clone(),
        };
        Ok(TriggerMatch::Starts { input, key })
    }
}

/// Maximum number of event fields to show for a filter, and the maximum size of each in bytes.
const MAX_FIELDS: usize = 16;
const MAX_SHOWN: usize = 256;

/// Returns a value for display, or its size if it is too long.
fn shown(value: Option<&Value>) -> Value {
    let bytes = value.map_or(0, json_bytes);
    if bytes > MAX_SHOWN { format!("({bytes} bytes)").into() } else { value.cloned().unwrap_or_default() }
}

/// Evaluates a filter. Returns the reason if it rejects the occurrence.
fn filtered(filter: &Expr, scope: &Occurrence<'_>) -> Option<Filtered> {
    // A filter that is undefined or fails only rejects the event: the event may be meant for other workflows.
    let verdict = filter.verdict(scope, &mut Budget::default());
    if let Ok(Some(true)) = verdict {
        return None;
    }
    let read = filter.fields_of("event").into_iter().take(MAX_FIELDS);
    let values = read.map(|field| (field.to_owned(), shown(scope.data.get(field)))).collect();
    let error = match verdict {
        Err(error) => Some(error.to_string()),
        Ok(None) => Some("the filter is undefined for this event".to_owned()),
        Ok(Some(_)) => None,
    };
    Some(Filtered { filter: filter.source().to_owned(), values, error })
}
