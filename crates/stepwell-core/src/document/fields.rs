//! Reads the fields of an object. Fields that are missing, unknown or of the wrong type are reported with their
//! positions.

use std::cell::Cell;

use serde_json::Value;

use super::model::Span;
use super::problem::{Position, SourceProblem, SourceProblems};
use super::tree::{Key, Kind, Node};
use crate::expr::Expr;
use crate::near::did_you_mean;
use crate::schema::Schema;
use crate::spec::Retention;
use crate::template::Template;
use crate::time::{duration_ms, missing_unit, whole_ms};

/// Collects problems while a workflow document is read.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) problems: Vec<SourceProblem>,
    /// The step that is being read.
    pub(crate) step: Option<String>,
    /// The names that expressions read.
    pub(crate) used: Vec<Used>,
    /// True while reading an expression that is evaluated before its step starts.
    pub(crate) is_outside: bool,
    /// The position of the first problem that is only counted, and the number of such problems.
    untold: Option<(Position, usize)>,
    /// Number of comparisons made so far to find hints.
    compared: Cell<usize>,
}

/// The maximum number of name comparisons for hints. Unknown names beyond it get no hint.
const MAX_COMPARED: usize = 20_000;

/// The maximum number of problems reported; the rest are only counted.
pub const MAX_PROBLEMS: usize = 100;

/// The names that one expression reads.
#[derive(Debug)]
pub(crate) struct Used {
    pub(crate) at: Position,
    pub(crate) step: Option<String>,
    pub(crate) roots: Vec<String>,
    /// The fields of `vars` that the expression reads.
    pub(crate) vars: Vec<String>,
    /// True if the expression is evaluated before the step starts, so that the locals of the step are not visible.
    pub(crate) is_outside: bool,
}

impl Report {
    pub(crate) fn add(&mut self, code: &str, at: Position, message: impl Into<String>) {
        let step = self.step.clone();
        self.take(SourceProblem { step, ..SourceProblem::new(code, at, message) });
    }

    /// Adds a problem. Once the report is full, it only counts it.
    pub(crate) fn take(&mut self, problem: SourceProblem) {
        if self.is_full() {
            self.untold.get_or_insert((problem.at, 0)).1 += 1;
            return;
        }
        self.problems.push(problem);
    }

    /// Returns the number of problems found, including those not reported.
    pub(crate) fn count(&self) -> usize {
        self.problems.len() + self.untold.map_or(0, |(_, many)| many)
    }

    /// Returns true if further problems are only counted. They need no hints.
    pub(crate) fn is_full(&self) -> bool {
        self.problems.len() >= MAX_PROBLEMS
    }

    /// Returns the reported problems, sorted by position.
    pub(crate) fn finish(mut self) -> SourceProblems {
        self.problems.sort_by_key(|problem| problem.at);
        self.problems.dedup();
        if let Some((at, count)) = self.untold {
            let message = format!("{count} more problems from here on: fix the problems above first");
            self.problems.push(SourceProblem::new("more", at, message));
        }
        SourceProblems(self.problems)
    }

    /// Returns ` (did you mean …?)`, or an empty string.
    pub(crate) fn hint<'n>(&self, name: &str, known: impl IntoIterator<Item = &'n str>) -> String {
        if self.is_full() || self.compared.get() > MAX_COMPARED {
            return String::new();
        }
        let compared = |_: &&str| self.compared.set(self.compared.get() + 1);
        did_you_mean(name, known.into_iter().inspect(compared))
    }
}

/// The fields of an object that is being read.
pub(crate) struct Fields<'a> {
    pub(crate) at: Position,
    fields: &'a [(Key, Node)],
    what: String,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// Returns the fields of an object. Any other value is reported.
    pub(crate) fn of(node: &'a Node, what: &str, report: &mut Report) -> Option<Self> {
        let Some(fields) = node.fields() else {
            report.add("type", node.at, format!("{what} must be an object, not {}", node.word()));
            return None;
        };
        Some(Fields { at: node.at, fields, what: what.to_owned(), known: Vec::new() })
    }

    /// Returns an optional field. A field that is null counts as missing.
    pub(crate) fn get(&mut self, name: &'static str) -> Option<&'a Node> {
        self.entry(name).map(|(_, node)| node)
    }

    /// Returns an optional field, for which null is an ordinary value.
    pub(crate) fn entry_or_null(&mut self, name: &'static str) -> Option<&'a Node> {
        self.known.push(name);
        self.fields.iter().find(|(key, _)| key.text == name).map(|(_, node)| node)
    }

    /// Returns an optional field with its key. A field that is null counts as missing.
    pub(crate) fn entry(&mut self, name: &'static str) -> Option<(&'a Key, &'a Node)> {
        self.known.push(name);
        let found = self.fields.iter().find(|(key, _)| key.text == name).map(|(key, node)| (key, node));
        found.filter(|(_, node)| node.kind != Kind::Null)
    }

    /// Returns the first field that is present, of several names with the same meaning.
    pub(crate) fn either(&mut self, names: &[&'static str], report: &mut Report) -> Option<&'a Node> {
        let found: Vec<_> =
            names.iter().filter_map(|name| self.get(name).map(|node| (*name, node))).collect();
        if let [(first, _), (second, node), ..] = found.as_slice() {
            report.add(
                "conflict",
                node.at,
                format!("`{second}` means the same as `{first}`: write only one of them"),
            );
        }
        found.first().map(|(_, node)| *node)
    }

    /// Returns a required field. A missing field is reported.
    pub(crate) fn need(&mut self, name: &'static str, report: &mut Report) -> Option<&'a Node> {
        let found = self.get(name);
        if found.is_none() {
            report.add("missing", self.at, format!("{} needs `{name}`", self.what));
        }
        found
    }

    /// Reports fields that were never requested.
    pub(crate) fn finish(self, report: &mut Report) {
        for (key, _) in self.fields {
            if !self.known.contains(&key.text.as_str()) {
                let hint = report.hint(&key.text, self.known.iter().copied());
                report.add(
                    "unknownField",
                    key.at,
                    format!("{} has no field `{}`{hint}", self.what, key.text),
                );
            }
        }
    }

    pub(crate) fn text(&mut self, name: &'static str, report: &mut Report) -> Option<String> {
        let node = self.get(name)?;
        text(node, name, report)
    }

    pub(crate) fn retention(&mut self, name: &'static str, report: &mut Report) -> Option<Retention> {
        let node = self.get(name)?;
        let read = node.text().and_then(Retention::parse);
        read.or_else(|| wrong(node, name, "a duration such as `30d` or `P30D`, or `never`", report))
    }

    pub(crate) fn number(&mut self, name: &'static str, report: &mut Report) -> Option<u32> {
        let node = self.get(name)?;
        whole(node, name, report)
    }

    pub(crate) fn flag(&mut self, name: &'static str, report: &mut Report) -> Option<bool> {
        let node = self.get(name)?;
        match node.kind {
            Kind::Bool(truth) => Some(truth),
            _ => wrong(node, name, "true or false", report),
        }
    }

    /// Reads a template: JSON that may contain expressions.
    pub(crate) fn template(&mut self, name: &'static str, report: &mut Report) -> Option<Value> {
        let node = self.get(name)?;
        template(node, report);
        Some(node.to_value())
    }

    /// Reads a template for which `null` is an ordinary value.
    pub(crate) fn template_or_null(&mut self, name: &'static str, report: &mut Report) -> Option<Value> {
        let is_null = self.fields.iter().any(|(key, node)| key.text == name && node.kind == Kind::Null);
        self.template(name, report).or(is_null.then_some(Value::Null))
    }

    pub(crate) fn schema(&mut self, name: &'static str, report: &mut Report) -> Option<Value> {
        let node = self.get(name)?;
        let value = node.to_value();
        if let Err(problems) = Schema::compile(&value) {
            for problem in problems {
                report.add("badSchema", node.at, format!("`{name}`: {problem}"));
            }
        }
        Some(value)
    }

    /// Reads an expression, with or without its marker. True and false are expressions too.
    pub(crate) fn expr(&mut self, name: &'static str, report: &mut Report) -> Option<String> {
        let node = self.get(name)?;
        expr(node, name, report)
    }

    /// Reads a duration, from the field itself or from one whose name says the unit (`delayMs`, `delaySeconds`).
    pub(crate) fn span(&mut self, name: &'static str, report: &mut Report) -> Option<Span> {
        let Some(spellings) = SPANS.iter().find(|spellings| spellings[0] == name) else {
            return span(self.get(name)?, name, report);
        };
        let node = self.either(spellings, report)?;
        let given = spellings.iter().find(|name| self.get(name).is_some())?;
        match spellings.iter().position(|spelling| spelling == given) {
            Some(1) => counted(node, given, ("ms", 1.0), report),
            Some(2) => counted(node, given, ("s", 1_000.0), report),
            _ => span(node, name, report),
        }
    }

    /// Returns the position of a duration in any of its spellings, or that of the fields.
    pub(crate) fn position(&mut self, name: &'static str) -> Position {
        let spellings = SPANS.iter().find(|spellings| spellings[0] == name);
        let node = spellings.into_iter().flatten().find_map(|name| self.get(name));
        node.map_or(self.at, |node| node.at)
    }

    /// Reads a duration that must not be an expression, in milliseconds.
    pub(crate) fn fixed_span(&mut self, name: &'static str, report: &mut Report) -> Option<u64> {
        let at = self.position(name);
        match self.span(name, report)? {
            Span::Ms(ms) => Some(ms),
            Span::Expr(_) => {
                report.add("type", at, format!("`{name}` must be a fixed duration, not an expression"));
                None
            }
        }
    }

    pub(crate) fn texts(&mut self, name: &'static str, report: &mut Report) -> Option<Vec<String>> {
        let node = self.get(name)?;
        match &node.kind {
            Kind::List(items) => items.iter().map(|item| text(item, name, report)).collect(),
            Kind::Text(text) => Some(vec![text.clone()]),
            _ => wrong(node, name, "a list of texts", report),
        }
    }

    /// Reads a field that must be one of these words.
    pub(crate) fn word(
        &mut self,
        name: &'static str,
        words: &[&'static str],
        report: &mut Report,
    ) -> Option<&'static str> {
        let node = self.get(name)?;
        let found = node.text().and_then(|text| words.iter().find(|word| **word == text));
        if found.is_none() {
            let hint = report.hint(node.text().unwrap_or_default(), words.iter().copied());
            report.add("value", node.at, format!("`{name}` must be one of {}{hint}", words.join(", ")));
        }
        found.copied()
    }
}

pub(crate) fn wrong<T>(node: &Node, name: &str, wanted: &str, report: &mut Report) -> Option<T> {
    report.add("type", node.at, format!("`{name}` must be {wanted}, not {}", node.word()));
    None
}

pub(crate) fn text(node: &Node, name: &str, report: &mut Report) -> Option<String> {
    match &node.kind {
        Kind::Text(text) => Some(text.clone()),
        _ => wrong(node, name, "text", report),
    }
}

pub(crate) fn whole(node: &Node, name: &str, report: &mut Report) -> Option<u32> {
    let number = match &node.kind {
        Kind::Number(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()),
        _ => None,
    };
    number.or_else(|| wrong(node, name, "a whole number", report))
}

/// Reads an expression: the content of a marker, or plain text.
pub(crate) fn expr(node: &Node, name: &str, report: &mut Report) -> Option<String> {
    let source = match &node.kind {
        Kind::Bool(truth) => return Some(truth.to_string()),
        Kind::Text(_) => Some(node),
        Kind::Map(fields) => match fields.as_slice() {
            [(key, source)] if key.text == "$expr" => Some(source),
            _ => None,
        },
        _ => None,
    };
    let Some((source, text)) = source.and_then(|source| Some((source, source.text()?))) else {
        return wrong(node, name, "an expression such as `{ $expr: \"…\" }`", report);
    };
    check_expr(source, text, report);
    Some(text.to_owned())
}

fn check_expr(node: &Node, source: &str, report: &mut Report) {
    match Expr::parse(source) {
        Ok(expr) => {
            let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
            let (roots, vars) = (owned(expr.roots()), owned(expr.fields_of("vars")));
            let (step, is_outside) = (report.step.clone(), report.is_outside);
            report.used.push(Used { at: node.at, step, roots, vars, is_outside });
        }
        Err(error) => report.add("badExpression", node.at, error.to_string()),
    }
}

/// Reports every expression in a value that does not parse, each at its position.
pub(crate) fn template(node: &Node, report: &mut Report) {
    match &node.kind {
        Kind::List(items) => items.iter().for_each(|item| template(item, report)),
        Kind::Map(fields) => {
            let is_marker = fields.iter().any(|(key, _)| key.text.starts_with('$'));
            if !is_marker {
                return fields.iter().for_each(|(_, node)| template(node, report));
            }
            if let [(key, source)] = fields.as_slice()
                && key.text == "$expr"
                && let Some(text) = source.text()
            {
                return check_expr(source, text, report);
            }
            if let Err(problems) = Template::compile(&node.to_value()) {
                for problem in problems {
                    report.add("badTemplate", node.at, problem.message);
                }
            }
        }
        _ => {}
    }
}

/// The fields that are durations. The other two spellings of each are numbers of milliseconds and of seconds.
const SPANS: [[&str; 3]; 6] = [
    ["timeout", "timeoutMs", "timeoutSeconds"],
    ["delay", "delayMs", "delaySeconds"],
    ["maxDelay", "maxDelayMs", "maxDelaySeconds"],
    ["for", "forMs", "forSeconds"],
    ["budget", "budgetMs", "budgetSeconds"],
    ["heartbeat", "heartbeatMs", "heartbeatSeconds"],
];

/// Reads a duration: ISO 8601 or short (`PT5M`, `5m`), 0, or an expression that evaluates to one of these.
pub(crate) fn span(node: &Node, name: &str, report: &mut Report) -> Option<Span> {
    if let Kind::Map(_) = node.kind {
        return expr(node, name, report).map(Span::Expr);
    }
    let value = node.to_value();
    match (duration_ms(&value), missing_unit(&format!("{name}: "), &value)) {
        (Some(ms), _) => Some(Span::Ms(ms)),
        (None, Some(message)) => {
            report.add("value", node.at, message);
            None
        }
        (None, _) => wrong(node, name, "a duration with a unit, such as `PT5M` or `30s`", report),
    }
}

/// Reads a duration from a field whose name says the unit: a number, or an expression that evaluates to one.
fn counted(node: &Node, name: &str, (unit, ms): (&str, f64), report: &mut Report) -> Option<Span> {
    match &node.kind {
        Kind::Map(_) => {
            expr(node, name, report).map(|source| Span::Expr(format!("$string(({source})) & \"{unit}\"")))
        }
        Kind::Number(number) => {
            let found = number.as_f64().and_then(|number| whole_ms(number * ms)).map(Span::Ms);
            found.or_else(|| wrong(node, name, "a number that is not negative", report))
        }
        _ => wrong(node, name, "a number without a unit", report),
    }
}
