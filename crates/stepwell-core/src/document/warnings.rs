//! Warnings about a valid workflow document: codes that no step raises, loops over a first page only, and settings
//! without an effect.

use std::collections::BTreeSet;

use serde_json::Value;

use super::WorkflowSource;
use super::model::{Body, Each, ItemErrors, OnError, Step, StepKind, Switch, Wait};
use super::problem::{Position, SourceProblem};
use super::tree::{Kind, Node};
use crate::codes;
use crate::near::did_you_mean;

/// Maximum number of warnings about one document.
const MAX_WARNINGS: usize = 100;

/// The properties of an action that warnings depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActionFacts {
    /// Codes of the errors that the action itself raises. `None`: it may raise any code.
    pub codes: Option<Vec<String>>,
    /// Lists in the output of which the action returns one page at a time.
    pub lists: Vec<String>,
}

/// Codes that every step can raise.
const OF_STEPS: [&str; 5] = ["expression", "limit", "validationFailed", "cannotSave", "undecidable"];
/// Codes that every call can raise, whatever its action does.
const OF_CALLS: [&str; 16] = [
    "timeout",
    "error",
    "panic",
    "invalidInput",
    "invalidOutput",
    "invalidResult",
    "cannotStart",
    "cannotSignal",
    "refused",
    "secret",
    "denied",
    "crashed",
    "unavailable",
    "unknownAction",
    "stateless",
    "notDurable",
];

impl WorkflowSource {
    /// Returns the warnings that need no knowledge of the actions: every call may raise any code.
    pub fn warnings(&self) -> Vec<SourceProblem> {
        self.warnings_with(&|_| None)
    }

    /// Returns all warnings about the document, given the properties of the known actions. They are sorted by position.
    pub fn warnings_with(&self, facts: &dyn Fn(&str) -> Option<ActionFacts>) -> Vec<SourceProblem> {
        let Body::Steps(steps) = &self.model.body else { return Vec::new() };
        let mut check = Check { source: self, facts, all: steps, found: Vec::new() };
        check.steps(steps);
        check.found.sort_by_key(|warning| warning.at);
        check.found.truncate(MAX_WARNINGS);
        check.found
    }
}

struct Check<'a> {
    source: &'a WorkflowSource,
    facts: &'a dyn Fn(&str) -> Option<ActionFacts>,
    all: &'a [Step],
    found: Vec<SourceProblem>,
}

impl<'a> Check<'a> {
    fn steps(&mut self, steps: &'a [Step]) {
        for step in steps {
            self.step(step);
            step.inner().into_iter().for_each(|inner| self.steps(inner));
        }
    }

    fn step(&mut self, step: &'a Step) {
        if let Some(listed) = step.retry.as_ref().and_then(|retry| retry.retry_on.as_ref()) {
            self.codes(step, listed, &["retry", "retryOn"], &|raised, facts| raised.kind(step, facts));
        }
        match &step.kind {
            StepKind::Try { body, codes: Some(listed), .. } => {
                self.codes(step, listed, &["catch", "codes"], &|raised, facts| raised.steps(body, facts));
            }
            StepKind::Each(each) => self.each(step, each),
            StepKind::While { result: Some(_), .. } if step.save_as.is_none() => {
                self.no_effect(step, "result", "`result` has no effect without `saveAs`");
            }
            StepKind::Switch(switch) => self.switch(step, switch),
            _ => {}
        }
        self.retry(step);
    }

    fn add(&mut self, step: &Step, code: &str, at: Position, message: String) {
        self.found
            .push(SourceProblem { step: Some(step.id.clone()), ..SourceProblem::new(code, at, message) });
    }

    fn no_effect(&mut self, step: &Step, field: &str, message: &str) {
        let at = self.field(step, &[field]).map_or(step.at, |node| node.at);
        self.add(step, "noEffect", at, message.to_owned());
    }

    /// Returns a field of a step in the text.
    fn field(&self, step: &Step, path: &[&str]) -> Option<&'a Node> {
        path.iter().try_fold(self.source.root.at(step.at)?, |node, field| node.field(field))
    }

    /// Reports listed codes that no step raises.
    fn codes(
        &mut self,
        step: &Step,
        listed: &[String],
        path: &[&str],
        raised: &dyn Fn(&mut Raised, &Check<'_>),
    ) {
        let mut possible = Raised::default();
        raised(&mut possible, self);
        if possible.is_any {
            return;
        }
        let list = self.field(step, path);
        for (index, code) in listed.iter().enumerate().filter(|(_, code)| !possible.has(code)) {
            let item = match list.map(|node| &node.kind) {
                Some(Kind::List(items)) => items.get(index),
                _ => list,
            };
            let hint = did_you_mean(code, possible.codes.iter().map(String::as_str));
            let message = format!("nothing here raises an error with the code `{code}`{hint}");
            self.add(step, "unraisedCode", item.map_or(step.at, |item| item.at), message);
        }
    }

    fn each(&mut self, step: &Step, each: &Each) {
        if each.result.is_some() && step.save_as.is_none() {
            self.no_effect(step, "result", "`result` has no effect without `saveAs`");
        }
        if each.errors == ItemErrors::Collect && step.save_as.is_none() {
            let message =
                "`onItemError: collect` without `saveAs` keeps no list: write `continue`, or set `saveAs`";
            self.no_effect(step, "onItemError", message);
        }
        if let Some((call, action, list)) = self.first_page(&each.items) {
            let at = self.field(step, &["items"]).map_or(step.at, |node| node.at);
            let message = format!(
                "`{action}` in the step `{call}` returns one page, and no expression reads its `next_cursor`: the loop may miss items; write `pages: {{ action: {action}, input: …, items: {list} }}` instead of `items`"
            );
            self.add(step, "firstPageOnly", at, message);
        }
    }

    /// Returns the call whose first page a loop iterates over, with its action and the field of the list.
    fn first_page(&self, items: &Value) -> Option<(&'a str, &'a str, String)> {
        let source = items.get("$expr")?.as_str()?;
        let path = source.trim().strip_prefix("vars.")?;
        let (name, list) = path.rsplit_once('.')?;
        let name = name.trim_matches('`');
        let call = calls(self.all).into_iter().find(|step| step.result_name() == Some(name))?;
        let StepKind::Call { action, .. } = &call.kind else { return None };
        let facts = (self.facts)(action)?;
        if !facts.lists.iter().any(|one| one == list) {
            return None;
        }
        let reads_cursor = |text: &str| text.contains(name) && text.contains("next_cursor");
        let is_read = any_text(&self.source.value, &reads_cursor);
        (!is_read).then_some((call.id.as_str(), action.as_str(), list.to_owned()))
    }

    fn switch(&mut self, step: &Step, switch: &Switch) {
        let mut seen: Vec<&Value> = Vec::new();
        for case in &switch.cases {
            if let Some(again) = case.values.iter().find(|value| seen.contains(value)) {
                let message = format!("an earlier case is already for the value {again}");
                self.add(step, "unreachable", case.at, message);
            }
            seen.extend(&case.values);
        }
    }

    fn retry(&mut self, step: &Step) {
        let Some(node) = self.field(step, &["retry"]).filter(|node| node.fields().is_some()) else { return };
        let Some(retry) = &step.retry else { return };
        if retry.attempts == 0 {
            self.no_effect(step, "retry", "`retry` has no effect: `attempts` is 0");
        } else if retry.delay_ms > retry.max_delay_ms {
            let message = match node.field("maxDelay").is_some() {
                true => "`delay` is longer than `maxDelay`: every retry waits `maxDelay`",
                false => "`delay` is longer than the default `maxDelay` of 30s: set `maxDelay` too",
            };
            self.no_effect(step, "retry", message);
        }
    }
}

/// Returns all calls of actions, in the order of the document.
fn calls(steps: &[Step]) -> Vec<&Step> {
    let mut found = Vec::new();
    for step in steps {
        found.extend(matches!(step.kind, StepKind::Call { .. }).then_some(step));
        step.inner().into_iter().for_each(|inner| found.extend(calls(inner)));
    }
    found
}

/// Returns true if the test holds for any text in the value.
fn any_text(value: &Value, test: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => test(text),
        Value::Array(items) => items.iter().any(|item| any_text(item, test)),
        Value::Object(fields) => fields.values().any(|value| any_text(value, test)),
        _ => false,
    }
}

/// The codes that some steps can raise.
#[derive(Debug, Default)]
struct Raised {
    codes: BTreeSet<String>,
    /// True if one of the steps may raise any code.
    is_any: bool,
}

impl Raised {
    fn has(&self, listed: &str) -> bool {
        let known = |meant: &str| self.codes.iter().any(|code| codes::plain(code) == meant);
        let is_http = |meant: &str| codes::statuses(meant).is_some() && known("httpstatus");
        codes::meanings(listed).iter().any(|meant| known(meant) || is_http(meant))
    }

    fn add(&mut self, codes: &[&str]) {
        self.codes.extend(codes.iter().map(|code| (*code).to_owned()));
    }

    fn steps(&mut self, steps: &[Step], check: &Check<'_>) {
        steps.iter().for_each(|step| {
            self.kind(step, check);
            if let OnError::Steps(steps) = &step.on_error {
                self.steps(steps, check);
            }
        });
    }

    /// Adds the codes that a step can raise, including those that its handlers catch.
    fn kind(&mut self, step: &Step, check: &Check<'_>) {
        self.add(&OF_STEPS);
        if step.timeout.is_some() {
            self.add(&["timeout"]);
        }
        match &step.kind {
            StepKind::Call { action, .. } => self.call(action, check),
            StepKind::Workflow { .. } => {
                self.add(&["childrenFailed", "cannotStart", "refused", "crashed", "denied"]);
            }
            StepKind::Fail { code: Value::String(code), .. } => self.add(&[code]),
            StepKind::Fail { .. } => self.is_any = true,
            StepKind::Each(each) => {
                self.add(&["tooManyRounds", "repeatedCursor"]);
                if let Some(pages) = &each.pages {
                    self.call(&pages.action, check);
                }
            }
            StepKind::While { .. } => self.add(&["tooManyRounds"]),
            StepKind::Parallel { .. } => self.add(&["joinUnreached"]),
            StepKind::Wait(Wait { .. }) => self.add(&["timeout"]),
            _ => {}
        }
        for inner in step.inner() {
            self.steps(inner, check);
        }
    }

    fn call(&mut self, action: &str, check: &Check<'_>) {
        self.add(&OF_CALLS);
        match (check.facts)(action).and_then(|facts| facts.codes) {
            Some(codes) => self.codes.extend(codes),
            None => self.is_any = true,
        }
    }
}
