//! Planted bugs of the store: skipped checks, and an acknowledgement sent too early.

use std::sync::Arc;

use stepwell_store::plan::{advance, new_row};
use stepwell_store::{Commit, Committed, MemoryStore, Store, TenantScope};

use super::faults::Plant;
use super::tasks::Owner;
use super::world::{World, at_once};

/// Returns a commit as a store with the planted bug would treat it.
pub(crate) fn twist(
    plant: Option<Plant>,
    memory: &MemoryStore,
    scope: TenantScope,
    mut commit: Commit,
) -> Commit {
    let Some(step) = &mut commit.step else { return commit };
    let Ok(Some(loaded)) = at_once(memory.load(scope, step.head.run)) else { return commit };
    match plant {
        Some(Plant::NoFence) if step.fence.is_some_and(|fence| fence != loaded.head.fence) => {
            step.fence = None;
            step.head.revision = loaded.head.revision;
        }
        Some(Plant::NoVersionCheck) => step.head.revision = loaded.head.revision,
        _ => {}
    }
    commit
}

/// Acknowledges a commit at once and applies it later in a task of the process, so that it is lost if the process dies.
pub(crate) fn answer_early(
    world: &Arc<World>,
    process: usize,
    scope: TenantScope,
    commit: Commit,
    pause_us: u64,
) -> Committed {
    let head = commit.step.as_ref().map(|step| advance(step, &step.next).0);
    let created =
        commit.create.iter().map(|new| new_row(new, commit.at).0.head(new.first.state.clone())).collect();
    let (later, issued) = (world.clone(), world.now());
    world.board.spawn(
        Owner::Process(process),
        Box::pin(async move {
            later.sleep(pause_us).await;
            // The result is not reported: the commit was acknowledged already.
            let _ = later.apply(process, issued, scope, commit);
        }),
    );
    Committed { head, created, results: Vec::new(), sent: Vec::new() }
}
