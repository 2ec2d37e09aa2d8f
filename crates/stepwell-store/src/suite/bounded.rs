//! Cases about limiting the history of a run: the remaining versions can be read, and nothing else is lost.

use super::Shared;
use super::ask::{all_history, load, moved, outcome, shown, started};
use super::dump::{Names, dump};
use super::make::{ME, Make, at, bytes, new_run, next, put, remove, run, step, to, unrelated_state};
use crate::commit::{Commit, NewRun, NextState, RunUpdate};
use crate::document::DocumentWrite;
use crate::run::Head;
use crate::store::{Cleanup, CleanupKind, CleanupResult, HistoryQuery, HistoryRow};

async fn bound(store: &Shared, number: u128, keep: u64, limit: u32) -> CleanupResult {
    let what = CleanupKind::History { run: run(number), keep };
    store.cleanup(ME, Cleanup { now: at(0), limit, what }).await.expect("the maintenance succeeds")
}

/// Removes old versions until nothing more can be removed. Returns the number of removed rows.
async fn bound_all(store: &Shared, number: u128, keep: u64, limit: u32) -> u64 {
    let mut count = 0;
    loop {
        let cleaned = bound(store, number, keep, limit).await;
        count += cleaned.count;
        assert!(cleaned.count > 0 || !cleaned.more, "a batch that reports more rows removes something");
        if !cleaned.more {
            return count;
        }
        sound(store).await;
    }
}

/// Checks that the store is consistent.
async fn sound(store: &Shared) {
    let faults = dump(store, ME, &Names::default(), at(0)).await.faults();
    assert!(faults.is_empty(), "{faults:?}");
}

async fn history(store: &Shared, number: u128) -> Vec<HistoryRow> {
    all_history(store, ME, HistoryQuery { run: run(number), from: 0, with_state: true, limit: 40 }).await
}

async fn versions(store: &Shared, number: u128) -> Vec<u64> {
    history(store, number).await.into_iter().map(|row| row.version).collect()
}

/// Builds a state. The states of a calm run hardly differ; other states have nothing in common.
fn state(version: u64, calm: bool) -> NextState {
    if calm {
        NextState { state: bytes(&format!("{version} {}", "as ever ".repeat(80))), ..next("on") }
    } else {
        unrelated_state(version)
    }
}

/// Creates a run with these versions. Returns its head after each.
async fn long(store: &Shared, make: &Make, first: u64, last: u64, calm: impl Fn(u64) -> bool) -> Vec<Head> {
    let new = NewRun { version: first, first: state(first, calm(first)), ..new_run(run(1)) };
    let mut heads = vec![started(store, make.create(new)).await];
    for version in first + 1..=last {
        let head = &heads[heads.len() - 1];
        let change = RunUpdate { next: vec![state(version, calm(version))], ..step(head, "") };
        heads.push(moved(store, make.step(change)).await);
    }
    heads
}

/// Commits a step whose state is stored in full and that writes documents.
async fn writes(store: &Shared, make: &Make, head: &Head, documents: Vec<DocumentWrite>) -> Head {
    let whole = RunUpdate { next: vec![state(head.version + 1, false)], ..step(head, "") };
    let head = moved(store, Commit { documents, ..make.step(whole) }).await;
    assert_eq!(head.chain.base, head.version, "the case needs a full state");
    head
}

cases! { bounded as __suite_bounded;
    /// B18: the newest versions stay, with the chain that the oldest of them needs. They read back as before.
    async fn newest_versions_stay_readable(store: &Shared) {
        let make = Make::new();
        let heads = long(store, &make, 0, 230, |version| version % 90 != 45).await;
        let bases: Vec<_> = heads.iter().map(|head| head.chain.base).collect();
        let all = history(store, 1).await;
        let mut oldest = 0;
        for keep in [1_000, 231, 230, 160, 100, 99, 2, 1] {
            let kept = 231_u64.saturating_sub(keep);
            let expected = bases[kept as usize];
            let cleaned = bound(store, 1, keep, 1_000).await;
            assert_eq!(cleaned, CleanupResult { count: expected - oldest, more: false }, "keeping {keep}");
            oldest = expected;
            assert_eq!(history(store, 1).await, all[oldest as usize..], "keeping {keep}");
            assert_eq!(load(store, run(1)).await.head, heads[230]);
            sound(store).await;
        }
        assert!(bases.chunk_by(|a, b| a == b).count() > 4 && oldest > 200, "there were several chains: {bases:?}");
        let head = moved(store, make.step(step(&heads[230], "goes on"))).await;
        assert_eq!((head.version, load(store, run(1)).await.head), (231, head.clone()));
        assert_eq!(versions(store, 1).await, (oldest..=231).collect::<Vec<_>>());
    }

    /// B18: each batch removes a bounded number of checkpoints, and the history can be read after each.
    async fn history_is_removed_in_bounded_batches(store: &Shared) {
        let make = Make::new();
        long(store, &make, 0, 30, |_| false).await;
        assert_eq!(bound(store, 1, 10, 0).await, CleanupResult { count: 0, more: true });
        assert_eq!(bound(store, 1, 10, 8).await, CleanupResult { count: 8, more: true });
        assert_eq!(versions(store, 1).await, (8..=30).collect::<Vec<_>>(), "the oldest are removed first");
        assert_eq!(bound(store, 1, 10, 8).await, CleanupResult { count: 8, more: true });
        assert_eq!(bound(store, 1, 10, 8).await, CleanupResult { count: 5, more: false });
        assert_eq!(bound(store, 1, 10, 8).await, CleanupResult { count: 0, more: false });
        assert_eq!(versions(store, 1).await, (21..=30).collect::<Vec<_>>());
        sound(store).await;
    }

    /// B18: deltas cannot be read without the state they build on, so a chain is removed as a whole or stays.
    async fn a_delta_chain_is_removed_as_a_whole(store: &Shared) {
        let make = Make::new();
        let heads = long(store, &make, 0, 150, |_| true).await;
        let mut bases: Vec<_> = heads.iter().map(|head| head.chain.base).collect();
        assert_eq!(bound(store, 1, bases.len() as u64 - bases[70] + 1, 1_000).await.count, 0, "a version of the chain stays");
        bases.dedup();
        assert!(bases.len() > 2, "{bases:?}");
        let first = bound(store, 1, 1, 5).await;
        assert_eq!(first, CleanupResult { count: bases[1], more: true });
        let second = bound(store, 1, 1, 5).await;
        assert_eq!(second, CleanupResult { count: bases[2] - bases[1], more: true });
        sound(store).await;
        bound_all(store, 1, 1, 5).await;
        assert_eq!(versions(store, 1).await[0], bases[bases.len() - 1]);
        assert_eq!(load(store, run(1)).await.head, heads[150]);
    }

    /// B18: documents that only removed versions showed are removed with them. The others stay.
    async fn documents_are_removed_with_their_versions(store: &Shared) {
        let make = Make::new();
        let one = run(1);
        let first = NewRun { first: state(0, false), ..new_run(one) };
        let documents = vec![put(one, "stays", "0"), put(one, "k", "0"), put(one, "gone", "0")];
        let mut head = started(store, Commit { documents, ..make.create(first) }).await;
        for version in 1..=6 {
            let mut documents = vec![put(one, "k", &version.to_string())];
            if version == 4 {
                documents.push(remove(one, "gone"));
            }
            head = writes(store, &make, &head, documents).await;
        }
        let mut before = Vec::new();
        for version in 0..=6 {
            before.push(shown(store, one, Some(version)).await);
        }
        assert_eq!(bound_all(store, 1, 4, 2).await, 3 + 3, "three versions, and `k` of each");
        assert_eq!(versions(store, 1).await, [3, 4, 5, 6]);
        for version in 3..=6 {
            assert_eq!(shown(store, one, Some(version)).await, before[version as usize], "at version {version}");
        }
        assert_eq!(shown(store, one, Some(2)).await.len(), 2, "only documents that later versions show are left");
        assert_eq!(bound_all(store, 1, 3, 100).await, 1 + 2, "`gone` is removed with the last version that showed it");
        assert_eq!(shown(store, one, None).await, before[6]);
        let head = writes(store, &make, &head, vec![put(one, "gone", "back"), put(one, "k", "7")]).await;
        assert_eq!(shown(store, one, None).await.len(), 3);
        assert_eq!(bound_all(store, 1, 0, 1).await, 3 + 3, "keeping none keeps the newest");
        assert_eq!((versions(store, 1).await, shown(store, one, None).await.len()), (vec![7], 3));
        assert_eq!(load(store, one).await.head, head);
    }

    /// B18: documents count as rows: each batch removes a bounded number, however many a version showed.
    async fn documents_are_removed_in_bounded_batches(store: &Shared) {
        let make = Make::new();
        let notes = |text: &str| ["a", "b", "c", "d", "e"].map(|key| put(run(1), key, text)).to_vec();
        let first = NewRun { first: state(0, false), ..new_run(run(1)) };
        let head = started(store, Commit { documents: notes("old"), ..make.create(first) }).await;
        writes(store, &make, &head, notes("new")).await;
        assert_eq!(bound(store, 1, 1, 3).await, CleanupResult { count: 3, more: true }, "a checkpoint and two documents");
        sound(store).await;
        assert_eq!(bound(store, 1, 1, 2).await, CleanupResult { count: 2, more: true });
        assert_eq!(bound(store, 1, 1, 2).await, CleanupResult { count: 1, more: false });
        assert_eq!(bound(store, 1, 1, 2).await, CleanupResult { count: 0, more: false });
        assert_eq!((shown(store, run(1), Some(0)).await, shown(store, run(1), None).await.len()), (vec![], 5));
    }

    /// B18: only that run's history is removed. Its inbox, waits and row stay the same.
    async fn only_the_history_is_removed(store: &Shared) {
        let make = Make::new();
        let heads = long(store, &make, 7, 20, |_| false).await;
        let other = started(store, make.create(NewRun { first: state(0, false), ..new_run(run(2)) })).await;
        writes(store, &make, &other, vec![put(run(2), "k", "")]).await;
        let last = &heads[13];
        let change = RunUpdate { next: vec![state(21, false)], open: vec![super::make::wait(1)], ..step(last, "") };
        let commit = Commit { send: vec![to(run(1), "hello")], ..make.step(change) };
        moved(store, commit.clone()).await;
        let mut before = dump(store, ME, &Names::default(), at(0)).await;
        assert_eq!(bound(store, 9, 1, 10).await, CleanupResult { count: 0, more: false }, "an unknown run has no history");
        assert_eq!(bound(store, 1, 15, 10).await, CleanupResult { count: 0, more: false }, "the run has no more versions");
        assert_eq!(bound(store, 1, u64::MAX, 10).await, CleanupResult { count: 0, more: false });
        assert_eq!(dump(store, ME, &Names::default(), at(0)).await, before);
        assert_eq!(bound_all(store, 1, 5, 4).await, 10);
        before.history[1].1.drain(..10);
        before.documents[1].1.drain(..10);
        assert_eq!(dump(store, ME, &Names::default(), at(0)).await, before);
        assert!(outcome(store, &commit).await.is_some(), "a remaining version is found");
        assert_eq!(bound(store, 2, 1, 10).await.count, 1);
    }
}
