//! Shadow columns: values out of a run's context that are kept beside the run, typed, so that runs can be found by
//! them.
//!
//! A column is declared with the workflow ([`Shadow`]) and read from the context alone ([`Column::read`]): what is
//! there and has the type is a hit, falsy values too; everything else is a miss. What a miss comes to depends on the
//! column: without a default it is empty then, with one it stays as it was.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::check::{Location, ProblemCode, Report};
use crate::ids::Name;
use crate::spec::Spec;

/// Columns of one workflow.
pub const MAX_COLUMNS: usize = 64;
/// Bytes of a column's name: what every database takes for the name of a column.
pub const MAX_NAME_BYTES: usize = 63;
/// Bytes of a text: what an index of every database takes. A longer one counts as a miss.
pub const MAX_TEXT_BYTES: usize = 1_024;
/// What a view of a workflow's runs shows beside its shadow columns.
pub const RESERVED: [&str; 7] = ["tenant", "run", "status", "places", "version", "created_at", "updated_at"];

/// A shadow column as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Shadow {
    /// Where in the context it is: fields of objects, with dots between them.
    pub path: String,
    /// Of which type.
    #[serde(rename = "type")]
    pub kind: ShadowType,
    /// What it begins with when there is nothing at its path; without one it is empty then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
}

/// What a shadow column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ShadowType {
    /// Text of at most [`MAX_TEXT_BYTES`].
    String,
    /// A number that is exactly one of IEEE 754 with 64 bits.
    Number,
    /// True or false.
    Boolean,
}

impl ShadowType {
    /// The type as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            ShadowType::String => "string",
            ShadowType::Number => "number",
            ShadowType::Boolean => "boolean",
        }
    }
}

impl Shadow {
    fn new(path: impl Into<String>, kind: ShadowType) -> Self {
        Shadow { path: path.into(), kind, default: None }
    }

    /// A column of texts.
    pub fn string(path: impl Into<String>) -> Self {
        Shadow::new(path, ShadowType::String)
    }

    /// A column of numbers.
    pub fn number(path: impl Into<String>) -> Self {
        Shadow::new(path, ShadowType::Number)
    }

    /// A column of truth values.
    pub fn boolean(path: impl Into<String>) -> Self {
        Shadow::new(path, ShadowType::Boolean)
    }

    /// What it begins with when there is nothing at its path.
    #[must_use]
    pub fn or(mut self, default: impl Into<Value>) -> Self {
        self.default = Some(default.into());
        self
    }
}

/// What a shadow column holds for one run.
#[derive(Debug, Clone, PartialEq)]
pub enum ShadowValue {
    /// A text.
    Text(String),
    /// A number, never infinite or not a number, and never minus zero.
    Number(f64),
    /// A truth value.
    Boolean(bool),
}

// What is not a number is not a value.
impl Eq for ShadowValue {}

impl ShadowValue {
    /// The value as a column of this type holds it; `None` if it cannot.
    pub fn of(kind: ShadowType, value: &Value) -> Option<Self> {
        let value = match (kind, value) {
            (ShadowType::String, Value::String(text)) => ShadowValue::Text(text.clone()),
            (ShadowType::Number, Value::Number(number)) => ShadowValue::Number(exact(number)?),
            (ShadowType::Boolean, Value::Bool(value)) => ShadowValue::Boolean(*value),
            _ => return None,
        };
        value.fits().then_some(value)
    }

    /// Whether every database can hold it and find it by its index.
    pub fn fits(&self) -> bool {
        match self {
            ShadowValue::Text(text) => text.len() <= MAX_TEXT_BYTES && !text.contains('\0'),
            ShadowValue::Number(number) => number.is_finite(),
            ShadowValue::Boolean(_) => true,
        }
    }

    /// Its type.
    pub fn kind(&self) -> ShadowType {
        match self {
            ShadowValue::Text(_) => ShadowType::String,
            ShadowValue::Number(_) => ShadowType::Number,
            ShadowValue::Boolean(_) => ShadowType::Boolean,
        }
    }
}

impl From<&str> for ShadowValue {
    fn from(text: &str) -> Self {
        ShadowValue::Text(text.to_owned())
    }
}

impl From<String> for ShadowValue {
    fn from(text: String) -> Self {
        ShadowValue::Text(text)
    }
}

impl From<bool> for ShadowValue {
    fn from(value: bool) -> Self {
        ShadowValue::Boolean(value)
    }
}

impl From<f64> for ShadowValue {
    fn from(number: f64) -> Self {
        // Minus zero is zero.
        ShadowValue::Number(number + 0.0)
    }
}

impl From<i32> for ShadowValue {
    fn from(number: i32) -> Self {
        ShadowValue::Number(f64::from(number))
    }
}

/// A number as 64 bits hold it, if they hold exactly this one.
fn exact(number: &serde_json::Number) -> Option<f64> {
    let float = number.as_f64()?;
    let is_exact = match (number.as_i64(), number.as_u64()) {
        (Some(integer), _) => float as i128 == i128::from(integer),
        (None, Some(integer)) => float as i128 == i128::from(integer),
        (None, None) => float.is_finite(),
    };
    is_exact.then_some(float + 0.0)
}

/// A shadow column that has been checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    name: Name,
    path: Vec<String>,
    kind: ShadowType,
    default: Option<ShadowValue>,
}

/// What is at a column's path.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    /// A value of its type.
    Hit(ShadowValue),
    /// Nothing, or null.
    Miss,
    /// Something the column cannot hold: it counts as a miss.
    Unfit,
}

impl Column {
    /// Its name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// What it holds.
    pub fn kind(&self) -> ShadowType {
        self.kind
    }

    /// What it begins with when there is nothing at its path.
    pub fn default(&self) -> Option<&ShadowValue> {
        self.default.as_ref()
    }

    /// Where in the context it is.
    pub fn path(&self) -> String {
        self.path.join(".")
    }

    /// What is at its path in a context. Only fields of objects are followed.
    pub fn read(&self, context: &Value) -> Seen {
        let mut at = context;
        for field in &self.path {
            match at.as_object().and_then(|fields| fields.get(field)) {
                Some(inner) => at = inner,
                None => return Seen::Miss,
            }
        }
        if at.is_null() {
            return Seen::Miss;
        }
        ShadowValue::of(self.kind, at).map_or(Seen::Unfit, Seen::Hit)
    }
}

/// One pass of the check: shadow columns have names and paths that can be used, and defaults of their types.
pub(crate) fn columns(spec: &Spec, report: &mut Report) -> Vec<Column> {
    if spec.shadows.len() > MAX_COLUMNS {
        let message = format!("{} shadow columns; at most {MAX_COLUMNS} are allowed", spec.shadows.len());
        report.add(ProblemCode::TooLarge, Location::Definition, message);
    }
    let mut seen: BTreeMap<String, &Name> = BTreeMap::new();
    let mut columns = Vec::with_capacity(spec.shadows.len());
    for (name, shadow) in &spec.shadows {
        let at = Location::Shadow(name.clone());
        if let Some(message) = bad_name(name) {
            report.add(ProblemCode::BadShadow, at.clone(), message);
        } else if let Some(other) = seen.insert(name.to_ascii_lowercase(), name) {
            let message = format!("its name differs from `{other}` only in upper and lower case");
            report.add(ProblemCode::BadShadow, at.clone(), message);
        }
        let path: Vec<String> = shadow.path.split('.').map(str::to_owned).collect();
        if let Some(message) = bad_path(&shadow.path, &path) {
            report.add(ProblemCode::BadShadow, at.clone(), message);
        }
        let default = shadow.default.as_ref().map(|default| ShadowValue::of(shadow.kind, default));
        if let (Some(None), Some(given)) = (&default, &shadow.default) {
            let kind = shadow.kind.as_str();
            let message = format!("its default {given} is not a {kind} that a column can hold");
            report.add(ProblemCode::BadShadow, at, message);
        }
        columns.push(Column { name: name.clone(), path, kind: shadow.kind, default: default.flatten() });
    }
    columns
}

fn bad_name(name: &str) -> Option<String> {
    let bad = |reason: String| Some(format!("`{name}` cannot be the name of a column: {reason}"));
    let mut chars = name.chars();
    let starts = chars.next().is_some_and(|first| first.is_ascii_alphabetic());
    if !starts || !chars.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return bad("letters of a to z, digits and `_`, and a letter first".to_owned());
    }
    if name.len() > MAX_NAME_BYTES {
        return bad(format!("it has {} characters, and at most {MAX_NAME_BYTES} are allowed", name.len()));
    }
    if RESERVED.iter().any(|taken| taken.eq_ignore_ascii_case(name)) {
        return bad("every run has a column of this name already".to_owned());
    }
    None
}

fn bad_path(path: &str, fields: &[String]) -> Option<String> {
    let is_field = |field: &String| {
        !field.is_empty() && field.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '$'))
    };
    if fields.iter().all(is_field) {
        return None;
    }
    Some(format!(
        "`{path}` is not a path: the names of fields with dots between them, as in `customer.email`; no lists, no wildcards"
    ))
}
