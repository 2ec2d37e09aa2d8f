//! Cases about filters on runs, the order of a listing, its limited reads, and counts by status.

use stepwell_core::{RunId, Timestamp};
use uuid::Uuid;

use super::Shared;
use super::ask::{all_runs, apply, load, moved, started};
use super::make::{ME, Make, at, attempt, definition, end, key, new_run, run, set_shadow, step, stored};
use crate::commit::{Commit, KeyLifetime, KeyWrite, NewRun, RunUpdate};
use crate::run::{Parent, RunSummary, Status};
use crate::run_query::{MAX_ROWS_READ, MAX_RUN_COUNT, RunCount, RunFilter, RunOrder, RunQuery};
use crate::shadow::ShadowFilter;
use crate::store::{Record, RecordQuery};

/// Returns an id with the time of a second.
fn timed(seconds: i64, number: u128) -> RunId {
    let ms = u128::try_from(at(seconds).micros() / 1_000).unwrap();
    RunId::new(Uuid::from_u128((ms << 80) | number))
}

/// Creates a run at a second.
async fn created(store: &Shared, make: &Make, seconds: i64, new: NewRun) -> RunId {
    let run = new.run;
    apply(store, Commit { at: at(seconds), ..make.create(new) }).await;
    run
}

fn number(run: RunId) -> u128 {
    run.uuid().as_u128() & 0xFFFF
}

/// Lists runs in pages of two and returns their numbers.
async fn found(store: &Shared, filter: RunFilter) -> Vec<u128> {
    ordered(store, filter, None).await
}

async fn ordered(store: &Shared, filter: RunFilter, order: Option<RunOrder>) -> Vec<u128> {
    let query = RunQuery { filter, order, limit: 2, cursor: None };
    all_runs(store, ME, query).await.into_iter().map(|row| number(row.run)).collect()
}

async fn counts(store: &Shared, filter: RunFilter) -> Vec<RunCount> {
    let found = store.records(ME, RecordQuery::RunCounts(Box::new(filter))).await.unwrap();
    let count = |record| match record {
        Record::RunCount(count) => count,
        other => panic!("{other:?}"),
    };
    found.items.into_iter().map(count).collect()
}

async fn count(store: &Shared, filter: RunFilter, status: Status) -> (u32, bool) {
    let counts = counts(store, filter).await;
    counts.iter().find(|count| count.status == status).map(|count| (count.count, count.more)).unwrap()
}

fn failing(run: RunId, code: &str) -> NewRun {
    NewRun { status: Status::Failed, error: Some(code.to_owned()), ..new_run(run) }
}

fn since(after: Option<Timestamp>, before: Option<Timestamp>) -> RunFilter {
    RunFilter { created_after: after, created_before: before, ..RunFilter::default() }
}

cases! { filters as __suite_filters;
    /// Several statuses are merged to one listing in the order of ids.
    async fn several_statuses_are_listed_together(store: &Shared) {
        let make = Make::new();
        let statuses = [Status::Failed, Status::Waiting, Status::Pending, Status::Suspended, Status::Failed];
        for (number, status) in (1..).zip(statuses) {
            started(store, make.create(NewRun { status, ..new_run(run(number)) })).await;
        }
        let of = |statuses: &[Status]| RunFilter::with_status(statuses.iter().copied());
        assert_eq!(found(store, of(&[Status::Failed, Status::Suspended])).await, [5, 4, 1]);
        assert_eq!(found(store, of(&[Status::Failed, Status::Suspended, Status::Pending])).await, [5, 4, 3, 1]);
        assert_eq!(found(store, of(&[Status::Failed, Status::Waiting])).await, [5, 2, 1]);
        assert_eq!(found(store, of(&[Status::Failed, Status::Failed])).await, [5, 1]);
        let asc = Some(RunOrder::Asc);
        assert_eq!(ordered(store, of(&[Status::Failed, Status::Suspended]), asc).await, [1, 4, 5]);
        let orders = RunFilter { status: vec![Status::Failed, Status::Pending], ..RunFilter::of("orders") };
        assert_eq!(found(store, orders).await, [5, 3, 1]);
    }

    /// A range of times selects runs whether or not their ids contain the time.
    async fn range_of_times_selects_runs(store: &Shared) {
        let make = Make::new();
        // The ids of the runs 2 and 4 have another time than the runs: a day too early, and an hour too late.
        for (number, second, of_id) in [(1, 0, 0), (2, 600, -86_400), (3, 1_200, 1_200), (4, 1_800, 5_400)] {
            created(store, &make, second, new_run(timed(of_id, number))).await;
        }
        let newest = created(store, &make, 2_400, new_run(timed(2_400, 5))).await;
        let all = [4, 5, 3, 1, 2];
        assert_eq!(found(store, since(None, None)).await, all);
        assert_eq!(found(store, since(Some(at(600)), None)).await, [4, 5, 3, 2]);
        assert_eq!(found(store, since(Some(at(601)), None)).await, [4, 5, 3]);
        assert_eq!(found(store, since(None, Some(at(1_800)))).await, [3, 1, 2]);
        assert_eq!(found(store, since(Some(at(600)), Some(at(1_801)))).await, [4, 3, 2]);
        assert_eq!(found(store, since(Some(at(9_999)), None)).await, []);
        assert_eq!(found(store, since(None, Some(at(0)))).await, []);
        let asc = Some(RunOrder::Asc);
        assert_eq!(ordered(store, since(Some(at(600)), None), asc).await, [2, 3, 5, 4]);
        let of_orders = RunFilter { workflow: Some("orders".into()), ..since(Some(at(1_200)), None) };
        assert_eq!(found(store, of_orders).await, [4, 5, 3]);
        assert_eq!(count(store, since(Some(at(600)), None), Status::Waiting).await, (4, false));
        let head = load(store, newest).await.head;
        apply(store, Commit { at: at(3_000), ..make.step(step(&head, "on")) }).await;
        let updated = |after, before| RunFilter { updated_after: after, updated_before: before, ..RunFilter::default() };
        assert_eq!(found(store, updated(Some(at(1_800)), None)).await, [4, 5]);
        assert_eq!(found(store, updated(Some(at(1_801)), None)).await, [5]);
        assert_eq!(found(store, updated(None, Some(at(600)))).await, [1]);
        let empty = RunQuery::from(since(Some(at(5)), Some(at(5))));
        let why = store.runs(ME, empty).await.unwrap_err().to_string();
        assert!(why.contains("must be later than its start"), "{why}");
    }

    /// A run is found by the number of its workflow version and by the hash of its definition.
    async fn version_and_definition_select_runs(store: &Shared) {
        let make = Make::new();
        let version = |text: &str, version| crate::StoredDefinition { workflow: "orders".into(), version, ..stored(text) };
        let definitions = vec![version("one", 1), version("two", 2), version("again", 2)];
        apply(store, Commit { definitions, ..make.commit_at(at(0)) }).await;
        for (number, pinned) in [(1, "one"), (2, "two"), (3, "again"), (4, "missing")] {
            started(store, make.create(NewRun { definition: definition(pinned), ..new_run(run(number)) })).await;
        }
        let of = |version| RunFilter { version: Some(version), ..RunFilter::of("orders") };
        assert_eq!(found(store, of(1)).await, [1]);
        assert_eq!(found(store, of(2)).await, [3, 2]);
        assert_eq!(found(store, of(3)).await, []);
        let pinned = RunFilter { definition: Some(definition("two")), ..RunFilter::default() };
        assert_eq!(found(store, pinned).await, [2]);
        let rows = all_runs(store, ME, RunQuery::default()).await;
        let versions: Vec<_> = rows.iter().map(|row| row.definition_version).collect();
        assert_eq!(versions, [None, Some(2), Some(2), Some(1)]);
        let nameless = RunQuery::from(RunFilter { version: Some(1), ..RunFilter::default() });
        let why = store.runs(ME, nameless).await.unwrap_err().to_string();
        assert!(why.contains("name the workflow"), "{why}");
    }

    /// The code of the error is stored while the run is failed.
    async fn error_code_selects_failed_runs(store: &Shared) {
        let make = Make::new();
        started(store, make.create(failing(run(1), "timeout"))).await;
        let head = started(store, make.create(new_run(run(2)))).await;
        let fails = RunUpdate { status: Status::Failed, error: Some("http.500".to_owned()), ..attempt(&head, None) };
        let failed = moved(store, make.step(fails)).await;
        started(store, make.create(failing(run(3), "http.404"))).await;
        started(store, make.create(NewRun { error: Some("timeout".to_owned()), ..new_run(run(4)) })).await;
        let of = |code: &str| RunFilter { error: Some(code.to_owned()), ..RunFilter::default() };
        assert_eq!(found(store, of("timeout")).await, [1], "a code is kept with the status `failed` only");
        assert_eq!(found(store, of("http.500")).await, [2]);
        assert_eq!(found(store, of("http.*")).await, [3, 2]);
        assert_eq!(found(store, of("*")).await, [3, 2, 1]);
        assert_eq!(found(store, of("http")).await, []);
        assert_eq!(found(store, of("a\0b")).await, []);
        assert_eq!(found(store, RunFilter { status: vec![Status::Waiting], ..of("timeout") }).await, []);
        assert_eq!(count(store, of("http.*"), Status::Failed).await, (2, false));
        let rows = all_runs(store, ME, RunQuery::from(of("http.500"))).await;
        assert_eq!(rows[0].error.as_deref(), Some("http.500"));
        // Another error of the same run, and then a retry.
        let again = RunUpdate { error: Some("timeout".to_owned()), ..attempt(&failed, None) };
        let failed = moved(store, make.step(again)).await;
        assert_eq!(found(store, of("timeout")).await, [2, 1]);
        let sent = Commit { send: vec![super::make::to(run(2), "hello")], ..make.commit_at(at(1)) };
        apply(store, sent).await;
        assert_eq!(found(store, of("timeout")).await, [2, 1], "a message does not change the code");
        let retried = RunUpdate { status: Status::Running, ..attempt(&load(store, failed.run).await.head, None) };
        moved(store, make.step(retried)).await;
        assert_eq!(found(store, of("timeout")).await, [1]);
    }

    /// The beginning of an id selects runs, of any length.
    async fn id_prefix_selects_runs(store: &Shared) {
        let make = Make::new();
        for (number, second) in [(1, 0), (2, 0), (3, 90_000)] {
            created(store, &make, second, new_run(timed(second, number))).await;
        }
        let of = |text: &str| RunFilter { id_prefix: Some(text.parse().unwrap()), ..RunFilter::default() };
        let (first, third) = (timed(0, 1).to_string(), timed(90_000, 3).to_string());
        assert_eq!(found(store, of("0")).await, [3, 2, 1]);
        assert_eq!(found(store, of(&first)).await, [1]);
        assert_eq!(found(store, of(&first[..13])).await, [2, 1]);
        assert_eq!(found(store, of(&first[..35].replace('-', ""))).await, [2, 1]);
        assert_eq!(found(store, of(&third[..13])).await, [3]);
        assert_eq!(found(store, of("f")).await, []);
        let asc = Some(RunOrder::Asc);
        assert_eq!(ordered(store, RunFilter { workflow: Some("orders".into()), ..of("0") }, asc).await, [1, 2, 3]);
    }

    /// The idempotency key of a start selects its run.
    async fn start_key_finds_its_run(store: &Shared) {
        let make = Make::new();
        for number in 1..=3 {
            let lifetime = KeyLifetime::WithRun(run(number));
            let name = format!("order {number}");
            let keys = vec![KeyWrite { lifetime, ..key(&name, 1) }];
            apply(store, Commit { keys, ..make.create(new_run(run(number))) }).await;
        }
        let of = |key: &str| RunFilter { start_key: Some(key.to_owned()), ..RunFilter::default() };
        assert_eq!(found(store, of("order 2")).await, [2]);
        assert_eq!(found(store, of("order")).await, []);
        assert_eq!(found(store, RunFilter { status: vec![Status::Failed], ..of("order 2") }).await, []);
        assert_eq!(count(store, of("order 3"), Status::Waiting).await, (1, false));
    }

    /// A root selects itself and all of its descendants.
    async fn root_selects_a_whole_tree(store: &Shared) {
        let make = Make::new();
        started(store, make.create(new_run(run(1)))).await;
        for (number, parent, root) in [(2, 1, 1), (3, 2, 1), (5, 4, 4)] {
            let parent = Some(Parent { run: run(parent), activation: 1, child: 0 });
            started(store, make.create(NewRun { parent, root: run(root), ..new_run(run(number)) })).await;
        }
        started(store, make.create(failing(run(4), "timeout"))).await;
        let of = |root| RunFilter { root: Some(run(root)), ..RunFilter::default() };
        assert_eq!(found(store, of(1)).await, [3, 2, 1]);
        assert_eq!(ordered(store, of(1), Some(RunOrder::Asc)).await, [1, 2, 3]);
        assert_eq!(found(store, of(4)).await, [5, 4]);
        assert_eq!(found(store, of(2)).await, []);
        assert_eq!(found(store, RunFilter { status: vec![Status::Failed], ..of(4) }).await, [4]);
        assert_eq!(count(store, of(1), Status::Waiting).await, (3, false));
    }

    /// Both orders list the same runs, also in the order of a shadow column and across pages.
    async fn oldest_first_is_the_reverse_of_newest_first(store: &Shared) {
        let make = Make::new();
        for (number, total) in [(1, 30), (2, 10), (3, 20), (4, 20)] {
            let shadows = vec![set_shadow("total", total)];
            started(store, make.create(NewRun { shadows, ..new_run(run(number)) })).await;
        }
        let (asc, desc) = (Some(RunOrder::Asc), Some(RunOrder::Desc));
        let above = |least: i32| {
            let from = std::ops::Bound::Excluded(f64::from(least));
            let shadows = vec![ShadowFilter::numbers("total", from, std::ops::Bound::Unbounded)];
            RunFilter { shadows, ..RunFilter::of("orders") }
        };
        let equal = RunFilter { shadows: vec![ShadowFilter::equals("total", 20)], ..RunFilter::of("orders") };
        for (filter, expected) in [
            (RunFilter::default(), vec![1, 2, 3, 4]),
            (RunFilter::of("orders"), vec![1, 2, 3, 4]),
            (equal, vec![3, 4]),
            (above(0), vec![2, 3, 4, 1]),
            (above(10), vec![3, 4, 1]),
        ] {
            assert_eq!(ordered(store, filter.clone(), asc).await, expected);
            let reversed: Vec<_> = expected.into_iter().rev().collect();
            assert_eq!(ordered(store, filter, desc).await, reversed);
        }
        assert_eq!(found(store, above(10)).await, [3, 4, 1], "a range is ascending by default");
        assert_eq!(count(store, above(10), Status::Waiting).await, (3, false));
    }

    /// A page ends with a cursor when it has read the maximum number of rows. A count stops there, or at its maximum.
    async fn listings_and_counts_read_a_limited_number_of_rows(store: &Shared) {
        let make = Make::new();
        let (oldest, total) = (1, u128::from(MAX_ROWS_READ) + 120);
        started(store, make.create(NewRun { status: Status::Cancelled, ..new_run(run(oldest)) })).await;
        let failed = u128::from(MAX_RUN_COUNT) + 2;
        for chunk in (2..=total).collect::<Vec<_>>().chunks(512) {
            let new = |number: &u128| match *number <= failed + 1 {
                true => failing(run(*number), "timeout"),
                false => NewRun { status: Status::Completed, ..new_run(run(*number)) },
            };
            let create = chunk.iter().map(new).collect();
            apply(store, Commit { create, ..make.commit_at(at(0)) }).await;
        }
        let cancelled = RunFilter::with_status([Status::Cancelled]);
        for filter in [cancelled.clone(), RunFilter { workflow: Some("orders".into()), ..cancelled.clone() }] {
            let query = RunQuery { filter, limit: 10, ..RunQuery::default() };
            let first = store.runs(ME, query.clone()).await.unwrap();
            assert_eq!(first.items, []);
            let end = run(total - u128::from(MAX_ROWS_READ) + 1).to_string();
            assert_eq!(first.next, Some(end), "the page ends early, with the cursor of the last row read");
            let second = store.runs(ME, RunQuery { cursor: first.next, ..query.clone() }).await.unwrap();
            assert_eq!(second.items.iter().map(|row| row.run).collect::<Vec<_>>(), [run(oldest)]);
            assert_eq!(second.next, None);
            let asc = RunQuery { order: Some(RunOrder::Asc), ..query };
            let first = store.runs(ME, asc).await.unwrap();
            assert_eq!(first.items.len(), 1);
            assert_eq!(first.next, Some(run(u128::from(MAX_ROWS_READ)).to_string()));
        }
        let all = counts(store, RunFilter::default()).await;
        assert_eq!(all.iter().map(|count| count.status).collect::<Vec<_>>(), Status::ALL);
        let many = (MAX_RUN_COUNT, true);
        assert_eq!(count(store, RunFilter::default(), Status::Failed).await, many);
        assert_eq!(count(store, RunFilter::default(), Status::Completed).await, many);
        assert_eq!(count(store, RunFilter::default(), Status::Suspended).await, (0, false));
        assert_eq!(count(store, cancelled, Status::Cancelled).await, (0, true), "it was not read");
        let failed = RunFilter { status: vec![Status::Failed], ..RunFilter::of("orders") };
        assert_eq!(counts(store, failed).await.len(), 1);
    }

    /// An ended run is listed with the time of its last commit.
    async fn ended_run_has_the_time_of_its_end(store: &Shared) {
        let make = Make::new();
        let head = started(store, make.create(new_run(run(1)))).await;
        apply(store, Commit { at: at(9), ..make.step(end(&head)) }).await;
        started(store, make.create(failing(run(2), "timeout"))).await;
        let rows = all_runs(store, ME, RunQuery::default()).await;
        assert_eq!(rows.iter().map(RunSummary::ended_at).collect::<Vec<_>>(), [None, Some(at(9))]);
    }
}
