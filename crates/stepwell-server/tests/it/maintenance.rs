//! Maintenance over HTTP: heal shadow columns and clean up expired data.

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

/// E12: each request heals one bounded batch; the next continues at its cursor.
#[tokio::test]
async fn later_shadow_columns_are_healed_in_batches() {
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
    let heal = async |body: Value| site.post("/v1/maintenance/heal", &body).await;
    let first = heal(json!({"workflow": "order", "batch": 2})).await.json();
    assert_eq!((&first["runs"], &first["changed"]), (&json!(2), &json!(2)), "{first}");
    let cursor = first["nextCursor"].clone();
    // Another tenant has nothing to heal.
    let theirs = post("/v1/maintenance/heal").json(&json!({"workflow": "order"}));
    let theirs = site.as_other_tenant(theirs).await.json();
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
async fn expired_cells_are_cleaned_up_in_batches() {
    let never = |builder: Builder| builder.with(|options| options.maintenance_interval_ms = u64::MAX);
    let site = Site::open_with(never).await;
    let brief = |key: usize| json!({"op": "set", "namespace": "n", "key": key.to_string(), "value": 1, "ttlSeconds": 1});
    let changes: Vec<_> = (0..150).map(brief).collect();
    site.post("/v1/data", &json!({"changes": changes})).await;
    site.engine.advance(Duration::from_secs(2)).await;
    let clean = async || site.ask(post("/v1/maintenance/cleanup")).await.json();
    assert_eq!(site.as_other_tenant(post("/v1/maintenance/cleanup")).await.json()["expiredCells"], 0);
    let first = clean().await;
    assert_eq!((&first["expiredCells"], &first["more"]), (&json!(100), &json!(true)), "{first}");
    let second = clean().await;
    assert_eq!((&second["expiredCells"], &second["more"]), (&json!(50), &json!(false)), "{second}");
    let reader = key_of(&site.server, 2, &[Permission::Read]).await;
    post("/v1/maintenance/cleanup").by(&reader).to(&site.router).await.is(403, "denied");
}

/// An order that waits, with these columns of its payload.
fn published(columns: &[(&str, &str)]) -> String {
    let column = |(name, kind): &(&str, &str)| format!("{name}: {{ path: payload.{name}, type: {kind} }}");
    let columns: Vec<_> = columns.iter().map(column).collect();
    let step = "{ id: wait, type: wait.signal, signal: GO }";
    format!("spec:\n  shadows: {{ {} }}\n  steps: [{step}]\n", columns.join(", "))
}

/// Publishes and activates this text as the next version of `order`.
async fn publish(site: &Site, text: &str) {
    let published =
        post("/v1/workflows/order/versions?activate=true").header("content-type", "application/yaml");
    let published = site.ask(published.body(text.to_owned())).await.json();
    assert_eq!(published["created"], true, "{published}");
}

/// A site with a first version without columns, three runs of it, and a second version with columns.
async fn published_later() -> Site {
    let site = Site::open().await;
    publish(&site, &published(&[])).await;
    for (city, total) in [("Bonn", 5), ("Ulm", 10), ("Boppard", -1)] {
        let input = json!({"city": city, "total": total});
        site.post("/v1/runs", &json!({"workflow": "order", "input": input})).await.json();
    }
    publish(&site, &published(&[("city", "string"), ("total", "number")])).await;
    // A heal waits until other processes know the version.
    site.engine.advance(Duration::from_secs(2)).await;
    site
}

/// E11, E12: a newer published version declares the columns of older runs.
#[tokio::test]
async fn heal_fills_the_columns_of_a_published_version() {
    let site = published_later().await;
    let healed = site.post("/v1/maintenance/heal", &json!({"workflow": "order"})).await.json();
    assert_eq!(healed, json!({"runs": 3, "changed": 6, "unreadable": 0, "missed": 0}));
    let rows = site.get("/v1/runs?workflow=order&columns=true").await.json();
    let columns: Vec<_> =
        rows["items"].as_array().unwrap().iter().map(|row| row["columns"].clone()).collect();
    let expected = [("Boppard", -1), ("Ulm", 10), ("Bonn", 5)];
    assert_eq!(columns, expected.map(|(city, total)| json!({"city": city, "total": total})));
    let plain = site.get("/v1/runs?workflow=order").await.json();
    assert_eq!(plain["items"][0]["columns"], Value::Null, "{plain}");
}

#[tokio::test]
async fn runs_are_filtered_by_prefix_and_range() {
    let site = published_later().await;
    site.post("/v1/maintenance/heal", &json!({"workflow": "order"})).await.json();
    let found = async |conditions: &[&str]| {
        let conditions: String = conditions.iter().map(|text| format!("&where={}", encoded(text))).collect();
        let path = format!("/v1/runs?workflow=order&columns=true{conditions}");
        let rows = site.get(&path).await.json()["items"].clone();
        rows.as_array()
            .unwrap()
            .iter()
            .map(|row| row["columns"]["total"].as_i64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(found(&["city^=Bo"]).await, [5, -1], "in the order of the cities");
    assert_eq!(found(&["total>=5"]).await, [5, 10]);
    assert_eq!(found(&["total>-1", "total<10"]).await, [5]);
    assert_eq!(found(&["total<=5", "city^=Bo"]).await, [-1, 5]);
    assert_eq!(found(&["total<=5", "city=Bonn"]).await, [5]);
    assert_eq!(found(&["city>Bonn"]).await, [-1, 10]);
    let path = "/v1/runs?workflow=order&limit=1&where=total%3E%3D-1";
    let first = site.get(path).await.json();
    let next = encoded(first["nextCursor"].as_str().unwrap());
    let second = site.get(&format!("{path}&cursor={next}")).await.json();
    assert_ne!(first["items"][0]["id"], second["items"][0]["id"]);
    let refused = async |condition: &str, status: u16, code: &str| {
        site.get(&format!("/v1/runs?workflow=order&where={}", encoded(condition))).await.is(status, code)
    };
    refused("total", 400, "badParameter").await;
    refused("<5", 400, "badParameter").await;
    refused("total^5", 400, "badParameter").await;
    refused("total>true", 422, "invalid").await;
    refused("total>ten", 422, "invalid").await;
    refused("city<5", 422, "invalid").await;
    refused("zip^=5", 422, "invalid").await;
}

#[tokio::test]
async fn heal_takes_a_filter() {
    let site = published_later().await;
    let heal = async |filter: Value| {
        let mut body = json!({"workflow": "order"});
        body.as_object_mut().unwrap().extend(filter.as_object().unwrap().clone());
        let healed = site.post("/v1/maintenance/heal", &body).await.json();
        (healed["runs"].clone(), healed["changed"].clone())
    };
    assert_eq!(heal(json!({"status": "completed"})).await, (json!(0), json!(0)));
    assert_eq!(heal(json!({"parent": "00000000-0000-0000-0000-000000000001"})).await, (json!(0), json!(0)));
    assert_eq!(
        heal(json!({"where": ["city=Bonn"]})).await,
        (json!(0), json!(0)),
        "no column has a value yet"
    );
    assert_eq!(heal(json!({"status": "waiting"})).await, (json!(3), json!(6)));
    assert_eq!(heal(json!({"where": ["city^=Bo"]})).await, (json!(2), json!(0)));
    site.post("/v1/maintenance/heal", &json!({"workflow": "order", "where": ["city"]}))
        .await
        .is(400, "badBody");
}

/// B16: the columns of the target version are filled without a heal.
#[tokio::test]
async fn migration_fills_the_columns_of_its_target() {
    let site = published_later().await;
    let rows = site.get("/v1/runs?workflow=order&columns=true").await.json();
    assert_eq!(rows["items"][0]["columns"], json!({}));
    let run = rows["items"][0]["id"].as_str().unwrap();
    site.post(&format!("/v1/runs/{run}/migrate"), &json!({"version": 2})).await.json();
    let rows = site.get("/v1/runs?workflow=order&columns=true").await.json();
    assert_eq!(rows["items"][0]["columns"], json!({"city": "Boppard", "total": -1}));
}

fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}
