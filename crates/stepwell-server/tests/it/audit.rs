//! The audit trail over HTTP.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::kit::{get, post};
use crate::site::Site;

/// D12: every write is audited in its tenant.
#[tokio::test]
async fn audit_rows_are_listed_oldest_first_per_tenant() {
    let site = Site::open().await;
    site.put("/v1/kv/n/a", &json!({"value": 1})).await;
    site.post("/v1/kv/n/a/increment", &json!({})).await;
    let rows = async |query: &str| site.get(&format!("/v1/audit?{query}")).await.json();
    // The creation of the test's API key and of its name is audited too. Rows of the same millisecond have no defined order.
    let is_ours = |row: &Value| row["operation"].as_str().unwrap().starts_with("store.");
    let whole = rows("").await["items"].as_array().unwrap().clone();
    assert_eq!(whole.iter().filter(|row| row["operation"] == "state.set").count(), 2, "{whole:?}");
    let all: Vec<_> = whole.iter().filter(|row| is_ours(row)).cloned().collect();
    let operations: BTreeSet<_> = all.iter().map(|row| row["operation"].as_str().unwrap()).collect();
    assert_eq!(operations, BTreeSet::from(["store.set", "store.increment"]), "{all:?}");
    let last = all.iter().find(|row| row["operation"] == "store.increment").unwrap();
    assert_eq!((&last["actor"], &last["at"]), (&json!("apikey:test"), &json!("2026-01-01T00:00:00Z")));
    assert_eq!((&last["subject"], &last["detail"]), (&json!("store:n:a"), &json!({"revision": 2})));
    let first = rows("limit=2").await;
    let cursor = first["nextCursor"].as_str().unwrap();
    assert_eq!(rows(&format!("limit=2&cursor={cursor}")).await["items"], json!(whole[2..]));
    site.get("/v1/audit?cursor=x").await.is(422, "invalid");
    site.get("/v1/audit?actor=x").await.is(400, "unknownParameter");
    let theirs = site.as_other_tenant(get("/v1/audit")).await.json();
    assert!(!theirs.to_string().contains("increment"), "{theirs}");
}

#[tokio::test]
async fn the_audit_trail_is_sealed_and_verified() {
    let site = Site::open().await;
    site.put("/v1/kv/n/a", &json!({"value": 1})).await;
    let verify = async || site.ask(post("/v1/audit/verify")).await.json();
    let before = verify().await;
    assert_eq!(
        (&before["sound"], &before["sealed"], &before["unsealed"]),
        (&json!(true), &json!(0), &json!(3))
    );
    assert_eq!(site.get("/v1/audit/seals").await.json(), json!({"items": []}));
    for number in 1..=3 {
        let tidied = site.ask(post("/v1/maintenance/cleanup")).await.json();
        assert_eq!(tidied["more"], false, "{tidied}");
        assert!(tidied["sealed"].as_u64().unwrap() >= 1, "{tidied}");
        site.put("/v1/kv/n/a", &json!({"value": number})).await;
    }
    let seals = site.get("/v1/audit/seals?limit=2").await.json();
    let (one, two) = (&seals["items"][0], &seals["items"][1]);
    assert_eq!((&one["number"], &one["rowCount"], &one["hash"]), (&json!(1), &json!(3), &two["before"]));
    assert_eq!(seals["nextCursor"], "3");
    let rest = site.get("/v1/audit/seals?cursor=3").await.json();
    assert_eq!((&rest["items"][0]["before"], rest.get("nextCursor")), (&two["hash"], None));
    let after = verify().await;
    assert_eq!((&after["sound"], &after["seals"], &after["sealed"]), (&json!(true), &json!(3), &json!(5)));
    assert_eq!((&after["head"], &after["faults"]), (&rest["items"][0]["hash"], &json!([])));
    site.get("/v1/audit/seals?cursor=x").await.is(400, "badParameter");
    assert_eq!(site.as_other_tenant(get("/v1/audit/seals")).await.json(), json!({"items": []}));
}
