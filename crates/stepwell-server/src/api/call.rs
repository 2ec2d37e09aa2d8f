//! The input of a handler: the caller, and the path, query and body parsed into types. The schemas of these types are
//! the contract.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, LazyLock};

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::http::StatusCode;
use axum::http::header::{HeaderValue, IF_MATCH, IF_NONE_MATCH};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};
use stepwell::Engine;
use stepwell::core::schema::{Schema, SchemaViolation};

use super::json;
use super::{Caller, Server};
use crate::routes::body::{Kind, wrong_kind};
use crate::routes::flows::key;
use crate::routes::problem::Problem;

/// An admitted request with its parsed input.
pub(crate) struct Call<P = Nothing, Q = Nothing, B = ()> {
    pub(crate) server: Arc<Server>,
    pub(crate) caller: Caller,
    pub(crate) path: P,
    pub(crate) query: Q,
    pub(crate) body: B,
    pub(crate) headers: HeaderMap,
}

impl<P, Q, B> Call<P, Q, B> {
    /// Returns the engine for the caller's tenant, acting as the caller.
    pub(crate) fn engine(&self) -> Engine {
        self.server.engine_of(&self.caller)
    }

    /// Returns the request's idempotency key.
    pub(crate) fn key(&self) -> Result<Option<String>, Problem> {
        key(&self.headers)
    }

    /// Returns the revision in `If-Match` that must be the current one; `None` without the header or for `*`.
    pub(crate) fn seen(&self) -> Result<Option<u64>, Problem> {
        match self.headers.get(IF_MATCH) {
            Some(tag) if tag == "*" => Ok(None),
            _ => self.named(),
        }
    }

    /// Returns the revision that must be the current one; 0 = nothing may exist yet (`If-None-Match: *`).
    pub(crate) fn expected(&self) -> Result<Option<u64>, Problem> {
        match (self.headers.get(IF_NONE_MATCH).map(HeaderValue::as_bytes), self.named()?) {
            (None, named) => Ok(named),
            (Some(b"*"), None) => Ok(Some(0)),
            (Some(b"*"), Some(_)) => {
                let detail = "`If-Match` and `If-None-Match` are mutually exclusive: send one of them.";
                Err(Problem::new(StatusCode::PRECONDITION_FAILED, "contradiction", detail))
            }
            (Some(_), _) => Err(Problem::bad("malformedTag", "`If-None-Match` must be `*`.")),
        }
    }

    /// Parses the revision in `If-Match`.
    fn named(&self) -> Result<Option<u64>, Problem> {
        let Some(tag) = self.headers.get(IF_MATCH) else { return Ok(None) };
        let tag = tag.to_str().unwrap_or_default().trim();
        let digits = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
        let digits = digits.filter(|digits| digits.len() <= TAG_DIGITS && is_number(digits));
        let wrong = || Problem::bad("malformedTag", "`If-Match` must be a revision in quotes, as in `ETag`.");
        digits.and_then(|digits| digits.parse().ok()).map(Some).ok_or_else(wrong)
    }
}

/// Maximum number of digits of a revision in a header. The contract states the same limit.
pub(crate) const TAG_DIGITS: usize = 15;

/// Returns true if the text has no characters other than digits.
pub(crate) fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// An admitted request before its input is parsed.
pub(crate) struct RequestContext {
    pub(crate) server: Arc<Server>,
    pub(crate) caller: Caller,
    pub(crate) path: Vec<(String, String)>,
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Input without fields; any field is rejected.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// Input whose fields are ignored.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct IgnoredFields {}

/// Parser of path or query parameters into a type.
pub(crate) struct Fields<T> {
    schema: OwnSchema,
    kinds: BTreeMap<String, Simple>,
    /// Kind of parameters with other names; `None` = they are not read.
    others: Option<Simple>,
    /// True = other parameters are allowed and ignored.
    is_open: bool,
    of: PhantomData<fn() -> T>,
}

/// Kind of a parameter, which decides how its text is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Simple {
    Text,
    Number,
    Boolean,
    List,
}

impl<T: DeserializeOwned + JsonSchema> Fields<T> {
    pub(crate) fn new() -> Self {
        let schema = schema_of::<T>();
        let properties = schema["properties"].as_object().cloned().unwrap_or_default();
        let kinds = properties.into_iter().map(|(name, property)| (name, Simple::of(&schema, &property)));
        let others = schema.get("additionalProperties").filter(|others| others.is_object());
        let others = others.map(|others| Simple::of(&schema, others));
        let is_open = schema["additionalProperties"] != Value::Bool(false);
        Fields { kinds: kinds.collect(), others, is_open, schema: own_schema::<T>(), of: PhantomData }
    }

    /// Parses the parameters and validates them against the schema. Rejects unknown and repeated parameters.
    pub(crate) fn read(&self, pairs: impl IntoIterator<Item = (String, String)>) -> Result<T, Problem> {
        let mut fields = Map::new();
        for (name, text) in pairs {
            let Some(kind) = self.kinds.get(&name).or(self.others.as_ref()) else {
                if self.is_open {
                    continue;
                }
                let detail = format!("Unknown parameter `{name}`.");
                return Err(Problem::bad("unknownParameter", detail).param("parameter", name));
            };
            let value = kind.value(text);
            match (fields.get_mut(&name), kind) {
                (Some(Value::Array(list)), Simple::List) => list.push(value),
                (None, Simple::List) => drop(fields.insert(name, Value::Array(vec![value]))),
                (None, _) => drop(fields.insert(name, value)),
                (Some(_), _) => {
                    let detail = format!("The parameter `{name}` is given more than once.");
                    return Err(Problem::bad("badParameter", detail).param("parameter", name));
                }
            }
        }
        let fields = Value::Object(fields);
        let violations = self.schema.check(&fields);
        if !violations.is_empty() {
            return Err(bad_parameters(violations));
        }
        typed(fields).map_err(|error| bad_parameters(vec![misread(&error)]))
    }
}

impl Simple {
    fn of(root: &Value, property: &Value) -> Self {
        let property = match property["$ref"].as_str().and_then(|path| path.strip_prefix('#')) {
            Some(path) => root.pointer(path).unwrap_or(property),
            None => property,
        };
        let is = |kind: &str| match &property["type"] {
            Value::String(one) => one == kind,
            Value::Array(all) => all.iter().any(|one| one == kind),
            _ => false,
        };
        match () {
            () if is("integer") || is("number") => Simple::Number,
            () if is("boolean") => Simple::Boolean,
            () if is("array") => Simple::List,
            () => Simple::Text,
        }
    }

    /// Converts the text to a value of this kind. Other text stays a string, which the schema then rejects.
    fn value(self, text: String) -> Value {
        match self {
            Simple::Number => match text.parse::<serde_json::Number>() {
                Ok(number) => Value::Number(number),
                Err(_) => Value::String(text),
            },
            Simple::Boolean if text == "true" => Value::Bool(true),
            Simple::Boolean if text == "false" => Value::Bool(false),
            Simple::Boolean | Simple::List | Simple::Text => Value::String(text),
        }
    }
}

fn bad_parameters(errors: Vec<SchemaViolation>) -> Problem {
    let detail = match errors.first() {
        Some(violation) if !violation.pointer.is_empty() => {
            format!("The parameter `{}` is invalid: {}.", &violation.pointer[1..], violation.message)
        }
        Some(violation) => format!("The parameters are invalid: {}.", violation.message),
        None => "The parameters are invalid.".to_owned(),
    };
    Problem { errors, ..Problem::bad("badParameter", detail) }
}

/// Returns the schema of a type, including all definitions that it refers to.
pub(crate) fn schema_of<T: JsonSchema>() -> Value {
    let mut schema = SchemaGenerator::default().into_root_schema_for::<T>().to_value();
    bound_integers(&mut schema);
    schema
}

/// Adds a maximum to every integer of a schema: the maximum of its type, but at most 2^53 - 1, which every program can
/// read exactly.
pub(crate) fn bound_integers(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let maximum = match fields.get("format").and_then(Value::as_str) {
                Some("uint8") => Some(u64::from(u8::MAX)),
                Some("uint16") => Some(u64::from(u16::MAX)),
                Some("uint32") => Some(u64::from(u32::MAX)),
                Some("uint64" | "uint") => Some(EXACT_MAX),
                _ => None,
            };
            if let Some(maximum) = maximum.filter(|_| fields.contains_key("type")) {
                fields.entry("maximum").or_insert_with(|| maximum.into());
            }
            fields.values_mut().for_each(bound_integers);
        }
        Value::Array(items) => items.iter_mut().for_each(bound_integers),
        _ => {}
    }
}

/// The largest integer up to which a 64-bit float represents every integer exactly.
const EXACT_MAX: u64 = (1 << 53) - 1;

/// The schema of a type of the API. It is compiled on first use, because the command line only describes routes and
/// would waste the time.
pub(crate) type OwnSchema = LazyLock<Schema>;

pub(crate) fn own_schema<T: JsonSchema>() -> OwnSchema {
    LazyLock::new(|| compiled(&schema_of::<T>()))
}

/// Compiles the schema of a type of the API. Panics if that fails.
pub(crate) fn compiled(schema: &Value) -> Schema {
    Schema::compile(schema).unwrap_or_else(|problems| {
        let all: Vec<_> = problems.iter().map(ToString::to_string).collect();
        unreachable!("the schema of a type of the API must compile: {}: {schema}", all.join("; "))
    })
}

/// A type that a request body is parsed into.
pub(crate) trait Reads: Sized + Send + 'static {
    /// Parser that is created once per route, such as a compiled schema.
    type Reader: Send + Sync + 'static;

    /// Creates the parser of a route.
    fn reader() -> Self::Reader;

    /// Returns the accepted content types with their schemas; empty = no body is accepted.
    fn contents(schemas: &mut SchemaGenerator) -> Vec<(&'static str, Value)>;

    /// Returns true if a request may omit the body.
    fn is_optional() -> bool {
        false
    }

    /// Parses and validates a body.
    fn read(reader: &Self::Reader, headers: &HeaderMap, body: Bytes) -> Result<Self, Problem>;
}

impl Reads for () {
    type Reader = ();

    fn reader() {}

    fn contents(_: &mut SchemaGenerator) -> Vec<(&'static str, Value)> {
        Vec::new()
    }

    fn is_optional() -> bool {
        true
    }

    fn read((): &(), _: &HeaderMap, body: Bytes) -> Result<Self, Problem> {
        match body.is_empty() {
            true => Ok(()),
            false => Err(Problem::bad("unexpectedBody", "Send this request without a body.")),
        }
    }
}

/// A body that is JSON of type `T`.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned + JsonSchema + Send + 'static> Reads for Json<T> {
    type Reader = OwnSchema;

    fn reader() -> OwnSchema {
        own_schema::<T>()
    }

    fn contents(schemas: &mut SchemaGenerator) -> Vec<(&'static str, Value)> {
        vec![("application/json", schemas.subschema_for::<T>().to_value())]
    }

    fn read(schema: &OwnSchema, headers: &HeaderMap, body: Bytes) -> Result<Self, Problem> {
        if Kind::of(headers) != Kind::Json {
            return Err(wrong_kind("`application/json`"));
        }
        let value = json::read(&body)?;
        let violations = schema.check(&value);
        if !violations.is_empty() {
            return Err(bad_body(violations));
        }
        typed(value).map(Json).map_err(|error| bad_body(vec![misread(&error)]))
    }
}

/// Creates the problem (400) of a body that violates the contract. A valid body that cannot be processed is a 422
/// instead.
fn bad_body(errors: Vec<SchemaViolation>) -> Problem {
    let detail = match errors.first() {
        Some(violation) if !violation.pointer.is_empty() => {
            format!("The body is invalid at `{}`: {}.", violation.pointer, violation.message)
        }
        Some(violation) => format!("The body is invalid: {}.", violation.message),
        None => "The body is invalid.".to_owned(),
    };
    Problem { errors, ..Problem::bad("badBody", detail) }
}

/// Converts a value that matches the type's schema into the type. Accepts `4.0` as an integer, as JSON Schema does and
/// `serde` does not.
fn typed<T: DeserializeOwned>(value: Value) -> Result<T, serde_json::Error> {
    match T::deserialize(&value) {
        Err(_) if has_whole_floats(&value) => T::deserialize(with_integers(value)),
        read => read,
    }
}

/// Returns the float as an integer if it has no fraction and is exact.
fn whole(number: &Number) -> Option<i64> {
    let float = number.as_f64().filter(|_| number.is_f64())?;
    (float.fract() == 0.0 && float.abs() <= EXACT_MAX as f64).then_some(float as i64)
}

fn has_whole_floats(value: &Value) -> bool {
    match value {
        Value::Number(number) => whole(number).is_some(),
        Value::Array(items) => items.iter().any(has_whole_floats),
        Value::Object(fields) => fields.values().any(has_whole_floats),
        _ => false,
    }
}

/// Converts floats without a fraction into integers, at every depth.
fn with_integers(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::Number(whole(&number).map_or(number, Number::from)),
        Value::Array(items) => items.into_iter().map(with_integers).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, with_integers(value))).collect()
        }
        other => other,
    }
}

/// Describes an error that the type reports and its schema does not.
fn misread(error: &serde_json::Error) -> SchemaViolation {
    SchemaViolation { pointer: String::new(), keyword: "type".to_owned(), message: error.to_string() }
}

/// An optional body that is JSON of type `T`. Without a body, the default of `T` is used.
pub(crate) struct OptionalBody<T>(pub(crate) T);

impl<T: DeserializeOwned + JsonSchema + Default + Send + 'static> Reads for OptionalBody<T> {
    type Reader = OwnSchema;

    fn reader() -> OwnSchema {
        Json::<T>::reader()
    }

    fn contents(schemas: &mut SchemaGenerator) -> Vec<(&'static str, Value)> {
        Json::<T>::contents(schemas)
    }

    fn is_optional() -> bool {
        true
    }

    fn read(schema: &OwnSchema, headers: &HeaderMap, body: Bytes) -> Result<Self, Problem> {
        if body.is_empty() {
            return Ok(OptionalBody(T::default()));
        }
        Json::read(schema, headers, body).map(|Json(value)| OptionalBody(value))
    }
}

/// An optional body that is any JSON value. Without a body, it is `null`.
pub(crate) struct Payload(pub(crate) Value);

impl Reads for Payload {
    type Reader = ();

    fn reader() {}

    fn contents(_: &mut SchemaGenerator) -> Vec<(&'static str, Value)> {
        vec![("application/json", Value::Bool(true))]
    }

    fn is_optional() -> bool {
        true
    }

    fn read((): &(), headers: &HeaderMap, body: Bytes) -> Result<Self, Problem> {
        match (body.is_empty(), Kind::of(headers)) {
            (true, _) => Ok(Payload(Value::Null)),
            (false, Kind::Json) => json::read(&body).map(Payload),
            (false, _) => Err(wrong_kind("`application/json`")),
        }
    }
}

/// Returns the media type of `Content-Type` in lower case, without parameters.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let kind = headers.get(axum::http::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim().to_ascii_lowercase()
}

/// A body that is the text of a workflow document, as YAML or JSON.
pub(crate) struct Written(pub(crate) String);

/// Accepted content types of workflow documents.
const DOCUMENTS: [&str; 4] = ["application/yaml", "application/json", "text/yaml", "text/plain"];

impl Reads for Written {
    type Reader = ();

    fn reader() {}

    fn contents(_: &mut SchemaGenerator) -> Vec<(&'static str, Value)> {
        let step =
            serde_json::json!({ "id": "done", "type": "control.return", "value": { "$expr": "payload" } });
        let example = serde_json::json!({ "steps": [step] });
        // No schema: the compiler reports errors by line, and a draft may contain anything.
        let schema = |kind: &str| match kind {
            "text/plain" => serde_json::json!({"type": "string"}),
            _ => serde_json::json!({ "description": "The workflow document.", "examples": [example] }),
        };
        DOCUMENTS.iter().map(|kind| (*kind, schema(kind))).collect()
    }

    fn read((): &(), headers: &HeaderMap, body: Bytes) -> Result<Self, Problem> {
        let kind = media_type(headers);
        if !DOCUMENTS.contains(&kind.as_str()) {
            return Err(wrong_kind("a document, `application/yaml` or `application/json`"));
        }
        let text = String::from_utf8(body.to_vec()).map_err(|_| {
            Problem::new(StatusCode::BAD_REQUEST, "malformedText", "The document is not UTF-8.")
        })?;
        Ok(Written(text))
    }
}

/// A body of any bytes.
pub(crate) struct Raw(pub(crate) Bytes);

impl Reads for Raw {
    type Reader = ();

    fn reader() {}

    fn contents(_: &mut SchemaGenerator) -> Vec<(&'static str, Value)> {
        vec![("*/*", Value::Bool(true))]
    }

    fn is_optional() -> bool {
        true
    }

    fn read((): &(), _: &HeaderMap, body: Bytes) -> Result<Self, Problem> {
        Ok(Raw(body))
    }
}
