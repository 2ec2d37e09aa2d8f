//! The graph of a workflow as JSON or Mermaid text, optionally with the state of a run; and the list of open waits.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::definition::{Definition, PlaceKind, TransitionNode, TransitionTriggerNode};
use crate::guard::text;
use crate::ids::Name;
use crate::snapshot::{
    Activation, ActivationId, ActivationStatus, CORRELATION, PROMPT, PlaceStatus, Snapshot,
};
use crate::spec::{Place, TransitionTrigger, Wait};
use crate::time::Timestamp;
use crate::topic::topic;

/// The graph of a workflow: its places and the edges between them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Graph {
    pub workflow: Name,
    pub nodes: Vec<Node>,
    pub edges: Vec<Edge>,
}

/// A place as a node of the graph.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Name of the place.
    pub id: Name,
    /// `step`, `wait`, `fork`, `join`, `loop`, `catch` or `end`.
    pub kind: &'static str,
    /// True if runs start in this place.
    pub initial: bool,
    /// Status of the place. Only present with a snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<PlaceStatus>,
    /// Number of activations in the place. Only present with a snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activations: Option<usize>,
}

/// An edge from one place to another.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Edge {
    /// The transition. `None` for edges that belong to a place, such as branches of a fork and errors of a place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transition: Option<Name>,
    pub from: Name,
    pub to: Name,
    /// `auto`, `signal`, `timer`, `branch`, `round`, `after`, `error` or `retry`.
    pub kind: &'static str,
    /// Label for display: the trigger, the guard and the action.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label: String,
}

impl Graph {
    /// Returns the graph of the workflow.
    pub fn of(definition: &Definition) -> Graph {
        Graph::draw(definition, None)
    }

    /// Returns the graph of the workflow with the state of a run.
    pub fn with_status(definition: &Definition, snapshot: &Snapshot) -> Graph {
        Graph::draw(definition, Some(snapshot))
    }

    fn draw(definition: &Definition, snapshot: Option<&Snapshot>) -> Graph {
        let compiled = definition.compiled();
        let name = |index: usize| compiled.places[index].name.clone();
        let mut graph = Graph { workflow: definition.name().clone(), nodes: Vec::new(), edges: Vec::new() };
        for (index, place) in compiled.places.iter().enumerate() {
            let here = |snapshot: &Snapshot| {
                snapshot.activations.iter().filter(|activation| activation.place == place.name).count()
            };
            graph.nodes.push(Node {
                id: place.name.clone(),
                kind: place.kind.word(),
                initial: index == compiled.initial,
                status: snapshot.map(|snapshot| snapshot.status_of(&place.name)),
                activations: snapshot.map(here),
            });
            let plain = |to: usize, kind: &'static str| Edge {
                transition: None,
                from: place.name.clone(),
                to: name(to),
                kind,
                label: String::new(),
            };
            match &place.kind {
                PlaceKind::Fork { branches, each, .. } => {
                    graph.edges.extend(branches.iter().map(|&to| plain(to, "branch")));
                    let error = each.as_ref().and_then(|each| each.error_place);
                    graph.edges.extend(error.map(|to| plain(to, "error")));
                }
                PlaceKind::Loop(node) => {
                    graph.edges.extend(node.fetch().map(|to| plain(to, "page")));
                    graph.edges.push(plain(node.first, "round"));
                    graph.edges.push(plain(node.then, "after"));
                    graph.edges.extend(node.error_place.map(|to| plain(to, "error")));
                }
                PlaceKind::Catch { first, .. } => graph.edges.push(plain(*first, "auto")),
                PlaceKind::Join(node) => {
                    graph.edges.extend(node.error_place.map(|to| plain(to, "error")));
                }
                PlaceKind::Wait(wait) => {
                    graph.edges.extend(wait.error_place.map(|to| plain(to, "error")));
                }
                PlaceKind::End { error_place, .. } => {
                    graph.edges.extend(error_place.map(|to| plain(to, "error")));
                }
                PlaceKind::Step => {}
            }
        }
        for transition in &compiled.transitions {
            let edge = |to: usize, kind: &'static str, label: String| Edge {
                transition: Some(transition.id.clone()),
                from: name(transition.from),
                to: name(to),
                kind,
                label,
            };
            graph.edges.push(edge(transition.to, trigger_kind(&transition.on), label(transition)));
            graph.edges.extend(transition.error_place.map(|to| edge(to, "error", "on error".to_owned())));
            graph.edges.extend(transition.retry_target.map(|to| edge(to, "retry", "on retry".to_owned())));
        }
        graph
    }

    /// Returns the graph as Mermaid text.
    pub fn to_mermaid(&self) -> String {
        let mut out = String::from("flowchart TD\n");
        let id = |name: &Name| {
            let at = self.nodes.iter().position(|node| node.id == *name).unwrap_or(self.nodes.len());
            format!("p{at}")
        };
        for node in &self.nodes {
            let (open, close) = match node.kind {
                "wait" => ("([", "])"),
                "fork" | "join" | "loop" => ("{{", "}}"),
                "end" => ("(((", ")))"),
                _ => ("[", "]"),
            };
            let _ = write!(out, "    {}{open}\"{}\"{close}", id(&node.id), quoted(&node.id));
            if let Some(status) = node.status {
                let _ = write!(out, ":::{}", class(status));
            }
            out.push('\n');
            if node.initial {
                let _ = writeln!(out, "    start(( )) --> {}", id(&node.id));
            }
        }
        for edge in &self.edges {
            let arrow = if matches!(edge.kind, "error" | "retry") { "-.->" } else { "-->" };
            let (from, to) = (id(&edge.from), id(&edge.to));
            let _ = match edge.label.as_str() {
                "" => writeln!(out, "    {from} {arrow} {to}"),
                label => writeln!(out, "    {from} {arrow}|\"{}\"| {to}", quoted(label)),
            };
        }
        if self.nodes.iter().any(|node| node.status.is_some()) {
            out.push_str(CLASSES);
        }
        out
    }
}

const CLASSES: &str = "    classDef idle fill:#f4f4f5,stroke:#a1a1aa,color:#3f3f46
    classDef active fill:#dbeafe,stroke:#1d4ed8,color:#1e3a8a
    classDef waiting fill:#fef3c7,stroke:#b45309,color:#78350f
    classDef completed fill:#dcfce7,stroke:#15803d,color:#14532d
";

fn class(status: PlaceStatus) -> &'static str {
    match status {
        PlaceStatus::Idle => "idle",
        PlaceStatus::Active => "active",
        PlaceStatus::Waiting => "waiting",
        PlaceStatus::Completed => "completed",
    }
}

/// Escapes a Mermaid label. Quotes, brackets and `#` must be written as entities, and a label is one line.
fn quoted(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, char| {
        match char {
            '"' | '#' | '<' | '>' | '`' | '&' => drop(write!(out, "#{};", u32::from(char))),
            control if control.is_control() => out.push(' '),
            plain => out.push(plain),
        }
        out
    })
}

fn trigger_kind(on: &TransitionTriggerNode) -> &'static str {
    match on {
        TransitionTriggerNode::Auto => "auto",
        TransitionTriggerNode::Signal(_) => "signal",
        TransitionTriggerNode::AfterMs(_)
        | TransitionTriggerNode::Until(_)
        | TransitionTriggerNode::After(_)
        | TransitionTriggerNode::Backoff(_) => "timer",
    }
}

fn label(transition: &TransitionNode) -> String {
    let mut label = match &transition.on {
        TransitionTriggerNode::Auto => String::new(),
        TransitionTriggerNode::Signal(name) => name.to_string(),
        TransitionTriggerNode::AfterMs(ms) => format!("after {ms} ms"),
        TransitionTriggerNode::After(expr) => format!("after {}", expr.source()),
        TransitionTriggerNode::Until(expr) => format!("until {}", expr.source()),
        TransitionTriggerNode::Backoff(_) => "after its backoff".to_owned(),
    };
    if let Some(guard) = &transition.guard {
        let _ = write!(label, " [{}]", text(guard));
    }
    if let Some(action) = &transition.action {
        let _ = write!(label, " / {}", action.name);
    }
    label.trim_start().to_owned()
}

/// A wait of a run for external input.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenWait {
    /// The activation that waits.
    pub activation: ActivationId,
    pub place: Name,
    /// The signals that are accepted in this place.
    pub signals: Vec<Name>,
    /// Number of children that have not ended yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children: Option<u32>,
    /// Time at which the place was entered.
    pub since: Timestamp,
    /// Time of the earliest timer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// JSON Schema of the form for the person who answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<Value>,
    /// The users (`user:ID`) and roles (`role:NAME`) that may answer; empty if the place names none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answerers: Vec<String>,
    /// The events that are accepted in this place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<AwaitedEvent>,
    pub workflow: Name,
    pub kind: WaitKind,
    /// The title of the prompt, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The prompt for the person who answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Value>,
}

/// The input that a wait is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitKind {
    /// The answer of a person: the place has a form, a prompt or answerers.
    Task,
    /// A signal from a program, a run or a person.
    Signal,
    /// An event, which may reach many runs.
    Event,
    /// The end of children.
    Children,
}

/// The events that a run waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AwaitedEvent {
    /// Name of the events.
    pub name: Name,
    /// Expression on an event that computes its correlation value. Without it, the event's own correlation is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// Correlation value of the run. Without it, every event of this name is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Value>,
    /// True if the wait has a filter, so that it may reject an event with this correlation value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_filtered: bool,
}

impl AwaitedEvent {
    /// Returns the topic under which the wait is indexed.
    pub fn topic(&self) -> String {
        topic(&self.name, self.of.as_deref(), self.key.as_ref())
    }
}

/// Returns the events that an activation waits for, if it waits for events.
pub fn awaited_event(definition: &Definition, activation: &Activation) -> Option<AwaitedEvent> {
    let Place::Wait(wait) = definition.spec().places.get(&activation.place)? else { return None };
    if activation.status != ActivationStatus::Waiting {
        return None;
    }
    let event = wait.event.as_ref()?;
    Some(AwaitedEvent {
        name: wait.signal.clone()?,
        of: event.of.clone(),
        key: activation.locals.get(CORRELATION).filter(|_| event.key.is_some()).cloned(),
        is_filtered: wait.filter.is_some(),
    })
}

/// Returns the waits of a run for external input: its wait places, and other places that accept a signal.
pub fn open_waits(definition: &Definition, snapshot: &Snapshot) -> Vec<OpenWait> {
    snapshot.activations.iter().filter_map(|activation| open_wait(definition, activation)).collect()
}

fn kind_of(wait: &Wait) -> WaitKind {
    if wait.event.is_some() {
        WaitKind::Event
    } else if wait.children.is_some() {
        WaitKind::Children
    } else if wait.form.is_some() || wait.prompt.is_some() || !wait.answerers.is_empty() {
        WaitKind::Task
    } else {
        WaitKind::Signal
    }
}

fn open_wait(definition: &Definition, activation: &Activation) -> Option<OpenWait> {
    let spec = definition.spec();
    let mut open = OpenWait {
        activation: activation.id,
        place: activation.place.clone(),
        signals: Vec::new(),
        children: None,
        since: activation.since,
        until: activation.due(),
        form: None,
        answerers: Vec::new(),
        event: awaited_event(definition, activation),
        workflow: definition.name().clone(),
        kind: WaitKind::Signal,
        title: None,
        prompt: None,
    };
    match spec.places.get(&activation.place)? {
        Place::Wait(wait) if activation.status == ActivationStatus::Waiting => {
            open.signals.extend(wait.signal.clone());
            open.children = activation.children.as_ref().map(|all| all.total - all.ended.len() as u32);
            open.form.clone_from(&wait.form);
            open.answerers.clone_from(&wait.answerers);
            open.kind = kind_of(wait);
            // An action before the wait may have set the prompt, too.
            open.prompt = activation.locals.get(PROMPT).cloned();
            if open.prompt.is_some() && open.kind == WaitKind::Signal {
                open.kind = WaitKind::Task;
            }
            let title = open.prompt.as_ref().and_then(|prompt| prompt.get("title"));
            open.title = title.and_then(Value::as_str).map(str::to_owned);
        }
        _ if activation.status != ActivationStatus::Active => return None,
        _ => {
            let leaving = spec.transitions.iter().filter(|transition| transition.from == activation.place);
            open.signals.extend(leaving.filter_map(|transition| match &transition.on {
                TransitionTrigger::Signal(name) => Some(name.clone()),
                _ => None,
            }));
            open.signals.sort();
            open.signals.dedup();
            if open.signals.is_empty() {
                return None;
            }
        }
    }
    Some(open)
}
