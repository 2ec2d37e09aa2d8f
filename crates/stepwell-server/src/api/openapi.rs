//! The contract, made from the routes: OpenAPI 3.1.

use axum::http::Method;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::map::Entry;
use serde_json::{Map, Value, json};

use super::call::{TAG_DIGITS, bound_integers};
use super::flows::PAGE;
use super::route::{Gives, Needs, Route, Tag};
use super::routes;
use super::sse::EVENTS;

/// A problem after RFC 9457, in the contract.
#[derive(JsonSchema)]
#[schemars(rename = "Problem", rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
struct ProblemShape {
    /// `about:blank`.
    #[schemars(rename = "type")]
    kind: String,
    /// What the status is called.
    title: String,
    /// The status.
    status: u16,
    /// A stable word for programs.
    code: String,
    /// What happened, for a person.
    detail: String,
    /// The same request may succeed later.
    retryable: bool,
    /// The trace that the request was part of: what to look for in the log.
    #[schemars(default)]
    trace_id: Option<String>,
    /// What the problem is about, by name.
    #[schemars(default)]
    params: Option<Map<String, Value>>,
    /// What of the input is wrong, each with its place there.
    #[schemars(default)]
    errors: Option<Vec<ProblemAt>>,
}

/// Something that is wrong with the input.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct ProblemAt {
    /// A JSON pointer into the input; in a document, the line and the column: `12:5`.
    pointer: String,
    /// The rule that is not met.
    code: String,
    /// What was expected and what was there, for a person.
    message: String,
}

/// The contract of the API.
pub fn openapi() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut schemas = settings.into_generator();
    let problem = schemas.subschema_for::<ProblemShape>().to_value();
    let mut paths: Map<String, Value> = Map::new();
    let routes = routes();
    for route in &routes {
        let methods = paths.entry(shown_path(route)).or_insert_with(|| json!({}));
        methods[method(route)] = operation(route, &mut schemas, &problem);
    }
    link(&mut paths, &routes);
    let definitions: Map<String, Value> = schemas.take_definitions(true).into_iter().collect();
    let mut contract = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Stepwell",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Durable workflows over HTTP. The tenant comes from the credential. Errors are `application/problem+json` with a stable `code`.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer", "description": "An API key, or a token of the identity provider." },
            },
        },
    });
    bound_integers(&mut contract);
    contract
}

/// The route's path; that a part of it may have slashes in it cannot be said here.
fn shown_path(route: &Route) -> String {
    route.path.replace("{*", "{")
}

fn method(route: &Route) -> String {
    route.method.as_str().to_ascii_lowercase()
}

/// Says of every answer what other operations take of it: what was put somewhere is found there, and what the table says.
fn link(paths: &mut Map<String, Value>, routes: &[Route]) {
    for from in routes {
        let mut links = Map::new();
        for to in routes.iter().filter(|to| to.id != from.id) {
            if from.method == Method::PUT && is_at_or_below(to.path, from.path) {
                links.insert(to.id.to_owned(), linked(to, &kept_parts(from, to)));
            }
            for lead in from.leads.iter().filter(|lead| is_at_or_below(to.path, lead.to)) {
                let operation = &paths[&shown_path(to)][method(to)];
                let Some(place) = place_of(operation, lead.parameter) else { continue };
                let mut taken = kept_parts(from, to);
                let pointer = format!("$response.body#{}", lead.pointer);
                taken.insert(format!("{place}.{}", lead.parameter), pointer.into());
                links.insert(to.id.to_owned(), linked(to, &taken));
            }
        }
        let operation = paths.get_mut(&shown_path(from)).map(|methods| &mut methods[method(from)]);
        if let Some(operation) = operation.filter(|_| !links.is_empty()) {
            for gives in &from.gives {
                operation["responses"][gives.status.as_str()]["links"] = links.clone().into();
            }
        }
    }
}

/// The path is the other one, or goes on after it.
fn is_at_or_below(path: &str, other: &str) -> bool {
    path.strip_prefix(other)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || other.ends_with('/'))
}

/// Parts that both paths have in the same place are the same in the second request.
fn kept_parts(from: &Route, to: &Route) -> Map<String, Value> {
    let both = from.path.split('/').zip(to.path.split('/')).take_while(|(one, other)| one == other);
    let names = both.filter_map(|(part, _)| part.strip_prefix('{')?.strip_suffix('}'));
    names.map(|name| (format!("path.{name}"), format!("$request.path.{name}").into())).collect()
}

fn linked(to: &Route, parameters: &Map<String, Value>) -> Value {
    json!({ "operationId": to.id, "parameters": parameters })
}

/// Where an operation takes a parameter.
fn place_of<'a>(operation: &'a Value, parameter: &str) -> Option<&'a str> {
    let all = operation["parameters"].as_array()?;
    all.iter().find(|one| one["name"] == parameter)?["in"].as_str()
}

fn operation(route: &Route, schemas: &mut SchemaGenerator, problem: &Value) -> Value {
    let mut parameters = parameters("path", &(route.takes.path)(schemas));
    parameters.extend(self::parameters("query", &(route.takes.query)(schemas)));
    parameters.extend(headers(route));
    let mut operation = json!({
        "operationId": route.id,
        "tags": [tag(route.path)],
        "summary": route.about,
        "parameters": parameters,
        "responses": responses(route, schemas, problem),
    });
    if !route.notes.is_empty() {
        operation["description"] = route.notes.into();
    }
    if let Some(body) = body(route, schemas) {
        operation["requestBody"] = body;
    }
    match route.needs {
        Needs::Nothing => operation["security"] = json!([]),
        Needs::Credential => operation["security"] = json!([{ "bearer": [] }]),
        Needs::Permission(permission) => {
            operation["security"] = json!([{ "bearer": [permission.as_str()] }]);
            operation["x-permission"] = permission.as_str().into();
        }
        Needs::Worker => {
            operation["security"] = json!([{ "bearer": ["worker:*"] }]);
            operation["x-permission"] = "worker:ACTION".into();
        }
        Needs::Host => {
            operation["security"] = json!([{ "bearer": ["workflow:admin"] }]);
            operation["x-permission"] = "workflow:admin".into();
            operation["x-tenant"] = "the server's own".into();
        }
        Needs::HostView => {
            operation["security"] = json!([{ "bearer": ["workflow:view"] }]);
            operation["x-permission"] = "workflow:view".into();
            operation["x-tenant"] = "the server's own".into();
        }
    }
    operation
}

/// The headers that a route reads.
fn headers(route: &Route) -> Vec<Value> {
    let mut parameters = Vec::new();
    if route.is_keyed {
        let about = "The same key and request give the same answer, and happen once.";
        parameters.push(header(
            "Idempotency-Key",
            about,
            &json!({ "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$" }),
        ));
    }
    if route.tag != Tag::Ignored {
        let (about, shortest, pattern) = match route.tag {
            Tag::CheckedOrNew => (
                "The revision that has to be the current one, in quotes, as `ETag` gave it.",
                3,
                format!("^\"[0-9]{{1,{TAG_DIGITS}}}\"$"),
            ),
            _ => (
                "The revision that has to be the current one, in quotes, as `ETag` gave it; `*` = any.",
                1,
                format!("^(?:\\*|\"[0-9]{{1,{TAG_DIGITS}}}\")$"),
            ),
        };
        parameters.push(header(
            "If-Match",
            about,
            &json!({ "type": "string", "minLength": shortest, "pattern": pattern }),
        ));
    }
    if route.tag == Tag::CheckedOrNew {
        let about = "`*`: there must be nothing yet.";
        parameters.push(header("If-None-Match", about, &json!({ "type": "string", "const": "*" })));
    }
    if route.gives.iter().any(|gives| gives.kind == Some(EVENTS)) {
        let about = "The id of the last event that was seen: the stream goes on after it.";
        let pattern = format!("^[0-9]{{1,{TAG_DIGITS}}}$");
        parameters.push(header(
            "Last-Event-ID",
            about,
            &json!({ "type": "string", "minLength": 1, "pattern": pattern }),
        ));
    }
    for (name, about) in &route.headers {
        parameters.push(header(name, about, &json!({ "type": "string" })));
    }
    parameters
}

/// What a route is about: the first part of its path.
fn tag(path: &str) -> &str {
    let mut parts = path.split('/').filter(|part| !part.is_empty() && *part != "v1");
    match parts.next() {
        Some("livez" | "readyz" | "metrics" | "version" | "openapi.json" | "docs" | "whoami") | None => {
            "server"
        }
        Some("l") => "flows",
        Some(part) => part,
    }
}

/// The fields of a type as parameters; what may be left out is not `null` there.
fn parameters(place: &str, schema: &Value) -> Vec<Value> {
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let is_required =
        |name: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
    let parameter = |(name, property): (&String, &Value)| {
        let mut property = without_null(property);
        let about = property.as_object_mut().and_then(|fields| fields.remove("description"));
        let mut parameter = json!({ "name": name, "in": place, "required": place == "path" || is_required(name), "schema": property });
        if let Some(about) = about {
            parameter["description"] = about;
        }
        parameter
    };
    properties.iter().map(parameter).collect()
}

fn without_null(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(kinds) = schema.get_mut("type").and_then(Value::as_array_mut) {
        kinds.retain(|kind| kind != "null");
        if let [one] = kinds.as_slice() {
            schema["type"] = one.clone();
        }
    }
    let options = schema.get("anyOf").and_then(Value::as_array).cloned().unwrap_or_default();
    let others: Vec<_> = options.into_iter().filter(|option| option["type"] != "null").collect();
    if let ([one], Some(fields)) = (others.as_slice(), schema.as_object_mut()) {
        fields.remove("anyOf");
        fields.extend(one.as_object().cloned().unwrap_or_default());
    }
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("default");
    }
    schema
}

fn header(name: &str, about: &str, schema: &Value) -> Value {
    json!({ "name": name, "in": "header", "required": false, "description": about, "schema": schema })
}

fn body(route: &Route, schemas: &mut SchemaGenerator) -> Option<Value> {
    let contents = (route.takes.body)(schemas);
    if contents.is_empty() {
        return None;
    }
    let schema =
        |schema: Value| if schema == Value::Bool(true) { json!({}) } else { json!({ "schema": schema }) };
    let content: Map<String, Value> =
        contents.into_iter().map(|(kind, of)| (kind.to_owned(), schema(of))).collect();
    Some(json!({ "required": !route.takes.is_body_optional, "content": content }))
}

fn responses(route: &Route, schemas: &mut SchemaGenerator, problem: &Value) -> Value {
    let mut responses = Map::new();
    for gives in &route.gives {
        let made = response(gives, schemas);
        match responses.entry(gives.status.as_u16().to_string()) {
            Entry::Vacant(free) => drop(free.insert(made)),
            // The same in another form.
            Entry::Occupied(mut known) => {
                if let (Some(all), Value::Object(one)) =
                    (known.get_mut()["content"].as_object_mut(), made["content"].clone())
                {
                    all.extend(one);
                }
            }
        }
    }
    let mut content = json!({ "application/problem+json": { "schema": problem } });
    if route.has_problem_pages {
        content[PAGE] = json!({ "schema": { "type": "string" } });
    }
    responses.insert("default".to_owned(), json!({ "description": "A problem.", "content": content }));
    Value::Object(responses)
}

fn response(gives: &Gives, schemas: &mut SchemaGenerator) -> Value {
    let mut response = json!({ "description": gives.about });
    if let (Some(kind), Some(schema)) = (gives.kind, &gives.schema) {
        response["content"] = json!({ kind: { "schema": schema(schemas) } });
    }
    response
}
