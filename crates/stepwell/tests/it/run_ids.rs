//! Abbreviated run ids: what a beginning of an id selects, and how short it can be.

use serde_json::json;
use stepwell::core::{Definition, RunId, Spec};
use stepwell::testing::TestEngine;
use stepwell::{EngineError, Start};
use uuid::Uuid;

use crate::kit::{other_tenant, start};

fn nap() -> Definition {
    let spec = Spec::new("nap").step("here").end("done").signal("GO");
    spec.on_signal("go", "here", "GO", "done").initial("here").build().unwrap()
}

/// Starts runs with these ids.
async fn with_runs(ids: &[&str]) -> (TestEngine, Vec<RunId>) {
    let engine = start(|builder| builder.workflow(nap())).await.unwrap();
    let ids: Vec<_> = ids.iter().map(|id| RunId::new(Uuid::parse_str(id).unwrap())).collect();
    for id in &ids {
        engine.start(Start::new("nap").input(&json!({})).id(*id)).await.unwrap();
    }
    (engine, ids)
}

const IDS: [&str; 5] = [
    "01a1e88c-0000-7000-8000-000000000001",
    "01a1e88c-0000-7000-8000-0000000000ff",
    "01a1e88c-1000-7000-8000-000000000001",
    "01a1e99c-0000-7000-8000-000000000001",
    "fffffffe-ffff-ffff-ffff-ffffffffffff",
];

#[tokio::test]
async fn runs_are_found_by_the_beginning_of_their_id() {
    let (engine, ids) = with_runs(&IDS).await;
    let found = async |prefix: &str, limit: u32| {
        let page = engine.runs_by_prefix(prefix, limit).await.unwrap();
        assert_eq!(page.next, None);
        page.items.iter().map(|row| row.run).collect::<Vec<_>>()
    };
    assert_eq!(found("01a1e88c-0", 10).await, [ids[1], ids[0]], "newest first");
    assert_eq!(found("01A1E88C", 2).await, [ids[2], ids[1]]);
    assert_eq!(found(IDS[3], 10).await, [ids[3]]);
    assert_eq!(found("f", 10).await, [ids[4]]);
    assert_eq!(found("02", 10).await, []);
    let theirs = engine.for_tenant(other_tenant());
    assert_eq!(theirs.runs_by_prefix("01a1", 10).await.unwrap().items, []);
    assert_eq!(found("01a1e88c1", 10).await, [ids[2]], "without the hyphen");
    for wrong in ["x", "01a1-"] {
        let refused = engine.runs_by_prefix(wrong, 10).await.unwrap_err();
        assert!(matches!(refused, EngineError::Store(_)), "{refused}");
        assert!(refused.to_string().contains(wrong), "{refused}");
    }
}

#[tokio::test]
async fn the_shortest_unique_beginning_is_unique_in_the_tenant() {
    let (engine, ids) = with_runs(&IDS).await;
    let short = engine.short_run_ids(&ids).await.unwrap();
    assert_eq!(
        short,
        [IDS[0], IDS[1], "01a1e88c-1", "01a1e99c", "fffffffe"].map(|id| match id.len() {
            36 => &id[..35],
            _ => id,
        })
    );
    // The other runs count, although they are not asked for.
    assert_eq!(engine.short_run_ids(&ids[2..3]).await.unwrap(), ["01a1e88c-1"]);
    for (short, id) in short.iter().zip(&ids) {
        let found = engine.runs_by_prefix(short, 10).await.unwrap();
        assert_eq!(found.items.iter().map(|row| row.run).collect::<Vec<_>>(), [*id]);
    }
    assert_eq!(engine.short_run_ids(&[]).await.unwrap(), Vec::<String>::new());
}
