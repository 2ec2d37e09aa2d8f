//! Runs the conformance suite on the stores of this crate, and tests the wrappers, cells and random scripts.

mod cell;
mod faulty;
mod scripts;

use stepwell_store::suite::Fresh;
use stepwell_store::{Faulty, MemoryStore, Traced};

async fn memory_store() -> Fresh {
    Fresh::new(MemoryStore::new())
}

async fn traced_store() -> Fresh {
    Fresh::new(Traced::new(MemoryStore::new()))
}

async fn faultless_store() -> Fresh {
    Fresh::new(Faulty::new(memory_store().await.store().clone(), []))
}

stepwell_store::conformance!(memory, memory_store);
stepwell_store::conformance!(traced, traced_store);
stepwell_store::conformance!(faultless, faultless_store);
