//! Generates the OpenAPI 3.1 contract from the routes.

use axum::http::Method;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::map::Entry;
use serde_json::{Map, Value, json};

use super::call::{TAG_DIGITS, bound_integers};
use super::flows::PAGE;
use super::route::{Needs, Route, RouteResponse, Tag};
use super::routes;
use super::sse::EVENTS;

/// A problem as defined by RFC 9457.
#[derive(JsonSchema)]
#[schemars(rename = "Problem", rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
struct ProblemShape {
    /// Always `about:blank`; use `code` to tell problems apart.
    #[schemars(rename = "type")]
    kind: String,
    /// Standard phrase of the HTTP status.
    title: String,
    /// HTTP status code, the same as in the response.
    status: u16,
    /// Stable code of the problem, for programs.
    code: String,
    /// Description of the problem, for people.
    detail: String,
    /// True if the same request may succeed later.
    retryable: bool,
    /// Id of the request's trace, 32 hexadecimal digits. Search the log for it.
    #[schemars(default)]
    trace_id: Option<String>,
    /// Values that the problem refers to, by name.
    #[schemars(default)]
    params: Option<Map<String, Value>>,
    /// The errors in the input, each with its position.
    #[schemars(default)]
    errors: Option<Vec<ProblemAt>>,
}

/// One error in the input.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct ProblemAt {
    /// JSON pointer into the input. For a workflow document, line and column, such as `12:5`.
    pointer: String,
    /// Stable code of the violated rule.
    code: String,
    /// The expected and the actual value, for people.
    message: String,
}

/// Returns the OpenAPI contract of the API.
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

/// Returns the route's path for the contract. OpenAPI cannot express that a parameter may contain slashes.
fn shown_path(route: &Route) -> String {
    route.path.replace("{*", "{")
}

fn method(route: &Route) -> String {
    route.method.as_str().to_ascii_lowercase()
}

/// Adds links from each response to the operations that take its values. They come from `PUT` paths and from the
/// route's links.
fn link(paths: &mut Map<String, Value>, routes: &[Route]) {
    for from in routes {
        let mut links = Map::new();
        for to in routes.iter().filter(|to| to.id != from.id) {
            if from.method == Method::PUT && is_at_or_below(to.path, from.path) {
                links.insert(to.id.to_owned(), linked(to, &kept_parts(from, to)));
            }
            for link in from.links.iter().filter(|link| is_at_or_below(to.path, link.to)) {
                let operation = &paths[&shown_path(to)][method(to)];
                let Some(place) = place_of(operation, link.parameter) else { continue };
                let mut taken = kept_parts(from, to);
                let pointer = format!("$response.body#{}", link.pointer);
                taken.insert(format!("{place}.{}", link.parameter), pointer.into());
                links.insert(to.id.to_owned(), linked(to, &taken));
            }
        }
        let operation = paths.get_mut(&shown_path(from)).map(|methods| &mut methods[method(from)]);
        if let Some(operation) = operation.filter(|_| !links.is_empty()) {
            for response in &from.responses {
                operation["responses"][response.status.as_str()]["links"] = links.clone().into();
            }
        }
    }
}

/// Returns true if `path` equals `other` or continues it after a slash.
fn is_at_or_below(path: &str, other: &str) -> bool {
    path.strip_prefix(other)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || other.ends_with('/'))
}

/// Returns the path parameters that both routes share. A link passes them on unchanged.
fn kept_parts(from: &Route, to: &Route) -> Map<String, Value> {
    let both = from.path.split('/').zip(to.path.split('/')).take_while(|(one, other)| one == other);
    let names = both.filter_map(|(part, _)| part.strip_prefix('{')?.strip_suffix('}'));
    names.map(|name| (format!("path.{name}"), format!("$request.path.{name}").into())).collect()
}

fn linked(to: &Route, parameters: &Map<String, Value>) -> Value {
    json!({ "operationId": to.id, "parameters": parameters })
}

/// Returns the location of a parameter in an operation: `path`, `query` or `header`.
fn place_of<'a>(operation: &'a Value, parameter: &str) -> Option<&'a str> {
    let all = operation["parameters"].as_array()?;
    all.iter().find(|one| one["name"] == parameter)?["in"].as_str()
}

fn operation(route: &Route, schemas: &mut SchemaGenerator, problem: &Value) -> Value {
    let mut parameters = parameters("path", &(route.input.path)(schemas));
    parameters.extend(self::parameters("query", &(route.input.query)(schemas)));
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
        Needs::Any(all) => {
            let names: Vec<_> = all.iter().map(|permission| permission.as_str()).collect();
            let any: Vec<_> = names.iter().map(|name| json!({ "bearer": [name] })).collect();
            operation["security"] = any.into();
            operation["x-permission"] = names.join(" or ").into();
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

/// Returns the header parameters of a route.
fn headers(route: &Route) -> Vec<Value> {
    let mut parameters = Vec::new();
    if route.is_keyed {
        let about =
            "Idempotency key. Repeated requests with the same key execute once and get the same response.";
        parameters.push(header(
            "Idempotency-Key",
            about,
            &json!({ "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$" }),
        ));
    }
    if route.tag != Tag::Ignored {
        let (about, shortest, pattern) = match route.tag {
            Tag::CheckedOrNew => (
                "Required current revision, in quotes, as in `ETag`.",
                3,
                format!("^\"[0-9]{{1,{TAG_DIGITS}}}\"$"),
            ),
            _ => (
                "Required current revision, in quotes, as in `ETag`; `*` = any revision.",
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
        let about = "`*` = create only: nothing may exist yet.";
        parameters.push(header("If-None-Match", about, &json!({ "type": "string", "const": "*" })));
    }
    if route.responses.iter().any(|response| response.kind == Some(EVENTS)) {
        let about = "Id of the last event that the client received. The stream continues after it.";
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

/// Returns the tag of a route: the first part of its path, or `server`.
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

/// Returns the fields of a schema as parameters. An optional parameter is omitted, never `null`.
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
    let contents = (route.input.body)(schemas);
    if contents.is_empty() {
        return None;
    }
    let schema =
        |schema: Value| if schema == Value::Bool(true) { json!({}) } else { json!({ "schema": schema }) };
    let content: Map<String, Value> =
        contents.into_iter().map(|(kind, of)| (kind.to_owned(), schema(of))).collect();
    Some(json!({ "required": !route.input.is_body_optional, "content": content }))
}

fn responses(route: &Route, schemas: &mut SchemaGenerator, problem: &Value) -> Value {
    let mut responses = Map::new();
    for declared in &route.responses {
        let made = response(declared, schemas);
        match responses.entry(declared.status.as_u16().to_string()) {
            Entry::Vacant(free) => drop(free.insert(made)),
            // The same status has a second content type: merge the two.
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
    responses
        .insert("default".to_owned(), json!({ "description": "The request failed.", "content": content }));
    Value::Object(responses)
}

fn response(declared: &RouteResponse, schemas: &mut SchemaGenerator) -> Value {
    let mut response = json!({ "description": declared.about });
    if let (Some(kind), Some(schema)) = (declared.kind, &declared.schema) {
        response["content"] = json!({ kind: { "schema": schema(schemas) } });
    }
    response
}
