//! Reads the fields of an object: what is missing, of another type or not known is reported where it stands.

use std::cell::Cell;

use serde_json::Value;

use super::model::Span;
use super::problem::{Place, Problem, Problems};
use super::tree::{Key, Kind, Node};
use crate::expr::Expr;
use crate::near::did_you_mean;
use crate::schema::Schema;
use crate::template::Template;
use crate::time::duration_ms;

/// Collects problems.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) problems: Vec<Problem>,
    /// The step that is being read.
    pub(crate) step: Option<String>,
    /// What expressions read.
    pub(crate) used: Vec<Used>,
    /// What is being read is asked before its step begins.
    pub(crate) is_outside: bool,
    /// The first problem that is not told, and how many there are.
    untold: Option<(Place, usize)>,
    /// How many names were compared with those that are not known.
    compared: Cell<usize>,
}

/// So many names are compared in all; whoever has more unknown ones gets no hint for the rest.
const MAX_COMPARED: usize = 20_000;

/// So many problems are told; somebody who has more begins with these.
pub const MAX_PROBLEMS: usize = 100;

/// What one expression reads.
#[derive(Debug)]
pub(crate) struct Used {
    pub(crate) at: Place,
    pub(crate) step: Option<String>,
    pub(crate) roots: Vec<String>,
    /// Fields of `vars`.
    pub(crate) vars: Vec<String>,
    /// It is asked before the step begins, and does not see the step's own locals.
    pub(crate) is_outside: bool,
}

impl Report {
    pub(crate) fn add(&mut self, code: &str, at: Place, message: impl Into<String>) {
        let step = self.step.clone();
        self.take(Problem { step, ..Problem::new(code, at, message) });
    }

    /// A problem that somebody else has found.
    pub(crate) fn take(&mut self, problem: Problem) {
        if self.is_full() {
            self.untold.get_or_insert((problem.at, 0)).1 += 1;
            return;
        }
        self.problems.push(problem);
    }

    /// How many problems were found.
    pub(crate) fn count(&self) -> usize {
        self.problems.len() + self.untold.map_or(0, |(_, many)| many)
    }

    /// What is found from here on is counted and not told: hints need not be looked for.
    pub(crate) fn is_full(&self) -> bool {
        self.problems.len() >= MAX_PROBLEMS
    }

    /// Everything that is told, by line.
    pub(crate) fn finish(mut self) -> Problems {
        self.problems.sort_by_key(|problem| problem.at);
        self.problems.dedup();
        if let Some((at, count)) = self.untold {
            let message = format!("and {count} more, from here on: mend these first");
            self.problems.push(Problem::new("more", at, message));
        }
        Problems(self.problems)
    }

    /// ` (did you mean …?)`, or nothing.
    pub(crate) fn hint<'n>(&self, name: &str, known: impl IntoIterator<Item = &'n str>) -> String {
        if self.is_full() || self.compared.get() > MAX_COMPARED {
            return String::new();
        }
        let compared = |_: &&str| self.compared.set(self.compared.get() + 1);
        did_you_mean(name, known.into_iter().inspect(compared))
    }
}

/// The fields of one object.
pub(crate) struct Fields<'a> {
    pub(crate) at: Place,
    fields: &'a [(Key, Node)],
    what: String,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// The object's fields; anything else is reported.
    pub(crate) fn of(node: &'a Node, what: &str, report: &mut Report) -> Option<Self> {
        let Some(fields) = node.fields() else {
            report.add("type", node.at, format!("{what} is an object, not {}", node.word()));
            return None;
        };
        Some(Fields { at: node.at, fields, what: what.to_owned(), known: Vec::new() })
    }

    /// A field that may be there; one that is null counts as missing.
    pub(crate) fn get(&mut self, name: &'static str) -> Option<&'a Node> {
        self.known.push(name);
        let found = self.fields.iter().find(|(key, _)| key.text == name).map(|(_, node)| node);
        found.filter(|node| node.kind != Kind::Null)
    }

    /// The first of several names for the same thing.
    pub(crate) fn either(&mut self, names: &[&'static str], report: &mut Report) -> Option<&'a Node> {
        let found: Vec<_> =
            names.iter().filter_map(|name| self.get(name).map(|node| (*name, node))).collect();
        if let [(first, _), (second, node), ..] = found.as_slice() {
            report.add(
                "conflict",
                node.at,
                format!("`{second}` says the same as `{first}`: write one of them"),
            );
        }
        found.first().map(|(_, node)| *node)
    }

    /// A field that has to be there.
    pub(crate) fn need(&mut self, name: &'static str, report: &mut Report) -> Option<&'a Node> {
        let found = self.get(name);
        if found.is_none() {
            report.add("missing", self.at, format!("{} needs `{name}`", self.what));
        }
        found
    }

    /// Fields that nobody has asked for are mistakes.
    pub(crate) fn finish(self, report: &mut Report) {
        for (key, _) in self.fields {
            if !self.known.contains(&key.text.as_str()) {
                let hint = report.hint(&key.text, self.known.iter().copied());
                report.add("unknownField", key.at, format!("{} has no `{}`{hint}", self.what, key.text));
            }
        }
    }

    pub(crate) fn text(&mut self, name: &'static str, report: &mut Report) -> Option<String> {
        let node = self.get(name)?;
        text(node, name, report)
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

    /// JSON with expressions in it.
    pub(crate) fn template(&mut self, name: &'static str, report: &mut Report) -> Option<Value> {
        let node = self.get(name)?;
        template(node, report);
        Some(node.to_value())
    }

    /// The same where `null` is a value like any other.
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

    /// An expression, with or without its marker; true and false are expressions too.
    pub(crate) fn expr(&mut self, name: &'static str, report: &mut Report) -> Option<String> {
        let node = self.get(name)?;
        expr(node, name, report)
    }

    pub(crate) fn span(&mut self, name: &'static str, report: &mut Report) -> Option<Span> {
        let node = self.get(name)?;
        span(node, name, report)
    }

    pub(crate) fn texts(&mut self, name: &'static str, report: &mut Report) -> Option<Vec<String>> {
        let node = self.get(name)?;
        match &node.kind {
            Kind::List(items) => items.iter().map(|item| text(item, name, report)).collect(),
            Kind::Text(text) => Some(vec![text.clone()]),
            _ => wrong(node, name, "a list of texts", report),
        }
    }

    /// One of a few words.
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
            report.add("value", node.at, format!("`{name}` is one of {}{hint}", words.join(", ")));
        }
        found.copied()
    }
}

pub(crate) fn wrong<T>(node: &Node, name: &str, wanted: &str, report: &mut Report) -> Option<T> {
    report.add("type", node.at, format!("`{name}` is {wanted}, not {}", node.word()));
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

/// The expression in a marker, or text that is one by itself.
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
        return wrong(node, name, "an expression: `{ $expr: \"…\" }`", report);
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

/// Reports every expression in a value that does not parse, each where it stands.
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

/// A duration: ISO 8601 or short (`PT5M`, `5m`), a number of seconds, or an expression that gives one.
pub(crate) fn span(node: &Node, name: &str, report: &mut Report) -> Option<Span> {
    if let Kind::Map(_) = node.kind {
        return expr(node, name, report).map(Span::Expr);
    }
    let ms = duration_ms(&node.to_value());
    match ms {
        Some(ms) => Some(Span::Ms(ms)),
        None => wrong(node, name, "a duration such as `PT5M`, `30s` or a number of seconds", report),
    }
}
