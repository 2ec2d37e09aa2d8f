//! Execution and workflow slots over HTTP.

use serde_json::{Value, json};
use stepwell::core::spec::{ChildRule, Place, Transition, Wait};
use stepwell::core::{Definition, RunId, Spec};
use stepwell::store::{RunQuery, TenantScope};
use stepwell::{ActionError, Builder, Cx, Start, new_run_id};

use crate::kit::{delete, get, post, put};
use crate::site::Site;

/// A parent workflow and its child, which waits for a signal.
fn family() -> (Definition, Definition) {
    let below = Place::Wait(Wait { children: Some(ChildRule::All), ..Wait::default() });
    let parent = Spec::new("parent")
        .step("begin")
        .place("below", below)
        .end("done")
        .initial("begin")
        .transition(Transition::new("start", "begin", "below").action("start"))
        .auto("end", "below", "done");
    let child = Spec::new("child").wait("waits", "GO").end("done").signal("GO").auto("end", "waits", "done");
    (parent.build().unwrap(), child.initial("waits").build().unwrap())
}

async fn start(cx: Cx) -> Result<(), ActionError> {
    cx.start_child(Start::new("child"))?;
    cx.execution::<i64>("total").increment(7)
}

fn families(builder: Builder) -> Builder {
    let (parent, child) = family();
    builder.workflow(parent).workflow(child).action("start", start)
}

/// A site with a parent run of our tenant. Returns the site, the run and its child.
async fn with_run() -> (Site, RunId, RunId) {
    let site = Site::open_with(families).await;
    let started = site.post("/v1/runs", &json!({"workflow": "parent"})).await;
    let run: RunId = started.json()["id"].as_str().unwrap().parse().unwrap();
    site.engine.settle().await;
    let listed = site.get(&format!("/v1/runs?parent={run}")).await.json();
    let child = listed["items"][0]["id"].as_str().unwrap().parse().unwrap();
    (site, run, child)
}

/// C2, C8: the id of the root run and the id of its child lead to the same slot.
#[tokio::test]
async fn execution_slots_are_reachable_from_any_of_its_runs() {
    let (site, run, child) = with_run().await;
    for of in [run, child] {
        let shown = site.get(&format!("/v1/state/execution/{of}/total")).await;
        assert_eq!((shown.header("etag"), &shown.json()["value"]), ("\"1\"", &json!(7)), "{shown:?}");
        assert_eq!(shown.json()["createdByRun"], json!(run));
        let listed = site.get(&format!("/v1/state/execution/{of}")).await.json();
        assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    }
    let added = site.post(&format!("/v1/state/execution/{child}/total/increment"), &json!({"by": -2})).await;
    assert_eq!(added.json(), json!({"value": 5, "revision": 2}));
    assert_eq!(site.get(&format!("/v1/state/execution/{run}/total")).await.json()["value"], 5);
    let nobody = new_run_id();
    for path in [format!("/v1/state/execution/{nobody}"), format!("/v1/state/execution/{nobody}/total")] {
        site.get(&path).await.is(404, "noRun");
    }
    site.put(&format!("/v1/state/execution/{nobody}/total"), &json!({"value": 1})).await.is(404, "noRun");
    site.get(&format!("/v1/state/execution/{nobody}/total/watch")).await.is(404, "noRun");
}

/// C3: the initial value counts until the first write or delete.
#[tokio::test]
async fn initial_values_apply_before_the_first_write_only() {
    let site = Site::open().await;
    let slot = |name: &str| format!("/v1/state/workflow/order/{name}");
    let read = async |name: &str| site.get(&format!("{}?initial=[7]", slot(name))).await;
    let fresh = read("a").await;
    assert_eq!(fresh.json(), json!({"key": "a", "value": [7], "revision": 0}));
    assert_eq!(fresh.header("etag"), "\"0\"");
    let ask = async |name: &str, operation: &str, body: Value| {
        site.post(&format!("{}/{operation}", slot(name)), &body).await.json()
    };
    ask("a", "append", json!({"item": 8, "initial": [7]})).await;
    assert_eq!(read("a").await.json()["value"], json!([7, 8]));
    ask("a", "append", json!({"item": 9, "initial": ["ignored"]})).await;
    assert_eq!(read("a").await.json()["value"], json!([7, 8, 9]));
    let first = ask("b", "removeFirst", json!({"initial": [1, 2]})).await;
    assert_eq!(first, json!({"found": true, "item": 1, "revision": 1}));
    assert_eq!(ask("c", "increment", json!({"by": 2, "initial": 40})).await["value"], 42);
    ask("d", "merge", json!({"fields": {"b": 2}, "initial": {"a": 1}})).await;
    assert_eq!(read("d").await.json()["value"], json!({"a": 1, "b": 2}));
    assert_eq!(site.delete(&slot("e")).await.status, 204, "a delete before the first write");
    read("e").await.is(404, "noSlot");
    assert_eq!(ask("e", "increment", json!({"initial": 40})).await, json!({"value": 1, "revision": 2}));
    let wrong = site.get(&format!("{}?initial=new", slot("a"))).await.is(422, "invalid");
    assert!(wrong["detail"].as_str().unwrap().contains("quotation marks"), "{wrong}");
    site.post(&format!("{}/append", slot("a")), &json!({"item": 1, "initial": 5})).await.is(400, "badBody");
}

/// C3, C5: conditional writes compare revisions, and a deleted slot has no value.
#[tokio::test]
async fn slot_is_set_and_deleted_conditionally() {
    let site = Site::open().await;
    let path = "/v1/state/workflow/order/total";
    site.get(path).await.is(404, "noSlot");
    let set = async |name: &str, tag: &str, value: i64| {
        site.ask(put(path).header(name, tag).json(&json!({"value": value}))).await
    };
    let made = set("if-none-match", "*", 1).await;
    assert_eq!((made.status.as_u16(), made.json()), (201, json!({"revision": 1, "created": true})));
    let there = set("if-none-match", "*", 2).await.is(412, "revisionConflict");
    assert_eq!(there["params"], json!({"revision": 1, "exists": true}));
    assert_eq!(set("if-match", "\"1\"", 2).await.json(), json!({"revision": 2, "created": false}));
    set("if-match", "\"1\"", 3).await.is(412, "revisionConflict");
    site.ask(delete(path).header("if-match", "\"1\"")).await.is(412, "revisionConflict");
    assert_eq!(site.ask(delete(path).header("if-match", "\"2\"")).await.status, 204);
    site.get(path).await.is(404, "noSlot");
    // The tombstone has a new revision, so a write that names the revision of the deleted value conflicts.
    set("if-match", "\"2\"", 3).await.is(412, "revisionConflict");
    assert_eq!(site.put(path, &json!({"value": null})).await.json(), json!({"revision": 4, "created": true}));
    assert_eq!(site.get(path).await.json()["value"], Value::Null);
}

/// C4: the operations on slots: increment, merge, append, and removing the first or last item.
#[tokio::test]
async fn slot_operations_apply_to_the_current_value() {
    let site = Site::open().await;
    let does = async |slot: &str, operation: &str, body: Value| {
        site.post(&format!("/v1/state/workflow/order/{slot}/{operation}"), &body).await
    };
    let value = async |slot: &str| {
        site.get(&format!("/v1/state/workflow/order/{slot}")).await.json()["value"].clone()
    };
    let bare = site.ask(post("/v1/state/workflow/order/n/increment")).await;
    assert_eq!(bare.json(), json!({"value": 1, "revision": 1}));
    assert_eq!(does("n", "increment", json!({"by": 1.5})).await.json()["value"], 2.5);
    assert_eq!(does("o", "merge", json!({"fields": {"a": {"x": 1}, "b": 1}})).await.json()["created"], true);
    does("o", "merge", json!({"fields": {"a": {"y": 2}}})).await;
    assert_eq!(value("o").await, json!({"a": {"y": 2}, "b": 1}), "the merge is shallow");
    for item in [json!(1), Value::Null, json!(3)] {
        assert_eq!(does("l", "append", json!({"item": item})).await.status, 200);
    }
    let take = async |operation: &str| {
        site.ask(post(&format!("/v1/state/workflow/order/l/{operation}"))).await.json()
    };
    assert_eq!(take("removeFirst").await, json!({"found": true, "item": 1, "revision": 4}));
    assert_eq!(take("removeLast").await, json!({"found": true, "item": 3, "revision": 5}));
    assert_eq!(take("removeLast").await, json!({"found": true, "item": null, "revision": 6}));
    assert_eq!(take("removeFirst").await, json!({"found": false, "revision": 7}));

    for (slot, operation, body) in [
        ("o", "increment", json!({})),
        ("n", "merge", json!({"fields": {}})),
        ("o", "append", json!({"item": 1})),
    ] {
        let wrong = does(slot, operation, body).await.is(422, "invalid");
        assert!(wrong["detail"].as_str().unwrap().contains("of `order`"), "{wrong}");
    }
    does("o", "merge", json!({"fields": [1]})).await.is(400, "badBody");
    does("l", "append", json!({})).await.is(400, "badBody");
    does("l", "prepend", json!({"item": 1})).await.is(404, "notFound");
    site.get(&format!("/v1/state/workflow/order/{}", "x".repeat(257))).await.is(400, "badParameter");
}

#[tokio::test]
async fn same_idempotency_key_applies_an_operation_once() {
    let site = Site::open().await;
    let ask = |item: i64| {
        post("/v1/state/workflow/order/l/append")
            .header("idempotency-key", "a-1")
            .json(&json!({"item": item}))
    };
    let (first, again) = (site.ask(ask(1)).await, site.ask(ask(1)).await);
    assert_eq!((&first.body, first.header("idempotency-replayed")), (&again.body, ""));
    assert_eq!(again.header("idempotency-replayed"), "true");
    site.ask(ask(2)).await.is(422, "keyReused");
    assert_eq!(site.get("/v1/state/workflow/order/l").await.json()["value"], json!([1]));
}

#[tokio::test]
async fn slots_are_listed_by_prefix_in_pages() {
    let site = Site::open().await;
    for key in ["a1", "a2", "b1"] {
        site.put(&format!("/v1/state/workflow/order/{key}"), &json!({"value": key})).await;
    }
    let first = site.get("/v1/state/workflow/order?prefix=a&limit=1").await.json();
    assert_eq!((&first["items"][0]["key"], first["items"].as_array().unwrap().len()), (&json!("a1"), 1));
    let next = first["nextCursor"].as_str().unwrap();
    let rest = site.get(&format!("/v1/state/workflow/order?prefix=a&limit=5&cursor={next}")).await.json();
    assert_eq!((&rest["items"][0]["key"], rest.get("nextCursor")), (&json!("a2"), None));
    site.get("/v1/state/workflow/order?limit=0").await.is(400, "badParameter");
}

#[tokio::test]
async fn slot_watch_resumes_after_a_disconnect() {
    let (site, run, child) = with_run().await;
    let watch = || get(&format!("/v1/state/execution/{child}/total/watch")).by(&site.ours);
    let mut events = watch().events(&site.router).await;
    let change = |id: u64, data: Value| Some((Some(id), "change".to_owned(), data));
    assert_eq!(events.next().await, change(1, json!({"found": true, "value": 7, "revision": 1})));
    let path = format!("/v1/state/execution/{run}/total");
    site.put(&path, &json!({"value": 8})).await;
    let second = json!({"found": true, "value": 8, "previous": 7, "revision": 2});
    assert_eq!(events.next().await, change(2, second));
    let mut later = watch().header("last-event-id", "2").events(&site.router).await;
    site.delete(&path).await;
    let gone = json!({"found": false, "previous": 8, "revision": 3});
    assert_eq!(events.next().await, change(3, gone));
    let (id, _, data) = later.next().await.unwrap();
    assert_eq!((id, &data["found"]), (Some(3), &json!(false)), "a change is not sent twice");
}

/// The engine keeps API keys, catalogues and revoked tokens in reserved slots.
#[tokio::test]
async fn engine_slots_are_not_reachable() {
    let site = Site::open().await;
    for path in ["/v1/state/workflow/stepwell.apikeys", "/v1/state/workflow/stepwell.apikeys/x"] {
        site.get(path).await.is(422, "invalid");
    }
    let path = "/v1/state/workflow/stepwell.apikeys/x";
    site.put(path, &json!({"value": 1})).await.is(422, "invalid");
    site.delete(path).await.is(422, "invalid");
    site.ask(post(&format!("{path}/increment"))).await.is(422, "invalid");
    site.get(&format!("{path}/watch")).await.is(422, "invalid");

    // An event is stored as a run of the engine.
    let theirs = site.engine.for_tenant(TenantScope::single());
    theirs.emit(stepwell::Event::new("PAID")).await.unwrap();
    let own = theirs.runs(RunQuery { limit: 1, ..RunQuery::default() }).await.unwrap().items[0].run;
    let asked = get(&format!("/v1/state/execution/{own}")).by(&site.host).to(&site.router).await;
    asked.is(422, "invalid");
}

/// D11: a tenant's slots are hidden from other tenants.
#[tokio::test]
async fn another_tenant_reaches_nothing() {
    let (site, run, _) = with_run().await;
    site.put("/v1/state/workflow/order/total", &json!({"value": 1})).await;
    site.as_other_tenant(get("/v1/state/workflow/order/total")).await.is(404, "noSlot");
    assert_eq!(site.as_other_tenant(get("/v1/state/workflow/order")).await.json(), json!({"items": []}));
    for path in ["", "/total", "/total/watch"] {
        site.as_other_tenant(get(&format!("/v1/state/execution/{run}{path}"))).await.is(404, "noRun");
    }
    let set = put(&format!("/v1/state/execution/{run}/total")).json(&json!({"value": 0}));
    site.as_other_tenant(set).await.is(404, "noRun");
    assert_eq!(site.get(&format!("/v1/state/execution/{run}/total")).await.json()["value"], 7);
}
