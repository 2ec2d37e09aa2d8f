//! Cases about hints: a subscriber gets every hint, or learns that some were missed.

use std::time::Duration;

use super::Shared;
use super::ask::{apply, load, moved, started};
use super::make::{
    ME, Make, at, attempt, cell, due_run, end, increment, new_run, process, put, run, step, tenant, to,
};
use crate::commit::{Commit, NewRun, Ownership, RunUpdate};
use crate::hints::{Hint, Hints};

/// Maximum time until a hint arrives. A successful test does not wait that long.
const SOON: Duration = Duration::from_secs(60);

/// Waits for this hint, or for the notice that hints were missed.
async fn hinted(hints: &mut Hints, expected: &Hint) {
    let heard = async {
        loop {
            match hints.next().await {
                None => panic!("the subscription ended although the store is open"),
                Some(Hint::Missed) => return,
                Some(hint) if hint == *expected => return,
                Some(_) => {}
            }
        }
    };
    let hinted = tokio::time::timeout(SOON, heard).await;
    assert!(hinted.is_ok(), "no hint arrived: {expected:?}");
}

/// Checks that no hint about this run was sent. A cell is written, and only the hints before its hint are checked.
async fn not_hinted(store: &Shared, make: &Make, hints: &mut Hints, number: u128) {
    apply(store, make.write([increment("now", 1)])).await;
    let heard = async {
        loop {
            match hints.next().await {
                None => panic!("the subscription ended although the store is open"),
                Some(Hint::Run(hinted)) => assert_ne!(hinted.run, run(number), "unexpected hint"),
                Some(Hint::Missed) => return,
                Some(Hint::Cell(_, key)) if key == cell("now") => return,
                Some(Hint::Cell(..) | Hint::Processes) => {}
            }
        }
    };
    assert!(tokio::time::timeout(SOON, heard).await.is_ok(), "no hint about the cell arrived");
}

/// Builds a run that process 1 owns.
fn owned(number: u128) -> NewRun {
    NewRun { owner: Some(process(1)), ..due_run(run(number), 0) }
}

cases! { hinted as __suite_hinted;
    /// B9: a commit that gives a run work to do sends a hint.
    async fn a_commit_that_makes_a_run_due_sends_a_hint(store: &Shared) {
        let make = Make::new();
        let hint = |number| Hint::Run(ME.run(run(number)));
        let mut hints = store.hints();
        started(store, make.create(due_run(run(1), 0))).await;
        hinted(&mut hints, &hint(1)).await;
        let head = started(store, make.create(new_run(run(2)))).await;
        let released = RunUpdate { wake: Some(at(0)), owner: Ownership::Release, ..attempt(&head, None) };
        apply(store, make.step(released)).await;
        hinted(&mut hints, &hint(2)).await;
        started(store, make.create(new_run(run(3)))).await;
        apply(store, make.send([to(run(3), "hello")])).await;
        hinted(&mut hints, &hint(3)).await;
        let child = Commit { send: vec![to(run(4), "hello")], ..make.create(new_run(run(4))) };
        apply(store, child).await;
        hinted(&mut hints, &hint(4)).await;
    }

    /// B15: any process may decide a step. The owner gets a hint about steps by others, but needs none about its own.
    async fn an_owner_gets_hints_about_steps_by_others(store: &Shared) {
        let make = Make::new();
        let hint = Hint::Run(ME.run(run(1)));
        let mut hints = store.hints();
        let head = started(store, make.create(owned(1))).await;
        not_hinted(store, &make, &mut hints, 1).await;
        let head = moved(store, make.step(RunUpdate { wake: None, ..step(&head, "by another") })).await;
        hinted(&mut hints, &hint).await;
        let documents = vec![put(run(1), "k", "planned, not plain")];
        let head = moved(store, Commit { documents, ..make.step(step(&head, "by another")) }).await;
        hinted(&mut hints, &hint).await;
        let head = moved(store, make.step(attempt(&head, Some("suspended by another")))).await;
        hinted(&mut hints, &hint).await;
        let over = RunUpdate { owner: Ownership::Take(process(2)), ..step(&head, "taken over") };
        let head = moved(store, make.step(over)).await;
        hinted(&mut hints, &hint).await;
        moved(store, make.step(RunUpdate { owner: Ownership::Keep, ..end(&head) })).await;
        hinted(&mut hints, &hint).await;
    }

    /// The owner's own steps are the hot path. They send no hint, due or not, plain or planned.
    async fn an_owners_own_steps_send_no_hint(store: &Shared) {
        let make = Make::new();
        let mut head = started(store, make.create(owned(1))).await;
        let mut hints = store.hints();
        let fence = Some(head.fence);
        for wake in [Some(at(0)), None, Some(at(0))] {
            let own = |step: RunUpdate| RunUpdate { fence, wake, ..step };
            head = moved(store, make.step(own(step(&head, "plain")))).await;
            let documents = vec![put(run(1), "k", "planned")];
            head = moved(store, Commit { documents, ..make.step(own(step(&head, "planned"))) }).await;
            head = moved(store, make.step(own(attempt(&head, Some("tried"))))).await;
        }
        let born = Commit { create: vec![owned(2), owned(3)], ..make.step(RunUpdate { fence, ..step(&head, "on") }) };
        apply(store, born).await;
        not_hinted(store, &make, &mut hints, 1).await;
        let child = load(store, run(2)).await.head;
        let ended = RunUpdate { fence: Some(child.fence), ..end(&child) };
        apply(store, make.step(ended)).await;
        not_hinted(store, &make, &mut hints, 2).await;
    }

    /// B9, B10: a message for an owned run sends a hint to the owner.
    async fn an_owner_gets_hints_about_messages(store: &Shared) {
        let make = Make::new();
        let hint = |number| Hint::Run(ME.run(run(number)));
        let head = started(store, make.create(owned(1))).await;
        started(store, make.create(NewRun { wake: None, ..owned(2) })).await;
        let mut hints = store.hints();
        apply(store, make.send([to(run(2), "hello")])).await;
        hinted(&mut hints, &hint(2)).await;
        let own = RunUpdate { fence: Some(head.fence), ..step(&head, "on") };
        let commit = Commit { send: vec![to(run(1), "note to self"), to(run(2), "hello")], ..make.step(own) };
        apply(store, commit).await;
        hinted(&mut hints, &hint(1)).await;
        hinted(&mut hints, &hint(2)).await;
    }

    /// B10: the owner releases the run without having seen a message. A hint lets another process claim it.
    async fn a_run_released_with_an_unseen_message_sends_a_hint(store: &Shared) {
        let make = Make::new();
        let mut hints = store.hints();
        for (number, with_message) in [(1, true), (2, false)] {
            let head = started(store, make.create(owned(number))).await;
            if with_message {
                apply(store, make.send([to(run(number), "hello")])).await;
                hinted(&mut hints, &Hint::Run(ME.run(run(number)))).await;
            }
            let release = RunUpdate { fence: Some(head.fence), wake: None, owner: Ownership::Release, ..step(&head, "rest") };
            apply(store, make.step(release)).await;
            if with_message {
                hinted(&mut hints, &Hint::Run(ME.run(run(number)))).await;
            } else {
                not_hinted(store, &make, &mut hints, number).await;
            }
        }
    }

    /// C6: a write to a cell sends a hint to its watchers.
    async fn a_cell_write_sends_a_hint(store: &Shared) {
        let make = Make::new();
        let mut hints = store.hints();
        for key in ["a", "b"] {
            apply(store, make.write([increment(key, 1)])).await;
            hinted(&mut hints, &Hint::Cell(ME.tenant(), cell(key))).await;
        }
    }

    /// Every subscriber gets the hint, and the hint names the tenant.
    async fn every_subscriber_gets_the_tenant_of_a_run(store: &Shared) {
        let make = Make::new();
        let mut listeners = [store.hints(), store.hints()];
        store.commit(tenant(2), make.create(due_run(run(1), 0))).await.unwrap();
        for hints in &mut listeners {
            hinted(hints, &Hint::Run(tenant(2).run(run(1)))).await;
        }
    }
}
