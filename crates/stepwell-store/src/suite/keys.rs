//! Cases about idempotency keys, and about the outcome of a commit whose answer was lost.

use bytes::Bytes;
use serde_json::json;
use tokio::task::JoinSet;

use super::Shared;
use super::ask::{
    all_audit, all_unsealed, apply, apply_one, find, get, moved, outcome, recorded, refuse, started,
};
use super::make::{
    ME, Make, OPERATION, at, attempt, audit, bytes, delete, edge, end, increment, key, new_run, run, set,
    step, to, unlink, upsert,
};
use crate::commit::{
    Commit, CommitError, CommitId, CommitRef, CommitTrace, KeyLifetime, KeyWrite, RECORD_OPERATION,
    RECORD_TTL_MS, Refused,
};
use crate::store::{Cleanup, CleanupKind, Recorded};

fn done(name: &str, request: u8) -> Refused {
    Refused::Done { operation: OPERATION.to_owned(), key: name.to_owned(), answer: key(name, request).answer }
}

fn reused(name: &str) -> Refused {
    Refused::KeyReused { operation: OPERATION.to_owned(), key: name.to_owned() }
}

fn keyed(make: &Make, write: KeyWrite) -> Commit {
    Commit { keys: vec![write], ..make.write([increment("count", 1)]) }
}

async fn count(store: &Shared) -> u64 {
    get(store, "count").await.map_or(0, |cell| cell.value.unwrap().as_u64().unwrap())
}

cases! { keys as __suite_keys;
    /// B18, D10: the same request under the same key is done once. A repetition gets the recorded answer.
    async fn the_same_request_is_applied_once(store: &Shared) {
        let make = Make::new();
        apply(store, keyed(&make, key("a", 1))).await;
        let other_answer = KeyWrite { answer: bytes("not this one"), ..key("a", 1) };
        assert_eq!(refuse(store, keyed(&make, other_answer)).await, done("a", 1));
        assert_eq!(count(store).await, 1);
        apply(store, keyed(&make, key("b", 1))).await;
        assert_eq!(count(store).await, 2, "another key is a new request");
    }

    /// D10: the same key for another request is an error.
    async fn a_key_cannot_be_used_for_another_request(store: &Shared) {
        let make = Make::new();
        apply(store, keyed(&make, key("a", 1))).await;
        assert_eq!(refuse(store, keyed(&make, key("a", 2))).await, reused("a"));
        let elsewhere = KeyWrite { operation: "signal".to_owned(), ..key("a", 2) };
        apply(store, keyed(&make, elsewhere)).await;
        assert_eq!(count(store).await, 2, "operations do not share keys");
    }

    /// B18: the same key returns the same run.
    async fn a_start_with_the_same_key_makes_one_run(store: &Shared) {
        let make = Make::new();
        let start = |number| {
            let lifetime = KeyLifetime::WithRun(run(number));
            let answer = bytes(&run(number).to_string());
            Commit {
                keys: vec![KeyWrite { lifetime, answer, ..key("a", 1) }],
                ..make.create(new_run(run(number)))
            }
        };
        apply(store, start(1)).await;
        let Refused::Done { answer, .. } = refuse(store, start(2)).await else {
            panic!("expected a repeated request")
        };
        assert_eq!(answer, bytes(&run(1).to_string()));
        assert_eq!(find(store, run(2)).await, None);
    }

    /// D10: an expired key can be used again, from the very instant of its expiry.
    async fn an_expired_key_can_be_used_again(store: &Shared) {
        let make = Make::new();
        apply(store, keyed(&make, key("a", 1))).await;
        let later = |seconds, request| {
            let lifetime = KeyLifetime::Until(at(seconds + 60));
            Commit { at: at(seconds), ..keyed(&make, KeyWrite { lifetime, ..key("a", request) }) }
        };
        assert_eq!(refuse(store, later(59, 2)).await, reused("a"));
        assert_eq!(recorded(store, "a", at(59)).await.unwrap().answer, Some(bytes("answer 1")));
        assert_eq!(recorded(store, "a", at(60)).await, None);
        apply(store, later(60, 2)).await;
        assert_eq!(refuse(store, later(61, 2)).await, done("a", 2), "the answer of the new use");
        assert_eq!(refuse(store, later(61, 1)).await, reused("a"));
        assert_eq!(count(store).await, 2);
    }

    /// B10, B18: a key that lives with a run is valid while the run exists, ended or not.
    async fn a_key_lives_as_long_as_its_run(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        let lifetime = KeyLifetime::WithRun(run(1));
        let commit = |seconds| Commit { at: at(seconds), ..keyed(&make, KeyWrite { lifetime, ..key("a", 1) }) };
        apply(store, commit(0)).await;
        assert_eq!(refuse(store, commit(1_000_000)).await, done("a", 1));
        moved(store, make.step(end(&head))).await;
        assert_eq!(refuse(store, commit(1_000_000)).await, done("a", 1));
        let what = CleanupKind::Keys;
        store.cleanup(ME, Cleanup { now: at(2_000_000), limit: 100, what }).await.unwrap();
        assert_eq!(refuse(store, commit(2_000_000)).await, done("a", 1));
        let what = CleanupKind::Runs(crate::EndedBefore::all(at(1)));
        assert_eq!(store.cleanup(ME, Cleanup { now: at(2_000_000), limit: 100, what }).await.unwrap().count, 1);
        assert_eq!(recorded(store, "a", at(0)).await, None);
        apply(store, commit(2_000_000)).await;
    }

    /// B18: of many concurrent commits with one key, one is applied.
    async fn concurrent_commits_with_one_key_apply_once(store: &Shared) {
        let make = Make::new();
        for round in 0..5 {
            let name = format!("round {round}");
            let mut tasks = JoinSet::new();
            for number in 0..8 {
                let new = new_run(run(100 * (round + 1) + number));
                let cells = vec![increment("count", 1)];
                let commit = Commit { keys: vec![key(&name, 1)], cells, ..make.create(new) };
                let store = store.clone();
                tasks.spawn(async move { store.commit(ME, commit).await });
            }
            let answers = tasks.join_all().await;
            assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
            let lost = Err(CommitError::Refused(done(&name, 1)));
            assert_eq!(answers.iter().filter(|answer| **answer == lost).count(), 7);
        }
        assert_eq!(count(store).await, 5);
    }

    /// One used key refuses the whole commit, and the other keys stay free.
    async fn one_used_key_of_several_refuses_the_commit(store: &Shared) {
        let make = Make::new();
        apply(store, keyed(&make, key("a", 1))).await;
        let both = |request| Commit { keys: vec![key("b", 1), key("a", request)], ..make.commit() };
        assert_eq!(refuse(store, both(1)).await, done("a", 1));
        assert_eq!(refuse(store, both(2)).await, reused("a"));
        assert_eq!(recorded(store, "b", at(0)).await, None);
        apply(store, Commit { keys: vec![key("b", 1), key("c", 1)], ..make.commit() }).await;
        assert_eq!(refuse(store, keyed(&make, key("c", 1))).await, done("c", 1));
    }

    /// The record of a key contains the answer and the results of the operations.
    async fn a_keys_record_can_be_read(store: &Shared) {
        let make = Make::new();
        let results = apply(store, keyed(&make, key("a", 1))).await.results;
        let answer = Some(bytes("answer 1"));
        let request = Some([1; 32]);
        assert_eq!(recorded(store, "a", at(0)).await, Some(Recorded { results, answer: answer.clone(), request }));
        apply(store, Commit { keys: vec![key("b", 1)], ..make.commit() }).await;
        assert_eq!(recorded(store, "b", at(0)).await, Some(Recorded { results: vec![], answer, request }));
        assert_eq!(recorded(store, "c", at(0)).await, None);
    }

    /// B4: a commit whose answer was lost is found by its checkpoint, with its results.
    async fn the_outcome_of_a_step_is_found_in_its_checkpoint(store: &Shared) {
        let make = Make::new();
        let create = Commit { cells: vec![increment("count", 5)], ..make.create(new_run(run(1))) };
        assert_eq!(outcome(store, &create).await, None);
        let committed = apply(store, create.clone()).await;
        let expected = Recorded { results: committed.results, answer: None, request: None };
        assert_eq!(outcome(store, &create).await, Some(expected));
        let taken =
            Commit { cells: vec![increment("count", 1)], ..make.step(step(&committed.created[0], "one")) };
        let rival = make.step(step(&committed.created[0], "rival"));
        let results = apply(store, taken.clone()).await.results;
        assert_eq!(results[0].value, Some(json!(6)));
        assert_eq!(outcome(store, &taken).await, Some(Recorded { results, answer: None, request: None }));
        assert_eq!(outcome(store, &rival).await, None, "the same version, another commit");
        let bare = make.create(new_run(run(2)));
        apply(store, bare.clone()).await;
        assert_eq!(outcome(store, &bare).await, Some(Recorded { results: vec![], answer: None, request: None }));
    }

    /// D10: a commit without a checkpoint is found by its key.
    async fn the_outcome_of_a_keyed_commit_is_found_in_its_record(store: &Shared) {
        let make = Make::new();
        let first = keyed(&make, key("a", 1));
        assert_eq!(outcome(store, &first).await, None);
        let results = apply(store, first.clone()).await.results;
        let expected = Recorded { results, answer: Some(bytes("answer 1")), request: None };
        assert_eq!(outcome(store, &first).await, Some(expected));
        let second =
            Commit { at: at(60), ..keyed(&make, KeyWrite { lifetime: KeyLifetime::Until(at(99)), ..key("a", 2) }) };
        assert_eq!(outcome(store, &second).await, None, "the record belongs to another commit");
        apply(store, second.clone()).await;
        assert!(outcome(store, &second).await.is_some());
        assert_eq!(outcome(store, &first).await, None, "another commit has replaced the record");
    }

    /// C7: a commit that leaves neither checkpoint, key nor data can still be found for a day.
    async fn the_outcome_of_a_commit_without_a_trace_is_recorded(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        let tried = Commit { cells: vec![increment("count", 1)], ..make.step(attempt(&head, Some("{}"))) };
        let message = make.send([to(run(1), "hello")]);
        let with_data = Commit { cells: vec![set("k", "x")], ..make.send([to(run(1), "again")]) };
        let empty = Commit { audit: vec![audit("only")], ..make.commit() };
        for commit in [tried, message, with_data, empty] {
            assert_eq!(outcome(store, &commit).await, None);
            let results = apply(store, commit.clone()).await.results;
            let expected = Recorded { results, answer: Some(Bytes::new()), request: None };
            assert_eq!(outcome(store, &commit).await, Some(expected));
        }
        let day = i64::try_from(RECORD_TTL_MS / 1_000).unwrap();
        let cleanup = |seconds| Cleanup { now: at(seconds), limit: 100, what: CleanupKind::Keys };
        assert_eq!(store.cleanup(ME, cleanup(day - 1)).await.unwrap().count, 0);
        assert_eq!(store.cleanup(ME, cleanup(day)).await.unwrap().count, 4);
    }

    /// C7, D12: a commit that only writes data is found by its audit rows, which stay.
    async fn the_outcome_of_a_data_only_commit_is_recorded(store: &Shared) {
        let make = Make::new();
        let owns = upsert(1, edge("a/1", "r", "b/1"));
        let commits = [
            make.write([increment("count", 1), set("k", "x")]),
            make.link([owns.clone(), unlink(Some("a/1"), None, None)]),
            Commit { links: vec![owns], audit: vec![audit("own")], ..make.write([increment("count", 1)]) },
            // It changes no data, but writes an audit row.
            Commit { audit: vec![audit("checked")], ..make.write([delete("none")]) },
        ];
        let mut found = Vec::new();
        for commit in &commits {
            assert_eq!(commit.reference().at, CommitTrace::Audit);
            assert_eq!(outcome(store, commit).await, None);
            let results = apply(store, commit.clone()).await.results;
            found.push(Some(Recorded { results, answer: None, request: None }));
            assert_eq!(outcome(store, commit).await, found[found.len() - 1]);
        }
        let [keys, seal] = [CleanupKind::Keys, CleanupKind::Seal]
            .map(|what| store.cleanup(ME, Cleanup { now: at(1_000_000_000), limit: 100, what }));
        assert_eq!(keys.await.unwrap().count, 0, "it leaves no key");
        assert_eq!(seal.await.unwrap().count, 8);
        for (commit, found) in commits.into_iter().zip(found) {
            assert_eq!(outcome(store, &commit).await, found, "maintenance does not remove it");
            let late = Commit { at: at(1_000_000_000), ..commit };
            let Refused::Done { operation, key, answer } = refuse(store, late.clone()).await else {
                panic!("expected a repeated request")
            };
            assert_eq!((operation, key), (RECORD_OPERATION.to_owned(), late.id.0.to_string()));
            assert_eq!(answer, Bytes::new());
        }
        assert_eq!(count(store).await, 2);
    }

    /// C7: a commit that changed nothing leaves no trace. Sent again, it is applied to the data as it is then.
    async fn a_data_only_commit_that_changed_nothing_leaves_no_trace(store: &Shared) {
        let make = Make::new();
        let idle = Commit { links: vec![unlink(Some("a/1"), None, None)], ..make.write([delete("k")]) };
        for _ in 0..2 {
            let results = apply(store, idle.clone()).await.results;
            assert!(results.iter().all(|result| !result.created && !result.existed), "{results:?}");
            assert_eq!(outcome(store, &idle).await, None);
        }
        let what = CleanupKind::Keys;
        assert_eq!(store.cleanup(ME, Cleanup { now: at(1_000_000), limit: 9, what }).await.unwrap().count, 0);
        assert_eq!((all_audit(store, ME, 9).await, all_unsealed(store, ME, 9).await), (vec![], vec![]));
        apply(store, make.write([set("k", 1)])).await;
        assert!(apply(store, idle.clone()).await.results[0].existed, "now there is something to delete");
        assert!(matches!(refuse(store, idle.clone()).await, Refused::Done { .. }));
        assert_eq!(outcome(store, &idle).await.unwrap().results.len(), 2);
    }

    /// Guards against an increment that counts twice because its answer was lost and it was sent again.
    async fn a_data_only_commit_sent_twice_is_applied_once(store: &Shared) {
        let make = Make::new();
        let commit = make.write([increment("count", 1)]);
        assert_eq!(apply_one(store, commit.clone()).await.value, Some(json!(1)));
        assert!(matches!(refuse(store, commit.clone()).await, Refused::Done { .. }));
        let mut tasks = JoinSet::new();
        let twin = make.write([increment("count", 1)]);
        for _ in 0..8 {
            let (store, twin) = (store.clone(), twin.clone());
            tasks.spawn(async move { store.commit(ME, twin).await.is_ok() });
        }
        assert_eq!(tasks.join_all().await.into_iter().filter(|applied| *applied).count(), 1);
        assert_eq!(count(store).await, 2);
    }

    async fn the_outcome_of_an_unknown_commit_is_none(store: &Shared) {
        let make = Make::new();
        started(store, make.create(new_run(run(1)))).await;
        let id = CommitId(uuid::Uuid::from_u128(12_345));
        let places = [
            CommitTrace::Checkpoint { run: run(1), version: 0 },
            CommitTrace::Checkpoint { run: run(1), version: 1 },
            CommitTrace::Checkpoint { run: run(1), version: u64::MAX },
            CommitTrace::Checkpoint { run: run(2), version: 0 },
            CommitTrace::Key { operation: OPERATION.to_owned(), key: "a".to_owned() },
            CommitTrace::Audit,
        ];
        for place in places {
            assert_eq!(store.outcome(ME, CommitRef { id, at: place }).await, Ok(None));
        }
    }
}
