//! Cases about claims: which runs a process can claim, and how the runs of an expired process get a new owner.

use std::collections::BTreeSet;

use stepwell_core::Timestamp;
use tokio::task::JoinSet;

use super::Shared;
use super::ask::{all_history, apply, claim, claimed, load, moved, refuse, started, taken};
use super::make::{
    ME, Make, at, attempt, bytes, definition, due_run, end, new_run, process, run, step, tenant, to,
};
use crate::commit::{Commit, NewRun, Ownership, Refused, RunUpdate};
use crate::run::{Head, Loaded, ProcessId, Status};
use crate::store::{Claim, DueTenant, Heartbeat, HistoryQuery};

fn beat(number: u128, seconds: i64) -> Heartbeat {
    Heartbeat { process: process(number), now: at(seconds), lease_ms: 10_000 }
}

async fn expired_at(store: &Shared, number: u128, seconds: i64) -> Vec<ProcessId> {
    let mut expired = store.heartbeat(beat(number, seconds)).await.unwrap().expired;
    expired.sort();
    expired
}

async fn due(store: &Shared, expired: &[ProcessId]) -> Vec<DueTenant> {
    let mut due = store.due(expired.to_vec()).await.unwrap();
    due.sort();
    due
}

cases! { claims as __suite_claims;
    /// B4: a due run without an owner can be claimed; no other can.
    async fn only_due_unowned_runs_are_claimed(store: &Shared) {
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
        moved(store, make.step(RunUpdate { owner: Ownership::Release, ..attempt(&head, None) })).await;
        assert_eq!(taken(store, claim(process(2), 6)).await, [run(1)], "released, and still due");
        let head = load(store, run(2)).await.head;
        moved(store, make.step(end(&head))).await;
        assert_eq!(taken(store, claim(process(1), 999)).await, [], "an ended run is not due");
    }

    /// B11: an ended run may have work left, such as notifying its children, and can be claimed for it.
    async fn an_ended_run_with_remaining_work_is_claimed(store: &Shared) {
        let make = Make::new();
        let owned = NewRun { owner: Some(process(1)), ..due_run(run(1), 0) };
        let head = started(store, make.create(owned)).await;
        started(store, make.create(new_run(run(2)))).await;
        let left = Some(bytes("{\"left\":2}"));
        let cancelled = RunUpdate { status: Status::Cancelled, wake: Some(at(5)), ledger: left.clone(), ..end(&head) };
        let ended = moved(store, make.step(cancelled)).await;
        assert_eq!((ended.version, ended.status, ended.wake, ended.owner), (1, Status::Cancelled, Some(at(5)), None));
        assert_eq!(due(store, &[]).await, [DueTenant { tenant: ME.tenant(), at: at(5) }]);
        assert_eq!(taken(store, claim(process(1), 4)).await, [], "not yet");
        let loaded = claimed(store, claim(process(1), 5)).await.remove(0);
        assert_eq!((loaded.head.run, &loaded.ledger), (run(1), &left));
        let fence = Some(loaded.head.fence);
        let some = RunUpdate { fence, ..attempt(&loaded.head, Some("{\"left\":1}")) };
        let batch = Commit { send: vec![to(run(2), "cancel")], ..make.step(some) };
        let after = moved(store, batch).await;
        assert_eq!((after.version, after.status, after.owner), (1, Status::Cancelled, Some(process(1))));
        let heirs = Claim { expired: vec![process(1)], limit: 1, ..claim(process(2), 5) };
        let loaded = claimed(store, heirs).await.remove(0);
        assert_eq!(loaded.ledger, Some(bytes("{\"left\":1}")), "the progress of the expired process");
        let done = RunUpdate { wake: None, owner: Ownership::Release, ..attempt(&loaded.head, None) };
        moved(store, make.step(done)).await;
        assert_eq!(taken(store, claim(process(2), 999)).await, [run(2)], "only the run that the message woke is due");
        let query = HistoryQuery { run: run(1), from: 0, with_state: false, limit: 10 };
        assert_eq!(all_history(store, ME, query).await.len(), 2, "no further version was created");
    }

    /// B15: a claim sets the owner and raises fence and revision. Nothing else changes.
    async fn a_claim_changes_only_owner_fence_and_revision(store: &Shared) {
        let make = Make::new();
        let new = NewRun { ledger: Some(bytes("{}")), ..due_run(run(1), 3) };
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
        assert_eq!(all_history(store, ME, query).await.len(), 1, "a claim leaves no history");
        let fence = Some(expected.head.fence);
        moved(store, make.step(RunUpdate { fence, take: vec![1], ..step(&expected.head, "done") })).await;
    }

    /// B15: a decision from before the claim is refused, and so is the result of the previous owner.
    async fn a_commit_from_before_the_claim_is_refused(store: &Shared) {
        let make = Make::new();
        let old = started(store, make.create(NewRun { owner: Some(process(1)), ..due_run(run(1), 0) })).await;
        let orphaned = Claim { expired: vec![process(1)], ..claim(process(2), 0) };
        let new = claimed(store, orphaned).await.remove(0).head;
        let late = make.step(step(&old, "decided before"));
        assert_eq!(refuse(store, late).await, Refused::Moved { run: run(1), expected: 1, actual: 2 });
        let result = make.step(RunUpdate { fence: Some(old.fence), ..step(&old, "result") });
        assert_eq!(refuse(store, result).await, Refused::Fenced { run: run(1), expected: 1, actual: 2 });
        moved(store, make.step(RunUpdate { fence: Some(new.fence), ..step(&new, "mine") })).await;
    }

    async fn claims_are_ordered_by_due_time(store: &Shared) {
        let make = Make::new();
        for (number, seconds) in [(1, 30), (2, 10), (3, 20), (4, 10), (5, 40)] {
            started(store, make.create(due_run(run(number), seconds))).await;
        }
        let two = Claim { limit: 2, ..claim(process(1), 30) };
        assert_eq!(taken(store, Claim { limit: 0, ..two.clone() }).await, []);
        assert_eq!(taken(store, two.clone()).await, [run(2), run(4)], "runs with equal times are ordered by id");
        assert_eq!(taken(store, two.clone()).await, [run(3), run(1)]);
        assert_eq!(taken(store, two).await, []);
    }

    /// B20: a process claims only runs whose definition it has.
    async fn claims_are_limited_to_known_definitions(store: &Shared) {
        let make = Make::new();
        for (number, text) in [(1, "one"), (2, "two"), (3, "three")] {
            let new = NewRun { definition: definition(text), ..due_run(run(number), 0) };
            started(store, make.create(NewRun { owner: (number == 3).then(|| process(9)), ..new })).await;
        }
        let knows = |texts: &[&str]| Claim {
            definitions: Some(texts.iter().map(|text| definition(text)).collect()),
            expired: vec![process(9)],
            ..claim(process(1), 0)
        };
        assert_eq!(taken(store, knows(&[])).await, []);
        assert_eq!(taken(store, knows(&["none"])).await, []);
        assert_eq!(taken(store, knows(&["two"])).await, [run(2)]);
        assert_eq!(taken(store, knows(&["two", "three", "none"])).await, [run(3)], "also a run of an expired process");
        assert_eq!(taken(store, claim(process(1), 0)).await, [run(1)]);
    }

    /// B4: runs of an expired process can be claimed whether they are due or not, and come first.
    async fn runs_of_expired_processes_are_claimed_first(store: &Shared) {
        let make = Make::new();
        let owned = |number, owner| NewRun { owner: Some(process(owner)), ..new_run(run(number)) };
        started(store, make.create(due_run(run(1), 0))).await;
        started(store, make.create(owned(2, 8))).await;
        started(store, make.create(owned(3, 7))).await;
        started(store, make.create(NewRun { wake: Some(at(99)), ..owned(4, 8) })).await;
        let heirs = Claim { expired: vec![process(8)], ..claim(process(1), 0) };
        assert_eq!(taken(store, Claim { limit: 1, ..heirs.clone() }).await, [run(2)]);
        assert_eq!(taken(store, heirs.clone()).await, [run(4), run(1)]);
        assert_eq!(taken(store, heirs).await, []);
        assert_eq!(load(store, run(3)).await.head.owner, Some(process(7)), "an alive process keeps its runs");
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

    /// A claim and a commit compete for a run: either the commit is refused or the claim does not get the run.
    async fn a_claim_and_a_commit_never_both_take_a_run(store: &Shared) {
        let make = Make::new();
        for number in 1..=20 {
            let head = started(store, make.create(due_run(run(number), 0))).await;
            let commit = make.step(RunUpdate { owner: Ownership::Take(process(1)), ..step(&head, "mine") });
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

    /// B4: tenants with work are found without access to their data.
    async fn due_returns_when_each_tenant_has_work(store: &Shared) {
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
        let row = |number, at| DueTenant { tenant: tenant(number).tenant(), at };
        assert_eq!(due(store, &[]).await, [row(1, at(20)), row(2, at(5))]);
        let orphaned = [row(1, at(20)), row(2, at(5)), row(4, Timestamp::MIN)];
        assert_eq!(due(store, &[process(2)]).await, orphaned);
        let both = [row(1, Timestamp::MIN), row(2, at(5)), row(4, Timestamp::MIN)];
        assert_eq!(due(store, &[process(1), process(2)]).await, both);
        store.claim(tenant(2), claim(process(3), 5)).await.unwrap();
        assert_eq!(
            due(store, &[process(9)]).await,
            [row(1, at(20))],
            "a run of an alive process is not due"
        );
    }

    /// B4: a process has expired when its lease has. It stays listed until its runs have been claimed.
    async fn expired_processes_stay_listed_until_runs_are_claimed(store: &Shared) {
        let make = Make::new();
        assert_eq!(expired_at(store, 1, 0).await, []);
        assert_eq!(expired_at(store, 2, 5).await, []);
        let owned = |number, owner| NewRun { owner: Some(process(owner)), ..new_run(run(number)) };
        started(store, make.create(owned(1, 1))).await;
        store.commit(tenant(2), make.create(owned(1, 1))).await.unwrap();
        assert_eq!(expired_at(store, 2, 9).await, []);
        assert_eq!(expired_at(store, 2, 10).await, [process(1)], "its lease ends at this very instant");
        assert_eq!(expired_at(store, 2, 11).await, [process(1)], "it stays listed");
        let heirs = Claim { expired: vec![process(1)], ..claim(process(2), 11) };
        assert_eq!(taken(store, heirs.clone()).await, [run(1)]);
        assert_eq!(expired_at(store, 2, 12).await, [process(1)], "it owns a run of another tenant");
        assert_eq!(store.claim(tenant(2), heirs).await.unwrap().items.len(), 1);
        assert_eq!(expired_at(store, 2, 13).await, []);
        assert_eq!(expired_at(store, 3, 999).await, [process(2)]);
    }

    /// A process learns whether it is the only one.
    async fn alive_processes_are_counted(store: &Shared) {
        let alive = async |number, seconds| store.heartbeat(beat(number, seconds)).await.unwrap().alive;
        assert_eq!(alive(1, 0).await, 1);
        assert_eq!(alive(2, 5).await, 2);
        assert_eq!(alive(2, 9).await, 2);
        assert_eq!(alive(2, 10).await, 1, "the lease of the first ends at this very instant");
        assert_eq!(alive(1, 11).await, 2);
    }

    /// Reading due runs does not change them.
    async fn due_runs_can_be_read_without_a_claim(store: &Shared) {
        let make = Make::new();
        started(store, make.create(due_run(run(1), 5))).await;
        started(store, make.create(due_run(run(2), 6))).await;
        started(store, make.create(NewRun { owner: Some(process(9)), ..due_run(run(3), 0) })).await;
        let read = Claim { by: None, ..claim(process(1), 5) };
        for _ in 0..2 {
            let found = store.claim(ME, read.clone()).await.unwrap().items;
            assert_eq!(found, [load(store, run(1)).await]);
        }
        let heirs = Claim { expired: vec![process(9)], ..read.clone() };
        assert_eq!(taken(store, heirs).await, [run(3), run(1)]);
        assert_eq!(taken(store, claim(process(1), 5)).await, [run(1)]);
        assert_eq!(taken(store, read).await, []);
    }

    async fn a_new_heartbeat_revives_an_expired_process(store: &Shared) {
        let make = Make::new();
        expired_at(store, 1, 0).await;
        started(store, make.create(NewRun { owner: Some(process(1)), ..new_run(run(1)) })).await;
        assert_eq!(expired_at(store, 2, 50).await, [process(1)]);
        assert_eq!(expired_at(store, 1, 51).await, []);
        assert_eq!(expired_at(store, 2, 52).await, []);
        assert_eq!(load(store, run(1)).await.head.owner, Some(process(1)));
    }
}
