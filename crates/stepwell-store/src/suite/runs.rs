//! Cases about runs: the changes of a step, and the reasons to refuse one.

use bytes::Bytes;
use serde_json::json;
use tokio::task::JoinSet;

use super::Shared;
use super::ask::{all_history, all_runs, apply, claim, claimed, find, load, moved, outcome, refuse, started};
use super::make::{
    ME, Make, at, attempt, bytes, definition, due_run, end, new_run, next, process, run, step, to, wait,
};
use crate::commit::{Commit, CommitError, NewRun, NextState, Ownership, Refused, RunUpdate};
use crate::run::{Head, Loaded, Parent, RunSummary, Status};
use crate::run_query::{RunFilter, RunQuery};
use crate::store::{Claim, HistoryQuery};

/// Returns version and entry of a run's whole history.
async fn versions(store: &Shared, number: u128) -> Vec<(u64, Bytes)> {
    let query = HistoryQuery { run: run(number), from: 0, with_state: false, limit: 100 };
    all_history(store, ME, query).await.into_iter().map(|row| (row.version, row.entry)).collect()
}

fn full_run() -> NewRun {
    NewRun {
        version: 7,
        status: Status::Running,
        wake: Some(at(5)),
        owner: Some(process(1)),
        parent: Some(Parent { run: run(9), activation: 4, child: 2 }),
        root: run(8),
        ledger: Some(bytes("{\"attempts\":1}")),
        open: vec![wait(3)],
        ..new_run(run(1))
    }
}

cases! { runs as __suite_runs;
    /// B1: every field of a new run is loaded as it was committed.
    async fn a_new_run_reads_back_as_it_was_created(store: &Shared) {
        let new = full_run();
        let head = started(store, Make::new().create(new.clone())).await;
        let expected = Head {
            run: run(1),
            revision: 1,
            version: 7,
            fence: 1,
            owner: Some(process(1)),
            status: Status::Running,
            wake: Some(at(5)),
            inbox_seen: 0,
            state: new.first.state.clone(),
            chain: head.chain,
        };
        assert_eq!(head, expected);
        let loaded = Loaded {
            head,
            workflow: new.workflow.clone(),
            definition: new.definition,
            parent: new.parent.clone(),
            root: run(8),
            ledger: new.ledger.clone(),
            inbox: Vec::new(),
            created_at: at(0),
            updated_at: at(0),
            damage: None,
        };
        assert_eq!(load(store, run(1)).await, loaded);
        let summary = RunSummary {
            run: run(1),
            workflow: new.workflow,
            definition: new.definition,
            version: 7,
            status: Status::Running,
            places: new.first.places,
            wake: Some(at(5)),
            owner: Some(process(1)),
            parent: new.parent,
            created_at: at(0),
            updated_at: at(0),
            error: None,
            definition_version: None,
        };
        assert_eq!(all_runs(store, ME, RunQuery::default()).await, vec![summary]);
    }

    /// B2, B3: a step replaces state, places, status, wake-up time, attempts and owner together. It raises version and
    /// revision by one.
    async fn a_step_reads_back_as_it_was_committed(store: &Shared) {
        let make = Make::new();
        let before = started(store, make.create(full_run())).await;
        let places = vec!["left".into(), "right".into()];
        let change = RunUpdate {
            fence: Some(1),
            next: vec![NextState { places: places.clone(), ..next("forked") }],
            status: Status::Failed,
            wake: Some(at(90)),
            owner: Ownership::Release,
            ledger: Some(bytes("{\"attempts\":2}")),
            ..attempt(&before, None)
        };
        let head = moved(store, Commit { step: Some(change), ..make.commit_at(at(3)) }).await;
        let chain = head.chain;
        let status = Status::Failed;
        let (revision, version, fence, wake) = (2, 8, 1, Some(at(90)));
        let state = next("forked").state;
        let expected = Head { revision, version, fence, owner: None, status, wake, state, chain, ..before };
        assert_eq!(head, expected);
        let loaded = load(store, run(1)).await;
        assert_eq!(loaded.head, head);
        assert_eq!(loaded.ledger, Some(bytes("{\"attempts\":2}")));
        assert_eq!((loaded.created_at, loaded.updated_at), (at(0), at(3)));
        let summary = all_runs(store, ME, RunQuery::default()).await.remove(0);
        assert_eq!((summary.places, summary.status, summary.version), (places, status, 8));
        assert_eq!((summary.wake, summary.owner, summary.updated_at), (Some(at(90)), None, at(3)));
    }

    /// B15: a commit that was decided on an older snapshot is refused.
    async fn a_stale_head_is_refused(store: &Shared) {
        let make = Make::new();
        let old = started(store, make.create(new_run(run(1)))).await;
        moved(store, make.step(step(&old, "one"))).await;
        let before = load(store, run(1)).await;
        let late = make.step(step(&old, "late"));
        let refused = refuse(store, late.clone()).await;
        assert_eq!(refused, Refused::Moved { run: run(1), expected: 1, actual: 2 });
        assert_eq!(load(store, run(1)).await, before);
        assert_eq!(outcome(store, &late).await, None);
    }

    async fn an_unknown_run_is_refused(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        let stranger = Head { run: run(2), ..head };
        assert_eq!(refuse(store, make.step(step(&stranger, "one"))).await, Refused::NoRun { run: run(2) });
        assert_eq!(find(store, run(2)).await, None);
        assert_eq!(versions(store, 2).await, vec![]);
    }

    /// B18: a start is refused if the id exists, and the existing run stays.
    async fn a_second_start_of_the_same_run_is_refused(store: &Shared) {
        let make = Make::new();
        started(store, make.create(new_run(run(1)))).await;
        let before = load(store, run(1)).await;
        let again = NewRun { first: next("again"), ..due_run(run(1), 0) };
        assert_eq!(refuse(store, make.create(again)).await, Refused::RunExists { run: run(1) });
        assert_eq!(load(store, run(1)).await, before);
        let twins = Commit { create: vec![new_run(run(2)), new_run(run(2))], ..make.commit() };
        assert_eq!(refuse(store, twins).await, Refused::RunExists { run: run(2) });
        assert_eq!(find(store, run(2)).await, None);
    }

    /// B15: the result of an action with a stale fence is discarded, also if the run has changed in other ways.
    async fn a_stale_fence_is_refused_before_a_stale_head(store: &Shared) {
        let make = Make::new();
        let owned = NewRun { owner: Some(process(1)), ..due_run(run(1), 0) };
        let old = started(store, make.create(owned)).await;
        let taken = RunUpdate { owner: Ownership::Take(process(2)), ..step(&old, "taken over") };
        let head = moved(store, make.step(taken)).await;
        assert_eq!((head.fence, head.owner), (2, Some(process(2))));
        let fenced = Refused::Fenced { run: run(1), expected: 1, actual: 2 };
        let late = RunUpdate { fence: Some(1), ..step(&old, "late") };
        assert_eq!(refuse(store, make.step(late)).await, fenced, "the head is stale too, but the fence is checked first");
        let current = RunUpdate { fence: Some(1), ..step(&head, "late") };
        assert_eq!(refuse(store, make.step(current)).await, fenced, "the head is current");
        let ahead = RunUpdate { fence: Some(3), ..step(&head, "early") };
        let refused = refuse(store, make.step(ahead)).await;
        assert_eq!(refused, Refused::Fenced { run: run(1), expected: 3, actual: 2 });
        assert_eq!(load(store, run(1)).await.head, head);
        moved(store, make.step(RunUpdate { fence: Some(2), ..step(&head, "in time") })).await;
    }

    /// B3: versions are contiguous, and each has one checkpoint.
    async fn versions_are_contiguous(store: &Shared) {
        let make = Make::new();
        let mut head = started(store, make.create(new_run(run(1)))).await;
        for version in 1..=20 {
            head = moved(store, make.step(step(&head, &format!("v{version}")))).await;
            assert_eq!((head.version, head.revision), (version, version + 1));
        }
        let seen: Vec<u64> = versions(store, 1).await.into_iter().map(|(version, _)| version).collect();
        assert_eq!(seen, (0..=20).collect::<Vec<_>>());
    }

    /// A3: a failed attempt is recorded in the run's row, without a version and without a history entry.
    async fn an_attempt_record_changes_no_version_or_history(store: &Shared) {
        let make = Make::new();
        let created = started(store, make.create(new_run(run(1)))).await;
        let head = moved(store, make.step(step(&created, "one"))).await;
        let history = versions(store, 1).await;
        let tried = RunUpdate { wake: Some(at(30)), ..attempt(&head, Some("{\"error\":\"boom\"}")) };
        let after = moved(store, make.step(tried)).await;
        assert_eq!((after.version, after.revision), (1, head.revision + 1));
        assert_eq!(after.state, head.state);
        let loaded = load(store, run(1)).await;
        assert_eq!(loaded.ledger, Some(bytes("{\"error\":\"boom\"}")));
        assert_eq!(loaded.head, after);
        assert_eq!(versions(store, 1).await, history);
        let refused = refuse(store, make.step(step(&head, "on the head before the attempt"))).await;
        assert!(matches!(refused, Refused::Moved { .. }), "{refused:?}");
        let cleared = moved(store, make.step(step(&after, "two"))).await;
        assert_eq!((cleared.version, load(store, run(1)).await.ledger), (2, None));
    }

    /// B16: a run stays pinned to its definition until a step changes it. Claims then use the new definition.
    async fn a_step_may_pin_a_run_to_another_definition(store: &Shared) {
        let make = Make::new();
        let created = started(store, make.create(due_run(run(1), 0))).await;
        let head = moved(store, make.step(step(&created, "one"))).await;
        assert_eq!(load(store, run(1)).await.definition, definition("orders"));
        let other = Some(definition("other"));
        let late = RunUpdate { definition: other, ..step(&created, "late") };
        assert!(matches!(refuse(store, make.step(late)).await, Refused::Moved { .. }));
        assert_eq!(load(store, run(1)).await.definition, definition("orders"));
        let migrated = RunUpdate { definition: other, ..step(&head, "migrated") };
        let head = moved(store, make.step(migrated)).await;
        let head = moved(store, make.step(step(&head, "two"))).await;
        let head = moved(store, make.step(attempt(&head, Some("{}")))).await;
        let loaded = load(store, run(1)).await;
        assert_eq!((loaded.head, loaded.definition), (head, definition("other")));
        assert_eq!(all_runs(store, ME, RunQuery::default()).await[0].definition, definition("other"));
        let knows = |text| Claim { definitions: Some(vec![definition(text)]), ..claim(process(1), 0) };
        assert_eq!(claimed(store, knows("orders")).await, []);
        assert_eq!(claimed(store, knows("other")).await.len(), 1);
    }

    /// B15: the fence rises when a run gets another owner, and only then.
    async fn the_fence_rises_with_every_new_owner(store: &Shared) {
        let make = Make::new();
        let mut head = started(store, make.create(new_run(run(1)))).await;
        let (one, two) = (process(1), process(2));
        let owners = [
            (Ownership::Keep, None, 0),
            (Ownership::Take(one), Some(one), 1),
            (Ownership::Take(one), Some(one), 1),
            (Ownership::Keep, Some(one), 1),
            (Ownership::Take(two), Some(two), 2),
            (Ownership::Release, None, 2),
            (Ownership::Release, None, 2),
            (Ownership::Take(two), Some(two), 3),
        ];
        for (owner, expected, fence) in owners {
            head = moved(store, make.step(RunUpdate { owner, ..attempt(&head, None) })).await;
            assert_eq!((head.owner, head.fence), (expected, fence), "after {owner:?}");
            assert_eq!(load(store, run(1)).await.head, head);
        }
    }

    /// B15: of many decisions on one snapshot, one is committed.
    async fn one_of_many_decisions_on_the_same_head_wins(store: &Shared) {
        let make = Make::new();
        let mut head = started(store, make.create(new_run(run(1)))).await;
        for round in 0..5 {
            let mut tasks = JoinSet::new();
            for task in 0..16 {
                let (store, commit) = (store.clone(), make.step(step(&head, &format!("{round} {task}"))));
                tasks.spawn(async move { store.commit(ME, commit).await });
            }
            let (won, lost): (Vec<_>, Vec<_>) = tasks.join_all().await.into_iter().partition(Result::is_ok);
            assert_eq!(won.len(), 1);
            let stale = Refused::Moved { run: run(1), expected: head.revision, actual: head.revision + 1 };
            assert!(lost.into_iter().all(|lost| lost == Err(CommitError::Refused(stale.clone()))));
            head = load(store, run(1)).await.head;
            assert_eq!(Some(&head), won[0].as_ref().unwrap().head.as_ref());
        }
        assert_eq!(versions(store, 1).await.len(), 6);
    }

    /// B18: of many concurrent starts with one id, one is committed.
    async fn one_of_many_starts_of_the_same_run_wins(store: &Shared) {
        let make = Make::new();
        for number in 1..=5 {
            let mut tasks = JoinSet::new();
            for task in 0..8 {
                let new = NewRun { first: next(&format!("by {task}")), ..new_run(run(number)) };
                let (store, commit) = (store.clone(), make.create(new));
                tasks.spawn(async move { store.commit(ME, commit).await });
            }
            let (won, lost): (Vec<_>, Vec<_>) = tasks.join_all().await.into_iter().partition(Result::is_ok);
            assert_eq!(won.len(), 1);
            let exists = Err(CommitError::Refused(Refused::RunExists { run: run(number) }));
            assert!(lost.into_iter().all(|lost| lost == exists));
            assert_eq!(load(store, run(number)).await.head, won[0].as_ref().unwrap().created[0]);
            assert_eq!(versions(store, number).await.len(), 1);
        }
    }

    /// Guards against a load that reads the row before a commit, and state and inbox after it.
    async fn a_load_is_never_torn(store: &Shared) {
        const VERSIONS: u64 = 60;
        let make = Make::new();
        let text = |version: u64| format!("v{version}");
        let first = NewRun { first: next(&text(0)), ..new_run(run(1)) };
        let head = apply(store, Commit { send: vec![to(run(1), &text(0))], ..make.create(first) }).await;
        let mut head = head.created[0].clone();
        let mut readers = JoinSet::new();
        for _ in 0..3 {
            let store = store.clone();
            readers.spawn(async move {
                loop {
                    let Loaded { head, inbox, .. } = load(&store, run(1)).await;
                    let said = text(head.version);
                    assert_eq!(head.state, next(&said).state, "the state of another version");
                    let topics: Vec<_> = inbox.iter().map(|message| message.topic.clone()).collect();
                    assert_eq!(topics, [said], "the inbox of another version");
                    assert_eq!((head.revision, head.inbox_seen), (head.version + 1, head.version + 1));
                    if head.version == VERSIONS {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            });
        }
        for version in 1..=VERSIONS {
            let change = RunUpdate { take: vec![version], ..step(&head, &text(version)) };
            head = moved(store, Commit { send: vec![to(run(1), &text(version))], ..make.step(change) }).await;
            tokio::task::yield_now().await;
        }
        readers.join_all().await;
    }

    /// B2, B11: children start in the commit of the step that starts them.
    async fn children_start_with_the_step_that_creates_them(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        let child = |number: u32| NewRun {
            parent: Some(Parent { run: run(1), activation: 5, child: number }),
            root: run(1),
            ..due_run(run(10 + u128::from(number)), 0)
        };
        let create = (0..50).map(child).collect();
        let committed = apply(store, Commit { create, ..make.step(step(&head, "fan out")) }).await;
        assert_eq!(committed.created.len(), 50);
        for (number, head) in (10..).zip(&committed.created) {
            assert_eq!((head.run, head.version), (run(number), 0));
        }
        let third = load(store, run(12)).await;
        assert_eq!(third.head, committed.created[2]);
        assert_eq!((third.parent, third.root), (child(2).parent, run(1)));
        let children = RunQuery { filter: RunFilter { parent: Some(run(1)), ..RunFilter::default() }, limit: 20, ..RunQuery::default() };
        assert_eq!(all_runs(store, ME, children).await.len(), 50);
        assert_eq!(claimed(store, claim(process(1), 0)).await.len(), 50);
    }

    /// Runs are listed newest first, filtered by workflow, status and parent, in pages.
    async fn runs_are_listed_newest_first_and_filtered(store: &Shared) {
        let make = Make::new();
        for number in [3, 1, 4, 2, 5] {
            let mut new = new_run(run(number));
            if number % 2 == 0 {
                (new.workflow, new.definition) = ("invoices".into(), definition("invoices"));
            }
            if number > 3 {
                new.parent = Some(Parent { run: run(1), activation: 1, child: 0 });
            }
            let head = started(store, make.create(new)).await;
            if number > 2 {
                moved(store, make.step(end(&head))).await;
            }
        }
        let listed = async |filter: RunFilter| {
            let rows = all_runs(store, ME, RunQuery { filter, limit: 2, ..RunQuery::default() }).await;
            rows.into_iter().map(|row| row.run.uuid().as_u128() & 0xF).collect::<Vec<_>>()
        };
        let any = RunFilter::default();
        assert_eq!(listed(any.clone()).await, [5, 4, 3, 2, 1]);
        assert_eq!(listed(RunFilter::of("invoices")).await, [4, 2]);
        assert_eq!(listed(RunFilter::of("nothing")).await, []);
        assert_eq!(listed(RunFilter::with_status([Status::Completed])).await, [5, 4, 3]);
        assert_eq!(listed(RunFilter { parent: Some(run(1)), ..any.clone() }).await, [5, 4]);
        let without_prefix = |prefix: &str| RunFilter { without_prefix: Some(prefix.to_owned()), ..any.clone() };
        assert_eq!(listed(without_prefix("inv")).await, [5, 3, 1]);
        assert_eq!(listed(without_prefix("in_")).await, [5, 4, 3, 2, 1], "no character is a wildcard");
        assert_eq!(listed(RunFilter { status: vec![Status::Completed], ..without_prefix("inv") }).await, [5, 3]);
        assert_eq!(listed(RunFilter { parent: Some(run(1)), ..without_prefix("inv") }).await, [5]);
        let named = RunFilter { workflow: Some("invoices".into()), ..without_prefix("inv") };
        assert_eq!(listed(named).await, [4, 2], "`without` has no effect on a named workflow");
        let (workflow, status) = (Some("invoices".into()), vec![Status::Completed]);
        assert_eq!(listed(RunFilter { workflow, status, parent: Some(run(1)), ..any }).await, [4]);
    }

    /// Pages continue by key: writes between two pages neither repeat nor hide a row.
    async fn pages_of_runs_are_stable_under_writes(store: &Shared) {
        let make = Make::new();
        for number in 1..=5 {
            started(store, make.create(new_run(run(number)))).await;
        }
        let query = |cursor| RunQuery { limit: 2, cursor, ..RunQuery::default() };
        let page = store.runs(ME, query(None)).await.unwrap();
        assert_eq!(page.items.iter().map(|row| row.run).collect::<Vec<_>>(), [run(5), run(4)]);
        started(store, make.create(new_run(run(6)))).await;
        let page = store.runs(ME, query(page.next)).await.unwrap();
        assert_eq!(page.items.iter().map(|row| row.run).collect::<Vec<_>>(), [run(3), run(2)]);
        let page = store.runs(ME, query(page.next)).await.unwrap();
        assert_eq!(page.items.iter().map(|row| row.run).collect::<Vec<_>>(), [run(1)]);
        assert_eq!(page.next, None, "the last page has no cursor");
    }

    /// Every status reads back unchanged.
    async fn every_status_reads_back(store: &Shared) {
        let make = Make::new();
        for (number, status) in (1..).zip(Status::ALL) {
            let head = started(store, make.create(NewRun { status, ..new_run(run(number)) })).await;
            assert_eq!(head.status, status);
            assert_eq!(load(store, run(number)).await.head.status, status);
            let query = RunQuery { filter: RunFilter { status: vec![status], ..RunFilter::default() }, ..RunQuery::default() };
            let listed = all_runs(store, ME, query).await;
            assert_eq!(listed.len(), 1);
            assert_eq!((listed[0].run, listed[0].status), (run(number), status));
        }
    }

    /// A new run may start at a later version: a flow that becomes a durable run keeps its version.
    async fn a_run_may_start_at_a_later_version(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(NewRun { version: 41, ..new_run(run(1)) })).await;
        moved(store, make.step(step(&head, "on"))).await;
        let entry = |text: &str| Bytes::from(json!({ "entered": text }).to_string());
        assert_eq!(versions(store, 1).await, [(41, entry("created")), (42, entry("on"))]);
    }
}
