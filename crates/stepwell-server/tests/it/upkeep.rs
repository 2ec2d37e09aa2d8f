//! Upkeep that is asked for over HTTP.

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::shadow::Shadow;
use stepwell::core::{Definition, Spec};
use stepwell::{Builder, Permission};

use crate::kit::post;
use crate::site::Site;
use crate::table::key_of;

fn order(version: u32, columns: &[&str]) -> Definition {
    let spec = Spec::new("order").version(version).wait("open", "SHIP").end("shipped").signal("SHIP");
    let spec = spec.auto("end", "open", "shipped").initial("open");
    columns.iter().fold(spec, |spec, column| spec.shadow(*column, Shadow::string(*column))).build().unwrap()
}

/// E12: one bounded batch for each request; it may be taken up where it was.
#[tokio::test]
async fn columns_that_were_declared_later_are_healed_batch_by_batch() {
    let site = Site::open_with(|builder: Builder| builder.workflow(order(1, &[]))).await;
    for city in ["Bonn", "Ulm", "Bonn"] {
        site.post("/v1/runs", &json!({"workflow": "order", "input": {"city": city}})).await;
    }
    site.engine.register(order(2, &["city"])).unwrap();
    let found = async || {
        let page = site.get("/v1/runs?workflow=order&where=city%3DBonn").await.json();
        page["items"].as_array().unwrap().len()
    };
    assert_eq!(found().await, 0);
    let heal = async |body: Value| site.post("/v1/upkeep/heal", &body).await;
    let first = heal(json!({"workflow": "order", "batch": 2})).await.json();
    assert_eq!((&first["runs"], &first["changed"]), (&json!(2), &json!(2)), "{first}");
    let cursor = first["nextCursor"].clone();
    // Another tenant has nothing to heal, wherever it begins.
    let theirs = post("/v1/upkeep/heal").json(&json!({"workflow": "order"}));
    let theirs = site.elsewhere(theirs).await.json();
    assert_eq!((&theirs["runs"], &theirs["changed"]), (&json!(0), &json!(0)));
    let rest = heal(json!({"workflow": "order", "batch": 2, "cursor": cursor})).await.json();
    assert_eq!(rest, json!({"runs": 1, "changed": 1, "unreadable": 0, "missed": 0}));
    assert_eq!(found().await, 2);
    assert_eq!(heal(json!({"workflow": "order"})).await.json()["changed"], 0);
    heal(json!({"workflow": "odrer"})).await.is(404, "unknownWorkflow");
    heal(json!({"workflow": "order", "cursor": "x"})).await.is(422, "invalid");
    heal(json!({"workflow": "order", "batch": 0})).await.is(400, "badBody");
    heal(json!({})).await.is(400, "badBody");
}

#[tokio::test]
async fn what_has_expired_is_tidied_up_a_batch_at_a_time() {
    let never = |builder: Builder| builder.with(|options| options.upkeep_ms = u64::MAX);
    let site = Site::open_with(never).await;
    let brief = |key: usize| json!({"op": "set", "namespace": "n", "key": key.to_string(), "value": 1, "ttlSeconds": 1});
    let changes: Vec<_> = (0..150).map(brief).collect();
    site.post("/v1/data", &json!({"changes": changes})).await;
    site.engine.advance(Duration::from_secs(2)).await;
    let clean = async || site.ask(post("/v1/upkeep/cleanup")).await.json();
    assert_eq!(site.elsewhere(post("/v1/upkeep/cleanup")).await.json()["expiredCells"], 0);
    let first = clean().await;
    assert_eq!((&first["expiredCells"], &first["more"]), (&json!(100), &json!(true)), "{first}");
    let second = clean().await;
    assert_eq!((&second["expiredCells"], &second["more"]), (&json!(50), &json!(false)), "{second}");
    let reader = key_of(&site.server, 2, &[Permission::Read]).await;
    post("/v1/upkeep/cleanup").by(&reader).to(&site.router).await.is(403, "denied");
}
