//! Data that outlives a run, with built-in actions: an invoice that is dunned once, a counter whose new value the next
//! step uses, and a cursor from which a later run continues.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use serde_json::{Value, json};
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, Spec};
use stepwell::data::KeyList;
use stepwell::store::MemoryStore;
use stepwell::{ActionError, Cx, Engine, RunError, Start};

/// Sends a reminder unless one was already sent: `if_revision: 0` allows the write only while the key has no value.
fn dunning() -> Result<Definition, Box<dyn std::error::Error>> {
    let key = json!({ "$expr": "context.invoice" });
    let mark = json!({ "namespace": "invoice-dunning-sent", "key": key, "value": true, "if_revision": 0 });
    let mark =
        Transition::new("mark", "new", "marked").action("store.set").input(mark).error_place("sent_before");
    let count = json!({ "namespace": "dunning", "key": "sent" });
    let count =
        Transition::new("count", "marked", "sent").action("store.increment").input(count).save_as("count");
    let number = json!({ "number": { "$expr": "context.count.value" } });
    let spec = Spec::new("dunning")
        .initial("new")
        .step("new")
        .step("marked")
        .end_with("sent", number)
        .end("sent_before");
    Ok(spec.transition(mark).transition(count).build()?)
}

/// Fetches what is new since the last run and stores the position.
fn synchronize() -> Result<Definition, Box<dyn std::error::Error>> {
    let source = json!({ "$expr": "context.source" });
    let look = json!({ "namespace": "sync-cursor", "key": source });
    let look = Transition::new("look", "begun", "known").action("store.get").input(look).save_as("cursor");
    let fetch = Transition::new("fetch", "known", "fetched").action("fetch").save_as("seen");
    let seen = json!({ "$expr": "context.seen" });
    let keep = json!({ "namespace": "sync-cursor", "key": source, "value": seen });
    let keep = Transition::new("keep", "fetched", "done").action("store.set").input(keep);
    let output = json!({ "from": { "$expr": "context.cursor.value" }, "to": { "$expr": "context.seen" } });
    let spec = Spec::new("synchronize").initial("begun").step("begun").step("known").step("fetched");
    Ok(spec.end_with("done", output).transition(look).transition(fetch).transition(keep).build()?)
}

/// Stands for a source with ten new items each time.
async fn fetch(cx: Cx) -> Result<u64, ActionError> {
    let state: Value = cx.state()?;
    Ok(state["cursor"]["value"].as_u64().unwrap_or_default() + 10)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::builder(Arc::new(MemoryStore::new()))
        .workflow(dunning()?)
        .workflow(synchronize()?)
        .action("fetch", fetch)
        .start()
        .await?;
    let run = async |workflow: &'static str, input: Value| -> Result<Value, RunError> {
        engine.start(Start::new(workflow).input(&input)).await?.result().await
    };

    assert_eq!(run("dunning", json!({ "invoice": "2031" })).await?, json!({ "number": 1 }));
    assert_eq!(run("dunning", json!({ "invoice": "2031" })).await?, Value::Null, "it was already sent");
    assert_eq!(run("dunning", json!({ "invoice": "2032" })).await?, json!({ "number": 2 }));

    assert_eq!(run("synchronize", json!({ "source": "crm" })).await?, json!({ "from": null, "to": 10 }));
    assert_eq!(run("synchronize", json!({ "source": "crm" })).await?, json!({ "from": 10, "to": 20 }));

    for namespace in engine.kv_namespaces(None, None).await?.items {
        let keys = engine.kv(&namespace.namespace).list(KeyList::default()).await?;
        let keys: Vec<_> =
            keys.items.iter().map(|entry| format!("{} = {}", entry.key, entry.value)).collect();
        println!("{}: {}", namespace.namespace, keys.join(", "));
    }
    Ok(())
}
