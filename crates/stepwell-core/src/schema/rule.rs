//! The rules of a compiled schema. Rules refer to other schemas by index.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use regex_lite::Regex;
use serde_json::{Number, Value};

use super::value::{characters, items, members, number};

/// The rules of one schema.
pub(super) type Node = Vec<Rule>;
pub(super) type NodeId = usize;
pub(super) const ROOT: NodeId = 0;

#[derive(Debug)]
pub(super) enum Rule {
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

/// The schemas for the members of an object. `rest` applies to members that match no name and no pattern.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) named: BTreeMap<String, NodeId>,
    pub(super) patterns: Vec<(Regex, NodeId)>,
    pub(super) rest: Option<NodeId>,
}

impl Rule {
    /// Returns the schemas that this rule applies to the same value, not to a part of it.
    pub(super) fn in_place(&self) -> Vec<NodeId> {
        match self {
            Rule::Ref(node) | Rule::Not(node) => vec![*node],
            Rule::AllOf(nodes) | Rule::AnyOf(nodes) | Rule::OneOf(nodes) => nodes.clone(),
            Rule::If { test, then, otherwise } => {
                [Some(*test), *then, *otherwise].into_iter().flatten().collect()
            }
            _ => vec![],
        }
    }

    pub(super) fn reference(&self) -> Option<NodeId> {
        if let Rule::Ref(node) = self { Some(*node) } else { None }
    }
}

/// A keyword that compares a measure of the value with a number: its name, the comparison, the measure, and the text
/// of a message before and after the number.
#[derive(Debug)]
pub(super) struct Limit(
    pub(super) &'static str,
    pub(super) fn(Ordering) -> bool,
    pub(super) fn(&Value) -> Option<Number>,
    pub(super) [&'static str; 2],
);

pub(super) static BOUNDS: [Limit; 4] = [
    Limit("minimum", Ordering::is_ge, number, ["", " or more"]),
    Limit("maximum", Ordering::is_le, number, ["", " or less"]),
    Limit("exclusiveMinimum", Ordering::is_gt, number, ["more than ", ""]),
    Limit("exclusiveMaximum", Ordering::is_lt, number, ["less than ", ""]),
];

pub(super) static SIZES: [Limit; 6] = [
    Limit("minLength", Ordering::is_ge, characters, ["", " or more characters"]),
    Limit("maxLength", Ordering::is_le, characters, ["", " or fewer characters"]),
    Limit("minItems", Ordering::is_ge, items, ["", " or more items"]),
    Limit("maxItems", Ordering::is_le, items, ["", " or fewer items"]),
    Limit("minProperties", Ordering::is_ge, members, ["", " or more properties"]),
    Limit("maxProperties", Ordering::is_le, members, ["", " or fewer properties"]),
];

/// All keywords that a schema may contain.
pub(super) const KEYWORDS: &str = "$ref type enum const multipleOf pattern required dependentRequired properties \
    patternProperties additionalProperties propertyNames prefixItems items contains minContains maxContains \
    uniqueItems allOf anyOf oneOf not if then else $defs definitions minimum maximum exclusiveMinimum \
    exclusiveMaximum minLength maxLength minItems maxItems minProperties maxProperties $schema $id $comment \
    title description default examples deprecated readOnly writeOnly format contentMediaType contentEncoding";

pub(super) const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
