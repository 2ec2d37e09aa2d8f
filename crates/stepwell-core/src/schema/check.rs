//! Validates a value against compiled rules, with bounds on depth and work.

use serde_json::{Map, Value};

use super::rule::{Limit, Members, Node, NodeId, ROOT, Rule};
use super::value::{
    below, deeper_than, equal_items, has_type, is_multiple, listed, none_fits, order, plain, short, shown,
};
use super::{MAX_DEPTH, MAX_STEPS, SchemaViolation};
use crate::near::did_you_mean;

/// The state of one validation.
pub(super) struct Check<'s> {
    pub(super) nodes: &'s [Node],
    /// The JSON pointer of the current value.
    pub(super) path: String,
    pub(super) violations: Vec<SchemaViolation>,
    /// Maximum number of mismatches to collect. Once they are found, the next failure ends the validation.
    pub(super) room: usize,
    pub(super) depth: usize,
    pub(super) steps: usize,
    /// The mismatch for an exceeded limit, if one was exceeded.
    pub(super) over: Option<SchemaViolation>,
}

impl<'s> Check<'s> {
    pub(super) fn run(nodes: &'s [Node], value: &Value, room: usize) -> (bool, Vec<SchemaViolation>) {
        let mut check =
            Check { nodes, path: String::new(), violations: vec![], room, depth: 0, steps: 0, over: None };
        // Comparing values recurses to their full depth, so the depth is checked before anything else.
        if deeper_than(value, MAX_DEPTH) {
            check.give_up("depth", format!("the value is nested deeper than {MAX_DEPTH} levels"));
        }
        let fits = check.apply(ROOT, value, "false");
        // An exceeded limit always means failure, because `not` could have inverted the result.
        check.over.map_or((fits, check.violations), |over| (false, vec![over]))
    }

    fn apply(&mut self, node: NodeId, value: &Value, via: &'static str) -> bool {
        if self.depth == MAX_DEPTH {
            self.give_up("depth", format!("more than {MAX_DEPTH} nested schemas apply to the value"));
        } else if self.steps == MAX_STEPS {
            self.give_up("steps", format!("checking takes more than {MAX_STEPS} steps"));
        }
        if self.over.is_some() {
            return false;
        }
        self.depth += 1;
        self.steps += 1;
        let nodes = self.nodes;
        let fits = self.each(&nodes[node], |check, rule| check.rule(rule, value, via));
        self.depth -= 1;
        fits
    }

    fn rule(&mut self, rule: &Rule, value: &Value, via: &'static str) -> bool {
        // Each rule is handled by exactly one of these functions. The others accept it.
        self.value_rule(rule, value, via)
            && self.applying_rule(rule, value)
            && value.as_object().is_none_or(|map| self.object_rule(rule, map))
            && value.as_array().is_none_or(|list| self.array_rule(rule, list))
    }

    fn value_rule(&mut self, rule: &Rule, value: &Value, via: &'static str) -> bool {
        match (rule, value) {
            (Rule::Never, _) => {
                self.expect(false, via, || format!("no value is allowed here, found {}", shown(value)))
            }
            (Rule::Type(types), _) => self.expect(has_type(value, types), "type", || {
                format!("expected {}, found {}", types.join(" or "), shown(value))
            }),
            (Rule::Enum(list), _) => self.expect(list.contains(&plain(value)), "enum", || {
                format!("expected one of {}, found {}", listed(list), shown(value))
            }),
            (Rule::Const(one), _) => self.expect(*one == plain(value), "const", || {
                format!("expected {}, found {}", short(&one.to_string()), shown(value))
            }),
            (Rule::Limit(Limit(keyword, holds, measure, [before, after]), than), _) => measure(value)
                .is_none_or(|found| {
                    self.expect(holds(order(&found, than)), keyword, || {
                        format!("expected {before}{than}{after}, found {found}")
                    })
                }),
            (Rule::MultipleOf(of), Value::Number(found)) => {
                self.expect(is_multiple(found, of), "multipleOf", || {
                    format!("expected a multiple of {of}, found {found}")
                })
            }
            (Rule::Pattern(regex), Value::String(text)) => {
                self.expect(regex.is_match(text), "pattern", || {
                    format!("expected a match of \"{}\", found {}", regex.as_str(), shown(value))
                })
            }
            _ => true,
        }
    }

    fn applying_rule(&mut self, rule: &Rule, value: &Value) -> bool {
        match rule {
            Rule::Ref(node) => self.apply(*node, value, "$ref"),
            Rule::AllOf(nodes) => self.each(nodes, |check, node| check.apply(*node, value, "allOf")),
            Rule::AnyOf(nodes) => self.any_fits(nodes, value),
            Rule::OneOf(nodes) => self.one_fits(nodes, value),
            Rule::Not(node) => {
                let fits = self.suits(*node, value, "not");
                self.expect(!fits, "not", || format!("{} matches the schema of \"not\"", shown(value)))
            }
            Rule::If { test, then, otherwise } => {
                let fits = self.suits(*test, value, "if");
                let (branch, via) = if fits { (then, "then") } else { (otherwise, "else") };
                branch.is_none_or(|node| self.apply(node, value, via))
            }
            _ => true,
        }
    }

    fn any_fits(&mut self, nodes: &[NodeId], value: &Value) -> bool {
        let mut reasons = Vec::new();
        for node in nodes {
            match self.probe(*node, value, "anyOf") {
                Some(why) => reasons.push(why),
                None => return true,
            }
        }
        self.expect(false, "anyOf", || none_fits(&reasons))
    }

    fn one_fits(&mut self, nodes: &[NodeId], value: &Value) -> bool {
        let (mut reasons, mut fitting) = (Vec::new(), Vec::new());
        for (index, node) in nodes.iter().enumerate() {
            match self.probe(*node, value, "oneOf") {
                Some(why) => reasons.push(why),
                None => fitting.push((index + 1).to_string()),
            }
        }
        self.expect(fitting.len() == 1, "oneOf", || match &fitting[..] {
            [] => none_fits(&reasons),
            _ => format!(
                "expected exactly one matching alternative, found alternatives {}",
                fitting.join(" and ")
            ),
        })
    }

    fn object_rule(&mut self, rule: &Rule, map: &Map<String, Value>) -> bool {
        match rule {
            Rule::Required(names) => self.each(names, |check, name| {
                check.expect(map.contains_key(name), "required", || format!("\"{name}\" is missing"))
            }),
            Rule::DependentRequired(needs) => self.each(needs, |check, (name, needed)| {
                !map.contains_key(name)
                    || check.each(needed, |check, need| {
                        let message = || format!("\"{need}\" is missing, but \"{name}\" requires it");
                        check.expect(map.contains_key(need), "dependentRequired", message)
                    })
            }),
            Rule::PropertyNames(node) => self.each(map.keys(), |check, name| {
                let why = check.probe(*node, &Value::String(name.clone()), "propertyNames");
                let message =
                    || format!("the property name \"{}\": {}", short(name), why.clone().unwrap_or_default());
                check.expect(why.is_none(), "propertyNames", message)
            }),
            Rule::Members(members) => self.each(map, |check, (name, value)| {
                check.below(name, |check| check.member(members, name, value))
            }),
            _ => true,
        }
    }

    fn member(&mut self, Members { named, patterns, rest }: &Members, name: &str, value: &Value) -> bool {
        let by_name = named.get(name).map(|node| (*node, "properties"));
        let by_pattern = patterns.iter().filter(|(regex, _)| regex.is_match(name));
        let by_pattern = by_pattern.map(|(_, node)| (*node, "patternProperties"));
        let mut applying = by_name.into_iter().chain(by_pattern).peekable();
        match (applying.peek(), rest) {
            (Some(_), _) => self.each(applying, |check, (node, via)| check.apply(node, value, via)),
            (None, Some(rest)) if matches!(self.nodes[*rest][..], [Rule::Never]) => {
                let hint = || did_you_mean(name, named.keys().map(String::as_str));
                let message = || format!("unknown property \"{}\"{}", short(name), hint());
                self.expect(false, "additionalProperties", message)
            }
            (None, Some(rest)) => self.apply(*rest, value, "additionalProperties"),
            (None, None) => true,
        }
    }

    fn array_rule(&mut self, rule: &Rule, list: &[Value]) -> bool {
        match rule {
            Rule::Items { prefix, rest } => self.each(list.iter().enumerate(), |check, (index, value)| {
                let first = prefix.get(index).map(|node| (*node, "prefixItems"));
                first.or(rest.map(|node| (node, "items"))).is_none_or(|(node, via)| {
                    check.below(&index.to_string(), |check| check.apply(node, value, via))
                })
            }),
            Rule::Contains { node, least, most } => {
                let fitting = list.iter().filter(|value| self.suits(*node, value, "contains"));
                let found = fitting.count() as u64;
                let (keyword, least) = least.map_or(("contains", 1), |least| ("minContains", least));
                let most = most.unwrap_or(u64::MAX);
                let message = |words| move || format!("expected {words} matching items, found {found}");
                self.expect(found >= least, keyword, message(format!("{least} or more")))
                    && self.expect(found <= most, "maxContains", message(format!("{most} or fewer")))
            }
            Rule::UniqueItems => {
                let equal = equal_items(list);
                let message =
                    || equal.map(|(a, b)| format!("items {a} and {b} are equal")).unwrap_or_default();
                self.expect(equal.is_none(), "uniqueItems", message)
            }
            _ => true,
        }
    }

    /// Returns true if the value matches. Records no mismatches.
    fn suits(&mut self, node: NodeId, value: &Value, via: &'static str) -> bool {
        let room = std::mem::replace(&mut self.room, self.violations.len());
        let fits = self.apply(node, value, via);
        self.room = room;
        fits
    }

    /// Returns the reason why the value does not match, without recording it. The text is empty if it will not be
    /// shown.
    fn probe(&mut self, node: NodeId, value: &Value, via: &'static str) -> Option<String> {
        let (start, room) = (self.violations.len(), self.room);
        self.room = if self.full() { start } else { start + 1 };
        let fits = self.apply(node, value, via);
        self.room = room;
        let why = self.violations.drain(start..).next().map(|mut violation| {
            // The pointer is made relative to the current value, because the message starts with the pointer of that
            // value.
            violation.pointer.drain(..self.path.len());
            violation.to_string()
        });
        (!fits).then(|| why.unwrap_or_default())
    }

    /// Returns true if all match. Continues after a failure while more mismatches can be recorded.
    fn each<T, F>(&mut self, all: impl IntoIterator<Item = T>, mut one: F) -> bool
    where
        F: FnMut(&mut Self, T) -> bool,
    {
        let mut fits = true;
        for item in all {
            fits &= one(self, item);
            if !fits && (self.full() || self.over.is_some()) {
                break;
            }
        }
        fits
    }

    fn below(&mut self, segment: &str, inside: impl FnOnce(&mut Self) -> bool) -> bool {
        let length = self.path.len();
        self.path = below(&self.path, segment);
        let fits = inside(self);
        self.path.truncate(length);
        fits
    }

    fn expect(&mut self, holds: bool, keyword: &str, message: impl FnOnce() -> String) -> bool {
        if !holds && !self.full() {
            let pointer = self.path.clone();
            self.violations.push(SchemaViolation {
                pointer,
                keyword: keyword.to_owned(),
                message: message(),
            });
        }
        holds
    }

    fn full(&self) -> bool {
        self.violations.len() >= self.room
    }

    fn give_up(&mut self, keyword: &str, message: String) {
        let pointer = self.path.clone();
        self.over.get_or_insert(SchemaViolation { pointer, keyword: keyword.to_owned(), message });
    }
}
