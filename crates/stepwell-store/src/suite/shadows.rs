//! Cases about shadow columns: they are written with their step, found by their values, and corrected while the run
//! does not change.

use std::ops::Bound::{self, Excluded, Included, Unbounded};

use stepwell_core::shadow::{MAX_TEXT_BYTES, ShadowValue};
use stepwell_core::{Name, RunId};

use super::Shared;
use super::ask::{all_runs, apply, load, moved, refuse, shadows_of};
use super::make::{ME, Make, end, key, new_run, run, set, set_shadow, step, tenant, unset_shadow};
use crate::commit::{Commit, NewRun, Refused, RunUpdate};
use crate::run_query::{RunFilter, RunQuery};
use crate::shadow::{RefillColumn, ShadowFilter, ShadowRefill, ShadowWrite};
use crate::store::{Cleanup, CleanupKind, CleanupResult, Record, RecordQuery, StoreError};

async fn begun(store: &Shared, make: &Make, number: u128, shadows: Vec<ShadowWrite>) {
    apply(store, make.create(NewRun { shadows, ..new_run(run(number)) })).await;
}

async fn held(store: &Shared, number: u128) -> Vec<(String, ShadowValue)> {
    let rows = shadows_of(&**store, ME, run(number)).await;
    rows.into_iter().map(|row| (row.name.to_string(), row.value)).collect()
}

fn are<const N: usize>(columns: [(&str, ShadowValue); N]) -> Vec<(String, ShadowValue)> {
    columns.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

fn found_by(name: &str, value: impl Into<ShadowValue>) -> RunQuery {
    RunQuery {
        filter: RunFilter {
            workflow: Some("orders".into()),
            shadows: vec![ShadowFilter::equals(name, value)],
            ..RunFilter::default()
        },
        limit: 2,
        ..RunQuery::default()
    }
}

async fn found(store: &Shared, query: RunQuery) -> Vec<RunId> {
    all_runs(&**store, ME, query).await.into_iter().map(|row| row.run).collect()
}

fn refill<const N: usize>(number: u128, version: u64, columns: [(&str, RefillColumn); N]) -> ShadowRefill {
    let columns = columns.map(|(name, refilled)| (Name::from(name), refilled)).to_vec();
    ShadowRefill { run: run(number), version, workflow: "orders".into(), columns }
}

async fn refilled(store: &Shared, refills: Vec<ShadowRefill>) -> CleanupResult {
    let cleanup = Cleanup { now: super::make::at(0), limit: 1, what: CleanupKind::Shadows(refills) };
    store.cleanup(ME, cleanup).await.expect("shadow columns can be corrected")
}

cases! { shadows as __suite_shadows;
    /// E11: columns change with the step that writes them, and with no other.
    async fn shadow_columns_change_with_their_step(store: &Shared) {
        let make = Make::new();
        begun(store, &make, 1, vec![set_shadow("email", "ann"), set_shadow("total", 0), set_shadow("paid", false)]).await;
        begun(store, &make, 2, vec![set_shadow("email", "bob")]).await;
        let first = are([("email", "ann".into()), ("paid", false.into()), ("total", 0.into())]);
        assert_eq!(held(store, 1).await, first);
        let head = load(store, run(1)).await.head;
        let shadows = vec![set_shadow("total", 12.5), unset_shadow("email"), unset_shadow("never")];
        let paid = make.step(RunUpdate { shadows, ..step(&head, "paid") });
        moved(store, paid.clone()).await;
        let second = are([("paid", false.into()), ("total", 12.5.into())]);
        assert_eq!(held(store, 1).await, second);
        // A refused commit writes no columns, also if other commits of the same batch are applied.
        let stale = RunUpdate { shadows: vec![set_shadow("total", 99)], ..step(&head, "stale") };
        refuse(store, make.step(stale.clone())).await;
        let stale = Commit { cells: vec![set("a", 1)], ..make.step(stale) };
        refuse(store, stale).await;
        let taken = NewRun { shadows: vec![set_shadow("total", 7)], ..new_run(run(1)) };
        assert_eq!(refuse(store, make.create(taken)).await, Refused::RunExists { run: run(1) });
        assert_eq!((held(store, 1).await, held(store, 2).await), (second, are([("email", "bob".into())])));
        // A column may later have a value of another type, if its workflow declares it so.
        let head = load(store, run(1)).await.head;
        let shadows = vec![set_shadow("total", 1), set_shadow("total", "much"), unset_shadow("paid"), set_shadow("paid", true)];
        moved(store, make.step(RunUpdate { shadows, ..end(&head) })).await;
        assert_eq!(held(store, 1).await, are([("paid", true.into()), ("total", "much".into())]));
        assert_eq!(found(store, found_by("total", 12.5)).await, []);
        assert_eq!(found(store, found_by("total", "much")).await, [run(1)]);
    }

    /// The same together with operations, which take another path through a store.
    async fn shadow_columns_change_together_with_operations(store: &Shared) {
        let make = Make::new();
        let start = NewRun { shadows: vec![set_shadow("email", "ann")], ..new_run(run(1)) };
        apply(store, Commit { cells: vec![set("a", 1)], keys: vec![key("k", 1)], ..make.create(start) }).await;
        assert_eq!(held(store, 1).await, are([("email", "ann".into())]));
        let head = load(store, run(1)).await.head;
        let shadows = vec![unset_shadow("email"), set_shadow("total", 1), set_shadow("total", 2)];
        let next = RunUpdate { shadows, ..step(&head, "next") };
        moved(store, Commit { cells: vec![set("a", 2)], ..make.step(next) }).await;
        assert_eq!(held(store, 1).await, are([("total", 2.into())]));
    }

    /// E11: runs are found by the values of their columns, newest first, in pages.
    async fn runs_are_found_by_their_columns(store: &Shared) {
        let make = Make::new();
        for number in 1..=9_u128 {
            let size = if number % 3 == 0 { "small" } else { "large" };
            let shadows = vec![set_shadow("size", size), set_shadow("even", number % 2 == 0), set_shadow("third", (number / 3) as i32)];
            begun(store, &make, number, shadows).await;
        }
        let other = ShadowWrite { workflow: "other".into(), ..set_shadow("size", "small") };
        apply(store, make.create(NewRun { workflow: "other".into(), shadows: vec![other], ..new_run(run(20)) })).await;
        assert_eq!(found(store, found_by("size", "small")).await, [run(9), run(6), run(3)]);
        assert_eq!(found(store, found_by("even", true)).await, [run(8), run(6), run(4), run(2)]);
        assert_eq!(found(store, found_by("third", 2)).await, [run(8), run(7), run(6)]);
        let mut both = found_by("even", true);
        both.filter.shadows.push(ShadowFilter::equals("third", 2));
        assert_eq!(found(store, both.clone()).await, [run(8), run(6)]);
        both.filter.shadows.push(ShadowFilter::equals("size", "small"));
        assert_eq!(found(store, both).await, [run(6)]);
        for (name, value) in [("size", "Small"), ("size", ""), ("even", "true"), ("third", "2"), ("none", "small")] {
            assert_eq!(found(store, found_by(name, value)).await, [], "{name} {value}");
        }
        let head = load(store, run(6)).await.head;
        moved(store, make.step(end(&head))).await;
        let completed = RunQuery { filter: RunFilter { status: vec![crate::run::Status::Completed], ..found_by("size", "small").filter }, ..found_by("size", "small") };
        assert_eq!(found(store, completed).await, [run(6)]);
        let strange = store.runs(tenant(2), found_by("size", "small")).await.unwrap();
        assert_eq!(strange.items, []);
        let nameless = RunQuery { filter: RunFilter { workflow: None, ..found_by("size", "small").filter }, ..found_by("size", "small") };
        let error = store.runs(ME, nameless).await.unwrap_err();
        assert!(matches!(&error, StoreError::Invalid(why) if why.contains("workflow")), "{error}");
    }

    /// E11: a range lists runs in the order of the column and then of their ids, in pages.
    async fn runs_are_found_by_ranges_of_their_columns(store: &Shared) {
        let make = Make::new();
        for (number, (city, total)) in [("Bonn", 3.0), ("Ulm", -1.5), ("Bo", 3.0), ("Zoë", 0.0), ("bonn", 20.0)].into_iter().enumerate() {
            let shadows = vec![set_shadow("city", city), set_shadow("total", total), set_shadow("odd", number % 2 == 0)];
            begun(store, &make, number as u128 + 1, shadows).await;
        }
        let other = ShadowWrite { workflow: "other".into(), ..set_shadow("city", "Bonn") };
        apply(store, make.create(NewRun { workflow: "other".into(), shadows: vec![other], ..new_run(run(20)) })).await;
        let by = |filters: Vec<ShadowFilter>, limit| RunQuery { filter: RunFilter { workflow: Some("orders".into()), shadows: filters, ..RunFilter::default() }, limit, ..RunQuery::default() };
        let text = |text: &str| text.to_owned();
        let texts = |from: Bound<String>, to: Bound<String>| ShadowFilter::texts("city", from, to);
        let numbers = |from, to| ShadowFilter::numbers("total", from, to);
        let cases = [
            (vec![ShadowFilter::prefix("city", "Bo")], vec![3, 1]),
            (vec![ShadowFilter::prefix("city", "")], vec![3, 1, 2, 4, 5]),
            (vec![texts(Excluded(text("Bo")), Included(text("Ulm")))], vec![1, 2]),
            (vec![texts(Unbounded, Excluded(text("Bonn")))], vec![3]),
            (vec![numbers(Unbounded, Unbounded)], vec![2, 4, 1, 3, 5]),
            (vec![numbers(Included(0.0), Excluded(20.0))], vec![4, 1, 3]),
            (vec![numbers(Excluded(3.0), Unbounded)], vec![5]),
            (vec![numbers(Included(5.0), Included(4.0))], vec![]),
            (vec![numbers(Included(0.0), Unbounded), numbers(Unbounded, Included(3.0))], vec![4, 1, 3]),
            (vec![numbers(Included(0.0), Unbounded), ShadowFilter::prefix("city", "Bo")], vec![1, 3]),
            (vec![numbers(Included(0.0), Unbounded), ShadowFilter::equals("odd", true)], vec![5, 3, 1]),
            (vec![ShadowFilter::numbers("city", Unbounded, Unbounded)], vec![]),
            (vec![ShadowFilter::texts("none", Unbounded, Unbounded)], vec![]),
        ];
        for (filters, expected) in cases {
            let expected: Vec<_> = expected.into_iter().map(run).collect();
            for limit in [1, 2, 100] {
                assert_eq!(found(store, by(filters.clone(), limit)).await, expected, "{limit} {filters:?}");
            }
        }
        let all = by(vec![numbers(Unbounded, Unbounded)], 2);
        for cursor in ["x", &run(1).to_string(), &format!("{}:x", run(1))] {
            let query = RunQuery { cursor: Some(cursor.to_owned()), ..all.clone() };
            assert!(matches!(store.runs(ME, query).await, Err(StoreError::Invalid(_))), "{cursor}");
        }
        for filter in [numbers(Included(f64::NAN), Unbounded), texts(Unbounded, Included(text("a\0"))), texts(Included("x".repeat(MAX_TEXT_BYTES + 1)), Unbounded)] {
            let refused = store.runs(ME, by(vec![filter], 2)).await;
            assert!(matches!(&refused, Err(StoreError::Invalid(why)) if why.contains("bound")), "{refused:?}");
        }
        assert_eq!(store.runs(tenant(2), all).await.unwrap().items, []);
    }

    /// One read returns the columns of all runs of a page.
    async fn columns_of_several_runs_are_read_at_once(store: &Shared) {
        let make = Make::new();
        begun(store, &make, 1, vec![set_shadow("b", 1), set_shadow("a", "x")]).await;
        begun(store, &make, 2, vec![]).await;
        begun(store, &make, 3, vec![set_shadow("a", true)]).await;
        begun(store, &make, 4, vec![set_shadow("a", "other")]).await;
        let read = async |scope, runs: Vec<RunId>| {
            let page = store.records(scope, RecordQuery::ShadowsOf(runs)).await.unwrap();
            let columns = page.items.into_iter().map(|record| match record {
                Record::Shadow(row) => (row.run, row.name.to_string(), row.value),
                other => panic!("expected a shadow column, got {other:?}"),
            });
            columns.collect::<Vec<_>>()
        };
        let expected = [(run(1), "a".to_owned(), "x".into()), (run(1), "b".to_owned(), 1.into()), (run(3), "a".to_owned(), true.into())];
        assert_eq!(read(ME, vec![run(3), run(2), run(1)]).await, expected);
        assert_eq!(read(ME, vec![]).await, []);
        assert_eq!(read(tenant(2), vec![run(1)]).await, []);
    }

    /// E12: a correction returns the number of changed rows. Repeated, it changes nothing.
    async fn a_correction_returns_the_number_of_changed_rows(store: &Shared) {
        let make = Make::new();
        begun(store, &make, 1, vec![set_shadow("gone", 1), set_shadow("same", "x"), set_shadow("wrong", 1), set_shadow("kept", true)]).await;
        begun(store, &make, 2, vec![]).await;
        let all = |number| {
            refill(number, 0, [
                ("same", RefillColumn::Set("x".into())),
                ("wrong", RefillColumn::Set("right".into())),
                ("kept", RefillColumn::SetIfMissing(false.into())),
                ("new", RefillColumn::SetIfMissing(0.into())),
            ])
        };
        let missing = refill(3, 0, [("same", RefillColumn::Set("x".into()))]);
        let done = refilled(store, vec![all(1), all(2), missing]).await;
        assert_eq!(done, CleanupResult { count: 3 + 4, more: false });
        let of_one = [("kept", true.into()), ("new", 0.into()), ("same", "x".into()), ("wrong", "right".into())];
        assert_eq!(held(store, 1).await, are(of_one));
        let of_two = [("kept", false.into()), ("new", 0.into()), ("same", "x".into()), ("wrong", "right".into())];
        assert_eq!(held(store, 2).await, are(of_two));
        assert_eq!(held(store, 3).await, []);
        assert_eq!(refilled(store, vec![all(1), all(2)]).await, CleanupResult { count: 0, more: false });
        assert_eq!(found(store, found_by("wrong", "right")).await, [run(2), run(1)]);
        assert_eq!(refilled(store, vec![refill(2, 0, [])]).await.count, 4);
        assert_eq!((held(store, 1).await.len(), held(store, 2).await.len()), (4, 0));
        assert_eq!(refilled(store, vec![]).await, CleanupResult { count: 0, more: false });
    }

    /// E12: a correction based on an old version does not overwrite what a step wrote. Other runs are still corrected.
    async fn a_correction_of_a_changed_run_writes_nothing(store: &Shared) {
        let make = Make::new();
        begun(store, &make, 1, vec![set_shadow("total", 1)]).await;
        begun(store, &make, 2, vec![]).await;
        let before = load(store, run(1)).await;
        moved(store, make.step(RunUpdate { shadows: vec![set_shadow("total", 2)], ..step(&before.head, "on") })).await;
        let old = |number| refill(number, 0, [("total", RefillColumn::Set(1.into()))]);
        assert_eq!(refilled(store, vec![old(1), old(2)]).await, CleanupResult { count: 1, more: true });
        assert_eq!(held(store, 1).await, are([("total", 2.into())]));
        assert_eq!(held(store, 2).await, are([("total", 1.into())]));
        let head = load(store, run(1)).await.head;
        assert_eq!(moved(store, make.step(step(&head, "after the correction"))).await.version, 2);
    }

    /// A value that is too long for an index is refused, and so is text that some databases cannot store.
    async fn values_that_cannot_be_indexed_are_refused(store: &Shared) {
        let make = Make::new();
        let with = |shadow: ShadowWrite| make.create(NewRun { shadows: vec![shadow], ..new_run(run(1)) });
        let long = refuse(store, with(set_shadow("email", "x".repeat(MAX_TEXT_BYTES + 1)))).await;
        assert!(matches!(&long, Refused::TooLarge(limit) if limit.max == MAX_TEXT_BYTES as u64), "{long}");
        for shadow in [set_shadow("email", "a\0b"), set_shadow("a\0b", 1)] {
            let nul = refuse(store, with(shadow)).await;
            assert!(matches!(nul, Refused::Nul { .. }), "{nul}");
        }
        let longest = "ü".repeat(MAX_TEXT_BYTES / 2);
        begun(store, &make, 1, vec![set_shadow("email", longest.clone()), set_shadow("big", f64::MAX)]).await;
        assert_eq!(found(store, found_by("email", longest)).await, [run(1)]);
        assert_eq!(found(store, found_by("big", f64::MAX)).await, [run(1)]);
        let asked = store.runs(ME, found_by("email", "a\0b")).await.unwrap();
        assert_eq!(asked.items, []);
    }
}
