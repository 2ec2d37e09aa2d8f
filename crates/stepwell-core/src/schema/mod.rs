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

mod check;
mod compile;
mod rule;
mod value;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use check::Check;
use compile::Compiler;
use rule::Node;
use value::deeper_than;

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
