//! Tests of the random scripts: they cover every kind of answer, and they detect differences.

use std::panic::catch_unwind;

use stepwell_core::Limits;
use stepwell_store::MemoryStore;
use stepwell_store::suite::{Fresh, script};

use crate::{memory_store, traced_store};

#[test]
fn scripts_cover_every_kind_of_answer() {
    let tally = script::differential(260, memory_store, traced_store);
    let kinds = [
        "Applied",
        "Cell",
        "Document",
        "Done",
        "Fenced",
        "ResultBinding",
        "Forgotten",
        "Handle",
        "KeyReused",
        "Link",
        "Moved",
        "NoCheckpoint",
        "NoMessage",
        "NoRun",
        "NoTarget",
        "Over",
        "RunExists",
        "Sealed",
    ];
    for kind in kinds {
        assert!(tally.get(kind).is_some_and(|count| *count >= 10), "{kind} is rare: {tally:?}");
    }
}

#[test]
fn scripts_detect_a_store_that_answers_differently() {
    async fn with_a_small_inbox() -> Fresh {
        Fresh::new(MemoryStore::with_limits(Limits { inbox: 2, ..Limits::default() }))
    }
    let difference =
        catch_unwind(|| script::differential(200, memory_store, with_a_small_inbox)).unwrap_err();
    let text = difference.downcast_ref::<String>().expect("a panic with a message");
    assert!(text.contains("STEPWELL_SEED") && text.contains("InboxFull"), "{text}");
}

#[test]
fn scripts_detect_different_final_states() {
    async fn with_a_run_too_many() -> Fresh {
        let fresh = memory_store().await;
        let commit = stepwell_store::suite::make::Make::new();
        let new = stepwell_store::suite::make::new_run(stepwell_store::suite::make::run(77));
        let scope = stepwell_store::suite::make::ME;
        fresh.store().commit(scope, commit.create(new)).await.unwrap();
        fresh
    }
    assert!(catch_unwind(|| script::differential(1, memory_store, with_a_run_too_many)).is_err());
}
