//! Compiles a schema into rules and reports everything that is not supported.

use std::collections::BTreeMap;

use regex_lite::Regex;
use serde_json::{Map, Value};

use super::rule::{BOUNDS, KEYWORDS, Members, Node, NodeId, Rule, SIZES, TYPES};
use super::value::{
    Exact, below, names, names_by_name, number, percent_decoded, plain, plain_values, positive, short, shown,
};
use super::{MAX_DEPTH, SchemaProblem};
use crate::near::did_you_mean;

/// Compiles a schema one subschema at a time.
///
/// A subschema gets its id and is queued when it is found. So there is no recursion, and references may lead back to
/// subschemas that are still being compiled.
pub(super) struct Compiler<'a> {
    pub(super) source: &'a Value,
    /// The subschemas compiled so far. The next index is that of the current subschema.
    pub(super) nodes: Vec<Node>,
    pub(super) places: Vec<(String, &'a Value)>,
    pub(super) known: BTreeMap<String, NodeId>,
    pub(super) problems: Vec<SchemaProblem>,
}

impl<'a> Compiler<'a> {
    pub(super) fn run(source: &'a Value) -> (Vec<Node>, Vec<SchemaProblem>) {
        let mut compiler =
            Compiler { source, nodes: vec![], places: vec![], known: BTreeMap::new(), problems: vec![] };
        compiler.node(String::new(), source);
        while let Some((pointer, value)) = compiler.places.get(compiler.nodes.len()).cloned() {
            let rules = match value {
                Value::Bool(true) => vec![],
                Value::Bool(false) => vec![Rule::Never],
                Value::Object(map) => compiler.rules(map),
                _ => {
                    let message =
                        format!("expected a schema (an object or a boolean), found {}", shown(value));
                    compiler.problems.push(SchemaProblem { pointer, message });
                    vec![]
                }
            };
            compiler.nodes.push(rules);
        }
        compiler.find_loops();
        (compiler.nodes, compiler.problems)
    }

    fn rules(&mut self, map: &Map<String, Value>) -> Node {
        self.refuse_unknown(map);
        self.named_schemas("$defs");
        self.named_schemas("definitions");
        let (dependent, names_each) = ("dependentRequired", "an object of arrays of different strings");
        let mut rules = vec![
            self.types().map(Rule::Type),
            self.read("enum", "an array", plain_values).map(Rule::Enum),
            map.get("const").map(plain).map(Rule::Const),
            self.read("multipleOf", "a number above 0", positive).map(Rule::MultipleOf),
            self.pattern().map(Rule::Pattern),
            self.read("required", "an array of different strings", names).map(Rule::Required),
            self.read(dependent, names_each, names_by_name).map(Rule::DependentRequired),
            self.members(),
            self.schema("propertyNames").map(Rule::PropertyNames),
            self.items(),
            self.contains(),
            self.read("uniqueItems", "a boolean", Value::as_bool).filter(|on| *on).map(|_| Rule::UniqueItems),
            self.reference().map(Rule::Ref),
            self.schemas("allOf").map(Rule::AllOf),
            self.schemas("anyOf").map(Rule::AnyOf),
            self.schemas("oneOf").map(Rule::OneOf),
            self.schema("not").map(Rule::Not),
            self.conditional(),
        ];
        for limit in &BOUNDS {
            rules.push(self.read(limit.0, "a number", number).map(|than| Rule::Limit(limit, than)));
        }
        for limit in &SIZES {
            rules.push(self.count(limit.0).map(|than| Rule::Limit(limit, than.into())));
        }
        rules.into_iter().flatten().collect()
    }

    fn refuse_unknown(&mut self, map: &Map<String, Value>) {
        for key in map.keys().filter(|key| !key.starts_with("x-")) {
            if !KEYWORDS.split(' ').any(|keyword| keyword == key) {
                let hint = did_you_mean(key, KEYWORDS.split(' '));
                self.problem(&[key], format!("keyword \"{}\" is not supported{hint}", short(key)));
            }
        }
    }

    fn types(&mut self) -> Option<Vec<&'static str>> {
        let expected = "a type or a non-empty array of different types";
        let names = self.read("type", expected, |value| match value {
            Value::String(name) => Some(vec![name.clone()]),
            _ => names(value).filter(|names| !names.is_empty()),
        })?;
        let known = |name: &String| TYPES.into_iter().find(|known| known == name);
        for name in names.iter().filter(|name| known(name).is_none()) {
            self.problem(&["type"], format!("unknown type \"{}\"{}", short(name), did_you_mean(name, TYPES)));
        }
        Some(names.iter().filter_map(known).collect())
    }

    fn pattern(&mut self) -> Option<Regex> {
        let pattern = self.read("pattern", "a string", Value::as_str)?;
        self.regex(&["pattern"], pattern)
    }

    fn members(&mut self) -> Option<Rule> {
        let named = self.named_schemas("properties").unwrap_or_default();
        let mut patterns = Vec::new();
        for (pattern, node) in self.named_schemas("patternProperties").unwrap_or_default() {
            let regex = self.regex(&["patternProperties", &pattern], &pattern);
            patterns.extend(regex.map(|regex| (regex, node)));
        }
        let rest = self.schema("additionalProperties");
        let any = !named.is_empty() || !patterns.is_empty() || rest.is_some();
        any.then_some(Rule::Members(Members { named, patterns, rest }))
    }

    fn items(&mut self) -> Option<Rule> {
        let prefix = self.schemas("prefixItems").unwrap_or_default();
        let rest = self.schema("items");
        (!prefix.is_empty() || rest.is_some()).then_some(Rule::Items { prefix, rest })
    }

    fn contains(&mut self) -> Option<Rule> {
        let (least, most) = (self.count("minContains"), self.count("maxContains"));
        Some(Rule::Contains { node: self.schema("contains")?, least, most })
    }

    fn conditional(&mut self) -> Option<Rule> {
        let (then, otherwise) = (self.schema("then"), self.schema("else"));
        Some(Rule::If { test: self.schema("if")?, then, otherwise })
    }

    fn reference(&mut self) -> Option<NodeId> {
        let text = self.read("$ref", "a string", Value::as_str)?;
        let found = match text.strip_prefix('#') {
            None => Err("is outside this schema: remote references are not supported"),
            Some(anchor) if !anchor.is_empty() && !anchor.starts_with('/') => {
                Err("is not a JSON pointer: anchors are not supported")
            }
            Some(fragment) => percent_decoded(fragment)
                .and_then(|pointer| Some((self.source.pointer(&pointer)?, pointer)))
                .ok_or("does not exist in this schema"),
        };
        let why = match found {
            Ok((value, pointer)) if value.is_object() || value.is_boolean() => {
                return Some(self.node(pointer, value));
            }
            Ok(_) => "is not a schema",
            Err(why) => why,
        };
        self.problem(&["$ref"], format!("\"{text}\" {why}"));
        None
    }

    /// Reports references that apply schemas to the same value endlessly, or through more schemas than a validation
    /// allows.
    fn find_loops(&mut self) {
        let in_place = |rules: &Node| rules.iter().flat_map(Rule::in_place).collect();
        let edges: Vec<Vec<NodeId>> = self.nodes.iter().map(in_place).collect();
        // For each node, the last reference from which it was reached.
        let mut reached = vec![None; edges.len()];
        for (id, rules) in self.nodes.iter().enumerate() {
            let mut level: Vec<NodeId> = rules.iter().filter_map(Rule::reference).collect();
            for _ in 0..MAX_DEPTH {
                level.retain(|node| reached[*node].replace(id) != Some(id));
                level = level.iter().flat_map(|node| &edges[*node]).copied().collect();
            }
            let what = match reached[id] == Some(id) {
                true => "back here".to_owned(),
                false if level.is_empty() => continue,
                false => format!("through more than {MAX_DEPTH} schemas"),
            };
            let message = format!("the reference leads {what} without descending into the value");
            self.problems.push(SchemaProblem { pointer: below(&self.places[id].0, "$ref"), message });
        }
    }

    fn schema(&mut self, key: &str) -> Option<NodeId> {
        let (pointer, value) = self.here();
        let pointer = below(pointer, key);
        value.get(key).map(|value| self.node(pointer, value))
    }

    fn schemas(&mut self, key: &str) -> Option<Vec<NodeId>> {
        let some = |value: &'a Value| value.as_array().filter(|list| !list.is_empty());
        let list = self.read(key, "a non-empty array of schemas", some)?;
        let pointer = below(self.here().0, key);
        Some(list.iter().enumerate().map(|(i, value)| self.node(format!("{pointer}/{i}"), value)).collect())
    }

    fn named_schemas(&mut self, key: &str) -> Option<BTreeMap<String, NodeId>> {
        let map = self.read(key, "an object of schemas", Value::as_object)?;
        let pointer = below(self.here().0, key);
        let node = |(name, value): (&String, _)| (name.clone(), self.node(below(&pointer, name), value));
        Some(map.iter().map(node).collect())
    }

    fn count(&mut self, key: &str) -> Option<u64> {
        self.read(key, "a whole number, 0 or more", |value| match Exact::of(value.as_number()?) {
            Exact::Whole(whole) if whole >= 0 => Some(u64::try_from(whole).unwrap_or(u64::MAX)),
            _ => None,
        })
    }

    fn regex(&mut self, keys: &[&str], pattern: &str) -> Option<Regex> {
        let regex = Regex::new(pattern);
        if let Err(error) = &regex {
            self.problem(keys, format!("\"{}\" is not a valid pattern: {error}", short(pattern)));
        }
        regex.ok()
    }

    /// Reads the value of a keyword with `accept`. Reports a problem with the text `expected` if it is not
    /// acceptable.
    fn read<T, F>(&mut self, key: &str, expected: &str, accept: F) -> Option<T>
    where
        F: FnOnce(&'a Value) -> Option<T>,
    {
        let value = self.here().1.get(key)?;
        let accepted = accept(value);
        if accepted.is_none() {
            self.problem(&[key], format!("expected {expected}, found {}", shown(value)));
        }
        accepted
    }

    fn problem(&mut self, keys: &[&str], message: String) {
        let pointer = keys.iter().fold(self.here().0.to_owned(), |pointer, key| below(&pointer, key));
        self.problems.push(SchemaProblem { pointer, message });
    }

    fn here(&self) -> (&str, &'a Value) {
        let (pointer, value) = &self.places[self.nodes.len()];
        (pointer, value)
    }

    fn node(&mut self, pointer: String, value: &'a Value) -> NodeId {
        let next = self.places.len();
        let id = *self.known.entry(pointer.clone()).or_insert(next);
        if id == next {
            self.places.push((pointer, value));
        }
        id
    }
}
