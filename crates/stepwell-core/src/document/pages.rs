//! Reads and compiles loops over all pages of a list: a call fetches a page, the loop executes its items, and the
//! cursor of the page fetches the next one.

use serde_json::{Value, json};

use super::compile::{Around, Compiler};
use super::fields::{Fields, Report, template};
use super::model::{Each, OnError, PageCall, Step, StepKind};
use super::read::Reader;
use super::tree::{Kind, Node};
use crate::expr::Expr;
use crate::ids::Name;
use crate::spec::{Over, Pages};

/// The local that holds the cursor of the next page.
pub(super) const CURSOR: &str = "cursor";

impl Reader<'_> {
    /// Reads the items of a loop: a list, or the calls that fetch it page by page.
    pub(super) fn items(&mut self, fields: &mut Fields<'_>) -> (Option<Value>, Option<PageCall>) {
        match (fields.get("items"), fields.get("pages")) {
            (Some(_), Some(pages)) => {
                self.report.add("conflict", pages.at, "write `items` or `pages`, not both");
                (None, None)
            }
            (None, Some(pages)) => {
                let call = self.page_call(pages);
                (call.as_ref().map(|_| Value::Null), call)
            }
            (Some(items), None) => {
                self.report.is_outside = true;
                template(items, self.report);
                self.report.is_outside = false;
                if !matches!(items.kind, Kind::List(_) | Kind::Map(_)) {
                    let why = "`items` is a single value, so there would be only one round: write a list, or `{ $expr: … }`";
                    self.report.add("value", items.at, why);
                }
                (Some(items.to_value()), None)
            }
            (None, None) => {
                let message = "a step needs `items`, or `pages` to fetch the items page by page";
                self.report.add("missing", fields.at, message);
                (None, None)
            }
        }
    }

    fn page_call(&mut self, node: &Node) -> Option<PageCall> {
        let mut fields = Fields::of(node, "`pages`", self.report)?;
        let call = self.call(&mut fields);
        let retry = self.retry(&mut fields);
        let timeout = fields.span("timeout", self.report);
        let items = path(&mut fields, "items", "items", self.report);
        let cursor = path(&mut fields, "cursor", "next_cursor", self.report);
        fields.finish(self.report);
        let StepKind::Call { action, version, input, delivery } = call? else { return None };
        let input = with_cursor(input, node, self.report);
        Some(PageCall { at: node.at, action, version, input, delivery, retry, timeout, items, cursor })
    }

    /// Reports settings that do not fit a loop over pages.
    pub(super) fn fits_pages(
        &mut self,
        fields: &Fields<'_>,
        item: &str,
        index: Option<&str>,
        parallel: Option<u32>,
    ) {
        if parallel.is_some() {
            let message = "`parallel` is not possible with `pages`: the items are processed in order";
            self.report.add("conflict", fields.at, message);
        }
        if item == CURSOR || index == Some(CURSOR) {
            let message = format!("`{CURSOR}` is the cursor of the next page here: choose another name");
            self.report.add("badName", fields.at, message);
        }
    }
}

/// Reads the path of a part of a page, such as `body.lines`.
fn path(fields: &mut Fields<'_>, name: &'static str, default: &str, report: &mut Report) -> String {
    let Some(node) = fields.get(name) else { return default.to_owned() };
    let given = super::fields::text(node, name, report).unwrap_or_default();
    if Expr::parse(&format!("page.{given}")).is_err() || given.trim().is_empty() {
        let message = format!(
            "`{name}` must be the path of a field in the output, such as `{default}` (got `{given}`)"
        );
        report.add("value", node.at, message);
    }
    given
}

/// Adds the cursor to the input of the call, unless an expression in it already reads the cursor.
fn with_cursor(input: Value, node: &Node, report: &mut Report) -> Value {
    let reads = |used: &super::fields::Used| {
        used.step == report.step && used.at >= node.at && used.roots.iter().any(|root| root == CURSOR)
    };
    if report.used.iter().any(reads) {
        return input;
    }
    match input {
        Value::Object(mut fields) if !fields.contains_key("$expr") && !fields.contains_key(CURSOR) => {
            fields.insert(CURSOR.to_owned(), json!({ "$expr": CURSOR }));
            Value::Object(fields)
        }
        input => {
            let message = "no expression in `input` reads `cursor`: every page would be the first one";
            report.add("value", node.at, message);
            input
        }
    }
}

impl Compiler<'_> {
    /// Compiles the call that fetches a page and leads back to the loop. Returns the loop's list.
    pub(super) fn pages(&mut self, step: &Step, each: &Each, call: &PageCall, around: &Around) -> Over {
        let fetching = Step {
            at: call.at,
            id: format!("{}.page", step.id),
            condition: None,
            retry: call.retry.clone(),
            timeout: call.timeout.clone(),
            on_error: OnError::Fail,
            save_as: None,
            kind: StepKind::Set { values: Vec::new() },
        };
        let back = Name::from(step.id.as_str());
        let action = (call.action.as_str(), &call.version, call.delivery);
        let fetch = self.call(&fetching, action, &call.input, &back, around);
        Over::Pages(Pages {
            fetch,
            list: json!({ "$expr": format!("page.{}", call.items) }),
            cursor: format!("page.{}", call.cursor),
            next: CURSOR.to_owned(),
            item: each.item.clone(),
        })
    }
}
