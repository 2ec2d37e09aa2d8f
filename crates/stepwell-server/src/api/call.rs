//! What a handler is given: who asks, and what they bring, read into types whose schemas are the contract.

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
use stepwell::core::schema::{Misfit, Schema};

use super::json;
use super::{Caller, Server};
use crate::routes::body::{Kind, wrong_kind};
use crate::routes::flows::key;
use crate::routes::problem::Problem;

/// A request that has been let in.
pub(crate) struct Call<P = Nothing, Q = Nothing, B = ()> {
    pub(crate) server: Arc<Server>,
    pub(crate) caller: Caller,
    pub(crate) path: P,
    pub(crate) query: Q,
    pub(crate) body: B,
    pub(crate) headers: HeaderMap,
}

impl<P, Q, B> Call<P, Q, B> {
    /// The engine of whoever asks, acting as them.
    pub(crate) fn engine(&self) -> Engine {
        self.server.engine_of(&self.caller)
    }

    /// The request's idempotency key.
    pub(crate) fn key(&self) -> Result<Option<String>, Problem> {
        key(&self.headers)
    }

    /// The revision that has to be the current one, if the request names one.
    pub(crate) fn seen(&self) -> Result<Option<u64>, Problem> {
        match self.headers.get(IF_MATCH) {
            Some(tag) if tag == "*" => Ok(None),
            _ => self.named(),
        }
    }

    /// The revision that has to be the current one; 0 = there must be nothing yet.
    pub(crate) fn expected(&self) -> Result<Option<u64>, Problem> {
        match (self.headers.get(IF_NONE_MATCH).map(HeaderValue::as_bytes), self.named()?) {
            (None, named) => Ok(named),
            (Some(b"*"), None) => Ok(Some(0)),
            (Some(b"*"), Some(_)) => {
                let detail = "Nothing is at a revision (`If-Match`) and not there yet (`If-None-Match`): send one of both.";
                Err(Problem::new(StatusCode::PRECONDITION_FAILED, "contradiction", detail))
            }
            (Some(_), _) => Err(Problem::bad("malformedTag", "`If-None-Match` can only be `*` here.")),
        }
    }

    /// The revision of `If-Match`.
    fn named(&self) -> Result<Option<u64>, Problem> {
        let Some(tag) = self.headers.get(IF_MATCH) else { return Ok(None) };
        let tag = tag.to_str().unwrap_or_default().trim();
        let digits = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
        let digits = digits.filter(|digits| digits.len() <= TAG_DIGITS && is_number(digits));
        let wrong = || Problem::bad("malformedTag", "`If-Match` is a revision in quotes, as `ETag` gave it.");
        digits.and_then(|digits| digits.parse().ok()).map(Some).ok_or_else(wrong)
    }
}

/// Digits that a revision has at most in a header; the contract says the same.
pub(crate) const TAG_DIGITS: usize = 15;

/// The text has nothing but digits in it.
pub(crate) fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A request as it came in, from somebody who may ask.
pub(crate) struct Asked {
    pub(crate) server: Arc<Server>,
    pub(crate) caller: Caller,
    pub(crate) path: Vec<(String, String)>,
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// No fields at all.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// Any fields at all: nobody looks at them.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Whatever {}

/// Reads parameters, from a path or a query, into a type.
pub(crate) struct Fields<T> {
    schema: OwnSchema,
    kinds: BTreeMap<String, Simple>,
    /// What parameters of other names are, if there may be any that are read.
    others: Option<Simple>,
    /// There may be others, which are not read.
    is_open: bool,
    of: PhantomData<fn() -> T>,
}

/// What a parameter is, as far as reading its text goes.
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

    /// The parameters, all of which are known and fit.
    pub(crate) fn read(&self, pairs: impl IntoIterator<Item = (String, String)>) -> Result<T, Problem> {
        let mut fields = Map::new();
        for (name, text) in pairs {
            let Some(kind) = self.kinds.get(&name).or(self.others.as_ref()) else {
                if self.is_open {
                    continue;
                }
                let detail = format!("There is no parameter `{name}` here.");
                return Err(Problem::bad("unknownParameter", detail).param("parameter", name));
            };
            let value = kind.value(text);
            match (fields.get_mut(&name), kind) {
                (Some(Value::Array(list)), Simple::List) => list.push(value),
                (None, Simple::List) => drop(fields.insert(name, Value::Array(vec![value]))),
                (None, _) => drop(fields.insert(name, value)),
                (Some(_), _) => {
                    let detail = format!("The parameter `{name}` is there more than once.");
                    return Err(Problem::bad("badParameter", detail).param("parameter", name));
                }
            }
        }
        let fields = Value::Object(fields);
        let misfits = self.schema.check(&fields);
        if !misfits.is_empty() {
            return Err(bad_parameters(misfits));
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

    /// The text as a value of this kind, or as it is: then it does not fit the schema, which says so.
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

fn bad_parameters(errors: Vec<Misfit>) -> Problem {
    let detail = match errors.first() {
        Some(misfit) if !misfit.pointer.is_empty() => {
            format!("The parameter `{}` does not fit: {}.", &misfit.pointer[1..], misfit.message)
        }
        Some(misfit) => format!("The parameters do not fit: {}.", misfit.message),
        None => "The parameters do not fit.".to_owned(),
    };
    Problem { errors, ..Problem::bad("badParameter", detail) }
}

/// The schema of a type, with everything it refers to in it.
pub(crate) fn schema_of<T: JsonSchema>() -> Value {
    let mut schema = SchemaGenerator::default().into_root_schema_for::<T>().to_value();
    bound_integers(&mut schema);
    schema
}

/// Every integer of a schema says how large it may be: what its type holds, and no more than every program can read exactly.
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

/// The largest integer up to which a float has them all.
const EXACT_MAX: u64 = (1 << 53) - 1;

/// The schema of one of our types. It is compiled when it is first needed: the command line only describes routes, and
/// should not take the time.
pub(crate) type OwnSchema = LazyLock<Schema>;

pub(crate) fn own_schema<T: JsonSchema>() -> OwnSchema {
    LazyLock::new(|| compiled(&schema_of::<T>()))
}

/// A schema of our own.
pub(crate) fn compiled(schema: &Value) -> Schema {
    Schema::compile(schema).unwrap_or_else(|problems| {
        let all: Vec<_> = problems.iter().map(ToString::to_string).collect();
        unreachable!("a type's own schema can be compiled: {}: {schema}", all.join("; "))
    })
}

/// What a body is read into.
pub(crate) trait Reads: Sized + Send + 'static {
    /// What reads it, made once.
    type Reader: Send + Sync + 'static;

    /// Makes what reads it.
    fn reader() -> Self::Reader;

    /// What may be sent, by content type; none = nothing may.
    fn contents(schemas: &mut SchemaGenerator) -> Vec<(&'static str, Value)>;

    /// A request without a body is one too.
    fn is_optional() -> bool {
        false
    }

    /// Reads it.
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
            false => Err(Problem::bad("unexpectedBody", "This takes no body: leave it out.")),
        }
    }
}

/// A JSON object of a type.
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
        let misfits = schema.check(&value);
        if !misfits.is_empty() {
            return Err(bad_body(misfits));
        }
        typed(value).map(Json).map_err(|error| bad_body(vec![misread(&error)]))
    }
}

/// The body is not what the contract says. What keeps to the contract and cannot be done all the same is another problem (422).
fn bad_body(errors: Vec<Misfit>) -> Problem {
    let detail = match errors.first() {
        Some(misfit) if !misfit.pointer.is_empty() => {
            format!("The body does not fit at `{}`: {}.", misfit.pointer, misfit.message)
        }
        Some(misfit) => format!("The body does not fit: {}.", misfit.message),
        None => "The body does not fit.".to_owned(),
    };
    Problem { errors, ..Problem::bad("badBody", detail) }
}

/// What fits a type's schema, as a value of the type. To a schema `4.0` is an integer, to a type it is not.
fn typed<T: DeserializeOwned>(value: Value) -> Result<T, serde_json::Error> {
    match T::deserialize(&value) {
        Err(_) if has_whole_floats(&value) => T::deserialize(with_integers(value)),
        read => read,
    }
}

/// The integer that a float is.
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

/// The same value, with floats that are integers as such.
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

/// What a schema cannot say.
fn misread(error: &serde_json::Error) -> Misfit {
    Misfit { pointer: String::new(), keyword: "type".to_owned(), message: error.to_string() }
}

/// A JSON object of a type, or nothing, which is the same as an empty object.
pub(crate) struct Perhaps<T>(pub(crate) T);

impl<T: DeserializeOwned + JsonSchema + Default + Send + 'static> Reads for Perhaps<T> {
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
            return Ok(Perhaps(T::default()));
        }
        Json::read(schema, headers, body).map(|Json(value)| Perhaps(value))
    }
}

/// Any JSON at all; nothing is `null`.
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

/// What a body is said to be, without what else is said of it.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let kind = headers.get(axum::http::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim().to_ascii_lowercase()
}

/// A document as YAML or JSON, as its author wrote it.
pub(crate) struct Written(pub(crate) String);

/// What documents may be sent as.
const DOCUMENTS: [&str; 4] = ["application/yaml", "application/json", "text/yaml", "text/plain"];

impl Reads for Written {
    type Reader = ();

    fn reader() {}

    fn contents(_: &mut SchemaGenerator) -> Vec<(&'static str, Value)> {
        let step =
            serde_json::json!({ "id": "done", "type": "control.return", "value": { "$expr": "payload" } });
        let example = serde_json::json!({ "steps": [step] });
        // What is wrong with a document is told line by line, and a draft may be anything.
        let schema = |kind: &str| match kind {
            "text/plain" => serde_json::json!({"type": "string"}),
            _ => serde_json::json!({ "description": "The document.", "examples": [example] }),
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

/// Bytes, whatever they are.
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
