//! The JSON Schema of documents, for editors that complete and check them while they are written.

use serde_json::{Value, json};

use super::read::{API_VERSION, TYPES};

/// The schema of a document.
pub fn schema() -> Value {
    let step = |kind: &str, about: &str, required: &[&str], properties: Value| {
        let mut all = common();
        if let (Value::Object(all), Value::Object(own)) = (&mut all, properties) {
            all.extend(own);
            all.insert("type".to_owned(), json!({ "const": kind }));
        }
        let required: Vec<_> = ["type"].iter().chain(required).collect();
        json!({
            "title": kind, "description": about, "type": "object", "required": required,
            "properties": all, "additionalProperties": false
        })
    };
    let steps = json!({ "$ref": "#/$defs/steps" });
    let expr = json!({ "$ref": "#/$defs/expression" });
    let any = json!({ "$ref": "#/$defs/template" });
    let span = json!({ "$ref": "#/$defs/duration" });
    let free = json!({ "type": "object", "description": "A JSON Schema." });
    let text = json!({ "type": "string" });
    let whole = json!({ "type": "integer", "minimum": 0 });
    let texts =
        json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] });
    let kinds = [
        step(
            "action.call",
            "Calls an action.",
            &[],
            json!({
                "action": text, "input": any,
                "config": { "type": "object", "properties": { "actionId": text, "version": whole } }
            }),
        ),
        step(
            "control.if",
            "Goes one way or the other.",
            &["condition", "then"],
            json!({
                "condition": expr, "then": steps, "else": steps
            }),
        ),
        step(
            "control.forEach",
            "Once for each item of a list.",
            &["items"],
            json!({
                "items": any, "itemVar": text, "indexVar": text, "body": steps, "steps": steps,
                "parallel": { "anyOf": [{ "type": "boolean" }, whole] }, "maxItems": whole, "result": any,
                "onItemError": { "enum": ["fail", "continue", "collect"] }
            }),
        ),
        step(
            "control.while",
            "As long as a condition holds.",
            &["condition"],
            json!({
                "condition": expr, "indexVar": text, "maxIterations": whole, "result": any,
                "body": steps, "steps": steps
            }),
        ),
        step("control.break", "Leaves the loop around it.", &[], json!({})),
        step("control.continue", "Goes on with the next round of the loop around it.", &[], json!({})),
        step(
            "control.try",
            "Deals with errors of its steps.",
            &["catch"],
            json!({
                "body": steps, "steps": steps,
                "catch": { "anyOf": [steps, {
                    "type": "object", "required": ["steps"], "additionalProperties": false,
                    "properties": { "as": text, "codes": texts, "steps": steps }
                }] }
            }),
        ),
        step(
            "control.parallel",
            "Several lists of steps at the same time.",
            &["branches"],
            json!({
                "errors": { "enum": ["failFast", "collect"] },
                "branches": { "anyOf": [
                    { "type": "array", "items": { "$ref": "#/$defs/branch" } },
                    { "type": "object", "additionalProperties": { "$ref": "#/$defs/branch" } }
                ] }
            }),
        ),
        step("control.return", "Ends the run with a result.", &[], json!({ "value": any, "output": any })),
        step("control.fail", "Fails with a code of its own.", &[], json!({ "code": any, "message": any })),
        step(
            "vars.set",
            "Sets variables.",
            &[],
            json!({
                "values": { "type": "object", "additionalProperties": any },
                "vars": { "type": "object", "additionalProperties": any }
            }),
        ),
        step(
            "wait.sleep",
            "Waits for a time or until an instant.",
            &[],
            json!({ "for": span, "until": any }),
        ),
        step(
            "wait.signal",
            "Waits for a signal.",
            &["signal"],
            json!({
                "signal": text, "payload": free, "filter": expr, "onTimeout": steps
            }),
        ),
        step(
            "wait.event",
            "Waits for an event that concerns this run.",
            &[],
            json!({
                "eventName": text, "event": text, "payload": free, "filter": expr, "onTimeout": steps,
                "correlation": {
                    "type": "object", "required": ["event", "run"], "additionalProperties": false,
                    "properties": { "event": expr, "run": expr }
                }
            }),
        ),
        step(
            "human.task",
            "Asks somebody, and waits for the answer.",
            &[],
            json!({
                "title": any, "description": any, "data": any, "signal": text, "form": free,
                "answerers": texts, "assignees": texts, "onTimeout": steps
            }),
        ),
        step(
            "workflow.call",
            "Runs another workflow and waits for its result.",
            &["workflow"],
            json!({
                "workflow": any, "input": any
            }),
        ),
        step(
            "workflow.start",
            "Starts another workflow and does not wait for it.",
            &["workflow"],
            json!({
                "workflow": any, "input": any, "key": any, "at": any
            }),
        ),
    ];
    let spec = json!({
        "trigger": { "$ref": "#/$defs/trigger" },
        "triggers": { "type": "array", "items": { "$ref": "#/$defs/trigger" } },
        "input": free, "output": free, "signals": { "type": "object" }, "documents": { "type": "object" },
        "shadows": { "type": "object" }, "steps": steps, "initial": text, "places": { "type": "object" },
        "transitions": { "type": "array" }, "context": free, "envelope": { "type": "boolean" },
        "firing": { "enum": ["first", "all"] }, "completion": { "enum": ["firstEnd", "allBranches"] }
    });
    let mut bare = spec.clone();
    if let Value::Object(fields) = &mut bare {
        fields.extend(
            [("name", text.clone()), ("description", text.clone()), ("version", whole.clone())]
                .map(|(k, v)| (k.to_owned(), v)),
        );
        fields.extend(
            [("apiVersion", json!({ "const": API_VERSION })), ("kind", json!({ "const": "Workflow" }))]
                .map(|(k, v)| (k.to_owned(), v)),
        );
        fields.insert("metadata".to_owned(), json!({ "$ref": "#/$defs/metadata" }));
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Stepwell workflow",
        "anyOf": [
            {
                "type": "object", "required": ["spec"], "additionalProperties": false,
                "properties": {
                    "apiVersion": { "const": API_VERSION }, "kind": { "const": "Workflow" },
                    "metadata": { "$ref": "#/$defs/metadata" },
                    "spec": {
                        "type": "object", "properties": spec, "additionalProperties": false,
                        "anyOf": [{ "required": ["steps"] }, { "required": ["places"] }]
                    }
                }
            },
            {
                "type": "object", "properties": bare, "additionalProperties": false,
                "anyOf": [{ "required": ["steps"] }, { "required": ["places"] }]
            }
        ],
        "$defs": {
            "metadata": {
                "type": "object", "additionalProperties": false,
                "properties": {
                    "name": text, "version": whole, "description": text,
                    "labels": { "type": "object" }, "annotations": { "type": "object" }
                }
            },
            "trigger": {
                "type": "object", "required": ["type"],
                "properties": { "type": { "enum": ["event", "schedule", "manual", "webhook"] } }
            },
            "expression": {
                "description": "An expression, with its marker or without.",
                "anyOf": [
                    { "type": ["string", "boolean"] },
                    {
                        "type": "object", "required": ["$expr"], "additionalProperties": false,
                        "properties": { "$expr": { "type": "string" } }
                    }
                ]
            },
            "template": { "description": "Any JSON; { $expr } is replaced by a value, { $secret } by a secret." },
            "duration": {
                "description": "PT5M, 30s, a number of seconds, or an expression that gives one.",
                "anyOf": [{ "type": ["string", "number"] }, { "$ref": "#/$defs/expression" }]
            },
            "branch": { "anyOf": [steps, {
                "type": "object", "required": ["steps"], "additionalProperties": false,
                "properties": { "name": text, "steps": steps }
            }] },
            "steps": { "type": "array", "items": { "$ref": "#/$defs/step" } },
            "step": {
                "type": "object", "required": ["type"],
                "properties": { "type": { "enum": TYPES } },
                "oneOf": kinds
            }
        }
    })
}

/// What every step may have.
fn common() -> Value {
    json!({
        "id": { "type": "string", "pattern": "^[\\p{L}_][\\p{L}\\p{N}_-]*$", "maxLength": 64, "description": "Unique in the document." },
        "name": { "type": "string" },
        "description": { "type": "string" },
        "condition": { "$ref": "#/$defs/expression", "description": "The step is done only if this is true." },
        "saveAs": { "type": "string", "description": "Where in vars its result goes; vars.<id> without it." },
        "timeout": { "$ref": "#/$defs/duration" },
        "retry": { "anyOf": [{ "type": "integer", "minimum": 0 }, {
            "type": "object", "additionalProperties": false,
            "properties": {
                "attempts": { "type": "integer", "minimum": 0 }, "maxAttempts": { "type": "integer", "minimum": 0 },
                "delay": { "type": ["string", "number"] }, "maxDelay": { "type": ["string", "number"] },
                "backoff": { "enum": ["fixed", "exponential"] },
                "retryOn": { "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] }
            }
        }] },
        "onError": { "anyOf": [
            { "enum": ["fail", "continue"] }, { "$ref": "#/$defs/steps" },
            { "type": "object", "required": ["steps"], "properties": { "steps": { "$ref": "#/$defs/steps" } } }
        ] }
    })
}
