//! Cases about hints: whoever listens is told, or told that something was missed.

use std::time::Duration;

use super::Shared;
use super::ask::{apply, load, moved, started};
use super::make::{
    ME, Make, at, attempt, cell, due_run, end, increment, new_run, process, put, run, step, tenant, to,
};
use crate::commit::{Commit, NewRun, Ownership, Step};
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

/// Waits for a hint that is given now, and makes sure that none of this run came before it.
async fn not_told(store: &Shared, make: &Make, hints: &mut Hints, number: u128) {
    apply(store, make.write([increment("now", 1)])).await;
    let heard = async {
        loop {
            match hints.next().await {
                None => panic!("the store is open and says that it is closed"),
                Some(Hint::Run(told)) => assert_ne!(told.run, run(number), "there was nothing to tell"),
                Some(Hint::Missed) => return,
                Some(Hint::Cell(_, key)) if key == cell("now") => return,
                Some(Hint::Cell(..) | Hint::Processes) => {}
            }
        }
    };
    assert!(tokio::time::timeout(SOON, heard).await.is_ok(), "nobody was told of a write to a cell");
}

/// A run that this process owns.
fn owned(number: u128) -> NewRun {
    NewRun { owner: Some(process(1)), ..due_run(run(number), 0) }
}

cases! { hinted as __suite_hinted;
    /// B9: who waits for work hears of a run that has something to do.
    async fn a_commit_that_makes_a_run_runnable_is_told(store: &Shared) {
        let make = Make::new();
        let hint = |number| Hint::Run(ME.run(run(number)));
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

    /// B15: anyone may decide, and the owner hears of it: of its own steps it need not hear.
    async fn an_owner_is_told_of_what_others_did_to_its_run(store: &Shared) {
        let make = Make::new();
        let hint = Hint::Run(ME.run(run(1)));
        let mut hints = store.hints();
        let head = started(store, make.create(owned(1))).await;
        not_told(store, &make, &mut hints, 1).await;
        let head = moved(store, make.step(Step { wake: None, ..step(&head, "by another") })).await;
        told(&mut hints, &hint).await;
        let documents = vec![put(run(1), "k", "planned, not plain")];
        let head = moved(store, Commit { documents, ..make.step(step(&head, "by another")) }).await;
        told(&mut hints, &hint).await;
        let head = moved(store, make.step(attempt(&head, Some("suspended by another")))).await;
        told(&mut hints, &hint).await;
        let over = Step { owner: Ownership::Take(process(2)), ..step(&head, "taken over") };
        let head = moved(store, make.step(over)).await;
        told(&mut hints, &hint).await;
        moved(store, make.step(Step { owner: Ownership::Keep, ..end(&head) })).await;
        told(&mut hints, &hint).await;
    }

    /// The owner's own steps are the hot path: nobody is told of them, due or not, plain or planned.
    async fn nobody_is_told_of_an_owners_own_steps(store: &Shared) {
        let make = Make::new();
        let mut head = started(store, make.create(owned(1))).await;
        let mut hints = store.hints();
        let fence = Some(head.fence);
        for wake in [Some(at(0)), None, Some(at(0))] {
            let own = |step: Step| Step { fence, wake, ..step };
            head = moved(store, make.step(own(step(&head, "plain")))).await;
            let documents = vec![put(run(1), "k", "planned")];
            head = moved(store, Commit { documents, ..make.step(own(step(&head, "planned"))) }).await;
            head = moved(store, make.step(own(attempt(&head, Some("tried"))))).await;
        }
        let born = Commit { create: vec![owned(2), owned(3)], ..make.step(Step { fence, ..step(&head, "on") }) };
        apply(store, born).await;
        not_told(store, &make, &mut hints, 1).await;
        let child = load(store, run(2)).await.head;
        let ended = Step { fence: Some(child.fence), ..end(&child) };
        apply(store, make.step(ended)).await;
        not_told(store, &make, &mut hints, 2).await;
    }

    /// B9, B10: a message for a run that is being worked on is the owner's to look at.
    async fn an_owner_is_told_of_messages(store: &Shared) {
        let make = Make::new();
        let hint = |number| Hint::Run(ME.run(run(number)));
        let head = started(store, make.create(owned(1))).await;
        started(store, make.create(NewRun { wake: None, ..owned(2) })).await;
        let mut hints = store.hints();
        apply(store, make.send([to(run(2), "hello")])).await;
        told(&mut hints, &hint(2)).await;
        let own = Step { fence: Some(head.fence), ..step(&head, "on") };
        let commit = Commit { send: vec![to(run(1), "note to self"), to(run(2), "hello")], ..make.step(own) };
        apply(store, commit).await;
        told(&mut hints, &hint(1)).await;
        told(&mut hints, &hint(2)).await;
    }

    /// B10: the owner gives the run up and does not know of a message that came meanwhile: whoever takes runs is told.
    async fn a_run_given_up_with_a_message_nobody_saw_is_told(store: &Shared) {
        let make = Make::new();
        let mut hints = store.hints();
        for (number, with_message) in [(1, true), (2, false)] {
            let head = started(store, make.create(owned(number))).await;
            if with_message {
                apply(store, make.send([to(run(number), "hello")])).await;
                told(&mut hints, &Hint::Run(ME.run(run(number)))).await;
            }
            let rest = Step { fence: Some(head.fence), wake: None, owner: Ownership::Release, ..step(&head, "rest") };
            apply(store, make.step(rest)).await;
            if with_message {
                told(&mut hints, &Hint::Run(ME.run(run(number)))).await;
            } else {
                not_told(store, &make, &mut hints, number).await;
            }
        }
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
            told(hints, &Hint::Run(tenant(2).run(run(1)))).await;
        }
    }
}
