//! Cases about messages: they are stored in order, taken once, and wake their run.

use bytes::Bytes;
use stepwell_core::{RunId, Timestamp};
use tokio::task::JoinSet;

use super::Shared;
use super::ask::{apply, claim, claimed, load, moved, refuse, started, taken, topics};
use super::make::{ME, Make, at, attempt, due_run, end, message, new_run, process, run, set, step, to};
use crate::commit::{
    Commit, CommitError, Delivery, NewMessage, NewRun, OnMissingRun, Refused, RunUpdate, SendMessage,
};
use crate::run::{Head, Status, StoredMessage};
use crate::store::{Cleanup, CleanupKind, EndedBefore};

/// Builds a message that does not count against the limit.
fn quiet(to: RunId, topic: &str) -> SendMessage {
    SendMessage { to, message: NewMessage { counts: false, ..message(topic) }, missing: OnMissingRun::Refuse }
}

/// Builds a message that is dropped if its run does not accept messages.
fn maybe(to: RunId) -> SendMessage {
    SendMessage { to, message: message("maybe"), missing: OnMissingRun::Drop }
}

/// Builds a message that creates its run, due at once.
fn creating(to: RunId, topic: &str) -> SendMessage {
    let missing = OnMissingRun::Create(Box::new(due_run(to, 1)));
    SendMessage { to, message: NewMessage { counts: false, ..message(topic) }, missing }
}

/// Takes all messages of the run's inbox in one step and returns their topics. `None` if the step was refused as stale.
async fn take_all(store: &Shared, make: &Make, number: u128) -> Option<Vec<String>> {
    let loaded = load(store, run(number)).await;
    let take = loaded.inbox.iter().map(|message| message.seq).collect();
    let commit = make.step(RunUpdate { take, ..step(&loaded.head, "took") });
    match store.commit(ME, commit).await {
        Ok(_) => Some(loaded.inbox.into_iter().map(|message| message.topic).collect()),
        Err(CommitError::Refused(Refused::Moved { .. })) => None,
        Err(other) => panic!("expected an applied or a stale step, got {other}"),
    }
}

async fn wake_of(store: &Shared, number: u128) -> Option<Timestamp> {
    load(store, run(number)).await.head.wake
}

cases! { inbox as __suite_inbox;
    /// B10: messages are stored in order of arrival and read back as sent.
    async fn messages_are_kept_in_order_of_arrival(store: &Shared) {
        let make = Make::new();
        started(store, make.create(new_run(run(1)))).await;
        let body = Bytes::from_static(b"{\"n\":1}");
        let expires_at = Some(at(99));
        let first =
            SendMessage { message: NewMessage { body: body.clone(), expires_at, ..message("b") }, ..to(run(1), "") };
        let commit = Commit { send: vec![first, to(run(1), "a")], ..make.commit_at(at(4)) };
        assert_eq!(apply(store, commit).await.sent, [Delivery::Enqueued(1), Delivery::Enqueued(2)]);
        assert_eq!(apply(store, make.send([to(run(1), "c")])).await.sent, [Delivery::Enqueued(3)]);
        let inbox = load(store, run(1)).await.inbox;
        let first = StoredMessage { seq: 1, topic: "b".to_owned(), body, received_at: at(4), expires_at };
        assert_eq!(inbox[0], first);
        assert_eq!(inbox.iter().map(|message| message.seq).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(topics(store, run(1)).await, ["b", "a", "c"]);
        assert_eq!(load(store, run(1)).await.head.inbox_seen, 3);
    }

    /// B10: a message stays until a commit takes it, and cannot be taken again.
    async fn a_message_is_taken_exactly_once(store: &Shared) {
        let make = Make::new();
        started(store, make.create(new_run(run(1)))).await;
        apply(store, make.send([to(run(1), "a"), to(run(1), "b"), to(run(1), "c")])).await;
        let head = load(store, run(1)).await.head;
        let head = moved(store, make.step(step(&head, "one"))).await;
        assert_eq!(topics(store, run(1)).await, ["a", "b", "c"], "a step that takes no message keeps them");
        let head = moved(store, make.step(RunUpdate { take: vec![2], ..step(&head, "two") })).await;
        assert_eq!(topics(store, run(1)).await, ["a", "c"]);
        let again = make.step(RunUpdate { take: vec![1, 2], ..step(&head, "again") });
        assert_eq!(refuse(store, again).await, Refused::NoMessage { run: run(1), seq: 2 });
        assert_eq!(topics(store, run(1)).await, ["a", "c"]);
        moved(store, make.step(RunUpdate { take: vec![1, 3], ..attempt(&head, None) })).await;
        assert_eq!(topics(store, run(1)).await, Vec::<String>::new());
        let sent = apply(store, make.send([to(run(1), "d")])).await.sent;
        assert_eq!(sent, [Delivery::Enqueued(4)], "a sequence number is not used twice");
    }

    /// B10: a step that must see every message is refused if a new one has arrived, so that the step does not overtake
    /// it.
    async fn a_step_in_order_is_refused_after_a_new_message(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        let in_order = |step: RunUpdate| RunUpdate { in_order: true, ..step };
        let head = moved(store, make.step(in_order(step(&head, "one")))).await;
        apply(store, Commit { send: vec![to(run(1), "came meanwhile")], ..make.commit_at(at(4)) }).await;
        for late in [step(&head, "late"), attempt(&head, None), end(&head)] {
            let refused = refuse(store, make.step(in_order(late))).await;
            assert!(matches!(refused, Refused::Moved { .. }), "{refused}");
        }
        let taking = Commit { cells: vec![set("k", 1)], ..make.step(in_order(step(&head, "late"))) };
        assert!(matches!(refuse(store, taking).await, Refused::Moved { .. }));
        let known = load(store, run(1)).await.head;
        let known = moved(store, make.step(in_order(step(&known, "two")))).await;
        moved(store, make.step(in_order(attempt(&known, None)))).await;
        let loose = load(store, run(1)).await.head;
        let loose = Head { inbox_seen: 0, ..loose };
        moved(store, make.step(step(&loose, "three"))).await;
    }

    /// Guards against a run that falls asleep while a message arrives, and never wakes up.
    async fn an_unseen_message_wakes_the_run(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        apply(store, Commit { send: vec![to(run(1), "came meanwhile")], ..make.commit_at(at(4)) }).await;
        let asleep = RunUpdate { wake: None, ..step(&head, "asleep") };
        let head = moved(store, Commit { step: Some(asleep), ..make.commit_at(at(6)) }).await;
        assert_eq!(head.wake, None, "the head has not seen the message");
        assert_eq!(wake_of(store, 1).await, Some(at(4)), "it is due since the message arrived");
        for later in [step(&head, "later"), attempt(&head, None)] {
            let head = load(store, run(1)).await.head;
            // As if it had been loaded before the message arrived.
            let head = Head { inbox_seen: 0, wake: None, ..head };
            let later = RunUpdate { head, wake: Some(at(500)), ..later };
            moved(store, Commit { step: Some(later), ..make.commit_at(at(7)) }).await;
            assert_eq!(wake_of(store, 1).await, Some(at(4)), "it is due since the message arrived");
        }
        let head = Head { inbox_seen: 0, ..load(store, run(1)).await.head };
        let sooner = RunUpdate { wake: Some(at(2)), ..step(&head, "soon") };
        moved(store, Commit { step: Some(sooner), ..make.commit_at(at(8)) }).await;
        assert_eq!(wake_of(store, 1).await, Some(at(2)), "an earlier due time stays");
        assert_eq!(taken(store, claim(process(1), 8)).await, [run(1)]);
        let known = load(store, run(1)).await.head;
        let asleep = RunUpdate { wake: None, ..step(&known, "asleep") };
        assert_eq!(moved(store, make.step(asleep)).await.wake, None, "after the message was seen the run may sleep");
        assert_eq!(wake_of(store, 1).await, None);
    }

    /// B9: a message wakes a sleeping run, but does not invalidate a decision on it.
    async fn a_message_wakes_its_run_without_a_new_revision(store: &Shared) {
        let make = Make::new();
        for (number, wake, expected) in [(1, None, 5), (2, Some(100), 5), (3, Some(3), 3)] {
            let new = NewRun { wake: wake.map(at), ..new_run(run(number)) };
            let head = started(store, make.create(new)).await;
            let before = load(store, run(number)).await;
            apply(store, Commit { send: vec![to(run(number), "hello")], ..make.commit_at(at(5)) }).await;
            let after = load(store, run(number)).await;
            assert_eq!(after.head.wake, Some(at(expected)), "previous wake-up time {wake:?}");
            assert_eq!((after.head.revision, after.updated_at), (before.head.revision, before.updated_at));
            moved(store, make.step(step(&head, "decided before the message came"))).await;
            assert_eq!(topics(store, run(number)).await, ["hello"]);
        }
    }

    async fn a_message_to_an_ended_run_is_dropped_or_refused(store: &Shared) {
        let make = Make::new();
        for (number, status) in [(1, Status::Completed), (2, Status::Cancelled)] {
            let head = started(store, make.create(new_run(run(number)))).await;
            moved(store, make.step(RunUpdate { status, ..end(&head) })).await;
            let before = load(store, run(number)).await;
            assert_eq!(apply(store, make.send([maybe(run(number))])).await.sent, [Delivery::Dropped]);
            let refused = refuse(store, make.send([to(run(number), "x")])).await;
            assert_eq!(refused, Refused::NoTarget { run: run(number) });
            assert_eq!(load(store, run(number)).await, before);
        }
        assert_eq!(apply(store, make.send([maybe(run(9))])).await.sent, [Delivery::Dropped]);
        assert_eq!(refuse(store, make.send([to(run(9), "x")])).await, Refused::NoTarget { run: run(9) });
    }

    /// Guards against an ended run that is claimed once more, because a message arrived while it ended.
    async fn an_unseen_message_does_not_wake_an_ended_run(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        apply(store, make.send([to(run(1), "too late")])).await;
        moved(store, make.step(end(&head))).await;
        assert_eq!(wake_of(store, 1).await, None);
        assert_eq!(taken(store, claim(process(1), 9)).await, []);
    }

    /// B5, B10: a failed or suspended run accepts messages.
    async fn a_stopped_run_accepts_messages(store: &Shared) {
        let make = Make::new();
        let statuses = [Status::Pending, Status::Suspended, Status::Failed, Status::Waiting, Status::Running];
        for (number, status) in (1..).zip(statuses) {
            started(store, make.create(NewRun { status, ..new_run(run(number)) })).await;
            assert_eq!(apply(store, make.send([to(run(number), "x")])).await.sent, [Delivery::Enqueued(1)]);
        }
    }

    /// B10: an inbox is bounded. The engine's own messages do not count, and taking a message frees its place.
    async fn an_inbox_is_limited_to_messages_that_count(store: &Shared) {
        let make = Make::new();
        started(store, make.create(new_run(run(1)))).await;
        apply(store, make.send((0..10).map(|_| quiet(run(1), "quiet")))).await;
        apply(store, make.send((0..999).map(|_| to(run(1), "loud")))).await;
        let full = Refused::InboxFull { run: run(1), max: 1_000 };
        assert_eq!(refuse(store, make.send([to(run(1), "fits"), to(run(1), "does not")])).await, full);
        apply(store, make.send([to(run(1), "last")])).await;
        assert_eq!(refuse(store, make.send([to(run(1), "one too many")])).await, full);
        assert_eq!(apply(store, make.send([quiet(run(1), "quiet")])).await.sent, [Delivery::Enqueued(1_011)]);
        let head = load(store, run(1)).await.head;
        let took_quiet = RunUpdate { take: vec![1, 2], ..attempt(&head, None) };
        let head = moved(store, make.step(took_quiet)).await;
        assert_eq!(refuse(store, make.send([to(run(1), "no room yet")])).await, full);
        let swap = RunUpdate { take: vec![11], ..step(&head, "took one and got one") };
        let committed =
            apply(store, Commit { send: vec![to(run(1), "in its place")], ..make.step(swap) }).await;
        assert_eq!(committed.sent, [Delivery::Enqueued(1_012)]);
        assert_eq!(refuse(store, make.send([to(run(1), "full again")])).await, full);
    }

    async fn a_run_may_send_to_itself(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        let commit = Commit { send: vec![to(run(1), "note")], ..make.step(step(&head, "one")) };
        let head = apply(store, commit).await.head.unwrap();
        assert_eq!((head.wake, head.inbox_seen), (None, 0), "the head does not include the message");
        assert_eq!(wake_of(store, 1).await, Some(at(0)));
        assert_eq!(topics(store, run(1)).await, ["note"]);
        let head = moved(store, make.step(RunUpdate { wake: None, take: vec![1], ..step(&head, "two") })).await;
        assert_eq!((head.version, topics(store, run(1)).await.len()), (2, 0));
        let last = Commit { send: vec![maybe(run(1))], ..make.step(end(&head)) };
        assert_eq!(apply(store, last).await.sent, [Delivery::Dropped], "the run ends with this step");
    }

    /// B18: a run can be started and signalled in one commit.
    async fn a_message_reaches_a_run_created_in_the_same_commit(store: &Shared) {
        let make = Make::new();
        let commit = Commit { send: vec![to(run(1), "signal")], ..make.create(new_run(run(1))) };
        let committed = apply(store, commit).await;
        assert_eq!(committed.sent, [Delivery::Enqueued(1)]);
        assert_eq!((committed.created[0].wake, committed.created[0].inbox_seen), (None, 0));
        assert_eq!(wake_of(store, 1).await, Some(at(0)));
        assert_eq!(topics(store, run(1)).await, ["signal"]);
        let loaded = claimed(store, claim(process(1), 0)).await.remove(0);
        assert_eq!((loaded.inbox.len(), loaded.head.inbox_seen), (1, 1));
    }

    /// B11: one commit ends the child and notifies its parent.
    async fn a_childs_end_and_its_message_are_one_commit(store: &Shared) {
        let make = Make::new();
        started(store, make.create(new_run(run(1)))).await;
        let child = started(store, make.create(due_run(run(2), 0))).await;
        let ending = Commit { send: vec![quiet(run(1), "ended")], ..make.step(end(&child)) };
        apply(store, ending.clone()).await;
        assert!(matches!(refuse(store, ending).await, Refused::Moved { .. }));
        assert_eq!(topics(store, run(1)).await, ["ended"]);
        assert_eq!(wake_of(store, 1).await, Some(at(0)));
    }

    /// B10, B11: with many concurrent senders no message is lost or taken twice, while the run takes messages.
    async fn concurrent_messages_are_each_taken_once(store: &Shared) {
        const SENDERS: usize = 8;
        const EACH: usize = 10;
        let make = std::sync::Arc::new(Make::new());
        started(store, make.create(new_run(run(1)))).await;
        let mut senders = JoinSet::new();
        for sender in 0..SENDERS {
            let (store, make) = (store.clone(), make.clone());
            senders.spawn(async move {
                for number in 0..EACH {
                    apply(&store, make.send([to(run(1), &format!("{sender} {number}"))])).await;
                }
            });
        }
        let mut heard = Vec::new();
        while heard.len() < SENDERS * EACH {
            let took = take_all(store, &make, 1).await.expect("there is no other writer");
            if took.is_empty() {
                tokio::task::yield_now().await;
            }
            heard.extend(took);
        }
        senders.join_all().await;
        assert_eq!(topics(store, run(1)).await, Vec::<String>::new());
        for sender in 0..SENDERS {
            let mine: Vec<_> =
                heard.iter().filter(|topic| topic.starts_with(&format!("{sender} "))).collect();
            let expected: Vec<_> = (0..EACH).map(|number| format!("{sender} {number}")).collect();
            assert_eq!(mine, expected.iter().collect::<Vec<_>>(), "in the order they were sent");
        }
    }

    /// B18: concurrent messages that create their run create it once, and all of them arrive.
    async fn a_message_creates_its_run_once(store: &Shared) {
        const SENDERS: u128 = 12;
        let make = std::sync::Arc::new(Make::new());
        let mut tasks = JoinSet::new();
        for number in 2..SENDERS + 2 {
            let (store, make) = (store.clone(), make.clone());
            tasks.spawn(async move {
                let create = vec![new_run(run(number))];
                let send = vec![creating(run(1), &number.to_string())];
                let done = apply(&store, Commit { create, send, ..make.commit() }).await;
                assert_eq!(done.created.iter().map(|head| head.run).collect::<Vec<_>>(), [run(number)]);
            });
        }
        tasks.join_all().await;
        let loaded = load(store, run(1)).await;
        assert_eq!((loaded.head.version, loaded.inbox.len() as u128), (0, SENDERS));
        assert!(wake_of(store, 1).await.is_some_and(|wake| wake <= at(1)), "it is due");
        let head = moved(store, make.step(step(&loaded.head, "on"))).await;
        apply(store, make.send([creating(run(1), "more")])).await;
        let loaded = load(store, run(1)).await;
        assert_eq!((loaded.head.version, loaded.inbox.len() as u128), (head.version, SENDERS + 1), "it keeps its state");
    }

    /// B18: such a message opens a run that has ended, and a decision on the ended run is refused.
    async fn a_message_that_creates_its_run_opens_an_ended_one(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        let ended = moved(store, make.step(RunUpdate { status: Status::Completed, ..end(&head) })).await;
        assert!(matches!(refuse(store, make.send([to(run(1), "late")])).await, Refused::NoTarget { .. }));
        apply(store, make.send([creating(run(1), "open")])).await;
        let loaded = load(store, run(1)).await;
        assert_eq!((loaded.head.status, loaded.head.version), (Status::Running, ended.version));
        assert!(loaded.head.wake.is_some_and(|wake| wake <= at(1)), "it is due");
        assert_eq!(loaded.inbox.len(), 1);
        assert!(matches!(refuse(store, make.step(attempt(&ended, None))).await, Refused::Moved { .. }));
        let what = CleanupKind::Runs(EndedBefore::all(at(1_000)));
        let cleanup = Cleanup { now: at(1_000), limit: 10, what };
        assert_eq!(store.cleanup(ME, cleanup).await.unwrap().count, 0, "it has not ended");
    }

    /// B11: two runs that send to each other at the same time both make progress.
    async fn runs_that_send_to_each_other_do_not_deadlock(store: &Shared) {
        const ROUNDS: usize = 20;
        let make = std::sync::Arc::new(Make::new());
        let mut tasks = JoinSet::new();
        let heads =
            apply(store, Commit { create: vec![new_run(run(1)), new_run(run(2))], ..make.commit() }).await;
        for (mut head, other) in heads.created.into_iter().zip([run(2), run(1)]) {
            let (store, make) = (store.clone(), make.clone());
            tasks.spawn(async move {
                for _ in 0..ROUNDS {
                    head = moved(
                        &store,
                        Commit { send: vec![to(other, "ping")], ..make.step(step(&head, "on")) },
                    )
                    .await;
                }
            });
        }
        tasks.join_all().await;
        for number in [1, 2] {
            let loaded = load(store, run(number)).await;
            assert_eq!((loaded.head.version, loaded.inbox.len()), (ROUNDS as u64, ROUNDS));
        }
    }
}
