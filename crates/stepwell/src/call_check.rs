//! Static checks of action calls: compares the inputs in a workflow with the input schemas of the actions, before it
//! runs.

use serde::Serialize;
use serde_json::{Map, Value};
use stepwell_core::expr::Expr;
use stepwell_core::{Definition, Name};

use crate::action::{ActionInfo, EXPRESSION_FORMAT};

/// A problem with an action call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallProblem {
    /// The transition or step that calls the action.
    pub transition: Name,
    pub action: Name,
    /// JSON pointer to the problem in the input.
    pub pointer: String,
    pub message: String,
}

impl std::fmt::Display for CallProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CallProblem { transition, action, pointer, message } = self;
        match pointer.is_empty() {
            true => write!(f, "`{transition}` calls `{action}`: {message}"),
            false => write!(f, "`{transition}` calls `{action}`: `{pointer}` {message}"),
        }
    }
}

/// Returns all problems found in the calls of a definition. Values of expressions are not known yet and count as
/// correct. Actions without an input schema are not checked.
pub fn check_calls(definition: &Definition, actions: &[ActionInfo]) -> Vec<CallProblem> {
    let mut found = Vec::new();
    for transition in &definition.spec().transitions {
        let Some(call) = &transition.action else { continue };
        let Some(info) = actions.iter().find(|info| info.name == call.name) else { continue };
        let mut check = InputCheck { root: &info.input, pointer: String::new(), problems: Vec::new() };
        if let Some(wanted) = call.version.filter(|wanted| *wanted != info.version) {
            check.problem(format!(
                "version {wanted} is requested, but version {} is registered",
                info.version
            ));
        }
        check.check(&info.input, &call.input);
        for (pointer, secret) in crate::secrets::found(&call.input) {
            if let Err(why) = crate::secrets::admitted(&info.name, &info.secret_fields, &pointer) {
                check.problems.push((pointer, format!("secret `{secret}`: {why}")));
            }
        }
        found.extend(check.problems.into_iter().map(|(pointer, message)| CallProblem {
            transition: transition.id.clone(),
            action: call.name.clone(),
            pointer,
            message,
        }));
    }
    found
}

struct InputCheck<'a> {
    root: &'a Value,
    pointer: String,
    problems: Vec<(String, String)>,
}

impl<'a> InputCheck<'a> {
    fn check(&mut self, schema: &'a Value, input: &Value) {
        let schema = resolved(self.root, schema);
        if is_dynamic(input) {
            return;
        }
        if let Some(allowed) = constants(schema) {
            if !allowed.contains(&input) {
                let words: Vec<_> = allowed.iter().map(ToString::to_string).collect();
                self.problem(format!("must be one of {}", words.join(", ")));
            }
            return;
        }
        if let Some(Value::Array(choices)) = schema.get("anyOf").or_else(|| schema.get("oneOf")) {
            return self.check_choices(choices, input);
        }
        // A single value counts as a list with one item.
        if let (true, false, Some(items)) =
            (is_list(schema), input.is_array() || input.is_null(), schema.get("items"))
        {
            return self.check(items, input);
        }
        if let Some(wanted) = wanted_types(schema)
            && !wanted.iter().any(|kind| is_of(kind, input))
        {
            return self.problem(format!("must be {}, not {}", wanted.join(" or "), word(input)));
        }
        if let (Some(EXPRESSION_FORMAT), Some(text)) =
            (schema.get("format").and_then(Value::as_str), input.as_str())
            && let Err(error) = Expr::parse(text)
        {
            return self.problem(format!("is not a valid expression: {error}"));
        }
        match input {
            Value::Object(fields) => self.check_fields(schema, fields),
            Value::Array(items) => {
                let Some(inner) = schema.get("items") else { return };
                for (index, item) in items.iter().enumerate() {
                    self.inside(&index.to_string(), |check| check.check(inner, item));
                }
            }
            _ => {}
        }
    }

    /// Checks that one of several schemas matches. If none does, the problems of the individual schemas are not
    /// reported, because they would mislead.
    fn check_choices(&mut self, choices: &'a [Value], input: &Value) {
        let fits = choices.iter().any(|choice| {
            let mut tried = InputCheck { root: self.root, pointer: String::new(), problems: Vec::new() };
            tried.check(choice, input);
            tried.problems.is_empty()
        });
        if !fits {
            self.problem("must match one of the allowed schemas".to_owned());
        }
    }

    fn check_fields(&mut self, schema: &'a Value, fields: &Map<String, Value>) {
        let properties = schema.get("properties").and_then(Value::as_object);
        let required = schema.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(name) {
                self.problem(format!("needs `{name}`"));
            }
        }
        let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
        for (name, value) in fields {
            match properties.and_then(|known| known.get(name)) {
                Some(inner) => self.inside(name, |check| check.check(inner, value)),
                None if is_closed => {
                    let known: Vec<_> =
                        properties.into_iter().flat_map(Map::keys).map(|name| format!("`{name}`")).collect();
                    self.problem(format!("has no field `{name}`; the fields are {}", known.join(", ")));
                }
                None => {}
            }
        }
    }

    fn inside(&mut self, step: &str, check: impl FnOnce(&mut Self)) {
        let outer = self.pointer.len();
        self.pointer.push('/');
        self.pointer.push_str(&step.replace('~', "~0").replace('/', "~1"));
        check(self);
        self.pointer.truncate(outer);
    }

    fn problem(&mut self, message: String) {
        self.problems.push((self.pointer.clone(), message));
    }
}

/// Resolves a reference within the schema.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let reference =
        schema.get("$ref").and_then(Value::as_str).and_then(|reference| reference.strip_prefix('#'));
    reference.and_then(|pointer| root.pointer(pointer)).unwrap_or(schema)
}

/// Returns the values that a schema allows, if it lists them: as `enum`, or as a choice of constants with a description
/// each.
fn constants(schema: &Value) -> Option<Vec<&Value>> {
    if let Some(Value::Array(allowed)) = schema.get("enum") {
        return Some(allowed.iter().collect());
    }
    let choices = schema.get("oneOf")?.as_array()?;
    choices.iter().map(|choice| choice.get("const")).collect()
}

fn is_dynamic(input: &Value) -> bool {
    let marker = |fields: &Map<String, Value>| fields.contains_key("$expr") || fields.contains_key("$secret");
    input.as_object().is_some_and(marker)
}

fn wanted_types(schema: &Value) -> Option<Vec<&str>> {
    match schema.get("type")? {
        Value::String(one) => Some(vec![one]),
        Value::Array(several) => Some(several.iter().filter_map(Value::as_str).collect()),
        _ => None,
    }
}

/// Returns true if the schema allows only lists or null.
fn is_list(schema: &Value) -> bool {
    let types = wanted_types(schema).unwrap_or_default();
    types.contains(&"array") && types.iter().all(|kind| matches!(*kind, "array" | "null"))
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    }
}

fn word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Returns JSON pointers to the fields of an input that must be lists.
pub(crate) fn lists(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect_lists(schema, schema, String::new(), 0, &mut found);
    found
}

fn collect_lists(root: &Value, schema: &Value, pointer: String, depth: u32, found: &mut Vec<String>) {
    let schema = resolved(root, schema);
    if is_list(schema) && !pointer.is_empty() {
        found.push(pointer);
        return;
    }
    // Limit the depth, because schemas may be recursive.
    if depth > 4 {
        return;
    }
    for (name, inner) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let name = name.replace('~', "~0").replace('/', "~1");
        collect_lists(root, inner, format!("{pointer}/{name}"), depth + 1, found);
    }
}

/// Wraps single values into a list where the schema requires a list.
pub(crate) fn as_lists(input: &mut Value, pointers: &[String]) {
    for pointer in pointers {
        if let Some(value) = input.pointer_mut(pointer)
            && !value.is_array()
            && !value.is_null()
        {
            *value = Value::Array(vec![value.take()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{as_lists, lists};

    #[test]
    fn single_value_becomes_a_list_where_required() {
        let schema = json!({
            "type": "object",
            "properties": {
                "to": { "type": "array" }, "any": { "type": ["array", "string"] },
                "inner": { "$ref": "#/$defs/inner" }, "maybe": { "type": ["array", "null"] }
            },
            "$defs": { "inner": { "type": "object", "properties": { "ids": { "type": "array" } } } }
        });
        assert_eq!(lists(&schema), ["/inner/ids", "/maybe", "/to"]);
        let mut input = json!({"to": "ann", "any": "x", "inner": {"ids": 7}, "maybe": null});
        as_lists(&mut input, &lists(&schema));
        assert_eq!(input, json!({"to": ["ann"], "any": "x", "inner": {"ids": [7]}, "maybe": null}));
    }
}
