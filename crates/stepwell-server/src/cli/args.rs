//! Arguments of a verb, generated from the parameters and body fields of its operation in the API contract.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::Method;
use axum::http::header::HeaderName;
use clap::{Arg, ArgAction, ArgMatches, Command};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value};
use stepwell::core::Timestamp;
use stepwell::core::time::duration_ms;

use super::choice::{self, Choice};
use super::client::ApiRequest;
use super::json_argument::{self, json};
use crate::exit::{Code, Failure};

/// Characters that are percent-encoded in a path segment: all but the unreserved ones.
const PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The part of the request that an argument goes into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Path,
    Query,
    Header,
    Field,
}

/// The type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Flag,
    List,
    /// A time in the query: RFC 3339, a date, or the duration since then.
    Time,
    Json,
}

#[derive(Debug, Clone)]
struct Taken {
    name: String,
    place: Place,
    kind: Kind,
    is_required: bool,
    /// Allowed values; empty = any.
    choices: Vec<String>,
    /// The object of the body that the field belongs to; `None` = the body itself.
    within: Option<&'static str>,
    about: String,
}

/// The source of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    None,
    Fields,
    /// One argument with JSON.
    Data,
    /// A file, sent unchanged.
    File,
}

/// An operation of the API, with the arguments of its verb.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    pub(crate) id: String,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) about: String,
    pub(crate) is_page: bool,
    /// The response is an endless stream of server-sent events.
    pub(crate) is_stream: bool,
    taken: Vec<Taken>,
    body: Body,
}

impl Operation {
    /// Finds an operation by its id.
    pub(crate) fn of(contract: &Value, id: &str) -> Option<Self> {
        let paths = contract["paths"].as_object()?;
        let found = paths.iter().find_map(|(path, methods)| {
            let methods = methods.as_object()?.iter();
            methods.filter(|(_, operation)| operation["operationId"] == id).map(|found| (path, found)).next()
        });
        let (path, (method, operation)) = found?;
        let mut taken: Vec<_> =
            operation["parameters"].as_array()?.iter().filter_map(|one| parameter(contract, one)).collect();
        let (body, fields) = body(contract, &operation["requestBody"]);
        // Path parameters come first, in the order of the path.
        taken.sort_by_key(|taken| {
            path.find(&format!("{{{}}}", taken.name))
                .filter(|_| taken.place == Place::Path)
                .unwrap_or(usize::MAX)
        });
        taken.extend(fields);
        let answers = operation["responses"].as_object()?;
        let is_stream = answers.values().any(|answer| answer["content"].get("text/event-stream").is_some());
        let mut answers = answers.values();
        let is_page = answers.any(|answer| {
            let reference = answer.pointer("/content/application~1json/schema/$ref").and_then(Value::as_str);
            reference.is_some_and(|reference| reference.contains("/PageOf"))
        });
        let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes()).ok()?;
        let about = operation["summary"].as_str().unwrap_or_default().trim_end_matches('.').to_owned();
        let id = id.to_owned();
        Some(Operation { id, method, path: path.clone(), about, is_page, is_stream, taken, body })
    }

    /// Replaces a field of the body by the fields of that object.
    pub(crate) fn spread(mut self, contract: &Value, id: &str, object: &'static str) -> Self {
        let pointer = format!("/properties/{object}");
        let schema = body_schema(contract, id).and_then(|schema| schema.pointer(&pointer));
        let schema = schema.map(|schema| not_null(contract, schema));
        let (_, fields) = schema.map_or((Body::None, Vec::new()), |schema| fields_of(contract, schema));
        self.taken.retain(|taken| taken.place != Place::Field || taken.name != object);
        let is_taken = |field: &Taken, all: &[Taken]| all.iter().any(|taken| taken.flag() == field.flag());
        let fields = fields.into_iter().map(|field| Taken {
            kind: if is_time(&field.name) { Kind::Time } else { field.kind },
            within: Some(object),
            is_required: false,
            ..field
        });
        let fields: Vec<_> = fields.filter(|field| !is_taken(field, &self.taken)).collect();
        self.taken.extend(fields);
        self
    }

    /// Removes the arguments of these names, except the fields of a spread object.
    pub(crate) fn without(mut self, names: &[&str]) -> Self {
        self.taken.retain(|taken| taken.within.is_some() || !names.contains(&taken.name.as_str()));
        self
    }

    /// Adds the operation's arguments and summary to the verb.
    pub(crate) fn command(&self, mut command: Command) -> Command {
        for taken in self.taken.iter().filter(|taken| !taken.is_dry_run()) {
            command = command.arg(taken.arg());
        }
        match self.body {
            Body::Data => {
                let about = "Request body: JSON, `@FILE`, or `-` for standard input";
                command =
                    command.arg(Arg::new("body").value_name("JSON").allow_negative_numbers(true).help(about));
            }
            Body::File => {
                let about = "File to send; `-` reads standard input";
                command = command.arg(Arg::new("body").value_name("FILE").required(true).help(about));
            }
            Body::None | Body::Fields => {}
        }
        let request = format!("Request: {} {}", self.method, self.path);
        command.about(self.about.clone()).long_about(None).after_help(request)
    }

    /// Returns true if the operation has its own dry run. Then `--dry-run` is sent to the server.
    pub(crate) fn has_dry_run(&self) -> bool {
        self.taken.iter().any(Taken::is_dry_run)
    }

    /// Returns the given run ids, and ids that begin with one, such as those of waits. They may be abbreviated.
    pub(crate) fn run_ids(&self, matches: &ArgMatches) -> Vec<String> {
        let ids = self.taken.iter().filter(|taken| taken.has_run_id());
        ids.flat_map(|taken| matches.get_many::<String>(&taken.id()).into_iter().flatten().cloned()).collect()
    }

    /// Returns the allowed values of an argument.
    pub(super) fn choices(&self, name: &str) -> Choice {
        let taken = self.taken.iter().find(|taken| taken.name == name);
        Choice::new(&kebab(name), taken.map(|taken| taken.choices.clone()).unwrap_or_default())
    }

    /// Replaces each `{name}` in a sentence by the value of that argument.
    pub(crate) fn sentence(
        &self,
        sentence: &str,
        matches: &ArgMatches,
        whole: &BTreeMap<String, String>,
    ) -> String {
        self.taken.iter().fold(sentence.to_owned(), |sentence, taken| {
            let mark = format!("{{{}}}", taken.name);
            match matches.try_get_one::<String>(&taken.id()) {
                Ok(Some(given)) if sentence.contains(&mark) => {
                    sentence.replace(&mark, whole.get(given).unwrap_or(given))
                }
                _ => sentence,
            }
        })
    }

    /// Builds the request from the arguments. `whole` has the full ids of abbreviated ones.
    pub(crate) fn asking(
        &self,
        matches: &ArgMatches,
        whole: &BTreeMap<String, String>,
    ) -> Result<ApiRequest, Failure> {
        let mut asking =
            ApiRequest { method: self.method.clone(), path: self.path.clone(), ..ApiRequest::default() };
        let (mut query, mut fields) = (form_urlencoded::Serializer::new(String::new()), Map::new());
        for taken in &self.taken {
            for value in taken.values(matches, whole)? {
                let text = || value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                match taken.place {
                    Place::Path => {
                        let part = utf8_percent_encode(&text(), PART).to_string();
                        asking.path = asking.path.replace(&format!("{{{}}}", taken.name), &part);
                    }
                    Place::Query => drop(query.append_pair(&taken.name, &text())),
                    Place::Header => asking.headers.push((header(&taken.name)?, tag(&taken.name, &text()))),
                    Place::Field => taken.put(&mut fields, value),
                }
            }
        }
        let query = query.finish();
        if !query.is_empty() {
            asking.path = format!("{}?{query}", asking.path);
        }
        asking.body = self.sent(matches, fields)?;
        Ok(asking)
    }

    fn sent(
        &self,
        matches: &ArgMatches,
        fields: Map<String, Value>,
    ) -> Result<Option<(String, Vec<u8>)>, Failure> {
        let body = || matches.get_one::<String>("body").map(String::as_str);
        Ok(match self.body {
            Body::None => None,
            Body::Fields if fields.is_empty() => None,
            Body::Fields => {
                Some(("application/json".to_owned(), Value::Object(fields).to_string().into_bytes()))
            }
            Body::Data => match body() {
                Some(text) => {
                    Some(("application/json".to_owned(), json("JSON", text)?.to_string().into_bytes()))
                }
                None => None,
            },
            Body::File => {
                let text = crate::workflow::read(Path::new(body().unwrap_or("-")))?;
                let kind =
                    if text.trim_start().starts_with('{') { "application/json" } else { "application/yaml" };
                Some((kind.to_owned(), text.into_bytes()))
            }
        })
    }
}

impl Taken {
    /// Returns true for the parameter that the common flag `--dry-run` sets.
    fn is_dry_run(&self) -> bool {
        self.name == "dryRun"
    }

    /// Puts a value into the fields of the body.
    fn put(&self, fields: &mut Map<String, Value>, value: Value) {
        let fields = match self.within {
            None => Some(fields),
            Some(object) => fields.entry(object).or_insert_with(|| Value::Object(Map::new())).as_object_mut(),
        };
        let Some(fields) = fields else { return };
        if self.kind == Kind::List {
            let list = fields.entry(self.name.clone()).or_insert_with(|| Value::Array(Vec::new()));
            list.as_array_mut().into_iter().for_each(|list| list.push(value.clone()));
        } else {
            fields.insert(self.name.clone(), value);
        }
    }

    /// Returns the argument's id. It includes the place, because two places may have a parameter of the same name.
    fn id(&self) -> String {
        format!("{:?}:{}{}", self.place, self.within.unwrap_or_default(), self.name)
    }

    /// Returns true for a run's id, and for an id that begins with one and continues with a dot.
    fn has_run_id(&self) -> bool {
        match self.place {
            Place::Path => matches!(self.name.as_str(), "run" | "wait" | "task" | "event"),
            Place::Query | Place::Field => matches!(self.name.as_str(), "run" | "runs" | "parent"),
            Place::Header => false,
        }
    }

    /// Returns true if the argument has no flag.
    fn is_positional(&self) -> bool {
        self.is_required && self.kind != Kind::List
    }

    /// Returns the name of the flag, without the hyphens before it.
    fn flag(&self) -> String {
        match self.name.as_str() {
            "If-None-Match" => "create-only".to_owned(),
            // `--output` is the output format.
            "output" => "output-schema".to_owned(),
            // `statu` is not a word.
            "status" => "status".to_owned(),
            "createdAfter" => "since".to_owned(),
            "createdBefore" => "until".to_owned(),
            name if self.kind == Kind::List && name.ends_with('s') => kebab(&name[..name.len() - 1]),
            name => kebab(name),
        }
    }

    /// Returns the name as it is written in a command: `--input` or `VALUE`.
    fn written(&self) -> String {
        match self.is_positional() {
            true => kebab(&self.name).to_uppercase().replace('-', "_"),
            false => format!("--{}", self.flag()),
        }
    }

    /// Returns the clap argument. Required arguments are positional, wherever they go in the request. Optional
    /// arguments and lists are flags.
    fn arg(&self) -> Arg {
        let about = match self.kind {
            Kind::Json => format!("{}. {}", self.about, json_argument::HELP),
            _ if self.has_run_id() => format!("{}; the beginning of the run's id is enough", self.about),
            _ => self.about.clone(),
        };
        let mut arg = Arg::new(self.id()).help(about).required(self.is_required);
        if !self.choices.is_empty() {
            arg = arg.value_parser(Choice::new(&kebab(&self.name), self.choices.clone()));
        }
        if self.is_positional() {
            return arg.value_name(self.written()).allow_negative_numbers(self.kind == Kind::Json);
        }
        let arg = arg.long(self.flag());
        match (self.kind, self.name.as_str()) {
            (_, "If-None-Match") | (Kind::Flag, _) => arg.action(ArgAction::SetTrue),
            (Kind::Text, "wait") => {
                arg.num_args(0..=1).require_equals(true).default_missing_value("60s").value_name("DURATION")
            }
            (Kind::List, _) if !self.choices.is_empty() => {
                arg.action(ArgAction::Append).value_name("VALUE").value_delimiter(',')
            }
            (Kind::List, _) => arg.action(ArgAction::Append).value_name("VALUE"),
            (Kind::Number, _) => arg.value_name("NUMBER").allow_negative_numbers(true),
            (Kind::Json, _) => arg.value_name("JSON").allow_negative_numbers(true),
            (Kind::Time, _) => arg.value_name("TIME").help(format!("{}: {TIMES}", self.about)),
            (Kind::Text, _) => arg.value_name("TEXT"),
        }
    }

    fn values(&self, matches: &ArgMatches, whole: &BTreeMap<String, String>) -> Result<Vec<Value>, Failure> {
        let id = if self.is_dry_run() { "dry_run".to_owned() } else { self.id() };
        if self.name == "If-None-Match" {
            return Ok(if matches.get_flag(&id) { vec!["*".into()] } else { Vec::new() });
        }
        if self.kind == Kind::Flag {
            return Ok(if matches.get_flag(&id) { vec![true.into()] } else { Vec::new() });
        }
        let given = matches.get_many::<String>(&id).into_iter().flatten();
        let is_id = self.has_run_id();
        let texts = given.map(|text| whole.get(text).filter(|_| is_id).unwrap_or(text).clone());
        let value = |text: String| match self.kind {
            Kind::Number => {
                let number = serde_json::from_str::<serde_json::Number>(&text).map(Value::Number);
                number.map_err(|_| {
                    Failure::new(
                        Code::Invalid,
                        format!("`{}` must be a number (got `{text}`)", kebab(&self.name)),
                    )
                })
            }
            Kind::Json => json(&self.written(), &text),
            Kind::Time => time(&text, now()).map(Value::String).ok_or_else(|| {
                let flag = self.flag();
                Failure::new(Code::Invalid, format!("`--{flag}` must be {TIMES} (got `{text}`)"))
            }),
            Kind::Text | Kind::List | Kind::Flag => Ok(Value::String(text)),
        };
        texts.map(value).collect()
    }
}

/// The forms of a time on the command line.
const TIMES: &str =
    "a time such as `2026-01-31T12:00:00Z`, a date (midnight UTC), or a duration before now such as `2h`";

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Returns a time as RFC 3339.
fn time(text: &str, now: Timestamp) -> Option<String> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Some(at.to_string());
    }
    if let Ok(at) = format!("{text}T00:00:00Z").parse::<Timestamp>() {
        return Some(at.to_string());
    }
    // A number without a unit would be a number of seconds.
    let ms = duration_ms(&Value::String(text.to_owned()))?;
    let micros = i64::try_from(ms).ok()?.checked_mul(1_000)?;
    Some(Timestamp::from_micros(now.micros().checked_sub(micros)?).to_string())
}

fn header(name: &str) -> Result<HeaderName, Failure> {
    name.parse().map_err(|_| Failure::unexpected(format!("invalid header name `{name}`")))
}

/// Quotes the revision of `If-Match`; other values are unchanged.
fn tag(name: &str, text: &str) -> String {
    if name == "If-Match" { format!("\"{}\"", text.trim_matches('"')) } else { text.to_owned() }
}

/// Converts a name to kebab case: `definitionVersion` becomes `definition-version`.
pub(super) fn kebab(name: &str) -> String {
    let (mut text, mut before) = (String::new(), '-');
    for c in name.chars() {
        // `Last-Event-ID` has three words, and `timeZone` has two.
        if c.is_ascii_uppercase() && before.is_ascii_lowercase() {
            text.push('-');
        }
        before = c;
        text.push(if c == '_' { '-' } else { c.to_ascii_lowercase() });
    }
    text
}

pub(super) fn resolved<'a>(contract: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    reference.and_then(|pointer| contract.pointer(pointer)).unwrap_or(schema)
}

fn kind(contract: &Value, schema: &Value) -> Kind {
    let schema = resolved(contract, schema);
    let options = schema["anyOf"].as_array().into_iter().flatten();
    if let Some(option) =
        options.map(|option| resolved(contract, option)).find(|option| option["type"] != "null")
    {
        return kind(contract, option);
    }
    let is = |kind: &str| match &schema["type"] {
        Value::String(one) => one == kind,
        Value::Array(all) => all.iter().any(|one| one == kind),
        _ => false,
    };
    let is_texts = || matches!(kind(contract, &schema["items"]), Kind::Text);
    match () {
        () if is("string")
            || schema.get("enum").is_some()
            || schema.get("oneOf").is_some_and(|all| {
                all.as_array().is_some_and(|all| all.iter().all(|one| one["type"] == "string"))
            }) =>
        {
            Kind::Text
        }
        () if is("integer") || is("number") => Kind::Number,
        () if is("boolean") => Kind::Flag,
        () if is("array") && is_texts() => Kind::List,
        () => Kind::Json,
    }
}

/// Returns true for the bounds of times in a filter on runs. On the command line they may be durations, too.
fn is_time(name: &str) -> bool {
    ["createdAfter", "createdBefore", "updatedAfter", "updatedBefore"].contains(&name)
}

fn parameter(contract: &Value, parameter: &Value) -> Option<Taken> {
    let place = match parameter["in"].as_str()? {
        "path" => Place::Path,
        "query" => Place::Query,
        _ => Place::Header,
    };
    let name = parameter["name"].as_str()?.to_owned();
    // `--all` follows the pages, so there is no argument for the cursor.
    let is_cursor = place == Place::Query && name == "cursor";
    (!is_cursor).then(|| Taken {
        kind: match place == Place::Query && is_time(&name) {
            true => Kind::Time,
            false => kind(contract, &parameter["schema"]),
        },
        is_required: parameter["required"] == true,
        // `If-None-Match` allows one value, but its argument is a flag.
        choices: match place {
            Place::Header => Vec::new(),
            _ => choice::of(contract, &parameter["schema"]),
        },
        within: None,
        about: about(parameter),
        place,
        name,
    })
}

fn about(of: &Value) -> String {
    of["description"].as_str().unwrap_or_default().trim_end_matches('.').to_owned()
}

/// Returns the source of the body and its fields, required ones first.
fn body(contract: &Value, body: &Value) -> (Body, Vec<Taken>) {
    let Some(contents) = body["content"].as_object() else { return (Body::None, Vec::new()) };
    if contents.len() > 1 || !contents.contains_key("application/json") {
        return (Body::File, Vec::new());
    }
    fields_of(contract, resolved(contract, &contents["application/json"]["schema"]))
}

/// Returns the schema of an operation's JSON body.
fn body_schema<'a>(contract: &'a Value, id: &str) -> Option<&'a Value> {
    let methods = contract["paths"].as_object()?.values().filter_map(Value::as_object);
    let operation =
        methods.flat_map(|methods| methods.values()).find(|operation| operation["operationId"] == id)?;
    let schema = operation.pointer("/requestBody/content/application~1json/schema")?;
    Some(resolved(contract, schema))
}

/// Returns the option of a schema that is not null.
fn not_null<'a>(contract: &'a Value, schema: &'a Value) -> &'a Value {
    let schema = resolved(contract, schema);
    let mut options =
        schema["anyOf"].as_array().into_iter().flatten().map(|option| resolved(contract, option));
    options.find(|option| option["type"] != "null").unwrap_or(schema)
}

/// Returns the fields of an object's schema, required ones first.
fn fields_of(contract: &Value, schema: &Value) -> (Body, Vec<Taken>) {
    let Some(properties) = schema["properties"].as_object() else { return (Body::Data, Vec::new()) };
    let required: Vec<_> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let field = |(name, property): (&String, &Value)| Taken {
        name: name.clone(),
        place: Place::Field,
        kind: kind(contract, property),
        is_required: required.contains(&name.as_str()),
        choices: choice::of(contract, property),
        within: None,
        about: about(property),
    };
    let mut fields: Vec<_> = properties.iter().map(field).collect();
    fields.sort_by_key(|field| required.iter().position(|name| *name == field.name).unwrap_or(usize::MAX));
    (Body::Fields, fields)
}
