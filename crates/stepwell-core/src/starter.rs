//! What starts a workflow by itself: an event, a schedule, a call from outside.
//!
//! A [`Starter`] is part of a definition. Core says whether one is concerned by what has happened, and what the run would be
//! started with; that it is started, and once, is the engine's.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::definition::Definition;
use crate::expr::{Budget, Expr, Scope};
use crate::ids::Name;
use crate::limits::json_bytes;
use crate::refusal::DecideError;
use crate::template::Template;
use crate::time::Timestamp;

/// One way in which a workflow is started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Starter {
    /// Its name among those of the workflow.
    pub id: Name,
    /// What starts it.
    pub on: StartOn,
    /// What the run is started with, with `{"$expr": …}` in it that reads `event`; without it, what the event brought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// What starts a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StartOn {
    /// Somebody, by hand.
    Manual {},
    /// An event.
    Event(OnEvent),
    /// The clock.
    Schedule(OnSchedule),
    /// A call from outside.
    Webhook(OnWebhook),
}

/// An event starts it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnEvent {
    /// The event's name.
    pub event_name: Name,
    /// Only an event for which this is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Events for which this is the same start one run: as long as that run is there, no other is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<String>,
}

/// The clock starts it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnSchedule {
    /// Five fields, or six with seconds.
    pub cron: String,
    /// The time zone in which the fields are read; UTC without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// What happens to firings that were missed: `skip`, `once` or `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<String>,
    /// What happens while the last run is still going: `start` or `skip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<String>,
}

/// A call from outside starts it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnWebhook {
    /// Where it is called, below where the host takes such calls.
    pub path: String,
    /// The name of the secret that calls are signed with; without it anybody may call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// How calls are signed.
    #[serde(default, skip_serializing_if = "is_standard")]
    pub signature: Signature,
    /// Only a call for which this is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Calls for which this is the same start one run: as long as that run is there, no other is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<String>,
}

/// How a call is signed: HMAC with SHA-256 in any case.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Signature {
    /// Standard Webhooks: `webhook-id`, `webhook-timestamp` and `webhook-signature`.
    #[default]
    Standard,
    /// `X-Hub-Signature-256` over the body, and `X-GitHub-Delivery`.
    Github,
    /// A header of one's own over the body, in hexadecimal digits.
    Header {
        /// The header with the signature.
        header: String,
        /// What stands in it before the digits.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        prefix: String,
        /// The header that is another one for each call; without it the body is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
    },
}

fn is_standard(signature: &Signature) -> bool {
    *signature == Signature::Standard
}

impl StartOn {
    /// The event that starts it, if one does.
    pub fn event(&self) -> Option<&Name> {
        match self {
            StartOn::Event(on) => Some(&on.event_name),
            _ => None,
        }
    }

    pub(crate) fn filter(&self) -> Option<&String> {
        match self {
            StartOn::Event(on) => on.filter.as_ref(),
            StartOn::Webhook(on) => on.filter.as_ref(),
            StartOn::Manual {} | StartOn::Schedule(_) => None,
        }
    }

    pub(crate) fn correlation(&self) -> Option<&String> {
        match self {
            StartOn::Event(on) => on.correlation.as_ref(),
            StartOn::Webhook(on) => on.correlation.as_ref(),
            StartOn::Manual {} | StartOn::Schedule(_) => None,
        }
    }
}

/// A starter whose parts are parsed.
#[derive(Debug, Default)]
pub(crate) struct StarterNode {
    pub(crate) filter: Option<Expr>,
    pub(crate) correlation: Option<Expr>,
    pub(crate) input: Option<Template>,
}

/// Something that has happened, as starters see it.
#[derive(Debug, Clone, Copy)]
pub struct Occurrence<'a> {
    /// What it brought: `event` in expressions.
    pub data: &'a Value,
    /// What is known of it besides: `meta` in expressions.
    pub meta: &'a Value,
    /// The engine's time.
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

/// What a starter makes of an occurrence.
#[derive(Debug, Clone, PartialEq)]
pub enum Starting {
    /// A run is to begin.
    Begins {
        /// With this.
        input: Value,
        /// Occurrences of the same key begin one run.
        key: Option<Value>,
    },
    /// Its filter says no.
    Filtered(Filtered),
}

/// Why a filter says no.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Filtered {
    /// The filter.
    pub filter: String,
    /// What it read of the event.
    pub values: Map<String, Value>,
    /// Why it could not be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Definition {
    /// What starts it by itself.
    pub fn starters(&self) -> &[Starter] {
        &self.spec().triggers
    }

    /// What one of its starters makes of something that has happened.
    pub fn starting(&self, starter: usize, occurrence: Occurrence<'_>) -> Result<Starting, DecideError> {
        let (Some(starter), Some(node)) =
            (self.spec().triggers.get(starter), self.compiled().starters.get(starter))
        else {
            let filter = "false".to_owned();
            return Ok(Starting::Filtered(Filtered { filter, values: Map::new(), error: None }));
        };
        let (data, scope) = (occurrence.data, occurrence);
        if let Some(filter) = &node.filter
            && let Some(filtered) = filtered(filter, &scope)
        {
            return Ok(Starting::Filtered(filtered));
        }
        let at = |what: &str| format!("{what} of trigger `{}`", starter.id);
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
        let input = match (&node.input, &starter.on) {
            (Some(input), _) => input
                .render(&scope, &mut Budget::default())
                .map_err(|error| DecideError::Template { at: at("input"), error })?,
            (None, StartOn::Webhook(_)) => data.get("body").cloned().unwrap_or_default(),
            (None, _) => data.clone(),
        };
        Ok(Starting::Begins { input, key })
    }
}

/// So many fields of an event are shown of what a filter has read, each up to so many bytes.
const MAX_FIELDS: usize = 16;
const MAX_SHOWN: usize = 256;

/// A value as it is shown, if it is not too long for that.
fn shown(value: Option<&Value>) -> Value {
    let bytes = value.map_or(0, json_bytes);
    if bytes > MAX_SHOWN { format!("({bytes} bytes)").into() } else { value.cloned().unwrap_or_default() }
}

/// Why a filter says no, if it does.
fn filtered(filter: &Expr, scope: &Occurrence<'_>) -> Option<Filtered> {
    let verdict = filter.verdict(scope, &mut Budget::default());
    if let Ok(Some(true)) = verdict {
        return None;
    }
    let read = filter.fields_of("event").into_iter().take(MAX_FIELDS);
    let values = read.map(|field| (field.to_owned(), shown(scope.data.get(field)))).collect();
    let error = match verdict {
        Err(error) => Some(error.to_string()),
        Ok(None) => Some("it is undefined for this event".to_owned()),
        Ok(Some(_)) => None,
    };
    Some(Filtered { filter: filter.source().to_owned(), values, error })
}
