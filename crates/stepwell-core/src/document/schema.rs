//! The JSON Schema of workflow documents, for completion and validation in editors.

use serde_json::{Map, Value, json};

use super::read::TYPES;

/// Returns the JSON Schema of a workflow document.
pub fn schema() -> Value {
    let mut schema: Value =
        serde_json::from_str(include_str!("schema.json")).expect("schema.json is valid JSON");
    let common = match schema["$defs"].as_object_mut().and_then(|defs| defs.remove("common")) {
        Some(Value::Object(common)) => common,
        _ => Map::new(),
    };
    let step = &mut schema["$defs"]["step"];
    step["properties"]["type"] = json!({ "enum": TYPES });
    step["oneOf"].as_array_mut().into_iter().flatten().for_each(|kind| complete(kind, &common));
    schema
}

/// Completes the schema of a step type: adds the common properties, and forbids all others.
fn complete(kind: &mut Value, common: &Map<String, Value>) {
    let word = kind["title"].clone();
    let mut required = vec![json!("type")];
    required.extend(kind["required"].as_array().into_iter().flatten().cloned());
    let mut properties = common.clone();
    properties.insert("type".to_owned(), json!({ "const": word }));
    properties.extend(kind["properties"].as_object().cloned().unwrap_or_default());
    kind["type"] = "object".into();
    kind["required"] = required.into();
    kind["properties"] = properties.into();
    kind["additionalProperties"] = false.into();
}
