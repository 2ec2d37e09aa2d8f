//! Shadow columns: typed values from a run's context that are stored in columns, so that runs can be searched by
//! them.
//!
//! A workflow declares its columns ([`Shadow`]). A column is read from the context alone ([`Column::read`]). A value
//! of the right type at its path is a hit, also if it is falsy; anything else is a miss. On a miss, a column without
//! a default becomes empty, and a column with a default keeps its previous value.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::check::{Location, ProblemCode, Report};
use crate::ids::Name;
use crate::spec::Spec;

/// Maximum number of shadow columns of one workflow.
pub const MAX_COLUMNS: usize = 64;
/// Maximum length of a column's name in bytes. Every supported database accepts column names of this length.
pub const MAX_NAME_BYTES: usize = 63;
/// Maximum length of a text in bytes. Every supported database can index texts of this length. A longer text counts
/// as a miss.
pub const MAX_TEXT_BYTES: usize = 1_024;
/// Column names that a view of a workflow's runs uses itself. Shadow columns cannot have these names.
pub const RESERVED: [&str; 7] = ["tenant", "run", "status", "places", "version", "created_at", "updated_at"];

/// A shadow column as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Shadow {
    /// Path in the context: field names separated by dots.
    pub path: String,
    /// Type of the values.
    #[serde(rename = "type")]
    pub kind: ShadowType,
    /// Initial value if there is no value at the path. Without a default, the column is empty then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
}

/// The type of a shadow column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ShadowType {
    /// Text of at most [`MAX_TEXT_BYTES`].
    String,
    /// A number that a 64-bit IEEE 754 float represents exactly.
    Number,
    Boolean,
}

impl ShadowType {
    /// Returns the name of the type, as written in a definition.
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

    /// Creates a column of texts.
    pub fn string(path: impl Into<String>) -> Self {
        Shadow::new(path, ShadowType::String)
    }

    /// Creates a column of numbers.
    pub fn number(path: impl Into<String>) -> Self {
        Shadow::new(path, ShadowType::Number)
    }

    /// Creates a column of booleans.
    pub fn boolean(path: impl Into<String>) -> Self {
        Shadow::new(path, ShadowType::Boolean)
    }

    /// Sets the initial value for a run that has no value at the path.
    #[must_use]
    pub fn or(mut self, default: impl Into<Value>) -> Self {
        self.default = Some(default.into());
        self
    }
}

/// The value of a shadow column for one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ShadowValue {
    Text(String),
    /// A finite number that is not negative zero.
    Number(f64),
    Boolean(bool),
}

// Sound because a number is never NaN.
impl Eq for ShadowValue {}

impl ShadowValue {
    /// Converts a JSON value for a column of this type. Returns `None` if the column cannot hold it.
    pub fn of(kind: ShadowType, value: &Value) -> Option<Self> {
        let value = match (kind, value) {
            (ShadowType::String, Value::String(text)) => ShadowValue::Text(text.clone()),
            (ShadowType::Number, Value::Number(number)) => ShadowValue::Number(exact(number)?),
            (ShadowType::Boolean, Value::Bool(value)) => ShadowValue::Boolean(*value),
            _ => return None,
        };
        value.fits().then_some(value)
    }

    /// Returns true if every supported database can store and index the value.
    pub fn fits(&self) -> bool {
        match self {
            ShadowValue::Text(text) => text.len() <= MAX_TEXT_BYTES && !text.contains('\0'),
            ShadowValue::Number(number) => number.is_finite(),
            ShadowValue::Boolean(_) => true,
        }
    }

    /// Returns the type of the value.
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
        // Turns negative zero into zero.
        ShadowValue::Number(number + 0.0)
    }
}

impl From<i32> for ShadowValue {
    fn from(number: i32) -> Self {
        ShadowValue::Number(f64::from(number))
    }
}

/// Converts a number to a 64-bit float, if that is exact.
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

/// The result of reading a column's path.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    /// A value of its type.
    Hit(ShadowValue),
    /// There is no value, or it is null.
    Miss,
    /// A value that the column cannot hold. It counts as a miss.
    WrongType,
}

impl Column {
    /// Returns the name of the column.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the type of the column's values.
    pub fn kind(&self) -> ShadowType {
        self.kind
    }

    /// Returns the initial value for a run that has no value at the path.
    pub fn default(&self) -> Option<&ShadowValue> {
        self.default.as_ref()
    }

    /// Returns the path in the context: field names separated by dots.
    pub fn path(&self) -> String {
        self.path.join(".")
    }

    /// Reads the value at the column's path. Only fields of objects are followed.
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
        ShadowValue::of(self.kind, at).map_or(Seen::WrongType, Seen::Hit)
    }
}

/// Checks the names, paths and defaults of the shadow columns.
pub(crate) fn columns(spec: &Spec, report: &mut Report) -> Vec<Column> {
    if spec.shadows.len() > MAX_COLUMNS {
        let message =
            format!("too many shadow columns: {}, at most {MAX_COLUMNS} are allowed", spec.shadows.len());
        report.add(ProblemCode::TooLarge, Location::Field("shadows"), message);
    }
    let mut seen: BTreeMap<String, &Name> = BTreeMap::new();
    let mut columns = Vec::with_capacity(spec.shadows.len());
    for (name, shadow) in &spec.shadows {
        let at = Location::Shadow(name.clone());
        if let Some(message) = bad_name(name) {
            report.add(ProblemCode::BadShadow, at.clone(), message);
        } else if let Some(other) = seen.insert(name.to_ascii_lowercase(), name) {
            let message = format!("the name differs from `{other}` only in case: choose another name");
            report.add(ProblemCode::BadShadow, at.clone(), message);
        }
        let path: Vec<String> = shadow.path.split('.').map(str::to_owned).collect();
        if let Some(message) = bad_path(&shadow.path, &path) {
            report.add(ProblemCode::BadShadow, at.clone(), message);
        }
        let default = shadow.default.as_ref().map(|default| ShadowValue::of(shadow.kind, default));
        if let (Some(None), Some(given)) = (&default, &shadow.default) {
            let kind = shadow.kind.as_str();
            let message = format!("the default {given} is not a {kind} that a column can hold");
            report.add(ProblemCode::BadShadow, at, message);
        }
        columns.push(Column { name: name.clone(), path, kind: shadow.kind, default: default.flatten() });
    }
    columns
}

fn bad_name(name: &str) -> Option<String> {
    let bad = |reason: String| Some(format!("`{name}` is not a valid column name: {reason}"));
    let mut chars = name.chars();
    let starts = chars.next().is_some_and(|first| first.is_ascii_alphabetic());
    if !starts || !chars.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return bad("use the letters a to z, digits and `_`, and start with a letter".to_owned());
    }
    if name.len() > MAX_NAME_BYTES {
        return bad(format!("it has {} characters, at most {MAX_NAME_BYTES} are allowed", name.len()));
    }
    if RESERVED.iter().any(|taken| taken.eq_ignore_ascii_case(name)) {
        return bad("this name is reserved".to_owned());
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
        "`{path}` is not a valid path: write field names separated by dots, as in `customer.email`, without lists or wildcards"
    ))
}
