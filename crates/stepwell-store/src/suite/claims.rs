//! Cases about work: who may take which run, and how a dead process's runs find a new owner.

use std::collections::BTreeSet;

use stepwell_core::Timestamp;
use tokio::task::JoinSet;

use super::Shared;
use super::ask::{all_history, apply, claim, claimed, load, moved, refuse, started, taken};
use super::make::{
    ME, Make, at, attempt, bytes, definition, due_run, end, new_run, process, run, step, tenant, to,
};
use crate::commit::{Commit, NewRun, Ownership, Refused, Step};
use crate::run::{Head, Loaded, ProcessId, Status};
use crate::store::{Beat, Claim, Due, HistoryQuery};

fn beat(number: u128, seconds: i64) -> Beat {
    Beat { process: process(number), now: at(seconds), lease_ms: 10_000 }
}

async fn dead_at(store: &Shared, number: u128, seconds: i64) -> Vec<ProcessId> {
    let mut dead = store.beat(beat(number, seconds)).await.unwrap().dead;
    dead.sort();
    dead
}

async fn due(store: &Shared, dead: &[ProcessId]) -> Vec<Due> {
    let mut due = store.due(dead.to_vec()).await.unwrap();
    due.sort();
    due
}

cases! { claims as __suite_claims;
    /// B4: whatever is due and belongs to nobody can be taken; the rest cannot.
    async fn only_due_runs_without_an_owner_are_taken(store: &Shared) {
        let make = Make::new();
        started(store, make.create(due_run(run(1), 5))).await;
        started(store, make.create(due_run(run(2), 6))).await;
        started(store, make.create(new_run(run(3)))).await;
        started(store, make.create(NewRun { owner: Some(process(9)), ..due_run(run(4), 0) })).await;
        assert_eq!(taken(store, claim(process(1), 4)).await, []);
        assert_eq!(taken(store, claim(process(1), 5)).await, [run(1)], "due at this very instant");
        assert_eq!(taken(store, claim(process(2), 6)).await, [run(2)], "the first has an owner now");
        assert_eq!(taken(store, claim(process(2), 999)).await, []);
        let head = load(store, run(1)).await.head;
        moved(store, make.step(Step { owner: Ownership::Release, ..attempt(&head, None) })).await;
        assert_eq!(taken(store, claim(process(2), 6)).await, [run(1)], "released, and still due");
        let head = load(store, run(2)).await.head;
        moved(store, make.step(end(&head))).await;
        assert_eq!(taken(store, claim(process(1), 999)).await, [], "an ended run is not work");
    }

    /// B11: a run that has ended may still have something to do, such as telling those below it, and is found for it.
    async fn a_run_that_has_ended_goes_on_with_what_is_left(store: &Shared) {
        let make = Make::new();
        let owned = NewRun { owner: Some(process(1)), ..due_run(run(1), 0) };
        let head = started(store, make.create(owned)).await;
        started(store, make.create(new_run(run(2)))).await;
        let left = Some(bytes("{\"left\":2}"));
        let cancelled = Step { status: Status::Cancelled, wake: Some(at(5)), attempt: left.clone(), ..end(&head) };
        let ended = moved(store, make.step(cancelled)).await;
        assert_eq!((ended.version, ended.status, ended.wake, ended.owner), (1, Status::Cancelled, Some(at(5)), None));
        assert_eq!(due(store, &[]).await, [Due { tenant: ME.tenant(), at: at(5) }]);
        assert_eq!(taken(store, claim(process(1), 4)).await, [], "not yet");
        let loaded = claimed(store, claim(process(1), 5)).await.remove(0);
        assert_eq!((loaded.head.run, &loaded.attempt), (run(1), &left));
        let fence = Some(loaded.head.fence);
        let some = Step { fence, ..attempt(&loaded.head, Some("{\"left\":1}")) };
        let batch = Commit { send: vec![to(run(2), "cancel")], ..make.step(some) };
        let after = moved(store, batch).await;
        assert_eq!((after.version, after.status, after.owner), (1, Status::Cancelled, Some(process(1))));
        let heirs = Claim { dead: vec![process(1)], limit: 1, ..claim(process(2), 5) };
        let loaded = claimed(store, heirs).await.remove(0);
        assert_eq!(loaded.attempt, Some(bytes("{\"left\":1}")), "the one who died had come so far");
        let done = Step { wake: None, owner: Ownership::Release, ..attempt(&loaded.head, None) };
        moved(store, make.step(done)).await;
        assert_eq!(taken(store, claim(process(2), 999)).await, [run(2)], "nothing is left, and the message woke this one");
        let query = HistoryQuery { run: run(1), from: 0, with_state: false, limit: 10 };
        assert_eq!(all_history(store, ME, query).await.len(), 2, "it had no more versions");
    }

    /// B15: a claim is a new owner: fence and revision rise, nothing else moves.
    async fn a_claim_gives_the_run_as_it_is_with_a_new_fence(store: &Shared) {
        let make = Make::new();
        let new = NewRun { attempt: Some(bytes("{}")), ..due_run(run(1), 3) };
        started(store, make.create(new)).await;
        apply(store, make.send([to(run(1), "hello")])).await;
        let before = load(store, run(1)).await;
        let loaded = claimed(store, claim(process(1), 10)).await.remove(0);
        let Head { fence, revision, .. } = before.head;
        let head = Head { owner: Some(process(1)), fence: fence + 1, revision: revision + 1, ..before.head };
        let expected = Loaded { head, ..before };
        assert_eq!(loaded, expected);
        assert_eq!(load(store, run(1)).await, expected);
        let query = HistoryQuery { run: run(1), from: 0, with_state: false, limit: 10 };
        assert_eq!(all_history(store, ME, query).await.len(), 1, "a claim has no history");
        let fence = Some(expected.head.fence);
        moved(store, make.step(Step { fence, take: vec![1], ..step(&expected.head, "done") })).await;
    }

    /// B15: whoever decided before the claim is refused, and so is the result of the owner before.
    async fn a_commit_from_before_the_claim_is_refused(store: &Shared) {
        let make = Make::new();
        let old = started(store, make.create(NewRun { owner: Some(process(1)), ..due_run(run(1), 0) })).await;
        let orphaned = Claim { dead: vec![process(1)], ..claim(process(2), 0) };
        let new = claimed(store, orphaned).await.remove(0).head;
        let late = make.step(step(&old, "decided before"));
        assert_eq!(refuse(store, late).await, Refused::Moved { run: run(1), expected: 1, actual: 2 });
        let result = make.step(Step { fence: Some(old.fence), ..step(&old, "result") });
        assert_eq!(refuse(store, result).await, Refused::Fenced { run: run(1), expected: 1, actual: 2 });
        moved(store, make.step(Step { fence: Some(new.fence), ..step(&new, "mine") })).await;
    }

    async fn claims_go_by_the_time_runs_are_due(store: &Shared) {
        let make = Make::new();
        for (number, seconds) in [(1, 30), (2, 10), (3, 20), (4, 10), (5, 40)] {
            started(store, make.create(due_run(run(number), seconds))).await;
        }
        let two = Claim { limit: 2, ..claim(process(1), 30) };
        assert_eq!(taken(store, Claim { limit: 0, ..two.clone() }).await, []);
        assert_eq!(taken(store, two.clone()).await, [run(2), run(4)], "equals go by id");
        assert_eq!(taken(store, two.clone()).await, [run(3), run(1)]);
        assert_eq!(taken(store, two).await, []);
    }

    /// B20: a process takes only runs whose definition it has.
    async fn claims_go_by_definition(store: &Shared) {
        let make = Make::new();
        for (number, text) in [(1, "one"), (2, "two"), (3, "three")] {
            let new = NewRun { definition: definition(text), ..due_run(run(number), 0) };
            started(store, make.create(NewRun { owner: (number == 3).then(|| process(9)), ..new })).await;
        }
        let knows = |texts: &[&str]| Claim {
            definitions: Some(texts.iter().map(|text| definition(text)).collect()),
            dead: vec![process(9)],
            ..claim(process(1), 0)
        };
        assert_eq!(taken(store, knows(&[])).await, []);
        assert_eq!(taken(store, knows(&["none"])).await, []);
        assert_eq!(taken(store, knows(&["two"])).await, [run(2)]);
        assert_eq!(taken(store, knows(&["two", "three", "none"])).await, [run(3)], "a dead owner's too");
        assert_eq!(taken(store, claim(process(1), 0)).await, [run(1)]);
    }

    /// B4: a dead process's runs are free, due or not, and come first.
    async fn runs_of_the_dead_are_taken_first(store: &Shared) {
        let make = Make::new();
        let owned = |number, owner| NewRun { owner: Some(process(owner)), ..new_run(run(number)) };
        started(store, make.create(due_run(run(1), 0))).await;
        started(store, make.create(owned(2, 8))).await;
        started(store, make.create(owned(3, 7))).await;
        started(store, make.create(NewRun { wake: Some(at(99)), ..owned(4, 8) })).await;
        let heirs = Claim { dead: vec![process(8)], ..claim(process(1), 0) };
        assert_eq!(taken(store, Claim { limit: 1, ..heirs.clone() }).await, [run(2)]);
        assert_eq!(taken(store, heirs.clone()).await, [run(4), run(1)]);
        assert_eq!(taken(store, heirs).await, []);
        assert_eq!(load(store, run(3)).await.head.owner, Some(process(7)), "the living keep theirs");
        let head = load(store, run(4)).await.head;
        assert_eq!((head.owner, head.fence, head.wake), (Some(process(1)), 2, Some(at(99))));
    }

    /// B15: two processes never own the same run.
    async fn concurrent_claims_never_share_a_run(store: &Shared) {
        const RUNS: u128 = 40;
        let make = Make::new();
        for number in 1..=RUNS {
            started(store, make.create(due_run(run(number), 0))).await;
        }
        let mut tasks = JoinSet::new();
        for number in 1..=8 {
            let store = store.clone();
            tasks.spawn(async move {
                let mut mine = Vec::new();
                loop {
                    let more = taken(&store, Claim { limit: 3, ..claim(process(number), 0) }).await;
                    if more.is_empty() {
                        return mine;
                    }
                    mine.extend(more.into_iter().map(|run| (run, process(number))));
                }
            });
        }
        let all: Vec<_> = tasks.join_all().await.concat();
        let runs: BTreeSet<_> = all.iter().map(|(run, _)| *run).collect();
        assert_eq!((all.len() as u128, runs.len() as u128), (RUNS, RUNS));
        for (run, owner) in all {
            let head = load(store, run).await.head;
            assert_eq!((head.owner, head.fence, head.revision), (Some(owner), 1, 2));
        }
    }

    /// A run that is claimed and one that is committed at the same time: one of the two is refused or finds it taken.
    async fn a_claim_and_a_commit_do_not_both_take_a_run(store: &Shared) {
        let make = Make::new();
        for number in 1..=20 {
            let head = started(store, make.create(due_run(run(number), 0))).await;
            let commit = make.step(Step { owner: Ownership::Take(process(1)), ..step(&head, "mine") });
            let (committing, claiming) = (store.clone(), store.clone());
            let committed = tokio::spawn(async move { committing.commit(ME, commit).await });
            let claimed = tokio::spawn(async move { taken(&claiming, claim(process(2), 0)).await });
            let (committed, claimed) = (committed.await.unwrap(), claimed.await.unwrap());
            assert_ne!(committed.is_ok(), !claimed.is_empty(), "run {number}");
            let owner = if committed.is_ok() { process(1) } else { process(2) };
            let head = load(store, run(number)).await.head;
            assert_eq!((head.owner, head.fence, head.revision), (Some(owner), 1, 2));
        }
    }

    /// B4: who has work is known without looking into anyone's data.
    async fn due_says_when_each_tenant_has_work(store: &Shared) {
        let make = Make::new();
        assert_eq!(due(store, &[]).await, []);
        let create = async |scope, new| {
            store.commit(scope, make.create(new)).await.unwrap();
        };
        create(tenant(1), due_run(run(1), 30)).await;
        create(tenant(1), due_run(run(2), 20)).await;
        create(tenant(1), NewRun { owner: Some(process(1)), ..due_run(run(3), 10) }).await;
        create(tenant(2), due_run(run(1), 5)).await;
        create(tenant(3), new_run(run(1))).await;
        create(tenant(4), NewRun { owner: Some(process(2)), ..new_run(run(1)) }).await;
        let row = |number, at| Due { tenant: tenant(number).tenant(), at };
        assert_eq!(due(store, &[]).await, [row(1, at(20)), row(2, at(5))]);
        let orphaned = [row(1, at(20)), row(2, at(5)), row(4, Timestamp::MIN)];
        assert_eq!(due(store, &[process(2)]).await, orphaned);
        let both = [row(1, Timestamp::MIN), row(2, at(5)), row(4, Timestamp::MIN)];
        assert_eq!(due(store, &[process(1), process(2)]).await, both);
        store.claim(tenant(2), claim(process(3), 5)).await.unwrap();
        assert_eq!(
            due(store, &[process(9)]).await,
            [row(1, at(20))],
            "what is owned by the living is not due"
        );
    }

    /// B4: a process is dead when its lease is over, and stays known until its runs have been taken over.
    async fn the_dead_are_listed_until_their_runs_are_taken_over(store: &Shared) {
        let make = Make::new();
        assert_eq!(dead_at(store, 1, 0).await, []);
        assert_eq!(dead_at(store, 2, 5).await, []);
        let owned = |number, owner| NewRun { owner: Some(process(owner)), ..new_run(run(number)) };
        started(store, make.create(owned(1, 1))).await;
        store.commit(tenant(2), make.create(owned(1, 1))).await.unwrap();
        assert_eq!(dead_at(store, 2, 9).await, []);
        assert_eq!(dead_at(store, 2, 10).await, [process(1)], "its lease ends at this very instant");
        assert_eq!(dead_at(store, 2, 11).await, [process(1)], "and it stays listed");
        let heirs = Claim { dead: vec![process(1)], ..claim(process(2), 11) };
        assert_eq!(taken(store, heirs.clone()).await, [run(1)]);
        assert_eq!(dead_at(store, 2, 12).await, [process(1)], "it has a run of another tenant");
        assert_eq!(store.claim(tenant(2), heirs).await.unwrap().items.len(), 1);
        assert_eq!(dead_at(store, 2, 13).await, []);
        assert_eq!(dead_at(store, 3, 999).await, [process(2)]);
    }

    /// Whoever is alone hears so.
    async fn the_living_are_counted(store: &Shared) {
        let living = async |number, seconds| store.beat(beat(number, seconds)).await.unwrap().living;
        assert_eq!(living(1, 0).await, 1);
        assert_eq!(living(2, 5).await, 2);
        assert_eq!(living(2, 9).await, 2);
        assert_eq!(living(2, 10).await, 1, "the lease of the first ends at this very instant");
        assert_eq!(living(1, 11).await, 2);
    }

    /// What is only read stays as it is.
    async fn what_is_due_can_be_read_without_taking_it(store: &Shared) {
        let make = Make::new();
        started(store, make.create(due_run(run(1), 5))).await;
        started(store, make.create(due_run(run(2), 6))).await;
        started(store, make.create(NewRun { owner: Some(process(9)), ..due_run(run(3), 0) })).await;
        let read = Claim { by: None, ..claim(process(1), 5) };
        for _ in 0..2 {
            let found = store.claim(ME, read.clone()).await.unwrap().items;
            assert_eq!(found, [load(store, run(1)).await]);
        }
        let heirs = Claim { dead: vec![process(9)], ..read.clone() };
        assert_eq!(taken(store, heirs).await, [run(3), run(1)]);
        assert_eq!(taken(store, claim(process(1), 5)).await, [run(1)]);
        assert_eq!(taken(store, read).await, []);
    }

    async fn a_process_that_beats_again_lives(store: &Shared) {
        let make = Make::new();
        dead_at(store, 1, 0).await;
        started(store, make.create(NewRun { owner: Some(process(1)), ..new_run(run(1)) })).await;
        assert_eq!(dead_at(store, 2, 50).await, [process(1)]);
        assert_eq!(dead_at(store, 1, 51).await, []);
        assert_eq!(dead_at(store, 2, 52).await, []);
        assert_eq!(load(store, run(1)).await.head.owner, Some(process(1)));
    }
}
