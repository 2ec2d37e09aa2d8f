//! Generates `docs/reference/http.md`: every operation of the API contract, grouped by tag.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use super::cell;

/// Maximum depth of nested fields in the table of a request body.
const DEPTH: usize = 3;

/// Returns the page as Markdown.
pub(super) fn page(contract: &Value) -> String {
    let mut out = String::from("# HTTP API\n\n");
    let _ = writeln!(
        out,
        "Authentication, errors, `Idempotency-Key`, `ETag` and `cursor` are described in [server.md](../server.md). \
         The machine-readable contract is [openapi.json](../openapi.json).\n"
    );
    let mut tags: BTreeMap<&str, Vec<(&str, &str, &Value)>> = BTreeMap::new();
    for (path, methods) in contract["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let tag = operation["tags"][0].as_str().unwrap_or("server");
            tags.entry(tag).or_default().push((method, path, operation));
        }
    }
    for (tag, operations) in tags {
        let _ = writeln!(out, "## {tag}\n");
        for (method, path, operation) in operations {
            described(&mut out, contract, method, path, operation);
        }
    }
    format!("{}\n", out.trim_end())
}

fn described(out: &mut String, contract: &Value, method: &str, path: &str, operation: &Value) {
    let text = |name: &str| operation[name].as_str().unwrap_or_default();
    let _ = writeln!(out, "### {} {path}\n", method.to_uppercase());
    let needs = match (operation["x-permission"].as_str(), operation["security"].as_array()) {
        (Some(permission), _) => format!("`{permission}`"),
        (None, Some(all)) if all.is_empty() => "no credential".to_owned(),
        _ => "a credential".to_owned(),
    };
    let host = operation["x-tenant"].as_str().map(|tenant| format!(", in {tenant} tenant"));
    let _ = writeln!(out, "{} {}\n", text("summary"), text("description"));
    let _ =
        writeln!(out, "Operation `{}`; requires {needs}{}.\n", text("operationId"), host.unwrap_or_default());
    let mut rows = Vec::new();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let place = parameter["in"].as_str().unwrap_or_default();
        let required = if parameter["required"] == true { ", required" } else { "" };
        let name = parameter["name"].as_str().unwrap_or_default();
        let about = parameter["description"].as_str().unwrap_or_default();
        rows.push((
            name.to_owned(),
            format!("{place}{required}"),
            kind(contract, &parameter["schema"]),
            about.to_owned(),
        ));
    }
    for (content, of) in operation["requestBody"]["content"].as_object().into_iter().flatten() {
        let before = rows.len();
        fields(contract, &of["schema"], "", DEPTH, &mut rows);
        if rows.len() == before {
            rows.push((String::new(), "body".to_owned(), format!("`{content}`"), String::new()));
        }
    }
    table(out, &["name", "in", "type", "description"], &rows);
    for (status, answer) in operation["responses"].as_object().into_iter().flatten() {
        answered(out, contract, status, answer);
    }
}

fn answered(out: &mut String, contract: &Value, status: &str, answer: &Value) {
    // The problem response is common to all operations and is described in server.md.
    if status == "default" {
        return;
    }
    let about = answer["description"].as_str().unwrap_or_default();
    let kinds: Vec<_> =
        answer["content"].as_object().into_iter().flatten().map(|(kind, _)| format!("`{kind}`")).collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    let _ = writeln!(out, "**{status}** {about}{kinds}\n");
    let mut rows = Vec::new();
    fields(contract, &answer["content"]["application/json"]["schema"], "", 1, &mut rows);
    let rows: Vec<_> =
        rows.into_iter().map(|(name, _, kind, about)| (name, String::new(), kind, about)).collect();
    table(out, &["field", "", "type", "description"], &rows);
}

fn table(out: &mut String, heads: &[&str; 4], rows: &[(String, String, String, String)]) {
    if rows.is_empty() {
        return;
    }
    let has_place = rows.iter().any(|(_, place, ..)| !place.is_empty());
    let _ = match has_place {
        true => {
            writeln!(out, "| {} | {} | {} | {} |\n|---|---|---|---|", heads[0], heads[1], heads[2], heads[3])
        }
        false => writeln!(out, "| {} | {} | {} |\n|---|---|---|", heads[0], heads[2], heads[3]),
    };
    for (name, place, kind, about) in rows {
        let name = if name.is_empty() { String::new() } else { format!("`{name}`") };
        let _ = match has_place {
            true => writeln!(out, "| {name} | {place} | {} | {} |", cell(kind), cell(about)),
            false => writeln!(out, "| {name} | {} | {} |", cell(kind), cell(about)),
        };
    }
    let _ = writeln!(out);
}

fn resolved<'a>(contract: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    reference.and_then(|pointer| contract.pointer(pointer)).unwrap_or(schema)
}

/// Returns the schema without its `null` alternative.
fn meant<'a>(contract: &'a Value, schema: &'a Value) -> &'a Value {
    let schema = resolved(contract, schema);
    let options = schema["anyOf"].as_array().into_iter().flatten();
    let mut others =
        options.map(|option| resolved(contract, option)).filter(|option| option["type"] != "null");
    match (others.next(), others.next()) {
        (Some(one), None) => one,
        _ => schema,
    }
}

/// Collects the fields of an object and of its nested objects, down to `depth` levels.
fn fields(
    contract: &Value,
    schema: &Value,
    before: &str,
    depth: usize,
    rows: &mut Vec<(String, String, String, String)>,
) {
    let schema = meant(contract, schema);
    for branch in schema["oneOf"]
        .as_array()
        .into_iter()
        .flatten()
        .chain(schema["allOf"].as_array().into_iter().flatten())
    {
        fields(contract, branch, before, depth, rows);
    }
    let required =
        |name: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let whole = format!("{before}{name}");
        if rows.iter().any(|(known, place, ..)| *known == whole && place.starts_with("body")) {
            continue;
        }
        let place = if required(name) { "body, required" } else { "body" };
        let about = property["description"].as_str().unwrap_or_default().to_owned();
        rows.push((whole.clone(), place.to_owned(), kind(contract, property), about));
        let inner = meant(contract, property);
        if depth > 1 {
            fields(contract, inner, &format!("{whole}."), depth - 1, rows);
            if inner["items"].is_object() {
                fields(contract, &inner["items"], &format!("{whole}[]."), depth - 1, rows);
            }
        }
    }
}

/// Returns the type of a value for the table, such as `text` or `list of integer`.
fn kind(contract: &Value, schema: &Value) -> String {
    let schema = meant(contract, schema);
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<_> =
            values.iter().map(|value| format!("`{}`", value.as_str().unwrap_or("null"))).collect();
        return values.join(" ");
    }
    // Variants without a description share one `enum`; each of the others is a `const`.
    let variants = schema["oneOf"].as_array().into_iter().flatten().flat_map(|one| {
        one["enum"].as_array().into_iter().flatten().chain(one.get("const")).filter_map(Value::as_str)
    });
    let constants: Vec<_> = variants.map(|value| format!("`{value}`")).collect();
    if !constants.is_empty() {
        return constants.join(" ");
    }
    let named = match &schema["type"] {
        Value::String(one) => Some(one.as_str()),
        Value::Array(all) => all.iter().filter_map(Value::as_str).find(|one| *one != "null"),
        _ => None,
    };
    let range = match (schema["minimum"].as_f64(), schema["maximum"].as_f64()) {
        (Some(from), Some(to)) if to < 1e9 => format!(" {from} to {to}"),
        _ => String::new(),
    };
    match (named, schema["format"].as_str()) {
        (Some("array"), _) => format!("list of {}", kind(contract, &schema["items"])),
        (Some("string"), Some(format)) if format.starts_with("date") || format == "uuid" => format.to_owned(),
        (Some("string"), _) => "text".to_owned(),
        (Some(word), _) => format!("{word}{range}"),
        (None, _) => "any".to_owned(),
    }
}
