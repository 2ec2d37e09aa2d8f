//! Validates JSON values against a documented subset of JSON Schema 2020-12.
//!
//! This crate must stay pure, but the usual validators depend on a random source and a backtracking regex engine. This
//! validator is small instead. A keyword outside the subset is a problem when the schema is compiled; it is never
//! ignored. Validation is bounded in depth and work for every schema and value.
//!
//! - Any value: `type`, `enum`, `const`, `$ref`, `allOf`, `anyOf`, `oneOf`, `not`, `if`/`then`/`else`,
//!   and `true` or `false` as a schema.
//! - Objects: `properties`, `patternProperties`, `additionalProperties`, `propertyNames`, `required`,
//!   `dependentRequired`, `minProperties`, `maxProperties`.
//! - Arrays: `prefixItems`, `items`, `contains`, `minContains`, `maxContains`, `minItems`, `maxItems`,
//!   `uniqueItems`.
//! - Numbers: `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, `multipleOf`.
//! - Strings: `minLength`, `maxLength`, `pattern`.
//! - Definitions: `$defs`, `definitions`.
//! - Accepted and ignored: `$schema`, `$id`, `$comment`, `title`, `description`, `default`, `examples`,
//!   `deprecated`, `readOnly`, `writeOnly`, `format`, `contentMediaType`, `contentEncoding`, and every key
//!   that starts with `x-`.
//!
//! Differences from JSON Schema:
//!
//! - `$ref` is a JSON pointer into the same document (`#`, `#/$defs/a`, or any other): nothing is fetched,
//!   there are no anchors, `$id` never changes the meaning of `#`, and `$schema` never changes the dialect.
//!   References that loop without descending into the value are problems. So are references that lead through
//!   more than [`MAX_DEPTH`] schemas without descending.
//! - Patterns are those of `regex-lite`, not of ECMA-262: no look-around, back-references or `\p{..}`; `\d`, `\w`
//!   and `\s` are ASCII; `.` excludes only `\n`.
//! - `multipleOf` is exact on the shortest decimals that represent the numbers: 0.3 is a multiple of 0.1, but 1e300 is
//!   not a multiple of 3. Validators that divide `f64`s differ there. There is no tolerance.
//!   Comparisons are exact too, but a number outside the range of 64-bit integers is the `f64` it was read as.
//! - A schema or value may be nested at most [`MAX_DEPTH`] deep. A validation may apply at most [`MAX_DEPTH`] nested
//!   schemas, and [`MAX_STEPS`] in total. Exceeding this is a problem or a mismatch (keyword `depth` or `steps`), even
//!   under `not`. A reference counts as a schema that is applied.

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

/// Maximum nesting depth of a schema or a value, and maximum number of nested schemas that apply to a value.
pub const MAX_DEPTH: usize = 128;
/// Maximum number of mismatches that one validation reports.
pub const MAX_MISMATCHES: usize = 32;
/// Maximum number of schemas that one validation may apply. Without it, references could multiply the work out of
/// proportion to the input.
pub const MAX_STEPS: usize = 4_000_000;

/// A compiled schema; cloning it is cheap.
#[derive(Debug, Clone)]
pub struct Schema(Arc<Compiled>);

/// A problem in the source of a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("#{pointer}: {message}")]
pub struct SchemaProblem {
    /// JSON pointer into the schema.
    pub pointer: String,
    /// Human-readable description of the problem.
    pub message: String,
}

/// A mismatch between a value and a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaViolation {
    /// JSON pointer into the value; empty for the value itself.
    pub pointer: String,
    /// The keyword that failed. For a schema `false`, the keyword that led to it.
    pub keyword: String,
    /// Human-readable description of the expected and the actual value.
    pub message: String,
}

impl fmt::Display for SchemaViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = if self.pointer.is_empty() { "" } else { ": " };
        write!(f, "{}{gap}{}", self.pointer, self.message)
    }
}

impl Schema {
    /// Compiles a schema, or returns all its problems.
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

    /// Validates a value and returns up to [`MAX_MISMATCHES`] mismatches. An empty list means that the value matches.
    pub fn check(&self, value: &Value) -> Vec<SchemaViolation> {
        Check::run(&self.0.nodes, value, MAX_MISMATCHES).1
    }

    /// Returns true if the value matches. Stops at the first mismatch, so it is faster than [`Schema::check`].
    pub fn fits(&self, value: &Value) -> bool {
        Check::run(&self.0.nodes, value, 0).0
    }

    /// Returns the source of the schema.
    pub fn source(&self) -> &Value {
        &self.0.source
    }
}

#[derive(Debug)]
struct Compiled {
    source: Value,
    nodes: Vec<Node>,
}
