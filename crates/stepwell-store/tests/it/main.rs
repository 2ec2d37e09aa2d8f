//! The suite on the stores of this crate, and the decorators' own tests.

use stepwell_store::suite::{Fresh, script};
use stepwell_store::{MemoryStore, Traced};

async fn memory_store() -> Fresh {
    Fresh::new(MemoryStore::new())
}

async fn traced_store() -> Fresh {
    Fresh::new(Traced::new(MemoryStore::new()))
}

stepwell_store::conformance!(memory, memory_store);
stepwell_store::conformance!(traced, traced_store);

#[test]
fn scripts_meet_every_kind_of_answer() {
    let tally = script::differential(300, memory_store, memory_store);
    let expected = [
        "Applied",
        "Cell",
        "Done",
        "Fenced",
        "Fill",
        "KeyReused",
        "Moved",
        "NoMessage",
        "NoRun",
        "NoTarget",
        "RunExists",
    ];
    eprintln!("{tally:?}");
    for name in expected {
        assert!(tally.get(name).is_some_and(|count| *count >= 10), "{name} is rare: {tally:?}");
    }
}
