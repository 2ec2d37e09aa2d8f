//! Reads `control.switch`: one value, and the cases for it.

use serde_json::Value;

use super::fields::{Fields, expr, wrong};
use super::model::{Switch, SwitchCase};
use super::read::Reader;
use super::tree::{Kind, Node};

impl Reader<'_> {
    /// Reads the value and the cases of a switch.
    pub(super) fn switch(&mut self, fields: &mut Fields<'_>) -> Option<Switch> {
        let value = fields.get("value");
        let value = value.map(|node| (node.at, self.switch_value(node)));
        let list = fields.need("cases", self.report);
        let default = fields.get("default").map(|node| self.steps(node, "default")).unwrap_or_default();
        let list = list?;
        let Kind::List(items) = &list.kind else {
            return wrong(list, "cases", "a list of `{ when, steps }`", self.report);
        };
        if items.is_empty() {
            self.report.add("empty", list.at, "`cases` is empty: add at least one case");
        }
        let source = value.as_ref().and_then(|(_, source)| source.as_deref());
        let is_known = value.is_none() || source.is_some();
        let cases: Vec<_> = items.iter().filter_map(|item| self.case(item, source, is_known)).collect();
        if let (Some((at, Some(_))), true) = (&value, cases.iter().all(|case| case.values.is_empty()))
            && cases.len() == items.len()
        {
            self.report.add(
                "noEffect",
                *at,
                "`value` has no effect: every `when` is an expression of its own",
            );
        }
        Some(Switch { cases, default })
    }

    /// Reads the value that the cases are compared with, as an expression.
    fn switch_value(&mut self, node: &Node) -> Option<String> {
        match &node.kind {
            Kind::Map(_) => expr(node, "value", self.report),
            _ => wrong(node, "value", "an expression such as `{ $expr: vars.kind }`", self.report),
        }
    }

    fn case(&mut self, node: &Node, value: Option<&str>, is_known: bool) -> Option<SwitchCase> {
        let mut fields = Fields::of(node, "a case", self.report)?;
        let when = fields.entry_or_null("when");
        if when.is_none() {
            self.report.add(
                "missing",
                node.at,
                "a case needs `when`: a value, a list of values or `{ $expr: … }`",
            );
        }
        let steps = fields.need("steps", self.report);
        let steps = steps.map(|steps| self.steps(steps, "steps")).unwrap_or_default();
        fields.finish(self.report);
        let when = when?;
        if when.field("$expr").is_some() {
            let condition = expr(when, "when", self.report)?;
            return Some(SwitchCase { at: node.at, condition, values: Vec::new(), steps });
        }
        let values: Vec<Value> = match &when.kind {
            Kind::List(items) if items.is_empty() => {
                self.report.add("empty", when.at, "`when` is an empty list: the case can never be chosen");
                return None;
            }
            Kind::List(items) => items.iter().map(Node::to_value).collect(),
            _ => vec![when.to_value()],
        };
        let Some(value) = value else {
            if is_known {
                self.report.add("missing", when.at, "`when` is a value, but the switch has no `value`");
            }
            return None;
        };
        Some(SwitchCase { at: node.at, condition: equals(value, &values), values, steps })
    }
}

/// Builds the condition that the value is one of these. An undefined value makes the condition undefined, which is an
/// error.
fn equals(value: &str, values: &[Value]) -> String {
    let tests: Vec<_> = values.iter().map(|one| format!("({value}) = {one}")).collect();
    format!("$exists({value}) ? ({}) : ({value})", tests.join(" or "))
}
