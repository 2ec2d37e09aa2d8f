//! Cases about the history of a live run that is kept short: what stays can be read, and nothing else is lost.

use super::Shared;
use super::ask::{all_history, load, moved, outcome, shown, started};
use super::dump::{Names, dump};
use super::make::{ME, Make, at, bytes, new_run, next, put, remove, run, step, to, unlike};
use crate::commit::{Commit, NewRun, NextState, Step};
use crate::document::DocumentWrite;
use crate::run::Head;
use crate::store::{HistoryQuery, HistoryRow, Sweep, SweepWhat, Swept};

async fn bound(store: &Shared, number: u128, keep: u64, limit: u32) -> Swept {
    let what = SweepWhat::History { run: run(number), keep };
    store.sweep(ME, Sweep { now: at(0), limit, what }).await.expect("a sweep is answered")
}

/// Sweeps until nothing more may go; gives how many rows went.
async fn bound_all(store: &Shared, number: u128, keep: u64, limit: u32) -> u64 {
    let mut count = 0;
    loop {
        let swept = bound(store, number, keep, limit).await;
        count += swept.count;
        assert!(swept.count > 0 || !swept.more, "a sweep that says there is more takes something");
        if !swept.more {
            return count;
        }
        sound(store).await;
    }
}

/// Whatever is left at any time is whole in itself.
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

/// The states of a calm run hardly differ; those of the other kind have nothing in common.
fn state(version: u64, calm: bool) -> NextState {
    if calm {
        NextState { state: bytes(&format!("{version} {}", "as ever ".repeat(80))), ..next("on") }
    } else {
        unlike(version)
    }
}

/// A run with this many versions; gives where it stood after each.
async fn long(store: &Shared, make: &Make, first: u64, last: u64, calm: impl Fn(u64) -> bool) -> Vec<Head> {
    let new = NewRun { version: first, first: state(first, calm(first)), ..new_run(run(1)) };
    let mut heads = vec![started(store, make.create(new)).await];
    for version in first + 1..=last {
        let head = &heads[heads.len() - 1];
        let change = Step { next: vec![state(version, calm(version))], ..step(head, "") };
        heads.push(moved(store, make.step(change)).await);
    }
    heads
}

/// A step to the next version, not built on the one before, that writes documents.
async fn writes(store: &Shared, make: &Make, head: &Head, documents: Vec<DocumentWrite>) -> Head {
    let whole = Step { next: vec![state(head.version + 1, false)], ..step(head, "") };
    let head = moved(store, Commit { documents, ..make.step(whole) }).await;
    assert_eq!(head.chain.base, head.version, "the case needs a whole state");
    head
}

cases! { bounded as __suite_bounded;
    /// B18: the newest stay, with the chain that the oldest of them needs; everything that stays reads as before.
    async fn the_newest_versions_stay_and_can_be_read(store: &Shared) {
        let make = Make::new();
        let heads = long(store, &make, 0, 230, |version| version % 90 != 45).await;
        let bases: Vec<_> = heads.iter().map(|head| head.chain.base).collect();
        let all = history(store, 1).await;
        let mut oldest = 0;
        for keep in [1_000, 231, 230, 160, 100, 99, 2, 1] {
            let kept = 231_u64.saturating_sub(keep);
            let expected = bases[kept as usize];
            let swept = bound(store, 1, keep, 1_000).await;
            assert_eq!(swept, Swept { count: expected - oldest, more: false }, "keeping {keep}");
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

    /// B18: a history is cut a bounded number of checkpoints at a time, and can be read at every moment.
    async fn a_history_goes_in_bounded_batches(store: &Shared) {
        let make = Make::new();
        long(store, &make, 0, 30, |_| false).await;
        assert_eq!(bound(store, 1, 10, 0).await, Swept { count: 0, more: true });
        assert_eq!(bound(store, 1, 10, 8).await, Swept { count: 8, more: true });
        assert_eq!(versions(store, 1).await, (8..=30).collect::<Vec<_>>(), "the oldest went first");
        assert_eq!(bound(store, 1, 10, 8).await, Swept { count: 8, more: true });
        assert_eq!(bound(store, 1, 10, 8).await, Swept { count: 5, more: false });
        assert_eq!(bound(store, 1, 10, 8).await, Swept { count: 0, more: false });
        assert_eq!(versions(store, 1).await, (21..=30).collect::<Vec<_>>());
        sound(store).await;
    }

    /// B18: deltas without the state they build on cannot be read, so a chain goes whole or stays.
    async fn a_chain_goes_whole(store: &Shared) {
        let make = Make::new();
        let heads = long(store, &make, 0, 150, |_| true).await;
        let mut bases: Vec<_> = heads.iter().map(|head| head.chain.base).collect();
        assert_eq!(bound(store, 1, bases.len() as u64 - bases[70] + 1, 1_000).await.count, 0, "one of a chain stays");
        bases.dedup();
        assert!(bases.len() > 2, "{bases:?}");
        let first = bound(store, 1, 1, 5).await;
        assert_eq!(first, Swept { count: bases[1], more: true });
        let second = bound(store, 1, 1, 5).await;
        assert_eq!(second, Swept { count: bases[2] - bases[1], more: true });
        sound(store).await;
        bound_all(store, 1, 1, 5).await;
        assert_eq!(versions(store, 1).await[0], bases[bases.len() - 1]);
        assert_eq!(load(store, run(1)).await.head, heads[150]);
    }

    /// B18: documents that only versions showed which are gone go with them; the others stay.
    async fn documents_go_with_the_versions_that_showed_them(store: &Shared) {
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
        assert_eq!(shown(store, one, Some(2)).await.len(), 2, "what later versions show too is all that is left");
        assert_eq!(bound_all(store, 1, 3, 100).await, 1 + 2, "`gone` went with the last that showed it");
        assert_eq!(shown(store, one, None).await, before[6]);
        let head = writes(store, &make, &head, vec![put(one, "gone", "back"), put(one, "k", "7")]).await;
        assert_eq!(shown(store, one, None).await.len(), 3);
        assert_eq!(bound_all(store, 1, 0, 1).await, 3 + 3, "keeping none keeps the newest");
        assert_eq!((versions(store, 1).await, shown(store, one, None).await.len()), (vec![7], 3));
        assert_eq!(load(store, one).await.head, head);
    }

    /// B18: documents are rows too: however many a version showed, they go a bounded number at a time.
    async fn documents_go_in_bounded_batches(store: &Shared) {
        let make = Make::new();
        let notes = |text: &str| ["a", "b", "c", "d", "e"].map(|key| put(run(1), key, text)).to_vec();
        let first = NewRun { first: state(0, false), ..new_run(run(1)) };
        let head = started(store, Commit { documents: notes("old"), ..make.create(first) }).await;
        writes(store, &make, &head, notes("new")).await;
        assert_eq!(bound(store, 1, 1, 3).await, Swept { count: 3, more: true }, "a checkpoint and two documents");
        sound(store).await;
        assert_eq!(bound(store, 1, 1, 2).await, Swept { count: 2, more: true });
        assert_eq!(bound(store, 1, 1, 2).await, Swept { count: 1, more: false });
        assert_eq!(bound(store, 1, 1, 2).await, Swept { count: 0, more: false });
        assert_eq!((shown(store, run(1), Some(0)).await, shown(store, run(1), None).await.len()), (vec![], 5));
    }

    /// B18: only that run's history is cut, and only its history: its inbox, waits and row stay as they are.
    async fn nothing_but_the_history_goes(store: &Shared) {
        let make = Make::new();
        let heads = long(store, &make, 7, 20, |_| false).await;
        let other = started(store, make.create(NewRun { first: state(0, false), ..new_run(run(2)) })).await;
        writes(store, &make, &other, vec![put(run(2), "k", "")]).await;
        let last = &heads[13];
        let change = Step { next: vec![state(21, false)], open: vec![super::make::wait(1)], ..step(last, "") };
        let commit = Commit { send: vec![to(run(1), "hello")], ..make.step(change) };
        moved(store, commit.clone()).await;
        let mut before = dump(store, ME, &Names::default(), at(0)).await;
        assert_eq!(bound(store, 9, 1, 10).await, Swept { count: 0, more: false }, "an unknown run has none");
        assert_eq!(bound(store, 1, 15, 10).await, Swept { count: 0, more: false }, "it has no more than that");
        assert_eq!(bound(store, 1, u64::MAX, 10).await, Swept { count: 0, more: false });
        assert_eq!(dump(store, ME, &Names::default(), at(0)).await, before);
        assert_eq!(bound_all(store, 1, 5, 4).await, 10);
        before.history[1].1.drain(..10);
        before.documents[1].1.drain(..10);
        assert_eq!(dump(store, ME, &Names::default(), at(0)).await, before);
        assert!(outcome(store, &commit).await.is_some(), "what stays is found");
        assert_eq!(bound(store, 2, 1, 10).await.count, 1);
    }
}
