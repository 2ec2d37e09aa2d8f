//! The key-value store over HTTP.

use std::time::Duration;

use serde_json::{Value, json};

use crate::kit::{Reply, delete, get, post, put};
use crate::site::Site;

const KEY: &str = "/v1/kv/stock/bolts";

fn value(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["value"].clone()
}

#[tokio::test]
async fn revisions_of_a_key_never_restart() {
    let site = Site::open().await;
    site.get(KEY).await.is(404, "noKey");
    let made = site.put(KEY, &json!({"value": {"n": 1}})).await;
    assert_eq!((made.status.as_u16(), made.header("etag")), (201, "\"1\""));
    assert_eq!(made.json(), json!({"revision": 1, "created": true}));
    let again = site.put(KEY, &json!({"value": null, "valueType": "string"})).await;
    assert_eq!((again.status.as_u16(), again.json()), (200, json!({"revision": 2, "created": false})));
    let shown = site.get(KEY).await;
    assert_eq!(shown.header("etag"), "\"2\"");
    let key = shown.json();
    assert_eq!(
        (&key["value"], &key["valueType"], &key["key"]),
        (&Value::Null, &json!("string"), &json!("bolts"))
    );
    assert_eq!((key["createdAt"].as_str(), key.get("expiresAt")), (Some("2026-01-01T00:00:00Z"), None));
    assert_eq!(site.delete(KEY).await.status, 204);
    site.delete(KEY).await.is(404, "noKey");
    site.get(KEY).await.is(404, "noKey");
    assert_eq!(site.put(KEY, &json!({"value": 1})).await.json(), json!({"revision": 4, "created": true}));
}

/// D3: a request must name the current revision, if it names one. `If-None-Match: *` is `ifRevision: 0`.
#[tokio::test]
async fn stale_revision_is_refused_with_the_current_one() {
    let site = Site::open().await;
    let set =
        async |name: &str, tag: &str| site.ask(put(KEY).header(name, tag).json(&json!({"value": 1}))).await;
    let absent = set("if-match", "\"1\"").await.is(412, "revisionConflict");
    assert_eq!(absent["params"], json!({"revision": 0, "exists": false}));
    assert_eq!(set("if-none-match", "*").await.status, 201);
    let there = set("if-none-match", "*").await.is(412, "revisionConflict");
    assert_eq!(there["params"], json!({"revision": 1, "exists": true}));
    assert!(there["detail"].as_str().unwrap().contains("`bolts` of `stock`"), "{there}");
    assert_eq!(set("if-match", "\"1\"").await.status, 200);
    set("if-match", "\"1\"").await.is(412, "revisionConflict");
    for (name, tag) in [
        ("if-match", "2"),
        ("if-match", "\"x\""),
        ("if-match", "*"),
        ("if-match", "W/\"2\""),
        ("if-none-match", "\"2\""),
    ] {
        set(name, tag).await.is(400, "malformedTag");
    }
    let both = put(KEY).header("if-match", "\"2\"").header("if-none-match", "*").json(&json!({"value": 1}));
    site.ask(both).await.is(412, "contradiction");
    site.ask(delete(KEY).header("if-match", "\"1\"")).await.is(412, "revisionConflict");
    assert_eq!(site.ask(delete(KEY).header("if-match", "\"2\"")).await.status, 204);
    site.ask(delete(KEY).header("if-match", "\"3\"")).await.is(412, "revisionConflict");
}

/// D4: an expired value is absent on every path.
#[tokio::test]
async fn expired_value_is_absent_on_every_route() {
    let site = Site::open().await;
    site.put(KEY, &json!({"value": 1, "ttlSeconds": 60})).await;
    assert_eq!(site.get(KEY).await.json()["expiresAt"], "2026-01-01T00:01:00Z");
    site.engine.advance(Duration::from_secs(30)).await;
    site.put(KEY, &json!({"value": 2, "keepTtl": true})).await;
    assert_eq!(site.get(KEY).await.json()["expiresAt"], "2026-01-01T00:01:00Z");
    let wrong =
        site.put(KEY, &json!({"value": 2, "keepTtl": true, "ttlSeconds": 5})).await.is(422, "invalid");
    assert!(wrong["detail"].as_str().unwrap().contains("not both"), "{wrong}");
    site.engine.advance(Duration::from_secs(30)).await;
    site.get(KEY).await.is(404, "noKey");
    assert_eq!(site.get("/v1/kv/stock").await.json(), json!({"items": []}));
    assert_eq!(site.get("/v1/kv").await.json(), json!({"items": []}));
    site.delete(KEY).await.is(404, "noKey");
    assert_eq!(site.put(KEY, &json!({"value": 3, "ttlSeconds": 60})).await.status, 201);
    site.put(KEY, &json!({"value": 4})).await;
    assert_eq!(site.get(KEY).await.json().get("expiresAt"), None, "a write without a TTL clears it");
}

/// D5: increments are exact, and values that are not numbers are refused.
#[tokio::test]
async fn increment_adds_and_refuses_non_numbers() {
    let site = Site::open().await;
    let count = async |body: &Value| site.post("/v1/kv/stock/bolts/increment", body).await;
    let bare = site.ask(post("/v1/kv/stock/bolts/increment")).await;
    assert_eq!((bare.json(), bare.header("etag")), (json!({"value": 1, "revision": 1}), "\"1\""));
    assert_eq!(count(&json!({"by": -3, "initial": 100})).await.json(), json!({"value": -2, "revision": 2}));
    assert_eq!(count(&json!({"by": 0.5})).await.json(), json!({"value": -1.5, "revision": 3}));
    let fresh = site.post("/v1/kv/stock/nuts/increment", &json!({"initial": 100})).await;
    assert_eq!(fresh.json()["value"], 101);
    let exact = json!({"by": 9_007_199_254_740_993_i64});
    let exact = site.post("/v1/kv/stock/exact/increment", &exact).await;
    assert!(exact.body.contains("9007199254740993"), "{exact:?}");
    site.put("/v1/kv/stock/word", &json!({"value": "x"})).await;
    let word = site.post("/v1/kv/stock/word/increment", &json!({})).await.is(422, "invalid");
    assert!(word["detail"].as_str().unwrap().contains("`word` of `stock`"), "{word}");
    assert_eq!(value(&site.get("/v1/kv/stock/word").await), json!("x"));
    count(&json!({"by": "1"})).await.is(400, "badBody");
    site.put("/v1/kv/stock/large", &json!({"value": i64::MAX})).await;
    site.post("/v1/kv/stock/large/increment", &json!({"by": u64::MAX})).await.is(422, "invalid");
}

/// D10: the same key and request cause one write and get the same answer.
#[tokio::test]
async fn same_idempotency_key_writes_once_and_is_replayed() {
    let site = Site::open().await;
    let count = async |key: &str, by: i64| {
        let ask = post("/v1/kv/stock/bolts/increment").header("idempotency-key", key);
        site.ask(ask.json(&json!({"by": by}))).await
    };
    let first = count("k-1", 5).await;
    let again = count("k-1", 5).await;
    assert_eq!((first.header("idempotency-replayed"), again.header("idempotency-replayed")), ("", "true"));
    assert_eq!((&first.body, first.header("etag")), (&again.body, again.header("etag")));
    assert_eq!(value(&site.get(KEY).await), json!(5));
    count("k-1", 6).await.is(422, "keyReused");
    assert_eq!(count("k-2", 5).await.json()["value"], 10);
    for key in ["", "ä", &"x".repeat(256)] {
        count(key, 1).await.is(400, "malformedKey");
    }
    // A repeated create is answered with 201 again.
    let create = || put("/v1/kv/stock/new").header("idempotency-key", "k-3").header("if-none-match", "*");
    let created = [create(), create()].map(|ask| site.ask(ask.json(&json!({"value": 1}))));
    let [first, again] = created;
    let (first, again) = (first.await, again.await);
    assert_eq!((first.status.as_u16(), again.status.as_u16(), &first.body), (201, 201, &again.body));
    assert_eq!(again.header("idempotency-replayed"), "true");
    let gone = || delete("/v1/kv/stock/new").header("idempotency-key", "k-4");
    assert_eq!(site.ask(gone()).await.status, 204);
    let again = site.ask(gone()).await;
    assert_eq!((again.status.as_u16(), again.header("idempotency-replayed")), (204, "true"));
    // Another tenant has its own idempotency keys.
    let theirs =
        post("/v1/kv/stock/bolts/increment").header("idempotency-key", "k-1").json(&json!({"by": 6}));
    assert_eq!(site.as_other_tenant(theirs).await.json()["value"], 6);
}

/// D11: a tenant's keys are hidden from other tenants.
#[tokio::test]
async fn another_tenant_sees_and_changes_nothing() {
    let site = Site::open().await;
    site.put(KEY, &json!({"value": "ours"})).await;
    site.as_other_tenant(get(KEY)).await.is(404, "noKey");
    site.as_other_tenant(delete(KEY)).await.is(404, "noKey");
    for path in ["/v1/kv", "/v1/kv/stock"] {
        assert_eq!(site.as_other_tenant(get(path)).await.json(), json!({"items": []}));
    }
    let theirs =
        site.as_other_tenant(put(KEY).header("if-none-match", "*").json(&json!({"value": "theirs"}))).await;
    assert_eq!(theirs.json(), json!({"revision": 1, "created": true}));
    assert_eq!(value(&site.get(KEY).await), json!("ours"));
}

/// D6: prefixes are taken literally; namespaces are listed with the number of their keys.
#[tokio::test]
async fn keys_are_paged_by_prefix_and_namespaces_counted() {
    let site = Site::open().await;
    for key in ["a%25", "a_1", "ab", "b"] {
        site.put(&format!("/v1/kv/letters/{key}"), &json!({"value": key})).await;
    }
    site.put("/v1/kv/other/x", &json!({"value": 1})).await;
    let keys = async |query: &str| {
        let page = site.get(&format!("/v1/kv/letters?{query}")).await.json();
        let keys =
            page["items"].as_array().unwrap().iter().map(|item| item["key"].as_str().unwrap().to_owned());
        (keys.collect::<Vec<_>>(), page["nextCursor"].as_str().map(str::to_owned))
    };
    let (first, cursor) = keys("prefix=a&limit=2").await;
    assert_eq!(first, ["a%", "a_1"]);
    let cursor: String = form_urlencoded::byte_serialize(cursor.unwrap().as_bytes()).collect();
    assert_eq!(keys(&format!("prefix=a&limit=2&cursor={cursor}")).await, (vec!["ab".to_owned()], None));
    assert_eq!(keys("prefix=a%25").await.0, ["a%"], "`%` is no wildcard");
    let names =
        json!({"items": [{"namespace": "letters", "keyCount": 4}, {"namespace": "other", "keyCount": 1}]});
    assert_eq!(site.get("/v1/kv").await.json(), names);
    let page = site.get("/v1/kv?limit=1").await.json();
    let next = page["nextCursor"].as_str().unwrap();
    assert_eq!(site.get(&format!("/v1/kv?cursor={next}")).await.json()["items"][0]["namespace"], "other");
}

#[tokio::test]
async fn invalid_parameters_and_bodies_are_refused() {
    let site = Site::open().await;
    for query in ["limit=0", "limit=201", "limit=x", "limit=1&limit=2"] {
        site.get(&format!("/v1/kv/stock?{query}")).await.is(400, "badParameter");
    }
    let unknown = site.get("/v1/kv/stock?prefx=a").await.is(400, "unknownParameter");
    assert_eq!(unknown["params"]["parameter"], "prefx");
    let long = "x".repeat(257);
    site.put(&format!("/v1/kv/stock/{long}"), &json!({"value": 1})).await.is(400, "badParameter");
    site.get(&format!("/v1/kv/{long}")).await.is(400, "badParameter");
    let missing = site.put(KEY, &json!({})).await.is(400, "badBody");
    assert_eq!(missing["errors"][0]["code"], "required", "{missing}");
    let extra = site.put(KEY, &json!({"value": 1, "ttl": 5})).await.is(400, "badBody");
    assert!(extra["errors"][0]["message"].as_str().unwrap().contains("ttl"), "{extra}");
    site.put(KEY, &json!({"value": 1, "ttlSeconds": 0})).await.is(400, "badBody");
    site.put(KEY, &json!({"value": "x".repeat(256 * 1024)})).await.is(422, "invalid");
    site.put(KEY, &json!({"value": "x".repeat(1024 * 1024)})).await.is(413, "bodyTooLarge");
    let nul = site.put("/v1/kv/stock/a%00b", &json!({"value": 1})).await.is(422, "invalid");
    assert!(nul["detail"].as_str().unwrap().contains("NUL"), "{nul}");
    site.ask(put(KEY).body("{}")).await.is(415, "unsupportedMediaType");
    site.get(KEY).await.is(404, "noKey");
}

/// C6: a watcher gets the newest value, also after a disconnect; values in between may be skipped.
#[tokio::test]
async fn watch_reports_creation_changes_and_expiry() {
    let site = Site::open().await;
    let watch = || get("/v1/kv/stock/bolts/watch").by(&site.ours);
    let mut events = watch().events(&site.router).await;
    let change = |id: u64, data: Value| Some((Some(id), "change".to_owned(), data));
    assert_eq!(events.next().await, change(0, json!({"found": false, "revision": 0})));
    site.put(KEY, &json!({"value": null})).await;
    assert_eq!(events.next().await, change(1, json!({"found": true, "value": null, "revision": 1})));
    site.put(KEY, &json!({"value": 2, "ttlSeconds": 60})).await;
    let second = change(2, json!({"found": true, "value": 2, "previous": null, "revision": 2}));
    assert_eq!(events.next().await, second);

    // A watcher that has seen the newest value gets the next change; one that has seen an older value gets the newest.
    let mut after_second = watch().header("last-event-id", "2").events(&site.router).await;
    let mut after_first = watch().header("last-event-id", "1").events(&site.router).await;
    let newest = change(2, json!({"found": true, "value": 2, "revision": 2}));
    assert_eq!(after_first.next().await, newest);
    let (gone, ()) = tokio::join!(events.next(), site.engine.advance(Duration::from_secs(60)));
    assert_eq!(gone, change(2, json!({"found": false, "previous": 2, "revision": 2})));
    // Expiry does not change the revision, but a watcher that has seen the value is notified.
    let (id, _, data) = after_second.next().await.unwrap();
    assert_eq!((id, &data["found"]), (Some(2), &json!(false)));
    watch().header("last-event-id", "x").to(&site.router).await.is(400, "malformedId");

    // A key of the same name in another tenant is another key.
    let mut theirs = get("/v1/kv/stock/bolts/watch").by(&site.theirs).events(&site.router).await;
    assert_eq!(theirs.next().await, change(0, json!({"found": false, "revision": 0})));
}
