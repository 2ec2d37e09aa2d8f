//! The OpenAPI contract is exact: the server accepts every request that the contract allows and refuses all others.

use std::collections::BTreeMap;

use axum::http::Method;
use serde_json::{Value, json};
use stepwell_server::api::openapi;
use uuid::Uuid;

use crate::kit::{delete, get, post, put};
use crate::site::Site;
use crate::test_server::TestServer;
use crate::tokens::site;

/// Every operation of the contract, by its id.
fn operations(contract: &Value) -> BTreeMap<&str, &Value> {
    let methods = contract["paths"].as_object().unwrap().values();
    let all = methods.flat_map(|methods| methods.as_object().unwrap().values());
    all.map(|operation| (operation["operationId"].as_str().unwrap(), operation)).collect()
}

/// Collects every object in a value, including the value itself.
fn objects<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            found.push(value);
            fields.values().for_each(|field| objects(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| objects(item, found)),
        _ => {}
    }
}

#[test]
fn every_integer_has_a_maximum() {
    let contract = openapi();
    let mut all = Vec::new();
    objects(&contract, &mut all);
    let integers = all.iter().filter(|schema| {
        schema["format"].as_str().is_some_and(|format| format.starts_with("uint"))
            && schema.get("type").is_some()
    });
    let without: Vec<_> = integers.clone().filter(|schema| schema["maximum"].as_u64().is_none()).collect();
    assert!(without.is_empty() && integers.count() > 20, "{without:?}");
}

#[test]
fn every_link_leads_to_an_operation_with_its_parameters() {
    let contract = openapi();
    let operations = operations(&contract);
    let mut count = 0;
    for (id, operation) in &operations {
        for response in operation["responses"].as_object().unwrap().values() {
            for (name, link) in response["links"].as_object().into_iter().flatten() {
                let to = operations[link["operationId"].as_str().unwrap()];
                let takes: Vec<_> = to["parameters"].as_array().unwrap().iter().collect();
                for (parameter, from) in link["parameters"].as_object().unwrap() {
                    let (place, parameter) = parameter.split_once('.').unwrap();
                    let is_taken = |one: &&&Value| one["name"] == parameter && one["in"] == place;
                    assert!(takes.iter().any(|one| is_taken(&one)), "{id} → {name}: {parameter}");
                    assert!(from.as_str().unwrap().starts_with('$'), "{id} → {name}: {from}");
                }
                count += 1;
            }
        }
    }
    assert!(count > 100, "{count}");
    let started = &operations["startRun"]["responses"]["201"]["links"]["signalRun"];
    assert_eq!(started["parameters"], json!({"path.run": "$response.body#/id"}));
    let put = &operations["setKey"]["responses"]["200"]["links"]["getKey"]["parameters"];
    assert_eq!(put["path.key"], "$request.path.key", "{put}");
}

/// A client parses YAML before it validates it, so the contract describes the parsed value and not the text.
#[test]
fn yaml_answers_have_the_schema_of_json_answers() {
    let contract = openapi();
    let operations = operations(&contract);
    let answers = operations.values().map(|operation| &operation["responses"]["200"]["content"]);
    let both: Vec<_> = answers.filter(|answer| answer.get("application/yaml").is_some()).collect();
    assert_eq!(both.len(), 3);
    assert!(both.iter().all(|answer| answer["application/yaml"] == answer["application/json"]));
}

/// `1.0` is an integer in JSON Schema, and for the clients that send it.
#[tokio::test]
async fn a_float_with_an_integer_value_is_accepted_as_an_integer() {
    let site = Site::open().await;
    site.post("/v1/workflows/none/activate", &json!({"version": 4333.0})).await.is(404, "unknownWorkflow");
    site.post("/v1/workflows/none/activate", &json!({"version": 4333.5})).await.is(400, "badBody");
    site.get("/v1/runs?limit=2.0").await.json();
    site.get("/v1/runs?limit=2.5").await.is(400, "badParameter");
    assert_eq!(site.put("/v1/kv/a/b", &json!({"value": 1.0, "ttlSeconds": 60.0})).await.status, 201);
}

#[tokio::test]
async fn headers_are_accepted_as_the_contract_defines_them() {
    let site = Site::open().await;
    let set =
        |name: &str, value: &str| put("/v1/kv/stock/bolts").header(name, value).json(&json!({"value": 1}));
    for tag in ["\"+1\"", "\"\"", "\"1234567890123456\"", "\"18446744073709551616\"", ""] {
        site.ask(set("if-match", tag)).await.is(400, "malformedTag");
    }
    site.ask(set("if-match", "\"123456789012345\"")).await.is(412, "revisionConflict");
    for key in ["a b", " ", "a\tb", ""] {
        site.ask(set("idempotency-key", key)).await.is(400, "malformedKey");
    }
    assert_eq!(site.ask(set("idempotency-key", "a-b")).await.status, 201);
    let any = delete("/v1/kv/stock/bolts").header("if-match", "*");
    assert_eq!(site.ask(any).await.status, 204);
}

#[tokio::test]
async fn ids_and_timestamps_are_accepted_in_one_format() {
    let site = Site::open().await;
    let id = Uuid::from_u128(7);
    site.get(&format!("/v1/runs/{id}")).await.is(404, "noRun");
    for other in [id.simple().to_string(), id.urn().to_string(), format!("%7B{id}%7D")] {
        site.get(&format!("/v1/runs/{other}")).await.is(400, "badParameter");
    }
    let now = |now: &str| json!({"expression": "$now()", "now": now});
    for right in [
        "2030-01-31T12:00:00Z",
        "2030-01-31t12:00:00.123456789+02:00",
        "0001-01-01T00:00:00Z",
        "9998-12-31T23:59:59Z",
    ] {
        assert_eq!(site.post("/v1/expressions/evaluate", &now(right)).await.status, 200, "{right}");
    }
    for wrong in [
        "2030-01-31 12:00:00Z",
        "20300131T120000Z",
        "2030-01-31T12:00Z",
        "9999-12-31T23:59:59Z",
        "2030-02-31T12:00:00Z",
    ] {
        site.post("/v1/expressions/evaluate", &now(wrong)).await.is(400, "badBody");
    }
}

/// A request whose fields each match the contract, but are impossible together, gets 422 and not 400.
#[tokio::test]
async fn impossible_requests_get_422_and_malformed_ones_400() {
    let site = site("handle").await;
    site.ask(delete("/v1/links/crm?fromType=person")).await.is(422, "invalid");
    let signalled = json!({"workflow": "login", "signal": {"name": "GO"}});
    site.post("/v1/runs", &signalled).await.is(422, "keyMissing");
    site.ask(post("/v1/flows/resume").json(&json!({}))).await.is(422, "tokenMissing");
    site.ask(get("/v1/handles?where=visitor")).await.is(400, "badParameter");
    site.ask(get("/v1/handles?where=visitor=ann")).await.json();
}

/// An authenticated caller who starts a flow with an unusable input gets a 4xx answer, never a 5xx.
#[tokio::test]
async fn no_flow_input_causes_a_server_error() {
    for strategy in ["sealed", "handle", "durable"] {
        let site = site(strategy).await;
        for input in
            [json!(5), json!([1]), json!("x"), json!({"a": "\u{0}"}), json!({"\u{0}": 1}), json!({"user": 7})]
        {
            for workflow in ["login", "none", "%C3%A9", "a%00b"] {
                let begun = site.post(&format!("/v1/flows/{workflow}"), &json!({"input": input})).await;
                assert!(begun.status.as_u16() < 500, "{strategy} {workflow} {input}: {begun:?}");
            }
        }
    }
}

#[tokio::test]
async fn malformed_events_are_refused_with_their_status() {
    let server = TestServer::open().await;
    let emit = async |kind: &str, event: Value| {
        let asked = server.ask(Method::POST, "/v1/events").header("content-type", kind);
        asked.body(event.to_string()).to(&server.router).await
    };
    let one = "application/cloudevents+json";
    let event = |more: Value| {
        let mut event = json!({"specversion": "1.0", "id": "1", "source": "/shop", "type": "PAID"});
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        event
    };
    for more in [
        json!({"data": 1, "data_base64": "MQ=="}),
        json!({"data_base64": "MR=="}),
        json!({"Bad-Name": 1}),
        json!({"time": "yesterday"}),
        json!({"subject": ""}),
        json!({"specversion": "0.3"}),
    ] {
        let told = emit(one, event(more.clone())).await.is(400, "malformedEvent");
        assert!(!told["errors"].as_array().unwrap().is_empty(), "{more}: {told}");
    }
    let broken = json!({"data_base64": "ew==", "datacontenttype": "application/json"});
    emit(one, event(broken)).await.is(422, "malformedEvent");
    emit("application/cloudevents+protobuf", event(json!({}))).await.is(415, "unsupportedMediaType");
    assert_eq!(
        emit(one, event(json!({"data_base64": null, "subject": null, "traceid": 7}))).await.status,
        202
    );
}
