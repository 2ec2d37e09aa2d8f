//! Converts the tree of a workflow document into a model, and reports all problems.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::admission;
use super::compile::END;
use super::fields::{Fields, Report, expr, template, text, wrong};
use super::model::{Body, Each, ItemErrors, Model, OnError, Sleep, Span, Step, StepKind, Wait};
use super::policy;
use super::problem::Position;
use super::tree::{Kind, Node};
use crate::answerer::Answerer;
use crate::ids::Name;
use crate::retry::{Backoff, Retry};
use crate::save::Save;
use crate::shadow::Shadow;
use crate::spec::{
    Completion, DeliveryGuarantee, EventFilter, Firing, OnEvent, OnSchedule, OnWebhook, Place, SignalSpec,
    Signature, Spec, Transition, Trigger, TriggerKind,
};

/// The `apiVersion` of a workflow document.
pub(crate) const API_VERSION: &str = "stepwell/v1";
const KIND: &str = "Workflow";

/// All values of `type` in a step.
pub(crate) const TYPES: [&str; 18] = [
    "action.call",
    "control.if",
    "control.switch",
    "control.forEach",
    "control.while",
    "control.break",
    "control.continue",
    "control.try",
    "control.parallel",
    "control.return",
    "control.fail",
    "vars.set",
    "wait.sleep",
    "wait.signal",
    "wait.event",
    "human.task",
    "workflow.call",
    "workflow.start",
];

/// Reads a workflow document. `name` is the name of the workflow if the document does not contain one.
pub(crate) fn model(root: &Node, name: Option<&str>, report: &mut Report) -> Option<Model> {
    let is_bare =
        root.field("spec").is_none() && (root.field("steps").is_some() || root.field("places").is_some());
    let mut fields = Fields::of(root, "a workflow document", report)?;
    let mut named = name.map(str::to_owned);
    let mut version = 1;
    // Tests are read later, when the names that they may use are known.
    fields.get("tests");
    if let Some(api) = fields.get("apiVersion")
        && api.text() != Some(API_VERSION)
    {
        report.add("apiVersion", api.at, format!("`apiVersion` must be `{API_VERSION}`"));
    }
    if let Some(kind) = fields.get("kind")
        && kind.text() != Some(KIND)
    {
        report.add("kind", kind.at, format!("`kind` must be `{KIND}`"));
    }
    if let Some(metadata) = fields.get("metadata") {
        let mut metadata = Fields::of(metadata, "`metadata`", report)?;
        named = metadata.text("name", report).or(named);
        version = metadata.number("version", report).unwrap_or(1);
        metadata.text("description", report);
        metadata.get("labels");
        metadata.get("annotations");
        metadata.finish(report);
    }
    if is_bare {
        named = fields.text("name", report).or(named);
        fields.text("description", report);
    }
    let Some(named) = named else {
        report.add("missing", root.at, "a workflow document needs a name: `metadata: { name: … }`");
        return None;
    };
    if is_bare {
        let mut frame = Spec::new(named.as_str());
        frame.version = fields.number("version", report).unwrap_or(version);
        let body = spec_fields(&mut fields, &mut frame, report);
        fields.finish(report);
        return Some(Model { name: named, version: frame.version, frame, body: body? });
    }
    let spec = fields.need("spec", report);
    fields.finish(report);
    let mut frame = Spec::new(named.as_str());
    frame.version = version;
    let mut spec = Fields::of(spec?, "`spec`", report)?;
    let body = spec_fields(&mut spec, &mut frame, report);
    spec.finish(report);
    Some(Model { name: named, version, frame, body: body? })
}

/// Reads the fields under `spec`.
fn spec_fields(fields: &mut Fields<'_>, frame: &mut Spec, report: &mut Report) -> Option<Body> {
    frame.triggers = triggers(fields, report);
    frame.input = fields.schema("input", report);
    frame.output = fields.schema("output", report);
    frame.strategy = fields.text("strategy", report);
    // 0 means unlimited, as for steps.
    frame.timeout_ms = fields.fixed_span("timeout", report).filter(|ms| *ms > 0);
    admission::read(fields, frame, report);
    frame.retention = fields.retention("retention", report);
    let before = report.count();
    let mut plain = parts(fields, report);
    let steps = fields.get("steps");
    let places = fields.get("places");
    match (steps, places) {
        (Some(steps), Some(_)) => {
            report.add("conflict", steps.at, "write `steps` or `places`, not both");
            None
        }
        (None, None) => {
            report.add(
                "missing",
                fields.at,
                "a workflow document needs `steps` (or `places` and `transitions`)",
            );
            None
        }
        (Some(steps), None) => {
            frame.envelope = true;
            if report.count() == before {
                merge(frame, plain, fields.at, report);
            }
            let mut reader = Reader { report, ids: BTreeMap::new(), used: given_ids(steps), next: 0 };
            let steps = reader.steps(steps, "steps");
            Some(Body::Steps(steps))
        }
        (None, Some(places)) => {
            plain.extend(graph(fields, report));
            if fields.flag("envelope", report).unwrap_or(false) {
                frame.envelope = true;
            }
            if report.count() == before {
                merge(frame, plain, places.at, report);
            }
            Some(Body::Places(Box::new(frame.clone())))
        }
    }
}

/// Reads the documents, shadow columns and signals, which are written as in a definition.
fn parts(fields: &mut Fields<'_>, report: &mut Report) -> serde_json::Map<String, Value> {
    let mut parts = serde_json::Map::new();
    for name in ["documents", "shadows", "signals"] {
        let Some((key, node)) = fields.entry(name) else { continue };
        let Some(entries) = node.fields() else {
            report.add("type", key.at, format!("`{name}` must be an object, not {}", node.word()));
            continue;
        };
        for (key, node) in entries {
            let what = |kind: &str| format!("{kind} `{}`", key.text);
            match name {
                "shadows" => unreadable::<Shadow>(node, key.at, &what("shadow column"), report),
                "signals" => unreadable::<SignalSpec>(node, key.at, &what("signal"), report),
                _ => {}
            }
        }
        parts.insert(name.to_owned(), node.to_value());
    }
    parts
}

/// Reads the places and transitions and the other fields of a graph.
fn graph(fields: &mut Fields<'_>, report: &mut Report) -> serde_json::Map<String, Value> {
    let mut parts = serde_json::Map::new();
    for name in ["initial", "context", "firing", "completion", "places", "transitions"] {
        let Some((key, node)) = fields.entry(name) else { continue };
        match (name, &node.kind) {
            ("initial", _) => unreadable::<Name>(node, key.at, "`initial`", report),
            ("firing", _) => unreadable::<Firing>(node, key.at, "`firing`", report),
            ("completion", _) => unreadable::<Completion>(node, key.at, "`completion`", report),
            ("places", Kind::Map(places)) => {
                for (key, place) in places {
                    unreadable::<Place>(place, key.at, &format!("place `{}`", key.text), report);
                }
            }
            ("transitions", Kind::List(transitions)) => {
                for (index, transition) in transitions.iter().enumerate() {
                    let id = transition.field("id").and_then(Node::text);
                    let what = id.map_or_else(
                        || format!("transition {}", index + 1),
                        |id| format!("transition `{id}`"),
                    );
                    unreadable::<Transition>(transition, transition.at, &what, report);
                }
            }
            ("places", _) => {
                report.add("type", key.at, format!("`places` must be an object, not {}", node.word()));
            }
            ("transitions", _) => {
                report.add("type", key.at, format!("`transitions` must be a list, not {}", node.word()));
            }
            _ => {}
        }
        parts.insert(name.to_owned(), node.to_value());
    }
    parts
}

/// Reports a part that cannot be parsed, with the position of the wrong field.
fn unreadable<T: serde::de::DeserializeOwned>(node: &Node, at: Position, what: &str, report: &mut Report) {
    let value = node.to_value();
    let Err(error) = serde_json::from_value::<T>(value.clone()) else { return };
    let wrong = error.to_string();
    let without = |name: &str| {
        let mut less = value.clone();
        less.as_object_mut().and_then(|fields| fields.remove(name));
        serde_json::from_value::<T>(less).err().map(|error| error.to_string())
    };
    let fields = node.fields().unwrap_or_default();
    // The wrong field is the one without which the part can be parsed, or the one that the error names, or the required
    // one without which only that field is missing.
    let culprit = fields.iter().find(|(key, _)| without(&key.text).is_none());
    let named = || fields.iter().find(|(key, _)| wrong.contains(&format!("field `{}`", key.text)));
    let is_required = |name: &str| without(name) == Some(format!("missing field `{name}`"));
    let is_known = !wrong.starts_with("missing field");
    let required = || fields.iter().find(|(key, _)| is_known && is_required(&key.text));
    match culprit.or_else(named).or_else(required) {
        Some((key, _)) => report.add("unreadable", key.at, format!("{what}: `{}`: {wrong}", key.text)),
        None => report.add("unreadable", at, format!("{what}: {wrong}")),
    }
}

/// Adds the parts that are written as in a definition to the spec.
fn merge(frame: &mut Spec, parts: serde_json::Map<String, Value>, at: Position, report: &mut Report) {
    let mut whole = serde_json::to_value(&*frame).expect("a spec is plain data with text keys");
    if let Value::Object(fields) = &mut whole {
        fields.extend(parts);
    }
    match serde_json::from_value(whole) {
        Ok(spec) => *frame = spec,
        Err(error) => report.add("unreadable", at, error.to_string()),
    }
}

/// Reads `trigger` or `triggers`.
fn triggers(fields: &mut Fields<'_>, report: &mut Report) -> Vec<Trigger> {
    let one = fields.get("trigger");
    let many = fields.get("triggers");
    let nodes: Vec<&Node> = match (one, many.map(|node| (&node.kind, node))) {
        (Some(one), None) => vec![one],
        (None, Some((Kind::List(items), _))) => items.iter().collect(),
        (None, Some((_, node))) => return wrong(node, "triggers", "a list", report).unwrap_or_default(),
        (Some(one), Some(_)) => {
            report.add("conflict", one.at, "write `trigger` or `triggers`, not both");
            return Vec::new();
        }
        (None, None) => return Vec::new(),
    };
    let trigger = |(index, node)| trigger(index, node, report);
    nodes.into_iter().enumerate().filter_map(trigger).collect()
}

fn trigger(index: usize, node: &Node, report: &mut Report) -> Option<Trigger> {
    let mut trigger = Fields::of(node, "a trigger", report)?;
    trigger.need("type", report)?;
    let id = trigger.text("id", report).unwrap_or_else(|| format!("trigger{}", index + 1));
    let on = match trigger.word("type", &["event", "schedule", "manual", "webhook"], report) {
        Some("event") => {
            let event = trigger.either(&["eventName", "event"], report);
            if event.is_none() {
                report.add("missing", node.at, "a trigger of type `event` needs `eventName`");
            }
            let event_name = event.and_then(|node| text(node, "eventName", report));
            let filter = trigger.expr("filter", report);
            let correlation = trigger.expr("correlation", report);
            event_name
                .map(|name| TriggerKind::Event(OnEvent { event_name: name.into(), filter, correlation }))
        }
        Some("schedule") => {
            let cron = trigger.need("cron", report);
            let cron = cron.and_then(|cron| text(cron, "cron", report));
            let timezone = trigger.text("timezone", report);
            let missed = trigger.word("missed", &["skip", "once", "all"], report).map(str::to_owned);
            let overlap = trigger.word("overlap", &["start", "skip"], report).map(str::to_owned);
            cron.map(|cron| TriggerKind::Schedule(OnSchedule { cron, timezone, missed, overlap }))
        }
        Some("webhook") => webhook(&mut trigger, report).map(TriggerKind::Webhook),
        Some(_) => Some(TriggerKind::Manual {}),
        None => None,
    };
    let input = trigger.template("input", report);
    trigger.finish(report);
    Some(Trigger { id: id.into(), on: on?, input })
}

fn webhook(trigger: &mut Fields<'_>, report: &mut Report) -> Option<OnWebhook> {
    let path = trigger.need("path", report);
    let path = path.and_then(|node| Some((text(node, "path", report)?, node.at)));
    let path = path.and_then(|(path, at)| {
        let plain = path.trim_matches('/').to_owned();
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        let is_path =
            !plain.is_empty() && plain.len() <= 200 && plain.chars().all(fits) && !plain.contains("..");
        if !is_path {
            let message = format!("`{path}` is not a valid path: use at most 200 characters: letters, digits, `-`, `_`, `.` and `/`");
            report.add("value", at, message);
        }
        is_path.then_some(plain)
    });
    let secret = trigger.get("secret").and_then(|node| match (node.text(), node.field("$secret")) {
        (Some(name), _) => Some(name.to_owned()),
        (None, Some(named)) => text(named, "$secret", report),
        (None, None) => wrong(node, "secret", "`{ $secret: NAME }`", report),
    });
    let signature = trigger.get("signature").map(|node| signature(node, report));
    let filter = trigger.expr("filter", report);
    let correlation = trigger.expr("correlation", report);
    let signature = signature.unwrap_or(Some(Signature::Standard))?;
    Some(OnWebhook { path: path?, secret, signature, filter, correlation })
}

/// Reads the signature of webhook calls: `standard`, `github` or an object with `header`.
fn signature(node: &Node, report: &mut Report) -> Option<Signature> {
    match node.text() {
        Some("standard") => return Some(Signature::Standard),
        Some("github") => return Some(Signature::Github),
        Some(_) => {
            return wrong(node, "signature", "`standard`, `github` or an object with `header`", report);
        }
        None => {}
    }
    let mut fields = Fields::of(node, "`signature`", report)?;
    let header = fields.need("header", report);
    let header = header.and_then(|header| text(header, "header", report));
    let prefix = fields.text("prefix", report).unwrap_or_default();
    let id = fields.text("id", report);
    fields.finish(report);
    header.map(|header| Signature::Header { header, prefix, id })
}

/// Returns all ids that the author wrote. Generated ids must differ from them.
fn given_ids(node: &Node) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        match &node.kind {
            Kind::List(items) => open.extend(items),
            Kind::Map(fields) => {
                found.extend(node.field("id").and_then(Node::text).map(str::to_owned));
                open.extend(fields.iter().map(|(_, node)| node));
            }
            _ => {}
        }
    }
    found
}

pub(super) struct Reader<'a> {
    pub(super) report: &'a mut Report,
    /// The position of each id.
    ids: BTreeMap<String, Position>,
    used: BTreeSet<String>,
    next: usize,
}

impl Reader<'_> {
    pub(super) fn steps(&mut self, node: &Node, name: &str) -> Vec<Step> {
        let outer = self.report.step.take();
        let steps = match &node.kind {
            Kind::List(items) => items.iter().filter_map(|item| self.step(item)).collect(),
            _ => wrong(node, name, "a list of steps", self.report).unwrap_or_default(),
        };
        self.report.step = outer;
        steps
    }

    /// Reads a list that must have at least one step.
    pub(super) fn body(&mut self, fields: &mut Fields<'_>, names: &[&'static str]) -> Vec<Step> {
        let Some(node) = fields.either(names, self.report) else {
            let message = format!("the step needs `{}`, a list of steps", names[0]);
            self.report.add("missing", fields.at, message);
            return Vec::new();
        };
        let steps = self.steps(node, names[0]);
        if matches!(&node.kind, Kind::List(items) if items.is_empty()) {
            self.report.add("empty", node.at, format!("`{}` has no steps: add at least one", names[0]));
        }
        steps
    }

    fn step(&mut self, node: &Node) -> Option<Step> {
        let mut fields = Fields::of(node, "a step", self.report)?;
        let id = self.id(&mut fields, node.at);
        self.report.step = Some(id.clone());
        let step = self.step_fields(&mut fields, id);
        if step.is_some() {
            fields.finish(self.report);
        }
        self.report.step = None;
        step
    }

    fn id(&mut self, fields: &mut Fields<'_>, at: Position) -> String {
        let given = fields.get("id");
        let Some(given) = given else {
            loop {
                self.next += 1;
                let made = format!("step{}", self.next);
                if self.used.insert(made.clone()) {
                    return made;
                }
            }
        };
        let id = text(given, "id", self.report).unwrap_or_else(|| format!("line{}", at.line));
        let first = |c: char| c.is_alphabetic() || c == '_';
        let rest = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        if !id.starts_with(first) || !id.chars().all(rest) || id.chars().count() > 64 || id.starts_with("__")
        {
            let message = format!(
                "`{id}` is not a valid id: start with a letter or `_`, then use letters, digits, `_` and `-`, at most 64 in total"
            );
            self.report.add("badId", given.at, message);
        }
        if id == END {
            self.report.add(
                "badId",
                given.at,
                format!("`{END}` is reserved for the end of the run: choose another id"),
            );
        }
        if let Some(first) = self.ids.insert(id.clone(), given.at) {
            let message = format!("another step has the id `{id}`, in line {}: use a unique id", first.line);
            self.report.add("duplicateId", given.at, message);
        }
        id
    }

    fn step_fields(&mut self, fields: &mut Fields<'_>, id: String) -> Option<Step> {
        let kind = fields.need("type", self.report)?;
        let word = text(kind, "type", self.report)?;
        fields.text("name", self.report);
        // The description of a task is a template, not only text.
        if word != "human.task" {
            fields.text("description", self.report);
        }
        let is_loop_or_if = matches!(word.as_str(), "control.if" | "control.while");
        // These expressions are evaluated before the step starts.
        self.report.is_outside = true;
        let condition = if is_loop_or_if { None } else { fields.expr("condition", self.report) };
        let timeout = fields.span("timeout", self.report);
        self.report.is_outside = false;
        let retry = self.retry(fields);
        let on_error = self.on_error(fields, &word);
        let save_as = self.save_as(fields);
        let kind = self.kind(&word, kind, fields, &id)?;
        // A timeout of 0 means unlimited, so it is dropped. Calls keep it, because a call without a timeout gets the
        // default timeout.
        let is_call = matches!(kind, StepKind::Call { .. });
        let timeout = timeout.filter(|timeout| is_call || *timeout != Span::Ms(0));
        let step = Step { at: fields.at, id, condition, retry, timeout, on_error, save_as, kind };
        self.fits(&step);
        Some(step)
    }

    /// Reports settings that have no effect for the type of the step.
    fn fits(&mut self, step: &Step) {
        let word = step.word();
        if step.is_instant() && step.timeout.is_some() {
            self.report.add("noEffect", step.at, format!("`timeout` has no effect: `{word}` takes no time"));
        }
        if step.is_instant() && step.retry.is_some() {
            let message = format!("`retry` has no effect: `{word}` would have the same result again");
            self.report.add("noEffect", step.at, message);
        }
        let gives_nothing = step.result_name().is_none()
            || matches!(
                step.kind,
                StepKind::If { .. } | StepKind::Switch(_) | StepKind::Try { .. } | StepKind::Sleep(_)
            );
        if step.save_as.is_some() && (gives_nothing || step.is_instant()) {
            self.report.add("noEffect", step.at, format!("`saveAs` has no effect: `{word}` has no result"));
        }
    }

    fn save_as(&mut self, fields: &mut Fields<'_>) -> Option<String> {
        let node = fields.get("saveAs")?;
        let path = text(node, "saveAs", self.report)?;
        let path = path.strip_prefix("vars.").unwrap_or(&path).to_owned();
        if let Err(message) = Save::parse(&format!("vars.{path}")) {
            self.report.add("badPath", node.at, message);
        }
        Some(path)
    }

    pub(super) fn retry(&mut self, fields: &mut Fields<'_>) -> Option<Retry> {
        let node = fields.get("retry")?;
        let report = &mut *self.report;
        let mut retry = Retry::default();
        if let Kind::Number(_) = node.kind {
            retry.attempts = super::fields::whole(node, "retry", report)?;
            return Some(retry);
        }
        let mut fields = Fields::of(node, "`retry`", report)?;
        let attempts = fields.either(&["attempts", "maxAttempts"], report);
        match attempts {
            Some(node) => retry.attempts = super::fields::whole(node, "attempts", report).unwrap_or(0),
            None => report.add("missing", node.at, "`retry` needs `attempts`, the number of retries"),
        }
        retry.delay_ms = fields.fixed_span("delay", report).unwrap_or(retry.delay_ms);
        retry.max_delay_ms = fields.fixed_span("maxDelay", report).unwrap_or(retry.max_delay_ms);
        if fields.word("backoff", &["fixed", "exponential"], report) == Some("fixed") {
            retry.backoff = Backoff::Fixed;
        }
        retry.retry_on = fields.texts("retryOn", report);
        policy::backoff(&mut fields, &mut retry, report);
        fields.finish(report);
        Some(retry)
    }

    fn on_error(&mut self, fields: &mut Fields<'_>, word: &str) -> OnError {
        let Some(node) = fields.get("onError") else { return OnError::Fail };
        let steps = match &node.kind {
            Kind::List(_) => Some(node),
            Kind::Map(_) => {
                let Some(mut inner) = Fields::of(node, "`onError`", self.report) else {
                    return OnError::Fail;
                };
                let steps = inner.need("steps", self.report);
                inner.finish(self.report);
                steps
            }
            _ => None,
        };
        if let Some(steps) = steps {
            return OnError::Steps(self.steps(steps, "onError"));
        }
        match node.text() {
            Some("fail") => OnError::Fail,
            Some("continue") => OnError::Continue,
            _ => {
                let message = format!("`onError` of `{word}` must be `fail`, `continue` or a list of steps");
                self.report.add("value", node.at, message);
                OnError::Fail
            }
        }
    }

    fn kind(&mut self, word: &str, node: &Node, fields: &mut Fields<'_>, id: &str) -> Option<StepKind> {
        Some(match word {
            "action.call" => self.call(fields)?,
            "control.if" => {
                let condition = self.condition(fields)?;
                let then = self.body(fields, &["then"]);
                let otherwise = fields.get("else").map(|node| self.steps(node, "else"));
                StepKind::If { condition, then, otherwise: otherwise.unwrap_or_default() }
            }
            "control.switch" => StepKind::Switch(self.switch(fields)?),
            "control.forEach" => StepKind::Each(self.each(fields)?),
            "control.while" => StepKind::While {
                condition: self.condition(fields)?,
                index: self.local(fields, "indexVar"),
                most: fields.number("maxIterations", self.report),
                result: fields.template("result", self.report),
                body: self.body(fields, &["body", "steps"]),
            },
            "control.break" => StepKind::Break,
            "control.continue" => StepKind::Continue,
            "control.try" => self.try_catch(fields)?,
            "control.parallel" => self.parallel(fields)?,
            "control.return" => {
                let value = fields.either(&["value", "output"], self.report);
                if let Some(value) = value {
                    template(value, self.report);
                }
                StepKind::Return { value: value.map(Node::to_value) }
            }
            "control.fail" => self.fail(fields, id),
            "vars.set" => self.set(fields)?,
            "wait.sleep" => StepKind::Sleep(self.sleep(fields)?),
            "wait.signal" => StepKind::Wait(self.signal(fields)?),
            "wait.event" => StepKind::Wait(self.event(fields)?),
            "human.task" => StepKind::Wait(self.task(fields, id)),
            "workflow.call" => self.workflow(fields)?,
            "workflow.start" => {
                let action = "workflow.start".to_owned();
                let delivery = DeliveryGuarantee::AtLeastOnce;
                StepKind::Call { action, version: None, input: self.start(fields)?, delivery }
            }
            unknown => {
                let hint = self.report.hint(unknown, TYPES);
                self.report.add("unknownType", node.at, format!("unknown step type `{unknown}`{hint}"));
                return None;
            }
        })
    }

    fn condition(&mut self, fields: &mut Fields<'_>) -> Option<String> {
        let node = fields.need("condition", self.report)?;
        expr(node, "condition", self.report)
    }

    fn fail(&mut self, fields: &mut Fields<'_>, id: &str) -> StepKind {
        let errors = fields.get("errors").map(|node| {
            template(node, self.report);
            self.field_errors(node);
            node.to_value()
        });
        let code = if errors.is_some() { "validationFailed" } else { "failed" };
        let message =
            if errors.is_some() { "the input is not accepted".to_owned() } else { format!("step `{id}`") };
        StepKind::Fail {
            code: fields.template("code", self.report).unwrap_or_else(|| code.into()),
            message: fields.template("message", self.report).unwrap_or_else(|| message.into()),
            is_final: fields.flag("final", self.report),
            errors,
        }
    }

    /// Checks the errors of `control.fail` as far as they are written out: a list of `pointer` and `message`.
    fn field_errors(&mut self, node: &Node) {
        let items = match &node.kind {
            Kind::List(items) if !items.is_empty() => items,
            Kind::Map(_) if node.field("$expr").is_some() => return,
            _ => {
                let message = "`errors` must be a list of `{ pointer, message }` or an expression";
                return self.report.add("type", node.at, message);
            }
        };
        for item in items {
            let Some(mut fields) = Fields::of(item, "an error", self.report) else { continue };
            let pointer = fields.need("pointer", self.report);
            if let Some(text) = pointer.and_then(Node::text)
                && !(text.is_empty() || text.starts_with('/'))
            {
                let message = format!("`pointer` must be a JSON pointer such as `/password` (got `{text}`)");
                self.report.add("value", item.at, message);
            }
            fields.need("message", self.report);
            fields.get("code");
            fields.finish(self.report);
        }
    }

    /// Reads the name of a local.
    pub(super) fn local(&mut self, fields: &mut Fields<'_>, name: &'static str) -> Option<String> {
        let node = fields.get(name)?;
        let local = text(node, name, self.report)?;
        let first = |c: char| c.is_alphabetic() || c == '_';
        let is_name = local.starts_with(first) && local.chars().all(|c| c.is_alphanumeric() || c == '_');
        if !is_name {
            self.report.add("badName", node.at, format!("`{local}` is not a valid name: use letters, digits and `_`, and do not start with a digit"));
        }
        if RESERVED.contains(&local.as_str()) {
            self.report.add("badName", node.at, format!("`{local}` is reserved: choose another name"));
        }
        Some(local)
    }

    /// Reads a call of an action: `action` or `config: { actionId }`. Actions that are step types of their own are
    /// reported.
    pub(super) fn call(&mut self, fields: &mut Fields<'_>) -> Option<StepKind> {
        let (mut action, mut version) = (fields.text("action", self.report), None);
        if let Some(config) = fields.get("config") {
            let mut config = Fields::of(config, "`config`", self.report)?;
            action = config.text("actionId", self.report).or(action);
            version = config.number("version", self.report);
            config.finish(self.report);
        }
        let Some(action) = action else {
            self.report.add("missing", fields.at, "a call needs `action` or `config: { actionId: … }`");
            return None;
        };
        if let "human.task" | "workflow.call" = action.as_str() {
            let message = format!("`{action}` is a step type: write `type: {action}`");
            self.report.add("value", fields.at, message);
        }
        let input =
            fields.template("input", self.report).unwrap_or_else(|| Value::Object(Default::default()));
        let delivery = policy::delivery(fields, self.report);
        Some(StepKind::Call { action, version, input, delivery })
    }

    fn each(&mut self, fields: &mut Fields<'_>) -> Option<Each> {
        let (items, pages) = self.items(fields);
        let item = self.local(fields, "itemVar").unwrap_or_else(|| "item".to_owned());
        let index = self.local(fields, "indexVar");
        let parallel = match fields.get("parallel") {
            None => None,
            Some(node) => match &node.kind {
                Kind::Bool(true) => Some(u32::MAX),
                Kind::Bool(false) => None,
                _ => super::fields::whole(node, "parallel", self.report),
            },
        };
        if parallel == Some(0) {
            self.report.add("value", fields.at, "`parallel` must be at least 1: with 0 no item can start");
        }
        let policy = fields.word("onItemError", &["fail", "continue", "collect"], self.report);
        let goal = policy::goal(fields, ("onItemError", policy), None, self.report);
        if goal.is_some() && parallel.is_none() {
            let message = "`complete` and `tolerate` need `parallel`: with `parallel: 1` the items are processed one after the other";
            self.report.add("missing", fields.at, message);
        }
        let errors = match policy {
            Some("continue") => ItemErrors::Continue,
            Some("collect") => ItemErrors::Collect,
            _ => ItemErrors::Fail,
        };
        if pages.is_some() {
            self.fits_pages(fields, &item, index.as_deref(), parallel);
        }
        let most = fields.number("maxItems", self.report);
        let result = fields.template("result", self.report);
        let body = self.body(fields, &["body", "steps"]);
        Some(Each { items: items?, pages, item, index, parallel, errors, goal, most, result, body })
    }

    fn try_catch(&mut self, fields: &mut Fields<'_>) -> Option<StepKind> {
        let body = self.body(fields, &["body", "steps"]);
        let node = fields.need("catch", self.report)?;
        let (mut local, mut codes) = ("error".to_owned(), None);
        let catch = match &node.kind {
            Kind::Map(_) => {
                let mut catch = Fields::of(node, "`catch`", self.report)?;
                local = self.local(&mut catch, "as").unwrap_or(local);
                codes = catch.texts("codes", self.report);
                let steps = catch.need("steps", self.report);
                catch.finish(self.report);
                steps.map(|steps| self.steps(steps, "catch")).unwrap_or_default()
            }
            _ => self.steps(node, "catch"),
        };
        Some(StepKind::Try { body, local, codes, catch })
    }

    fn parallel(&mut self, fields: &mut Fields<'_>) -> Option<StepKind> {
        let errors = fields.word("errors", &["failFast", "collect"], self.report);
        let node = fields.need("branches", self.report)?;
        let nodes: Vec<&Node> = match &node.kind {
            Kind::List(items) => items.iter().collect(),
            // Sorted by name, because the fields of a JSON object have no order.
            Kind::Map(fields) => {
                let by_name: BTreeMap<_, _> = fields.iter().map(|(key, node)| (&key.text, node)).collect();
                by_name.into_values().collect()
            }
            _ => return wrong(node, "branches", "a list of branches", self.report),
        };
        if nodes.is_empty() {
            self.report.add("empty", node.at, "`branches` is empty: add at least one branch");
        }
        let mut branches = Vec::new();
        for node in nodes {
            let steps = match &node.kind {
                Kind::List(_) => Some(node),
                _ => {
                    let mut branch = Fields::of(node, "a branch", self.report)?;
                    branch.text("name", self.report);
                    let steps = branch.need("steps", self.report);
                    branch.finish(self.report);
                    steps
                }
            };
            let read = steps.map(|steps| self.steps(steps, "steps")).unwrap_or_default();
            if matches!(steps.map(|steps| &steps.kind), Some(Kind::List(items)) if items.is_empty()) {
                self.report.add("empty", node.at, "the branch has no steps: add at least one");
            }
            branches.push(read);
        }
        let goal = policy::goal(fields, ("errors", errors), Some(branches.len()), self.report);
        Some(StepKind::Parallel { branches, settled: errors == Some("collect"), goal })
    }

    fn set(&mut self, fields: &mut Fields<'_>) -> Option<StepKind> {
        let Some(node) = fields.either(&["values", "vars"], self.report) else {
            self.report.add("missing", fields.at, "`vars.set` needs `values`, an object of names and values");
            return None;
        };
        let Some(entries) = node.fields() else { return wrong(node, "values", "an object", self.report) };
        let mut values = Vec::new();
        for (key, value) in entries {
            template(value, self.report);
            let path = key.text.strip_prefix("vars.").unwrap_or(&key.text);
            if let Err(message) = Save::parse(&format!("vars.{path}")) {
                self.report.add("badPath", key.at, message);
            }
            values.push((path.to_owned(), value.to_value()));
        }
        // Sorted by name, because the fields of a JSON object have no order. All values are computed before any is
        // written.
        values.sort_by(|(a, _), (b, _)| a.cmp(b));
        if values.is_empty() {
            self.report.add("empty", node.at, "`values` is empty: set at least one variable");
        }
        Some(StepKind::Set { values })
    }

    fn sleep(&mut self, fields: &mut Fields<'_>) -> Option<Sleep> {
        let length = fields.span("for", self.report);
        let until = fields.get("until");
        match (length, until) {
            (Some(_), Some(until)) => {
                self.report.add("conflict", until.at, "write `for` or `until`, not both");
                None
            }
            (Some(length), None) => Some(Sleep::For(length)),
            (None, Some(until)) => {
                // A fixed time is plain text; an expression has its marker.
                if let Kind::Text(text) = &until.kind {
                    if text.parse::<crate::Timestamp>().is_err() {
                        let message = format!("`{text}` is not a timestamp such as `2030-01-31T12:00:00Z`");
                        self.report.add("value", until.at, message);
                    }
                    return Some(Sleep::Until(Value::String(text.clone()).to_string()));
                }
                expr(until, "until", self.report).map(Sleep::Until)
            }
            (None, None) => {
                self.report.add(
                    "missing",
                    fields.at,
                    "a sleep needs `for` (a duration) or `until` (a timestamp)",
                );
                None
            }
        }
    }

    fn on_timeout(&mut self, fields: &mut Fields<'_>) -> Option<Vec<Step>> {
        let node = fields.get("onTimeout")?;
        Some(self.steps(node, "onTimeout"))
    }

    fn signal(&mut self, fields: &mut Fields<'_>) -> Option<Wait> {
        let signal = fields.need("signal", self.report);
        let signal = signal.and_then(|node| text(node, "signal", self.report));
        let payload = fields.schema("payload", self.report);
        let filter = fields.expr("filter", self.report);
        let on_timeout = self.on_timeout(fields);
        let heartbeat_ms = policy::heartbeat(fields, self.report);
        Some(Wait { signal: signal?, payload, filter, on_timeout, heartbeat_ms, ..Wait::default() })
    }

    /// Reads a wait for an event. The wait accepts events whose correlation value (`of`) equals that of the run
    /// (`key`). Without `of`, the event's own correlation is used.
    fn event(&mut self, fields: &mut Fields<'_>) -> Option<Wait> {
        let event = fields.either(&["eventName", "event"], self.report);
        if event.is_none() {
            self.report.add("missing", fields.at, "a wait for an event needs `eventName`");
        }
        let event = event.and_then(|node| text(node, "eventName", self.report));
        let filter = fields.expr("filter", self.report);
        let mut awaited = EventFilter::default();
        if let Some(node) = fields.get("correlation") {
            let mut correlation = Fields::of(node, "`correlation`", self.report)?;
            awaited.of = correlation.expr("event", self.report);
            // The correlation value of the run is computed when the run reaches the step.
            self.report.is_outside = true;
            let key = correlation.need("run", self.report);
            awaited.key = key.and_then(|node| expr(node, "run", self.report));
            self.report.is_outside = false;
            correlation.finish(self.report);
        }
        let payload = fields.schema("payload", self.report);
        let on_timeout = self.on_timeout(fields);
        Some(Wait { signal: event?, payload, filter, event: Some(awaited), on_timeout, ..Wait::default() })
    }

    fn task(&mut self, fields: &mut Fields<'_>, id: &str) -> Wait {
        let mut prompt = serde_json::Map::new();
        for name in ["title", "description", "data"] {
            prompt.extend(fields.template(name, self.report).map(|value| (name.to_owned(), value)));
        }
        let signal = fields.text("signal", self.report).unwrap_or_else(|| id.to_owned());
        let form = fields.schema("form", self.report);
        let answerers = self.answerers(fields);
        let on_timeout = self.on_timeout(fields);
        let prompt = (!prompt.is_empty()).then_some(Value::Object(prompt));
        let payload = form.clone();
        let heartbeat_ms = policy::heartbeat(fields, self.report);
        Wait { signal, payload, prompt, form, answerers, on_timeout, heartbeat_ms, ..Wait::default() }
    }

    /// Reads the people who may answer a task. Texts that name neither a user nor a role are reported and left out.
    fn answerers(&mut self, fields: &mut Fields<'_>) -> Vec<String> {
        let Some(node) = fields.either(&["answerers", "assignees"], self.report) else { return Vec::new() };
        let texts: Vec<(Position, String)> = match &node.kind {
            Kind::List(items) => {
                let one = |item: &Node| Some((item.at, text(item, "answerers", self.report)?));
                items.iter().filter_map(one).collect()
            }
            Kind::Text(one) => vec![(node.at, one.clone())],
            _ => {
                self.report.add("type", node.at, "`answerers` must be a text or a list of texts");
                return Vec::new();
            }
        };
        let mut answerers = Vec::new();
        for (at, text) in texts {
            match text.parse::<Answerer>() {
                Ok(_) => answerers.push(text),
                Err(why) => self.report.add("badAnswerer", at, why),
            }
        }
        answerers
    }

    fn workflow(&mut self, fields: &mut Fields<'_>) -> Option<StepKind> {
        let workflow = fields.need("workflow", self.report);
        if let Some(node) = workflow {
            template(node, self.report);
        }
        let input = fields.template_or_null("input", self.report);
        let input = input.unwrap_or_else(|| Value::Object(Default::default()));
        Some(StepKind::Workflow { workflow: workflow?.to_value(), input })
    }

    /// Reads the start of another run that is not waited for.
    fn start(&mut self, fields: &mut Fields<'_>) -> Option<Value> {
        let mut input = serde_json::Map::new();
        for name in ["workflow", "input", "key", "at"] {
            let value = match name {
                "input" => fields.template_or_null(name, self.report),
                _ => fields.template(name, self.report),
            };
            input.extend(value.map(|value| (name.to_owned(), value)));
        }
        if !input.contains_key("workflow") {
            self.report.add(
                "missing",
                fields.at,
                "`workflow.start` needs `workflow`, the name of the workflow",
            );
            return None;
        }
        Some(Value::Object(input))
    }
}

/// Names with a fixed meaning in expressions.
pub(crate) const RESERVED: [&str; 16] = [
    "payload",
    "vars",
    "meta",
    "locals",
    "session",
    "context",
    "event",
    "attempts",
    "prompt",
    "correlation",
    "true",
    "false",
    "null",
    "and",
    "or",
    "in",
];
