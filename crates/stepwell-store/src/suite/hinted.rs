//! Cases about hints: whoever listens is told, or told that something was missed.

use std::time::Duration;

use super::Shared;
use super::ask::{apply, started};
use super::make::{ME, Make, at, attempt, cell, due_run, increment, new_run, run, tenant, to};
use crate::commit::{Commit, Ownership, Step};
use crate::hints::{Hint, Hints};

/// How long a hint may take. It only passes when the test fails.
const SOON: Duration = Duration::from_secs(10);

/// Waits until the listener is told of this, or that it missed something.
async fn told(hints: &mut Hints, expected: &Hint) {
    let heard = async {
        loop {
            match hints.next().await {
                None => panic!("the store is open and says that it is closed"),
                Some(Hint::Missed) => return,
                Some(hint) if hint == *expected => return,
                Some(_) => {}
            }
        }
    };
    let told = tokio::time::timeout(SOON, heard).await;
    assert!(told.is_ok(), "nobody was told of {expected:?}");
}

cases! { hinted as __suite_hinted;
    /// B9: who waits for work hears of a run that has something to do.
    async fn a_commit_that_makes_a_run_runnable_is_told(store: &Shared) {
        let make = Make::new();
        let hint = |number| Hint::Run(ME.tenant(), run(number));
        let mut hints = store.hints();
        started(store, make.create(due_run(run(1), 0))).await;
        told(&mut hints, &hint(1)).await;
        let head = started(store, make.create(new_run(run(2)))).await;
        let released = Step { wake: Some(at(0)), owner: Ownership::Release, ..attempt(&head, None) };
        apply(store, make.step(released)).await;
        told(&mut hints, &hint(2)).await;
        started(store, make.create(new_run(run(3)))).await;
        apply(store, make.send([to(run(3), "hello")])).await;
        told(&mut hints, &hint(3)).await;
        let child = Commit { send: vec![to(run(4), "hello")], ..make.create(new_run(run(4))) };
        apply(store, child).await;
        told(&mut hints, &hint(4)).await;
    }

    /// C6: who watches a cell hears of its changes.
    async fn a_write_to_a_cell_is_told(store: &Shared) {
        let make = Make::new();
        let mut hints = store.hints();
        for key in ["a", "b"] {
            apply(store, make.write([increment(key, 1)])).await;
            told(&mut hints, &Hint::Cell(ME.tenant(), cell(key))).await;
        }
    }

    /// Every listener is told, and a hint names its tenant.
    async fn every_listener_is_told_whose_run_it_is(store: &Shared) {
        let make = Make::new();
        let mut listeners = [store.hints(), store.hints()];
        store.commit(tenant(2), make.create(due_run(run(1), 0))).await.unwrap();
        for hints in &mut listeners {
            told(hints, &Hint::Run(tenant(2).tenant(), run(1))).await;
        }
    }
}
