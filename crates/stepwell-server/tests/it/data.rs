//! Several changes to keys and links in one request, over HTTP.

use serde_json::{Value, json};

use crate::kit::{get, post};
use crate::site::Site;

fn transfer(revision: u64) -> Value {
    json!({"changes": [
        {"op": "check", "namespace": "account", "key": "rate", "revision": revision},
        {"op": "set", "namespace": "account", "key": "from", "value": 90, "valueType": "number", "ttlSeconds": 60},
        {"op": "increment", "namespace": "account", "key": "to", "by": 10},
        {"op": "link", "namespace": "ledger", "from": {"type": "a", "id": "1"}, "to": {"type": "b", "id": "2"},
         "relation": "paid", "attributes": {"sum": 10}},
        {"op": "delete", "namespace": "account", "key": "hold"},
        {"op": "unlink", "namespace": "ledger", "from": {"type": "a", "id": "0"}},
    ]})
}

/// D9: all changes are applied, or none.
#[tokio::test]
async fn changes_are_applied_together_with_one_result_each() {
    let site = Site::open().await;
    site.put("/v1/kv/account/hold", &json!({"value": true})).await;
    let done = site.post("/v1/data", &transfer(0)).await;
    assert_eq!(done.status, 200, "{done:?}");
    let results = done.json()["results"].clone();
    let id = results[3]["linkId"].as_str().unwrap().to_owned();
    let expected = json!([
        {"op": "check", "revision": 0},
        {"op": "set", "revision": 1, "created": true},
        {"op": "increment", "value": 10, "revision": 1},
        {"op": "link", "linkId": id, "created": true},
        {"op": "delete", "revision": 2, "deleted": true},
        {"op": "unlink", "deletedCount": 0},
    ]);
    assert_eq!(results, expected);
    assert_eq!(site.get("/v1/kv/account/from").await.json()["expiresAt"], "2026-01-01T00:01:00Z");
    assert_eq!(site.get("/v1/links/ledger").await.json()["items"][0]["linkId"], json!(id));
}

#[tokio::test]
async fn a_failed_check_changes_nothing() {
    let site = Site::open().await;
    let moved = site.post("/v1/data", &transfer(3)).await.is(412, "revisionConflict");
    assert_eq!(moved["params"], json!({"revision": 0, "exists": false}));
    assert!(moved["detail"].as_str().unwrap().contains("`rate` of `account`"), "{moved}");
    let set = json!({"op": "set", "namespace": "account", "key": "from", "value": 1});
    let once = json!({"op": "set", "namespace": "account", "key": "to", "value": 1, "ifRevision": 7});
    site.post("/v1/data", &json!({"changes": [set, once]})).await.is(412, "revisionConflict");
    let word = json!({"op": "set", "namespace": "n", "key": "word", "value": "x"});
    let count = json!({"op": "increment", "namespace": "n", "key": "word"});
    site.post("/v1/data", &json!({"changes": [set, word, count]})).await.is(422, "invalid");
    let both =
        json!({"op": "set", "namespace": "n", "key": "k", "value": 1, "ttlSeconds": 1, "keepTtl": true});
    site.post("/v1/data", &json!({"changes": [both]})).await.is(422, "invalid");
    let loose = json!({"op": "unlink", "namespace": "ledger"});
    site.post("/v1/data", &json!({"changes": [set, loose]})).await.is(422, "invalid");
    for path in ["/v1/kv", "/v1/links"] {
        assert_eq!(site.get(path).await.json(), json!({"items": []}));
    }
}

#[tokio::test]
async fn an_invalid_change_is_refused_with_its_pointer() {
    let site = Site::open().await;
    let refused =
        async |changes: Value| site.post("/v1/data", &json!({"changes": changes})).await.is(400, "badBody");
    refused(json!([])).await;
    let good = json!({"op": "delete", "namespace": "n", "key": "k"});
    for wrong in [
        json!({"op": "drop", "namespace": "n", "key": "k"}),
        json!({"namespace": "n", "key": "k"}),
        json!({"op": "delete", "namespace": "n"}),
        json!({"op": "delete", "namespace": "n", "key": ""}),
        json!({"op": "delete", "namespace": "n", "key": "k", "value": 1}),
        json!({"op": "link", "namespace": "n", "from": {"type": "a"}, "to": {"type": "b", "id": "1"}}),
    ] {
        let problem = refused(json!([good, wrong])).await;
        let pointer = problem["errors"][0]["pointer"].as_str().unwrap();
        assert!(pointer.starts_with("/changes/1"), "{problem}");
    }
    let many: Vec<_> = (0..1_001).map(|_| good.clone()).collect();
    refused(json!(many)).await;
}

/// D10, D11: a repeated request gets the stored answer, and another tenant can use the same key.
#[tokio::test]
async fn the_same_key_applies_the_changes_once_per_tenant() {
    let site = Site::open().await;
    let ask = |revision| post("/v1/data").header("idempotency-key", "t-1").json(&transfer(revision));
    let (first, again) = (site.ask(ask(0)).await, site.ask(ask(0)).await);
    assert_eq!((first.header("idempotency-replayed"), again.header("idempotency-replayed")), ("", "true"));
    assert_eq!(first.body, again.body);
    assert_eq!(site.get("/v1/kv/account/to").await.json()["value"], 10);
    site.ask(ask(1)).await.is(422, "keyReused");
    site.as_other_tenant(get("/v1/kv/account/to")).await.is(404, "noKey");
    let theirs = site.as_other_tenant(ask(0)).await;
    assert_eq!((theirs.status.as_u16(), theirs.header("idempotency-replayed")), (200, ""));
}
