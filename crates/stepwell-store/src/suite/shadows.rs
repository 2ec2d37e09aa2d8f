//! Cases about shadow columns: written with the step that changes them, found by their values, refilled while nobody
//! moves the run.

use stepwell_core::shadow::{MAX_TEXT_BYTES, ShadowValue};
use stepwell_core::{Name, RunId};

use super::Shared;
use super::ask::{all_runs, apply, load, moved, refuse, shadows_of};
use super::make::{ME, Make, end, key, new_run, run, set, shade, step, tenant, unshade};
use crate::commit::{Commit, NewRun, Refused, Step};
use crate::shadow::{Refill, Refilled, ShadowWrite};
use crate::store::{RunQuery, StoreError, Sweep, SweepWhat, Swept};

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
        workflow: Some("orders".into()),
        shadows: vec![(name.into(), value.into())],
        limit: 2,
        ..RunQuery::default()
    }
}

async fn found(store: &Shared, query: RunQuery) -> Vec<RunId> {
    all_runs(&**store, ME, query).await.into_iter().map(|row| row.run).collect()
}

fn refill<const N: usize>(number: u128, version: u64, columns: [(&str, Refilled); N]) -> Refill {
    let columns = columns.map(|(name, refilled)| (Name::from(name), refilled)).to_vec();
    Refill { run: run(number), version, workflow: "orders".into(), columns }
}

async fn refilled(store: &Shared, refills: Vec<Refill>) -> Swept {
    let sweep = Sweep { now: super::make::at(0), limit: 1, what: SweepWhat::Shadows(refills) };
    store.sweep(ME, sweep).await.expect("shadow columns can be refilled")
}

cases! { shadows as __suite_shadows;
    /// E11: columns change with the step that says so, and with no other.
    async fn columns_change_with_their_step(store: &Shared) {
        let make = Make::new();
        begun(store, &make, 1, vec![shade("email", "ann"), shade("total", 0), shade("paid", false)]).await;
        begun(store, &make, 2, vec![shade("email", "bob")]).await;
        let first = are([("email", "ann".into()), ("paid", false.into()), ("total", 0.into())]);
        assert_eq!(held(store, 1).await, first);
        let head = load(store, run(1)).await.head;
        let shadows = vec![shade("total", 12.5), unshade("email"), unshade("never")];
        let paid = make.step(Step { shadows, ..step(&head, "paid") });
        moved(store, paid.clone()).await;
        let second = are([("paid", false.into()), ("total", 12.5.into())]);
        assert_eq!(held(store, 1).await, second);
        // What is refused has written none of them, in a batch with others that are applied too.
        let stale = Step { shadows: vec![shade("total", 99)], ..step(&head, "stale") };
        refuse(store, make.step(stale.clone())).await;
        let stale = Commit { cells: vec![set("a", 1)], ..make.step(stale) };
        refuse(store, stale).await;
        let taken = NewRun { shadows: vec![shade("total", 7)], ..new_run(run(1)) };
        assert_eq!(refuse(store, make.create(taken)).await, Refused::RunExists { run: run(1) });
        assert_eq!((held(store, 1).await, held(store, 2).await), (second, are([("email", "bob".into())])));
        // A column may hold a value of another type later, when its workflow declares it so.
        let head = load(store, run(1)).await.head;
        let shadows = vec![shade("total", 1), shade("total", "much"), unshade("paid"), shade("paid", true)];
        moved(store, make.step(Step { shadows, ..end(&head) })).await;
        assert_eq!(held(store, 1).await, are([("paid", true.into()), ("total", "much".into())]));
        assert_eq!(found(store, found_by("total", 12.5)).await, []);
        assert_eq!(found(store, found_by("total", "much")).await, [run(1)]);
    }

    /// The same beside operations, which go another way through a store.
    async fn columns_change_beside_operations(store: &Shared) {
        let make = Make::new();
        let start = NewRun { shadows: vec![shade("email", "ann")], ..new_run(run(1)) };
        apply(store, Commit { cells: vec![set("a", 1)], keys: vec![key("k", 1)], ..make.create(start) }).await;
        assert_eq!(held(store, 1).await, are([("email", "ann".into())]));
        let head = load(store, run(1)).await.head;
        let shadows = vec![unshade("email"), shade("total", 1), shade("total", 2)];
        let next = Step { shadows, ..step(&head, "next") };
        moved(store, Commit { cells: vec![set("a", 2)], ..make.step(next) }).await;
        assert_eq!(held(store, 1).await, are([("total", 2.into())]));
    }

    /// E11: runs are found by what their columns hold, the newest first, page by page.
    async fn runs_are_found_by_their_columns(store: &Shared) {
        let make = Make::new();
        for number in 1..=9_u128 {
            let size = if number % 3 == 0 { "small" } else { "large" };
            let shadows = vec![shade("size", size), shade("even", number % 2 == 0), shade("third", (number / 3) as i32)];
            begun(store, &make, number, shadows).await;
        }
        let other = ShadowWrite { workflow: "other".into(), ..shade("size", "small") };
        apply(store, make.create(NewRun { workflow: "other".into(), shadows: vec![other], ..new_run(run(20)) })).await;
        assert_eq!(found(store, found_by("size", "small")).await, [run(9), run(6), run(3)]);
        assert_eq!(found(store, found_by("even", true)).await, [run(8), run(6), run(4), run(2)]);
        assert_eq!(found(store, found_by("third", 2)).await, [run(8), run(7), run(6)]);
        let mut both = found_by("even", true);
        both.shadows.push(("third".into(), 2.into()));
        assert_eq!(found(store, both.clone()).await, [run(8), run(6)]);
        both.shadows.push(("size".into(), "small".into()));
        assert_eq!(found(store, both).await, [run(6)]);
        for (name, value) in [("size", "Small"), ("size", ""), ("even", "true"), ("third", "2"), ("none", "small")] {
            assert_eq!(found(store, found_by(name, value)).await, [], "{name} {value}");
        }
        let head = load(store, run(6)).await.head;
        moved(store, make.step(end(&head))).await;
        let completed = RunQuery { status: Some(crate::run::Status::Completed), ..found_by("size", "small") };
        assert_eq!(found(store, completed).await, [run(6)]);
        let strange = store.runs(tenant(2), found_by("size", "small")).await.unwrap();
        assert_eq!(strange.items, []);
        let nameless = RunQuery { workflow: None, ..found_by("size", "small") };
        let error = store.runs(ME, nameless).await.unwrap_err();
        assert!(matches!(&error, StoreError::Invalid(why) if why.contains("workflow")), "{error}");
    }

    /// E12: a refill makes the columns what they should be, says how many rows that changed, and does nothing twice.
    async fn a_refill_says_how_many_rows_it_changed(store: &Shared) {
        let make = Make::new();
        begun(store, &make, 1, vec![shade("gone", 1), shade("same", "x"), shade("wrong", 1), shade("kept", true)]).await;
        begun(store, &make, 2, vec![]).await;
        let all = |number| {
            refill(number, 0, [
                ("same", Refilled::Is("x".into())),
                ("wrong", Refilled::Is("right".into())),
                ("kept", Refilled::Begins(false.into())),
                ("new", Refilled::Begins(0.into())),
            ])
        };
        let missing = refill(3, 0, [("same", Refilled::Is("x".into()))]);
        let done = refilled(store, vec![all(1), all(2), missing]).await;
        assert_eq!(done, Swept { count: 3 + 4, more: false });
        let of_one = [("kept", true.into()), ("new", 0.into()), ("same", "x".into()), ("wrong", "right".into())];
        assert_eq!(held(store, 1).await, are(of_one));
        let of_two = [("kept", false.into()), ("new", 0.into()), ("same", "x".into()), ("wrong", "right".into())];
        assert_eq!(held(store, 2).await, are(of_two));
        assert_eq!(held(store, 3).await, []);
        assert_eq!(refilled(store, vec![all(1), all(2)]).await, Swept { count: 0, more: false });
        assert_eq!(found(store, found_by("wrong", "right")).await, [run(2), run(1)]);
        assert_eq!(refilled(store, vec![refill(2, 0, [])]).await.count, 4);
        assert_eq!((held(store, 1).await.len(), held(store, 2).await.len()), (4, 0));
        assert_eq!(refilled(store, vec![]).await, Swept { count: 0, more: false });
    }

    /// E12: what was read before a run moved does not overwrite what its step wrote; the others are refilled.
    async fn a_refill_of_a_run_that_has_moved_writes_nothing(store: &Shared) {
        let make = Make::new();
        begun(store, &make, 1, vec![shade("total", 1)]).await;
        begun(store, &make, 2, vec![]).await;
        let before = load(store, run(1)).await;
        moved(store, make.step(Step { shadows: vec![shade("total", 2)], ..step(&before.head, "on") })).await;
        let old = |number| refill(number, 0, [("total", Refilled::Is(1.into()))]);
        assert_eq!(refilled(store, vec![old(1), old(2)]).await, Swept { count: 1, more: true });
        assert_eq!(held(store, 1).await, are([("total", 2.into())]));
        assert_eq!(held(store, 2).await, are([("total", 1.into())]));
        let head = load(store, run(1)).await.head;
        assert_eq!(moved(store, make.step(step(&head, "nobody is in its way"))).await.version, 2);
    }

    /// What no index holds is refused whole, and so is text that some database cannot hold.
    async fn values_that_cannot_be_held_are_refused(store: &Shared) {
        let make = Make::new();
        let with = |shadow: ShadowWrite| make.create(NewRun { shadows: vec![shadow], ..new_run(run(1)) });
        let long = refuse(store, with(shade("email", "x".repeat(MAX_TEXT_BYTES + 1)))).await;
        assert!(matches!(&long, Refused::TooLarge(limit) if limit.max == MAX_TEXT_BYTES as u64), "{long}");
        for shadow in [shade("email", "a\0b"), shade("a\0b", 1)] {
            let nul = refuse(store, with(shadow)).await;
            assert!(matches!(nul, Refused::Nul { .. }), "{nul}");
        }
        let longest = "ü".repeat(MAX_TEXT_BYTES / 2);
        begun(store, &make, 1, vec![shade("email", longest.clone()), shade("big", f64::MAX)]).await;
        assert_eq!(found(store, found_by("email", longest)).await, [run(1)]);
        assert_eq!(found(store, found_by("big", f64::MAX)).await, [run(1)]);
        let asked = store.runs(ME, found_by("email", "a\0b")).await.unwrap();
        assert_eq!(asked.items, []);
    }
}
