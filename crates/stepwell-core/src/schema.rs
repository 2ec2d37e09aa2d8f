//! Checks JSON values against a documented subset of JSON Schema 2020-12.
//!
//! This crate must stay pure, and the usual validators draw in a random source and a backtracking regex
//! engine. So this one is small and total: a keyword outside the subset is a problem when the schema is
//! compiled, never ignored, and checking is bounded in depth and in work whatever schema and value are.
//!
//! - Any value: `type`, `enum`, `const`, `$ref`, `allOf`, `anyOf`, `oneOf`, `not`, `if`/`then`/`else`,
//!   and `true` or `false` as a schema.
//! - Objects: `properties`, `patternProperties`, `additionalProperties`, `propertyNames`, `required`,
//!   `dependentRequired`, `minProperties`, `maxProperties`.
//! - Arrays: `prefixItems`, `items`, `contains`, `minContains`, `maxContains`, `minItems`, `maxItems`,
//!   `uniqueItems`.
//! - Numbers: `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, `multipleOf`.
//! - Strings: `minLength`, `maxLength`, `pattern`.
//! - Places for schemas: `$defs`, `definitions`.
//! - Accepted and ignored: `$schema`, `$id`, `$comment`, `title`, `description`, `default`, `examples`,
//!   `deprecated`, `readOnly`, `writeOnly`, `format`, `contentMediaType`, `contentEncoding`, and every key
//!   that begins with `x-`.
//!
//! Where this departs from JSON Schema:
//!
//! - `$ref` is a JSON pointer into the same document (`#`, `#/$defs/a`, or any other): nothing is fetched,
//!   there are no anchors, `$id` never changes what `#` means, and `$schema` never changes the dialect.
//!   References that loop without consuming any of the value are refused, and so are such that lead through
//!   more than [`MAX_DEPTH`] schemas without consuming any.
//! - Patterns are `regex-lite`'s, not ECMA-262's: no look-around, back-references or `\p{..}`; `\d`, `\w`
//!   and `\s` are ASCII; `.` excludes only `\n`.
//! - `multipleOf` is exact on the shortest decimals that read back to the numbers: 0.3 is a multiple of 0.1,
//!   1e300 is none of 3 (validators that divide `f64`s differ there), and nothing is "close enough".
//!   Comparisons are exact too, but a number that fits no 64-bit integer is the `f64` it was read as.
//! - A schema or value nested deeper than [`MAX_DEPTH`], or a check that applies more than [`MAX_DEPTH`]
//!   schemas inside one another or [`MAX_STEPS`] in all, is a problem or a misfit of its own (keyword `depth`
//!   or `steps`), even under `not`. A reference counts as a schema that is applied.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

/// How deep a schema or a value may be nested, and how many schemas may be applied inside one another.
pub const MAX_DEPTH: usize = 128;
/// How many misfits one check reports.
pub const MAX_MISFITS: usize = 32;
/// How many schemas one check may apply: references can multiply work out of proportion to any input.
pub const MAX_STEPS: usize = 4_000_000;

/// A compiled schema; cloning it is cheap.
#[derive(Debug, Clone)]
pub struct Schema(Arc<Compiled>);

/// Something in a schema that cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("#{pointer}: {message}")]
pub struct SchemaProblem {
    /// A JSON pointer into the schema.
    pub pointer: String,
    /// What is wrong there, for a person.
    pub message: String,
}

/// One way in which a value does not fit a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Misfit {
    /// A JSON pointer into the value; empty is the value itself.
    pub pointer: String,
    /// The keyword that is not met; where a schema `false` refuses, the keyword that led to it.
    pub keyword: String,
    /// What was expected and what was there, for a person.
    pub message: String,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = if self.pointer.is_empty() { "" } else { ": " };
        write!(f, "{}{gap}{}", self.pointer, self.message)
    }
}

impl Schema {
    /// Reads a schema; every problem is reported, not only the first.
    pub fn compile(source: &Value) -> Result<Schema, Vec<SchemaProblem>> {
        if deeper_than(source, MAX_DEPTH) {
            let message = format!("the schema is nested deeper than {MAX_DEPTH} levels");
            return Err(vec![SchemaProblem { pointer: String::new(), message }]);
        }
        let (nodes, mut problems) = Compiler::run(source);
        if problems.is_empty() {
            return Ok(Schema(Arc::new(Compiled { source: source.clone(), nodes })));
        }
        problems.sort_by(|a, b| a.pointer.cmp(&b.pointer));
        Err(problems)
    }

    /// What does not fit, at most [`MAX_MISFITS`]; empty means that the value fits.
    pub fn check(&self, value: &Value) -> Vec<Misfit> {
        Check::run(&self.0.nodes, value, MAX_MISFITS).1
    }

    /// Whether the value fits; stops at the first misfit, and so is quicker than an empty [`Schema::check`].
    pub fn fits(&self, value: &Value) -> bool {
        Check::run(&self.0.nodes, value, 0).0
    }

    /// The schema as it was written.
    pub fn source(&self) -> &Value {
        &self.0.source
    }
}

#[derive(Debug)]
struct Compiled {
    source: Value,
    nodes: Vec<Node>,
}

/// What one schema asks; rules name the schemas they apply by index.
type Node = Vec<Rule>;
type NodeId = usize;
const ROOT: NodeId = 0;

#[derive(Debug)]
enum Rule {
    Never,
    Type(Vec<&'static str>),
    Enum(Vec<Value>),
    Const(Value),
    Limit(&'static Limit, Number),
    MultipleOf(Number),
    Pattern(Regex),
    Required(Vec<String>),
    DependentRequired(BTreeMap<String, Vec<String>>),
    Members(Members),
    PropertyNames(NodeId),
    Items { prefix: Vec<NodeId>, rest: Option<NodeId> },
    Contains { node: NodeId, least: Option<u64>, most: Option<u64> },
    UniqueItems,
    AllOf(Vec<NodeId>),
    AnyOf(Vec<NodeId>),
    OneOf(Vec<NodeId>),
    Not(NodeId),
    If { test: NodeId, then: Option<NodeId>, otherwise: Option<NodeId> },
    Ref(NodeId),
}

/// The schemas for the members of an object; `rest` is for those with neither a name nor a pattern here.
#[derive(Debug)]
struct Members {
    named: BTreeMap<String, NodeId>,
    patterns: Vec<(Regex, NodeId)>,
    rest: Option<NodeId>,
}

impl Rule {
    /// The schemas this rule applies to the very value it is given, not to a part of it.
    fn in_place(&self) -> Vec<NodeId> {
        match self {
            Rule::Ref(node) | Rule::Not(node) => vec![*node],
            Rule::AllOf(nodes) | Rule::AnyOf(nodes) | Rule::OneOf(nodes) => nodes.clone(),
            Rule::If { test, then, otherwise } => {
                [Some(*test), *then, *otherwise].into_iter().flatten().collect()
            }
            _ => vec![],
        }
    }

    fn reference(&self) -> Option<NodeId> {
        if let Rule::Ref(node) = self { Some(*node) } else { None }
    }
}

/// A keyword that compares a measure of the value with a number: its name, whether it holds, the measure, and
/// what a message says before and after the number.
#[derive(Debug)]
struct Limit(&'static str, fn(Ordering) -> bool, fn(&Value) -> Option<Number>, [&'static str; 2]);

static BOUNDS: [Limit; 4] = [
    Limit("minimum", Ordering::is_ge, number, ["", " or more"]),
    Limit("maximum", Ordering::is_le, number, ["", " or less"]),
    Limit("exclusiveMinimum", Ordering::is_gt, number, ["more than ", ""]),
    Limit("exclusiveMaximum", Ordering::is_lt, number, ["less than ", ""]),
];

static SIZES: [Limit; 6] = [
    Limit("minLength", Ordering::is_ge, characters, ["", " or more characters"]),
    Limit("maxLength", Ordering::is_le, characters, ["", " or fewer characters"]),
    Limit("minItems", Ordering::is_ge, items, ["", " or more items"]),
    Limit("maxItems", Ordering::is_le, items, ["", " or fewer items"]),
    Limit("minProperties", Ordering::is_ge, members, ["", " or more properties"]),
    Limit("maxProperties", Ordering::is_le, members, ["", " or fewer properties"]),
];

/// Everything that may stand in a schema.
const KEYWORDS: &str = "$ref type enum const multipleOf pattern required dependentRequired properties \
    patternProperties additionalProperties propertyNames prefixItems items contains minContains maxContains \
    uniqueItems allOf anyOf oneOf not if then else $defs definitions minimum maximum exclusiveMinimum \
    exclusiveMaximum minLength maxLength minItems maxItems minProperties maxProperties $schema $id $comment \
    title description default examples deprecated readOnly writeOnly format contentMediaType contentEncoding";

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Reads a schema place by place. A place that is met is queued and has its id at once, so there is no
/// recursion here, and references may lead back to places that are still being read.
struct Compiler<'a> {
    source: &'a Value,
    /// What was read so far; the place being read is the one with the next index.
    nodes: Vec<Node>,
    places: Vec<(String, &'a Value)>,
    known: BTreeMap<String, NodeId>,
    problems: Vec<SchemaProblem>,
}

impl<'a> Compiler<'a> {
    fn run(source: &'a Value) -> (Vec<Node>, Vec<SchemaProblem>) {
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
                let hint = hint(key, KEYWORDS.split(' '));
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
            self.problem(&["type"], format!("\"{}\" is not a type{}", short(name), hint(name, TYPES)));
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
            None => Err("is outside this schema, and remote references are not fetched"),
            Some(anchor) if !anchor.is_empty() && !anchor.starts_with('/') => {
                Err("is not a JSON pointer, and anchors are not supported")
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

    /// Refuses references that apply schemas to the same value for ever, or for longer than a check would.
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
            let message = format!("the reference leads {what} without consuming any of the value");
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
            self.problem(keys, format!("\"{}\" is not a pattern: {error}", short(pattern)));
        }
        regex.ok()
    }

    /// The value of a keyword as `expected` tells a person and `accept` decides; another is a problem.
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

/// One check of one value.
struct Check<'s> {
    nodes: &'s [Node],
    /// The JSON pointer of the value being looked at.
    path: String,
    misfits: Vec<Misfit>,
    /// How many misfits are wanted; once they are found, the next failure ends the check.
    room: usize,
    depth: usize,
    steps: usize,
    /// The limit that was passed, if one was.
    over: Option<Misfit>,
}

impl<'s> Check<'s> {
    fn run(nodes: &'s [Node], value: &Value, room: usize) -> (bool, Vec<Misfit>) {
        let mut check =
            Check { nodes, path: String::new(), misfits: vec![], room, depth: 0, steps: 0, over: None };
        // Comparing values recurses as deep as they are, so depth is settled before anything else.
        if deeper_than(value, MAX_DEPTH) {
            check.give_up("depth", format!("the value is nested deeper than {MAX_DEPTH} levels"));
        }
        let fits = check.apply(ROOT, value, "false");
        // Once a limit was passed no verdict counts: `not` would have turned the refusal into a fit.
        check.over.map_or((fits, check.misfits), |over| (false, vec![over]))
    }

    fn apply(&mut self, node: NodeId, value: &Value, via: &'static str) -> bool {
        if self.depth == MAX_DEPTH {
            self.give_up("depth", format!("more than {MAX_DEPTH} schemas apply inside one another"));
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
        // A rule belongs to one of these; the others pass it.
        self.value_rule(rule, value, via)
            && self.applying_rule(rule, value)
            && value.as_object().is_none_or(|map| self.object_rule(rule, map))
            && value.as_array().is_none_or(|list| self.array_rule(rule, list))
    }

    fn value_rule(&mut self, rule: &Rule, value: &Value, via: &'static str) -> bool {
        match (rule, value) {
            (Rule::Never, _) => {
                self.expect(false, via, || format!("expected nothing here, found {}", shown(value)))
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
                self.expect(!fits, "not", || format!("{} is what \"not\" excludes", shown(value)))
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
            _ => format!("expected just one alternative to fit, found {}", fitting.join(" and ")),
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
                        let message = || format!("\"{need}\" is missing, and \"{name}\" requires it");
                        check.expect(map.contains_key(need), "dependentRequired", message)
                    })
            }),
            Rule::PropertyNames(node) => self.each(map.keys(), |check, name| {
                let why = check.probe(*node, &Value::String(name.clone()), "propertyNames");
                let message = || format!("the name \"{}\": {}", short(name), why.clone().unwrap_or_default());
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
                let hint = || hint(name, named.keys().map(String::as_str));
                let message = || format!("\"{}\" is not an expected property{}", short(name), hint());
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

    /// Whether the value fits, recording nothing.
    fn suits(&mut self, node: NodeId, value: &Value, via: &'static str) -> bool {
        let room = std::mem::replace(&mut self.room, self.misfits.len());
        let fits = self.apply(node, value, via);
        self.room = room;
        fits
    }

    /// Why the value does not fit, recording nothing; the text is empty if nobody will read it.
    fn probe(&mut self, node: NodeId, value: &Value, via: &'static str) -> Option<String> {
        let (start, room) = (self.misfits.len(), self.room);
        self.room = if self.full() { start } else { start + 1 };
        let fits = self.apply(node, value, via);
        self.room = room;
        let why = self.misfits.drain(start..).next().map(|mut misfit| {
            // Relative to the value at hand, whose own pointer will be in front of the whole message.
            misfit.pointer.drain(..self.path.len());
            misfit.to_string()
        });
        (!fits).then(|| why.unwrap_or_default())
    }

    /// Whether all fit; goes on after a failure while there is room for more misfits.
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
            self.misfits.push(Misfit { pointer, keyword: keyword.to_owned(), message: message() });
        }
        holds
    }

    fn full(&self) -> bool {
        self.misfits.len() >= self.room
    }

    fn give_up(&mut self, keyword: &str, message: String) {
        let pointer = self.path.clone();
        self.over.get_or_insert(Misfit { pointer, keyword: keyword.to_owned(), message });
    }
}

/// A number free of how it was written: 1 and 1.0 are the same.
enum Exact {
    Whole(i128),
    /// Has a fraction, or is beyond `i128`.
    Other(f64),
}

impl Exact {
    fn of(number: &Number) -> Exact {
        let float = || number.as_f64().unwrap_or(f64::MAX);
        match number.as_i128() {
            Some(whole) => Exact::Whole(whole),
            None if float().fract() == 0.0 && float().abs() < 2f64.powi(127) => Exact::Whole(float() as i128),
            None => Exact::Other(float()),
        }
    }
}

fn order(a: &Number, b: &Number) -> Ordering {
    // Mixed pairs are exact as well: an `Other` is so small that every whole number near it is an `f64`, or
    // so large that no `Whole` reaches it.
    let (a, b) = match (Exact::of(a), Exact::of(b)) {
        (Exact::Whole(a), Exact::Whole(b)) => return a.cmp(&b),
        (Exact::Whole(a), Exact::Other(b)) => (a as f64, b),
        (Exact::Other(a), Exact::Whole(b)) => (a, b as f64),
        (Exact::Other(a), Exact::Other(b)) => (a, b),
    };
    a.total_cmp(&b)
}

/// The value with 1.0 written as 1 throughout, so that `==` is the equality of JSON Schema.
fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) => match Exact::of(number) {
            Exact::Whole(whole) => Number::from_i128(whole).map_or_else(|| value.clone(), Value::Number),
            Exact::Other(_) => value.clone(),
        },
        Value::Array(list) => list.iter().map(plain).collect(),
        Value::Object(map) => map.iter().map(|(name, value)| (name.clone(), plain(value))).collect(),
        _ => value.clone(),
    }
}

fn plain_values(value: &Value) -> Option<Vec<Value>> {
    value.as_array().map(|list| list.iter().map(plain).collect())
}

fn equal_items(list: &[Value]) -> Option<(usize, usize)> {
    let mut seen = BTreeMap::new();
    list.iter().enumerate().find_map(|(index, value)| {
        let mut value = plain(value);
        // Does something only where the host has serde_json keep the order of properties.
        value.sort_all_objects();
        seen.insert(value.to_string(), index).map(|earlier| (earlier, index))
    })
}

/// Whether `number` is a whole multiple of `of`.
fn is_multiple(number: &Number, of: &Number) -> bool {
    let ((digits, exponent), (unit, unit_exponent)) = (decimal(number), decimal(of));
    if exponent >= unit_exponent {
        // Digit by digit inside the remainder, as 10^600 fits in no integer.
        return (unit_exponent..exponent).fold(digits % unit, |rest, _| rest * 10 % unit) == 0;
    }
    let scale = 10u128.checked_pow(exponent.abs_diff(unit_exponent));
    scale.and_then(|scale| unit.checked_mul(scale)).map_or(digits == 0, |unit| digits % unit == 0)
}

/// The shortest decimal that reads back to a number, without its sign: digits, at most 20 of them, and the
/// power of ten to multiply them by.
fn decimal(number: &Number) -> (u128, i32) {
    if let Some(whole) = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs)) {
        return (whole.into(), 0);
    }
    let text = format!("{:e}", number.as_f64().unwrap_or(f64::MAX).abs());
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let digits = format!("{whole}{fraction}").parse().expect("a finite float prints at most 17 digits");
    let exponent: i32 = exponent.parse().expect("a float prints its exponent as an integer");
    (digits, exponent - fraction.len() as i32)
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) => match Exact::of(number) {
            Exact::Other(float) if float.fract() != 0.0 => "number",
            _ => "integer",
        },
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn has_type(value: &Value, types: &[&str]) -> bool {
    let found = type_of(value);
    types.contains(&found) || (found == "integer" && types.contains(&"number"))
}

fn number(value: &Value) -> Option<Number> {
    value.as_number().cloned()
}

fn positive(value: &Value) -> Option<Number> {
    number(value).filter(|number| order(number, &0.into()).is_gt())
}

fn characters(value: &Value) -> Option<Number> {
    value.as_str().map(|text| text.chars().count().into())
}

fn items(value: &Value) -> Option<Number> {
    value.as_array().map(|list| list.len().into())
}

fn members(value: &Value) -> Option<Number> {
    value.as_object().map(|map| map.len().into())
}

fn names(value: &Value) -> Option<Vec<String>> {
    let names = value.as_array()?.iter().map(|name| name.as_str().map(str::to_owned));
    let names = names.collect::<Option<Vec<String>>>()?;
    (names.iter().collect::<BTreeSet<_>>().len() == names.len()).then_some(names)
}

fn names_by_name(value: &Value) -> Option<BTreeMap<String, Vec<String>>> {
    value.as_object()?.iter().map(|(name, needed)| Some((name.clone(), names(needed)?))).collect()
}

/// Walks with a list of its own, as the value may be too deep to recurse into.
fn deeper_than(value: &Value, limit: usize) -> bool {
    let mut waiting = vec![(value, 0)];
    while let Some((value, depth)) = waiting.pop() {
        match value {
            _ if depth > limit => return true,
            Value::Array(list) => waiting.extend(list.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => waiting.extend(map.values().map(|item| (item, depth + 1))),
            _ => {}
        }
    }
    false
}

fn below(pointer: &str, segment: &str) -> String {
    format!("{pointer}/{}", segment.replace('~', "~0").replace('/', "~1"))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

fn none_fits(reasons: &[String]) -> String {
    let numbered = reasons.iter().enumerate().take(4).map(|(i, why)| format!("{}: {}", i + 1, short(why)));
    format!("fits none of {} alternatives ({})", reasons.len(), numbered.collect::<Vec<_>>().join("; "))
}

/// A value with its type, short however large it is.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => format!("{} {value}", type_of(value)),
        Value::String(text) => format!("string \"{}\"", short(text)),
        Value::Array(list) => format!("array of length {}", list.len()),
        Value::Object(map) => format!("object of size {}", map.len()),
    }
}

fn listed(values: &[Value]) -> String {
    let all: Vec<String> = values.iter().take(8).map(|value| short(&value.to_string())).collect();
    format!("{}{}", all.join(", "), if values.len() > 8 { ", …" } else { "" })
}

fn short(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// ` (did you mean "x"?)` for the nearest word at most two edits away, if there is one.
fn hint<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> String {
    let nearest = known.into_iter().map(|other| (edits(word, other), other)).min();
    match nearest {
        // In a very short word two edits leave nothing in common.
        Some((edits @ ..=2, other)) if edits + 1 < word.chars().count() => {
            format!(" (did you mean \"{other}\"?)")
        }
        _ => String::new(),
    }
}

fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    // Enough letters to be far from any keyword; a name of a million letters must not cost as much.
    for (i, letter) in a.chars().take(64).enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for j in 0..b.len() {
            let replaced = corner + usize::from(letter != b[j]);
            corner = row[j + 1];
            row[j + 1] = replaced.min(row[j].min(corner) + 1);
        }
    }
    row[b.len()]
}
