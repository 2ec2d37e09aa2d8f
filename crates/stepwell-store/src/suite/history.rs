//! Cases about history: every version keeps its entry and its state, whether the state is stored in full or as a delta.

use bytes::Bytes;

use super::Shared;
use super::ask::{all_history, load, moved, outcome, refuse, shown, started};
use super::make::{ME, Make, at, bytes, new_run, next, put, run, set, step};
use crate::commit::{Commit, NewRun, NextState, RunUpdate};
use crate::store::{HistoryQuery, HistoryRow};

fn query(number: u128) -> HistoryQuery {
    HistoryQuery { run: run(number), from: 0, with_state: false, limit: 1_000 }
}

/// A deterministic generator of random-looking numbers.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill_with(|| b'!' + (self.next() % 90) as u8);
    }
}

fn holding(state: &[u8]) -> NextState {
    NextState { state: Bytes::copy_from_slice(state), ..next("on") }
}

/// Commits these states in order and checks that each reads back.
async fn keeps(store: &Shared, states: &[Vec<u8>]) {
    let make = Make::new();
    let new = NewRun { first: holding(&states[0]), ..new_run(run(1)) };
    let mut head = started(store, make.create(new)).await;
    for (version, state) in (1..).zip(&states[1..]) {
        if version % 7 == 0 {
            head = load(store, run(1)).await.head;
        }
        head = moved(store, make.step(RunUpdate { next: vec![holding(state)], ..step(&head, "") })).await;
        assert_eq!(head.version, version);
        assert_eq!(head.state, state[..]);
    }
    assert_eq!(load(store, run(1)).await.head, head);
    let rows = all_history(store, ME, HistoryQuery { with_state: true, limit: 30, ..query(1) }).await;
    assert_eq!(rows.len(), states.len());
    for (version, (row, state)) in (0..).zip(rows.iter().zip(states)) {
        assert_eq!(row.version, version);
        assert!(row.state.as_deref() == Some(&state[..]), "version {version} is not what was committed");
    }
    for from in [0, 1, 63, 64, 65, 130].into_iter().filter(|from| *from < states.len()) {
        let one = HistoryQuery { from: from as u64, with_state: true, limit: 1, ..query(1) };
        let row = store.history(ME, one).await.unwrap().items.remove(0);
        assert!(row.state.as_deref() == Some(&states[from][..]), "version {from} read alone");
    }
}

cases! { history as __suite_history;
    /// A9: a version's entry, time and commit read back, oldest first.
    async fn history_reads_back_as_it_was_committed(store: &Shared) {
        let make = Make::new();
        let create = Commit { at: at(1), ..make.create(new_run(run(1))) };
        let head = started(store, create.clone()).await;
        let entry = bytes(r#"{"action":"approve","by":"änn"}"#);
        let change =
            RunUpdate { next: vec![NextState { entry: entry.clone(), ..next("one") }], ..step(&head, "") };
        let commit = Commit { at: at(2), ..make.step(change) };
        moved(store, commit.clone()).await;
        let row = |version, seconds, commit: &Commit, entry, state| HistoryRow {
            version,
            at: at(seconds),
            commit: commit.id,
            entry,
            state,
        };
        let first = row(0, 1, &create, next("created").entry, None);
        let second = row(1, 2, &commit, entry, None);
        let expected = vec![first, second];
        assert_eq!(all_history(store, ME, query(1)).await, expected);
        let mut with_state = expected;
        with_state[0].state = Some(next("created").state);
        with_state[1].state = Some(next("one").state);
        assert_eq!(all_history(store, ME, HistoryQuery { with_state: true, ..query(1) }).await, with_state);
    }

    /// B1, B3: one commit can create several versions. Each keeps its entry and its state.
    async fn several_versions_share_a_commit(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        let names = ["one", "two", "three"];
        let change = RunUpdate { next: names.map(next).to_vec(), ..step(&head, "") };
        let commit = Commit {
            at: at(5),
            cells: vec![set("n", 1)],
            documents: vec![put(run(1), "offer", "12")],
            ..make.step(change)
        };
        let after = moved(store, commit.clone()).await;
        assert_eq!((after.version, after.revision), (head.version + 3, head.revision + 1));
        assert_eq!(after.state, next("three").state);
        assert_eq!(load(store, run(1)).await.head, after);
        let rows = all_history(store, ME, HistoryQuery { with_state: true, from: 1, ..query(1) }).await;
        assert_eq!(rows.len(), 3);
        for (row, (version, name)) in rows.iter().zip((1..).zip(names)) {
            let NextState { state, entry, .. } = next(name);
            let expected = HistoryRow { version, at: at(5), commit: commit.id, entry, state: Some(state) };
            assert_eq!(*row, expected);
        }
        let first = shown(store, run(1), Some(1)).await;
        assert_eq!(first, shown(store, run(1), None).await, "the first version shows the documents");
        assert_eq!(first.len(), 1);
        assert_eq!(outcome(store, &commit).await.unwrap().results.len(), 1);
        // The next step builds on the last of them, and a stale one is refused as a whole.
        let stale = make.step(RunUpdate { next: names.map(next).to_vec(), ..step(&head, "") });
        refuse(store, stale).await;
        let after = moved(store, make.step(step(&after, "four"))).await;
        assert_eq!(load(store, run(1)).await.head, after);
        assert_eq!(all_history(store, ME, query(1)).await.len(), 5);
    }

    /// A9: a history can be read in pages from any version.
    async fn history_can_be_paged_from_any_version(store: &Shared) {
        let make = Make::new();
        let mut head = started(store, make.create(new_run(run(1)))).await;
        for version in 1..=10 {
            head = moved(store, make.step(step(&head, &format!("v{version}")))).await;
        }
        let versions = async |from, limit| {
            let rows = all_history(store, ME, HistoryQuery { from, limit, ..query(1) }).await;
            rows.into_iter().map(|row| row.version).collect::<Vec<_>>()
        };
        assert_eq!(versions(0, 3).await, (0..=10).collect::<Vec<_>>());
        assert_eq!(versions(9, 1).await, [9, 10]);
        assert_eq!(versions(11, 3).await, Vec::<u64>::new());
        assert_eq!(versions(u64::MAX, 3).await, Vec::<u64>::new());
        let page = store.history(ME, HistoryQuery { from: 2, limit: 3, ..query(1) }).await.unwrap();
        assert_eq!(
            (page.items.len(), page.next.as_deref()),
            (3, Some("5")),
            "the next page begins at version 5"
        );
        let last = store.history(ME, HistoryQuery { from: 8, limit: 3, ..query(1) }).await.unwrap();
        assert_eq!((last.items.len(), last.next), (3, None));
        assert_eq!(all_history(store, ME, query(2)).await, [], "an unknown run has no history");
    }

    /// A9, B3: every state of a long history reads back, with full states and deltas mixed.
    async fn every_state_of_a_long_history_reads_back(store: &Shared) {
        let mut noise = Noise(0x9E37_79B9_7F4A_7C15);
        let mut state = vec![0; 1_024];
        noise.fill(&mut state);
        let mut states = vec![state.clone()];
        for _ in 0..200 {
            let at = (noise.next() % 824) as usize;
            noise.fill(&mut state[at..at + 200]);
            states.push(state.clone());
        }
        keeps(store, &states).await;
    }

    /// A9: states that hardly differ read back, over more versions than one chain can hold.
    async fn every_state_of_a_nearly_constant_history_reads_back(store: &Shared) {
        let padding = "the same as ever ".repeat(40);
        let state =
            |version: u32| format!("{{\"version\":{version},\"padding\":\"{padding}\"}}").into_bytes();
        keeps(store, &(0..150).map(state).collect::<Vec<_>>()).await;
    }

    /// A9: states that grow, shrink, become empty and return to an earlier content read back.
    async fn every_state_of_changing_size_reads_back(store: &Shared) {
        let mut noise = Noise(7);
        let mut states = vec![b"{}".to_vec()];
        for size in [200 * 1_024, 10, 0, 0, 1, 100, 200 * 1_024, 200 * 1_024, 2, 700, 701] {
            let mut state = vec![0; size];
            noise.fill(&mut state);
            states.push(state);
        }
        let mut changed = states[7].clone();
        noise.fill(&mut changed[1_000..1_200]);
        states.insert(8, changed);
        keeps(store, &states).await;
    }
}
