//! Test cases of a workflow document: the input and mocks of a run, the events during the test, and the expected
//! outcome. They are not part of the definition.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::fields::{Fields, Report, span, template, text, wrong};
use super::model::Span;
use super::problem::Position;
use super::tree::{Kind, Node};
use crate::refusal::Failure;
use crate::time::Timestamp;

/// A test case of a workflow document.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Case {
    #[serde(skip)]
    pub at: Position,
    /// The name of the case: a sentence that states the expectation.
    pub name: String,
    /// The time at which the run starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<Timestamp>,
    /// The input of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// The event that starts the run, instead of an input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<StartEvent>,
    /// Values of the secrets, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// Contents of the data store before the run.
    #[serde(skip_serializing_if = "Given::is_empty")]
    pub given: Given,
    /// Results of calls, by step or action. They are used in order, and the last one repeats.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mocks: BTreeMap<String, Vec<Mock>>,
    /// Inputs of the test, each applied when the run has become idle.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub happens: Vec<Happening>,
    pub expect: Expected,
}

/// An event that starts a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StartEvent {
    pub name: String,
    pub data: Value,
}

/// Initial contents of the data store.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Given {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub store: Vec<GivenKey>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<GivenLink>,
}

impl Given {
    fn is_empty(&self) -> bool {
        self.store.is_empty() && self.links.is_empty()
    }
}

/// A key of the data store and its value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GivenKey {
    pub namespace: String,
    pub key: String,
    pub value: Value,
}

/// A link between two entities.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GivenLink {
    pub namespace: String,
    pub from: Thing,
    pub to: Thing,
    /// The kind of relation between the two ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Value>,
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Thing {
    #[serde(rename = "type")]
    pub kind: String,
    pub id: String,
}

/// The result of a mocked call.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Mock {
    /// The call returns this value. Expressions in it can read `input` and `attempt`.
    Output(Value),
    Error(Failure),
}

/// An input of the test.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Happening {
    After {
        /// The duration in milliseconds; serialized as an ISO 8601 duration.
        #[serde(rename = "after", serialize_with = "as_duration")]
        ms: u64,
    },
    Signal {
        signal: String,
        payload: Value,
    },
    Event {
        event: String,
        data: Value,
    },
    /// The run is cancelled.
    Cancel {
        cancel: bool,
    },
    /// The wait of this step fails.
    Fail {
        fail: String,
        error: Failure,
    },
    /// The wait of this step gets a heartbeat.
    Heartbeat {
        heartbeat: String,
    },
}

/// The state of a run at the end of a test case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum CaseOutcome {
    #[default]
    Completed,
    /// The run stopped with an error.
    Failed,
    /// The run waits for external input.
    Waiting,
    Cancelled,
}

impl CaseOutcome {
    const WORDS: [(&str, CaseOutcome); 4] = [
        ("completed", CaseOutcome::Completed),
        ("failed", CaseOutcome::Failed),
        ("waiting", CaseOutcome::Waiting),
        ("cancelled", CaseOutcome::Cancelled),
    ];

    /// Returns the name of the outcome, as written in a test.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, outcome)| *outcome == self).map_or("", |(word, _)| word)
    }
}

/// The expected outcome of a run. Fields that are not set are not checked.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Expected {
    pub outcome: CaseOutcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ExpectedError>,
    /// Variables and their expected values.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub vars: Map<String, Value>,
    /// Expected calls in order, among the calls of the steps and actions that are listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ExpectedCall>,
    /// The steps in which the run waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Vec<String>>,
    /// Keys of the data store and their expected values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub store: Vec<GivenKey>,
}

/// The error with which a run is expected to fail.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ExpectedError {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Text that the message must contain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A call that the run is expected to make.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ExpectedCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Fields that the input must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// Serializes milliseconds as an ISO 8601 duration.
fn as_duration<S: Serializer>(ms: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&duration(*ms))
}

/// Formats milliseconds as an ISO 8601 duration: `P3D`, `PT90S`.
pub fn duration(ms: u64) -> String {
    const DAY: u64 = 24 * 3_600_000;
    let (seconds, rest) = (ms / 1_000, ms % 1_000);
    match (ms > 0 && ms.is_multiple_of(DAY), rest) {
        (true, _) => format!("P{}D", ms / DAY),
        (false, 0) => format!("PT{seconds}S"),
        (false, rest) => format!("PT{seconds}.{rest:03}S"),
    }
}

/// The names of a workflow document that its test cases may use.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Steps, each with true if it calls an action.
    pub(super) steps: BTreeMap<String, bool>,
    /// The actions that steps call.
    pub(super) actions: BTreeSet<String>,
    /// The signals that steps wait for.
    pub(super) signals: BTreeSet<String>,
    /// The events that start the workflow.
    pub(super) events: BTreeSet<String>,
}

/// Reads the test cases and reports problems with their positions.
pub(super) fn read(node: &Node, known: &Known, report: &mut Report) -> Vec<Case> {
    let Kind::List(items) = &node.kind else {
        return wrong(node, "tests", "a list of test cases", report).unwrap_or_default();
    };
    report.step = None;
    report.used.clear();
    let mut reader = Reader { known, report, names: BTreeMap::new() };
    items.iter().filter_map(|item| reader.case(item)).collect()
}

struct Reader<'a> {
    known: &'a Known,
    report: &'a mut Report,
    /// The position of each name.
    names: BTreeMap<String, Position>,
}

impl Reader<'_> {
    fn case(&mut self, node: &Node) -> Option<Case> {
        let mut fields = Fields::of(node, "a test", self.report)?;
        let name = fields.need("name", self.report);
        let name = name.and_then(|node| Some((node.at, text(node, "name", self.report)?)));
        if let Some((at, name)) = &name
            && let Some(first) = self.names.insert(name.clone(), *at)
        {
            let message =
                format!("another test has the name `{name}`, in line {}: use a unique name", first.line);
            self.report.add("conflict", *at, message);
        }
        let now = fields.get("now").and_then(|node| self.now(node));
        let input = fields.get("input").map(Node::to_value);
        let event = fields.get("event");
        if let (Some(event), true) = (event, input.is_some()) {
            self.report.add("conflict", event.at, "write `input` or `event`, not both");
        }
        let event = event.and_then(|node| self.start_event(node));
        let secrets = fields.get("secrets").map(|node| self.secrets(node)).unwrap_or_default();
        let given = fields.get("given").and_then(|node| self.given(node)).unwrap_or_default();
        let mocks = fields.get("mocks").map(|node| self.mocks(node)).unwrap_or_default();
        let happens = self.list(fields.get("happens"), "happens", Self::happening);
        let expect = fields.get("expect").and_then(|node| self.expected(node)).unwrap_or_default();
        fields.finish(self.report);
        let (_, name) = name?;
        Some(Case { at: node.at, name, now, input, event, secrets, given, mocks, happens, expect })
    }

    /// Reads a list, and returns the items that could be read.
    fn list<T>(
        &mut self,
        node: Option<&Node>,
        name: &str,
        read: impl Fn(&mut Self, &Node) -> Option<T>,
    ) -> Vec<T> {
        match node.map(|node| (&node.kind, node)) {
            None => Vec::new(),
            Some((Kind::List(items), _)) => items.iter().filter_map(|item| read(self, item)).collect(),
            Some((_, node)) => wrong(node, name, "a list", self.report).unwrap_or_default(),
        }
    }

    fn now(&mut self, node: &Node) -> Option<Timestamp> {
        let instant = text(node, "now", self.report)?;
        let read = instant.parse().ok();
        if read.is_none() {
            let message = format!("`{instant}` is not a timestamp such as `2030-01-31T12:00:00Z`");
            self.report.add("value", node.at, message);
        }
        read
    }

    fn start_event(&mut self, node: &Node) -> Option<StartEvent> {
        let mut fields = Fields::of(node, "`event`", self.report)?;
        let name = fields.need("name", self.report);
        let data = fields.get("data").map_or(Value::Null, Node::to_value);
        fields.finish(self.report);
        let name_node = name?;
        let name = text(name_node, "name", self.report)?;
        if !self.known.events.contains(&name) {
            let hint = self.report.hint(&name, self.known.events.iter().map(String::as_str));
            let message = format!("no trigger of this workflow has the event `{name}`{hint}");
            self.report.add("unknownName", name_node.at, message);
        }
        Some(StartEvent { name, data })
    }

    fn secrets(&mut self, node: &Node) -> BTreeMap<String, String> {
        let Some(fields) = node.fields() else {
            return wrong(node, "secrets", "an object of texts", self.report).unwrap_or_default();
        };
        let mut read = |node: &Node| text(node, "secrets", self.report);
        fields.iter().filter_map(|(key, node)| Some((key.text.clone(), read(node)?))).collect()
    }

    fn given(&mut self, node: &Node) -> Option<Given> {
        let mut fields = Fields::of(node, "`given`", self.report)?;
        let store = self.list(fields.get("store"), "store", Self::key);
        let links = self.list(fields.get("links"), "links", Self::link);
        fields.finish(self.report);
        Some(Given { store, links })
    }

    fn key(&mut self, node: &Node) -> Option<GivenKey> {
        let mut fields = Fields::of(node, "a key", self.report)?;
        let namespace = self.need_text(&mut fields, "namespace");
        let key = self.need_text(&mut fields, "key");
        let value = fields.get("value").map_or(Value::Null, Node::to_value);
        fields.finish(self.report);
        Some(GivenKey { namespace: namespace?, key: key?, value })
    }

    fn link(&mut self, node: &Node) -> Option<GivenLink> {
        let mut fields = Fields::of(node, "a link", self.report)?;
        let namespace = self.need_text(&mut fields, "namespace");
        let from = fields.need("from", self.report);
        let from = from.and_then(|node| self.thing(node));
        let to = fields.need("to", self.report);
        let to = to.and_then(|node| self.thing(node));
        let relation = fields.text("relation", self.report);
        let attributes = fields.get("attributes").map(Node::to_value);
        fields.finish(self.report);
        Some(GivenLink { namespace: namespace?, from: from?, to: to?, relation, attributes })
    }

    fn thing(&mut self, node: &Node) -> Option<Thing> {
        let mut fields = Fields::of(node, "an end of a link", self.report)?;
        let kind = self.need_text(&mut fields, "type");
        let id = self.need_text(&mut fields, "id");
        fields.finish(self.report);
        Some(Thing { kind: kind?, id: id? })
    }

    fn need_text(&mut self, fields: &mut Fields<'_>, name: &'static str) -> Option<String> {
        let node = fields.need(name, self.report)?;
        text(node, name, self.report)
    }

    fn mocks(&mut self, node: &Node) -> BTreeMap<String, Vec<Mock>> {
        let Some(fields) = node.fields() else {
            return wrong(node, "mocks", "an object of steps or actions and their results", self.report)
                .unwrap_or_default();
        };
        let mut mocks = BTreeMap::new();
        for (key, node) in fields {
            let calls = self.known.steps.get(&key.text);
            if calls == Some(&false) {
                let message = format!("step `{}` calls no action, so it cannot be mocked", key.text);
                self.report.add("noEffect", key.at, message);
            } else if calls.is_none() && !self.known.actions.contains(&key.text) {
                let names = self.known.steps.keys().chain(&self.known.actions);
                let hint = self.report.hint(&key.text, names.map(String::as_str));
                let message = format!("no step or action of this workflow has the name `{}`{hint}", key.text);
                self.report.add("unknownName", key.at, message);
            }
            let read: Vec<Mock> = match &node.kind {
                Kind::List(items) => items.iter().filter_map(|item| self.mock(item)).collect(),
                _ => self.mock(node).into_iter().collect(),
            };
            if matches!(&node.kind, Kind::List(items) if items.is_empty()) {
                self.report.add(
                    "empty",
                    node.at,
                    format!("the mock of `{}` is empty: add at least one result", key.text),
                );
            }
            mocks.insert(key.text.clone(), read);
        }
        mocks
    }

    fn mock(&mut self, node: &Node) -> Option<Mock> {
        let mut fields = Fields::of(node, "a mock", self.report)?;
        let (output, error) = (fields.get("output"), fields.get("error"));
        fields.finish(self.report);
        match (output, error) {
            (Some(_), Some(error)) => {
                self.report.add("conflict", error.at, "write `output` or `error`, not both");
                None
            }
            (None, Some(error)) => self.failure(error).map(Mock::Error),
            (None, None) => Some(Mock::Output(Value::Null)),
            (Some(output), None) => {
                template(output, self.report);
                self.check_names();
                Some(Mock::Output(output.to_value()))
            }
        }
    }

    /// Reports names other than those of the call, because expressions of mocks can read only the call.
    fn check_names(&mut self) {
        const READ: [&str; 2] = ["input", "attempt"];
        for used in std::mem::take(&mut self.report.used) {
            for root in used.roots.iter().filter(|root| !READ.contains(&root.as_str())) {
                let hint = self.report.hint(root, READ);
                let message = format!("unknown name `{root}`: a mock can read `input` and `attempt`{hint}");
                self.report.add("unknownName", used.at, message);
            }
        }
    }

    fn failure(&mut self, node: &Node) -> Option<Failure> {
        let mut fields = Fields::of(node, "`error`", self.report)?;
        let code = self.need_text(&mut fields, "code");
        let message = fields.text("message", self.report);
        let is_final = fields.flag("final", self.report).unwrap_or(false);
        let status = fields.number("status", self.report).and_then(|status| u16::try_from(status).ok());
        fields.finish(self.report);
        let code = code?;
        let message = message.unwrap_or_else(|| code.clone());
        Some(Failure { is_final, status, ..Failure::new(code, message) })
    }

    fn happening(&mut self, node: &Node) -> Option<Happening> {
        let mut fields = Fields::of(node, "an item of `happens`", self.report)?;
        let (after, signal) = (fields.get("after"), fields.get("signal"));
        let (event, cancel) = (fields.get("event"), fields.flag("cancel", self.report));
        let (fail, heartbeat) = (fields.get("fail"), fields.get("heartbeat"));
        let given = [after, signal, event, fail, heartbeat].into_iter().flatten().count();
        let happening = match (after, signal, event) {
            _ if given + usize::from(cancel.is_some()) != 1 => {
                let message = "an item of `happens` must have exactly one of `after`, `signal`, `event`, `cancel`, `fail` and `heartbeat`";
                self.report.add("missing", node.at, message);
                return None;
            }
            (Some(after), _, _) => match span(after, "after", self.report) {
                Some(Span::Ms(ms)) => Some(Happening::After { ms }),
                Some(Span::Expr(_)) => {
                    self.report.add("type", after.at, "`after` must be a fixed duration, not an expression");
                    None
                }
                None => None,
            },
            (_, Some(signal), _) => {
                let payload = fields.get("payload").map_or(Value::Null, Node::to_value);
                self.signal(signal).map(|signal| Happening::Signal { signal, payload })
            }
            (_, _, Some(event)) => {
                let data = fields.get("data").map_or(Value::Null, Node::to_value);
                text(event, "event", self.report).map(|event| Happening::Event { event, data })
            }
            (None, None, None) => match (fail, heartbeat) {
                (Some(step), _) => {
                    let error = fields.need("error", self.report);
                    let error = error.and_then(|node| self.failure(node));
                    self.step(step).zip(error).map(|(fail, error)| Happening::Fail { fail, error })
                }
                (_, Some(step)) => self.step(step).map(|heartbeat| Happening::Heartbeat { heartbeat }),
                (None, None) => Some(Happening::Cancel { cancel: true }),
            },
        };
        fields.finish(self.report);
        happening
    }

    fn signal(&mut self, node: &Node) -> Option<String> {
        let name = text(node, "signal", self.report)?;
        if !self.known.signals.contains(&name) {
            let hint = self.report.hint(&name, self.known.signals.iter().map(String::as_str));
            self.report.add("unknownName", node.at, format!("no step waits for the signal `{name}`{hint}"));
        }
        Some(name)
    }

    fn expected(&mut self, node: &Node) -> Option<Expected> {
        let mut fields = Fields::of(node, "`expect`", self.report)?;
        let words: Vec<_> = CaseOutcome::WORDS.iter().map(|(word, _)| *word).collect();
        let outcome = fields.word("outcome", &words, self.report);
        let result = fields.get("result").map(Node::to_value);
        let error = fields.get("error").and_then(|node| self.expected_error(node));
        let vars = fields.get("vars").and_then(|node| match node.to_value() {
            Value::Object(vars) => Some(vars),
            _ => wrong(node, "vars", "an object", self.report),
        });
        let calls = self.list(fields.get("calls"), "calls", Self::call);
        let waits = fields.get("waits").map(|node| self.list(Some(node), "waits", Self::step));
        let store = self.list(fields.get("store"), "store", Self::key);
        fields.finish(self.report);
        let said = CaseOutcome::WORDS.iter().find(|(word, _)| outcome == Some(*word));
        let outcome = match (said, &error, &waits) {
            (Some((_, outcome)), _, _) => *outcome,
            (None, Some(_), _) => CaseOutcome::Failed,
            (None, None, Some(_)) => CaseOutcome::Waiting,
            (None, None, None) => CaseOutcome::Completed,
        };
        Some(Expected { outcome, result, error, vars: vars.unwrap_or_default(), calls, waits, store })
    }

    fn expected_error(&mut self, node: &Node) -> Option<ExpectedError> {
        let mut fields = Fields::of(node, "`error`", self.report)?;
        let code = fields.text("code", self.report);
        let message = fields.text("message", self.report);
        fields.finish(self.report);
        Some(ExpectedError { code, message })
    }

    fn call(&mut self, node: &Node) -> Option<ExpectedCall> {
        let mut fields = Fields::of(node, "a call", self.report)?;
        let (step, action) = (fields.get("step"), fields.get("action"));
        let input = fields.get("input").map(Node::to_value);
        fields.finish(self.report);
        if step.is_none() && action.is_none() {
            self.report.add("missing", node.at, "a call needs `step` or `action`");
        }
        let step = step.and_then(|node| self.step(node));
        let action = action.and_then(|node| {
            let name = text(node, "action", self.report)?;
            if !self.known.actions.contains(&name) {
                let hint = self.report.hint(&name, self.known.actions.iter().map(String::as_str));
                let message = format!("no step calls the action `{name}`{hint}");
                self.report.add("unknownName", node.at, message);
            }
            Some(name)
        });
        Some(ExpectedCall { step, action, input })
    }

    fn step(&mut self, node: &Node) -> Option<String> {
        let id = text(node, "step", self.report)?;
        if !self.known.steps.contains_key(&id) {
            let hint = self.report.hint(&id, self.known.steps.keys().map(String::as_str));
            self.report.add("unknownName", node.at, format!("there is no step `{id}`{hint}"));
        }
        Some(id)
    }
}
