//! Cases about cells: operations on a value that exists, was never written, was deleted or has expired.

use serde_json::{Map, Number, Value, json};
use tokio::task::JoinSet;

use super::Shared;
use super::ask::{self, apply, apply_one, get, get_any, get_at, load, moved, refuse, started};
use super::make::{
    ME, Make, at, bytes, cell, delete, increment, new_run, next, run, set, set_until, step, write,
};
use crate::cell::{
    Cell, CellError, CellKey, CellOp, CellWrite, Initial, OpResult, Precondition, Space, Ttl, ValueType,
};
use crate::commit::{Commit, CommitError, NextState, Refused, ResultBinding, ResultPart, RunUpdate};
use crate::store::CellQuery;

/// The condition of a cell before an operation.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Was {
    /// The cell was never written.
    Absent,
    /// The cell has a value, at revision 1.
    Live,
    /// The cell is a tombstone at revision 2.
    Deleted,
    /// The cell is at revision 1 and expired at second -1.
    Expired,
}

const EVERY: [Was; 4] = [Was::Absent, Was::Live, Was::Deleted, Was::Expired];

impl Was {
    async fn prepare(self, store: &Shared, make: &Make, key: &str, value: Value) {
        let past = |cells: Vec<CellWrite>| Commit { cells, ..make.commit_at(at(-10)) };
        match self {
            Was::Absent => return,
            Was::Live => apply(store, past(vec![set(key, value)])).await,
            Was::Deleted => apply(store, past(vec![set(key, value), delete(key)])).await,
            Was::Expired => apply(store, past(vec![set_until(key, value, -1)])).await,
        };
    }

    fn revision(self) -> u64 {
        match self {
            Was::Absent => 0,
            Was::Live | Was::Expired => 1,
            Was::Deleted => 2,
        }
    }
}

/// Applies an operation to a cell in each of the four conditions. Returns result and value.
async fn on_every(store: &Shared, value: Value, op: CellOp) -> [(OpResult, Option<Value>); 4] {
    let make = Make::new();
    let mut seen = Vec::new();
    for was in EVERY {
        let key = format!("{was:?}");
        was.prepare(store, &make, &key, value.clone()).await;
        let result = apply_one(store, make.write([write(&key, op.clone())])).await;
        seen.push((result, get(store, &key).await.and_then(|cell| cell.value)));
    }
    seen.try_into().unwrap()
}

fn result(revision: u64, created: bool, existed: bool) -> OpResult {
    OpResult { revision, created, existed, value: None }
}

fn giving(value: impl Into<Value>, mut result: OpResult) -> OpResult {
    result.value = Some(value.into());
    result
}

fn expecting(write: CellWrite, expect: Precondition) -> CellWrite {
    CellWrite { expect, ..write }
}

fn from(write: CellWrite, value: impl Into<Value>, only_before_first_write: bool) -> CellWrite {
    CellWrite { initial: Some(Initial { value: value.into(), only_before_first_write }), ..write }
}

fn error_of(refused: Refused) -> CellError {
    match refused {
        Refused::Cell { error, .. } => error,
        other => panic!("expected a cell to refuse, got {other:?}"),
    }
}

async fn fails(store: &Shared, make: &Make, write: CellWrite) -> CellError {
    error_of(refuse(store, make.write([write])).await)
}

fn filled(operation: usize, part: ResultPart, pointer: &str) -> ResultBinding {
    ResultBinding { operation, part, pointer: pointer.to_owned() }
}

cases! { cells as __suite_cells;
    /// D2: a value reads back with its type, revision, expiry and origin. JSON null is a value.
    async fn a_value_reads_back_as_it_was_set(store: &Shared) {
        let make = Make::new();
        let values =
            [json!(null), json!(true), json!(""), json!("x"), json!([]), json!({"a": [1, {"b": null}]})];
        let types = [ValueType::Json, ValueType::Boolean, ValueType::String, ValueType::Number];
        for (number, value) in values.into_iter().enumerate() {
            let (key, value_type) = (format!("k{number}"), types[number % 4]);
            let ttl = if number % 2 == 0 { Ttl::Forever } else { Ttl::Until(at(60)) };
            let op = CellOp::Set { value: value.clone(), value_type, ttl };
            let by = (number > 2).then(|| run(7));
            let commit = Commit { cells: vec![CellWrite { by, ..write(&key, op) }], ..make.commit_at(at(3)) };
            assert_eq!(apply_one(store, commit).await, result(1, true, false));
            let expected = Cell {
                key: cell(&key),
                value: Some(value),
                value_type,
                revision: 1,
                expires_at: (number % 2 == 1).then(|| at(60)),
                created_at: at(3),
                updated_at: at(3),
                created_by: by,
                damage: None,
            };
            assert_eq!(get_at(store, &key, at(3)).await, Some(expected));
        }
        assert_eq!(get(store, "never written").await, None);
    }

    /// D2, D17: numbers read back exactly.
    async fn numbers_read_back_exactly(store: &Shared) {
        let make = Make::new();
        let floats = [
            907.303_832_202_868_9,
            0.1 + 0.2,
            1.0,
            -0.0,
            5e-324,
            f64::MAX,
            1.234_567_890_123_456_7e-5,
            9_007_199_254_740_993.0,
        ];
        let floats = floats.into_iter().map(|float| json!(float));
        let integers = [json!(0), json!(i64::MIN), json!(i64::MAX), json!(u64::MAX)];
        for (number, value) in floats.chain(integers).enumerate() {
            let key = format!("n{number}");
            apply(store, make.write([set(&key, value.clone())])).await;
            assert_eq!(get(store, &key).await.unwrap().value, Some(value));
        }
    }

    /// D3: the revision counts every write and never restarts. The first writer stays the creator.
    async fn revisions_never_restart(store: &Shared) {
        let make = Make::new();
        let by = |number, write: CellWrite| CellWrite { by: Some(run(number)), ..write };
        assert_eq!(apply_one(store, make.write([by(1, set("k", 1))])).await, result(1, true, false));
        assert_eq!(apply_one(store, make.write([by(2, set("k", 2))])).await, result(2, false, true));
        assert_eq!(apply_one(store, make.write([delete("k")])).await, result(3, false, true));
        assert_eq!(apply_one(store, make.write([delete("k")])).await, result(3, false, false));
        assert_eq!(apply_one(store, make.write([set_until("k", 3, -5)])).await, result(4, true, false));
        let commit = Commit { cells: vec![by(3, set("k", 4))], ..make.commit_at(at(8)) };
        assert_eq!(apply_one(store, commit).await, result(5, true, false), "it had expired");
        let cell = get(store, "k").await.unwrap();
        assert_eq!((cell.revision, cell.created_by), (5, Some(run(1))));
        assert_eq!((cell.created_at, cell.updated_at), (at(0), at(8)));
    }

    /// C5: a delete keeps a tombstone that remembers the revision. Deleting an absent value writes nothing.
    async fn a_delete_keeps_a_tombstone(store: &Shared) {
        let found = on_every(store, json!(5), CellOp::Delete).await;
        let results = found.map(|(result, value)| {
            assert_eq!(value, None);
            result
        });
        let expected = [(0, false), (2, true), (2, false), (1, false)];
        assert_eq!(results, expected.map(|(revision, existed)| result(revision, false, existed)));
        assert_eq!(get_any(store, "Absent", at(0)).await, None);
        let tombstone = get_any(store, "Live", at(0)).await.unwrap();
        assert_eq!((tombstone.value, tombstone.revision, tombstone.expires_at), (None, 2, None));
    }

    /// D3, D4: a set on an absent, deleted or expired key creates it and raises the revision by one.
    async fn a_set_creates_or_replaces_the_value(store: &Shared) {
        let op = CellOp::Set { value: json!("new"), value_type: ValueType::String, ttl: Ttl::Forever };
        let found = on_every(store, json!("old"), op).await;
        for (was, (found, value)) in EVERY.into_iter().zip(found) {
            let live = was == Was::Live;
            assert_eq!(found, result(was.revision() + 1, !live, live), "{was:?}");
            assert_eq!(value, Some(json!("new")));
        }
    }

    /// D4, D5: an increment adds to the value, or to 0 if there is none.
    async fn an_increment_adds_to_the_value_or_to_zero(store: &Shared) {
        let found = on_every(store, json!(40), CellOp::Increment { by: Number::from(2) }).await;
        for (was, (found, value)) in EVERY.into_iter().zip(found) {
            let live = was == Was::Live;
            let sum = if live { 42 } else { 2 };
            assert_eq!(found, giving(sum, result(was.revision() + 1, !live, live)), "{was:?}");
            assert_eq!(value, Some(json!(sum)));
        }
        assert_eq!(get(store, "Live").await.unwrap().value_type, ValueType::Number);
    }

    /// C4: a merge is shallow.
    async fn a_merge_replaces_fields_of_the_same_name(store: &Shared) {
        let fields: Map<_, _> =
            [("a".to_owned(), json!({"y": 1})), ("c".to_owned(), json!(null))].into_iter().collect();
        let old = json!({"a": {"x": 1}, "b": 2});
        let found = on_every(store, old, CellOp::Merge { fields }).await;
        for (was, (found, value)) in EVERY.into_iter().zip(found) {
            let live = was == Was::Live;
            assert_eq!(found, result(was.revision() + 1, !live, live), "{was:?}");
            let merged = json!({"a": {"y": 1}, "b": 2, "c": null});
            assert_eq!(value, Some(if live { merged } else { json!({"a": {"y": 1}, "c": null}) }));
        }
    }

    /// C4: an append adds the item at the end of the list.
    async fn an_append_adds_to_the_end_of_a_list(store: &Shared) {
        let found = on_every(store, json!([1, 2]), CellOp::Append { item: json!([3]) }).await;
        for (was, (found, value)) in EVERY.into_iter().zip(found) {
            let live = was == Was::Live;
            assert_eq!(found, result(was.revision() + 1, !live, live), "{was:?}");
            assert_eq!(value, Some(if live { json!([1, 2, [3]]) } else { json!([[3]]) }));
        }
    }

    /// C4: items are removed from both ends of a list. An empty list returns nothing.
    async fn removals_return_the_removed_item(store: &Shared) {
        let make = Make::new();
        apply(store, make.write([set("k", json!(["a", null, "b"]))])).await;
        let take = async |op| apply_one(store, make.write([write("k", op)])).await;
        assert_eq!(take(CellOp::RemoveFirst).await, giving("a", result(2, false, true)));
        assert_eq!(take(CellOp::RemoveLast).await, giving("b", result(3, false, true)));
        assert_eq!(take(CellOp::RemoveFirst).await, giving(Value::Null, result(4, false, true)));
        assert_eq!(take(CellOp::RemoveLast).await, result(5, false, true));
        assert_eq!(get(store, "k").await.unwrap().value, Some(json!([])));
    }

    /// C4: a removal from an absent, deleted or expired list returns nothing and leaves an empty list.
    async fn a_removal_from_an_absent_list_returns_nothing(store: &Shared) {
        let found = on_every(store, json!(["only"]), CellOp::RemoveLast).await;
        for (was, (found, value)) in EVERY.into_iter().zip(found) {
            let live = was == Was::Live;
            let expected = result(was.revision() + 1, !live, live);
            assert_eq!(found, if live { giving("only", expected) } else { expected }, "{was:?}");
            assert_eq!(value, Some(json!([])));
        }
    }

    /// D5: an operation that does not fit the value is refused, and nothing changes.
    async fn a_value_of_the_wrong_kind_is_refused(store: &Shared) {
        let make = Make::new();
        let values = [json!(null), json!(true), json!(1), json!("1"), json!([1]), json!({"a": 1})];
        let ops = [
            (CellOp::Increment { by: Number::from(1) }, 2),
            (CellOp::Append { item: json!(1) }, 4),
            (CellOp::RemoveFirst, 4),
            (CellOp::RemoveLast, 4),
            (CellOp::Merge { fields: Map::new() }, 5),
        ];
        for (number, value) in values.into_iter().enumerate() {
            let key = format!("k{number}");
            apply(store, make.write([set(&key, value)])).await;
            let before = get(store, &key).await;
            for (op, _) in ops.iter().filter(|(_, fits)| *fits != number) {
                let error = fails(store, &make, write(&key, op.clone())).await;
                assert!(matches!(error, CellError::WrongKind { .. }), "{op:?} on {number}: {error:?}");
            }
            assert_eq!(get(store, &key).await, before);
        }
        let error = fails(store, &make, from(increment("absent", 1), "text", false)).await;
        assert!(matches!(error, CellError::WrongKind { .. }), "{error:?}");
        assert_eq!(get(store, "absent").await, None);
    }

    /// D3, C5: every condition of a write against every condition of the cell.
    async fn an_expectation_is_met_or_conflicts(store: &Shared) {
        let make = Make::new();
        let met = |was: Was, expect| match expect {
            Precondition::Anything => true,
            Precondition::Absent => was != Was::Live,
            Precondition::Live(revision) => was == Was::Live && revision == 1,
            Precondition::Exactly(revision) => revision == was.revision(),
        };
        let expectations = [
            Precondition::Anything,
            Precondition::Absent,
            Precondition::Live(0),
            Precondition::Live(1),
            Precondition::Live(2),
            Precondition::Exactly(0),
            Precondition::Exactly(1),
            Precondition::Exactly(2),
            Precondition::Exactly(3),
            Precondition::Live(u64::MAX),
        ];
        for (was, expect) in EVERY.into_iter().flat_map(|was| expectations.map(|expect| (was, expect))) {
            let key = format!("{was:?} {expect:?}");
            was.prepare(store, &make, &key, json!(1)).await;
            let conflict =
                CellError::Conflict { expected: expect, revision: was.revision(), live: was == Was::Live };
            for op in [CellOp::Check, CellOp::Increment { by: Number::from(1) }] {
                let checked = matches!(op, CellOp::Check);
                let commit = make.write([expecting(write(&key, op), expect)]);
                if met(was, expect) {
                    let revision = was.revision() + u64::from(!checked);
                    assert_eq!(apply_one(store, commit).await.revision, revision, "{key}");
                } else {
                    assert_eq!(error_of(refuse(store, commit).await), conflict, "{key}");
                }
            }
        }
    }

    /// C5: a stale compare-and-set conflicts, also if the key was deleted and written again in between.
    async fn a_compare_and_set_on_a_key_written_again_conflicts(store: &Shared) {
        let make = Make::new();
        apply(store, make.write([set("k", "same")])).await;
        apply(store, make.write([delete("k")])).await;
        apply(store, make.write([set("k", "same")])).await;
        let error = fails(store, &make, expecting(set("k", "mine"), Precondition::Live(1))).await;
        assert_eq!(error, CellError::Conflict { expected: Precondition::Live(1), revision: 3, live: true });
        apply(store, make.write([expecting(set("k", "mine"), Precondition::Live(3))])).await;
    }

    /// D9: a commit checks the revision of one key and writes another.
    async fn a_check_guards_another_write(store: &Shared) {
        let make = Make::new();
        apply(store, make.write([set("guard", 1)])).await;
        let guarded =
            |revision| [expecting(write("guard", CellOp::Check), Precondition::Live(revision)), set("k", 1)];
        assert!(matches!(refuse(store, make.write(guarded(2))).await, Refused::Cell { operation: 0, .. }));
        assert_eq!(get(store, "k").await, None);
        apply(store, make.write(guarded(1))).await;
        assert_eq!(get(store, "guard").await.unwrap().revision, 1, "a check is not a write");
        assert!(get(store, "k").await.is_some());
    }

    /// D3, D5: a set without a TTL clears the expiry and `keep` keeps it. No other operation changes it.
    async fn ttl_is_cleared_kept_or_set(store: &Shared) {
        let make = Make::new();
        let with = |ttl| write("k", CellOp::Set { value: json!(1), value_type: ValueType::Json, ttl });
        let expiry = async || get(store, "k").await.unwrap().expires_at;
        apply(store, make.write([with(Ttl::Until(at(30)))])).await;
        assert_eq!(expiry().await, Some(at(30)));
        apply(store, make.write([with(Ttl::Keep)])).await;
        assert_eq!(expiry().await, Some(at(30)));
        apply(store, make.write([increment("k", 1)])).await;
        assert_eq!(expiry().await, Some(at(30)), "an increment keeps it");
        apply(store, make.write([with(Ttl::Until(at(40)))])).await;
        assert_eq!(expiry().await, Some(at(40)));
        apply(store, make.write([with(Ttl::Forever)])).await;
        assert_eq!(expiry().await, None);
        apply(store, make.write([with(Ttl::Keep)])).await;
        assert_eq!(expiry().await, None);
        apply(store, make.write([with(Ttl::Until(at(30)))])).await;
        let late = Commit { cells: vec![with(Ttl::Keep)], ..make.commit_at(at(30)) };
        assert_eq!(apply_one(store, late).await, result(8, true, false));
        assert_eq!(expiry().await, None, "an expired value leaves no TTL to keep");
        apply(store, make.write([with(Ttl::Until(at(30))), delete("k"), increment("k", 1)])).await;
        assert_eq!(expiry().await, None, "a deleted value leaves no TTL either");
    }

    /// D4: an expired cell is absent on every path, from the very instant of its expiry.
    async fn expired_means_absent_on_every_path(store: &Shared) {
        let make = Make::new();
        apply(store, make.write([set_until("k", 5, 10)])).await;
        assert!(get_at(store, "k", at(9)).await.is_some());
        assert_eq!(get_at(store, "k", at(10)).await, None);
        assert_eq!(ask::keys(store, ask::cells(at(9))).await, ["k"]);
        assert_eq!(ask::keys(store, ask::cells(at(10))).await, Vec::<String>::new());
        let at_ten = |write| Commit { cells: vec![write], ..make.commit_at(at(10)) };
        let live = expecting(set("k", 1), Precondition::Live(1));
        assert!(matches!(
            error_of(refuse(store, at_ten(live)).await),
            CellError::Conflict { live: false, .. }
        ));
        assert_eq!(apply_one(store, at_ten(delete("k"))).await, result(1, false, false));
        let absent = expecting(increment("k", 1), Precondition::Absent);
        assert_eq!(apply_one(store, at_ten(absent)).await, giving(1, result(2, true, false)));
        assert_eq!(get_at(store, "k", at(999)).await.unwrap().expires_at, None);
    }

    /// C3, C4, D5: the initial value of an absent cell; the `initial` of a slot applies only before the first write.
    async fn initial_applies_while_there_is_no_value(store: &Shared) {
        let make = Make::new();
        for was in EVERY {
            let (always, once) = (format!("{was:?} always"), format!("{was:?} once"));
            for (key, only_before, start) in [(&always, false, 100), (&once, true, 0)] {
                was.prepare(store, &make, key, json!(7)).await;
                let start = match was {
                    Was::Live => 7,
                    Was::Absent => 100,
                    Was::Deleted | Was::Expired => start,
                };
                let write = from(increment(key, 1), 100, only_before);
                let value = apply_one(store, make.write([write])).await.value;
                assert_eq!(value, Some(json!(start + 1)), "{key}");
            }
        }
        let appended = from(write("list", CellOp::Append { item: json!(2) }), json!([1]), true);
        apply(store, make.write([appended])).await;
        assert_eq!(get(store, "list").await.unwrap().value, Some(json!([1, 2])));
    }

    /// D17: integers are exact to 64 bits. An overflow is an error and changes nothing.
    async fn integers_are_exact_and_do_not_wrap(store: &Shared) {
        let make = Make::new();
        let sums = [
            (json!(i64::MAX - 1), Number::from(1), Some(json!(i64::MAX))),
            (json!(i64::MAX), Number::from(1), Some(json!(1_u64 << 63))),
            (json!(u64::MAX - 1), Number::from(1), Some(json!(u64::MAX))),
            (json!(u64::MAX), Number::from(1), None),
            (json!(u64::MAX), Number::from(i64::MIN), Some(json!(i64::MAX))),
            (json!(i64::MIN), Number::from(-1), None),
            (json!(i64::MIN), Number::from(u64::MAX), Some(json!(i64::MAX))),
            (json!(9_007_199_254_740_993_i64), Number::from(2), Some(json!(9_007_199_254_740_995_i64))),
            (json!(1), Number::from_f64(0.5).unwrap(), Some(json!(1.5))),
            (json!(f64::MAX), Number::from_f64(f64::MAX).unwrap(), None),
        ];
        for (number, (value, by, expected)) in sums.into_iter().enumerate() {
            let key = format!("k{number}");
            apply(store, make.write([set(&key, value.clone())])).await;
            match expected {
                Some(sum) => {
                    assert_eq!(
                        apply_one(store, make.write([increment(&key, by)])).await.value,
                        Some(sum.clone())
                    );
                    assert_eq!(get(store, &key).await.unwrap().value, Some(sum));
                }
                None => {
                    let error = fails(store, &make, increment(&key, by)).await;
                    assert!(matches!(error, CellError::Overflow { .. }), "{error:?}");
                    assert_eq!(get(store, &key).await.unwrap().value, Some(value));
                }
            }
        }
    }

    /// D8: a value over the limit is refused before anything is written, also if an operation makes it that large.
    async fn a_value_over_its_limit_is_refused(store: &Shared) {
        let make = Make::new();
        let max = 256 * 1024;
        let text = |bytes: usize| Value::from("x".repeat(bytes - 2));
        apply(store, make.write([set("k", text(max))])).await;
        assert_eq!(get(store, "k").await.unwrap().value, Some(text(max)));
        let too_large = async |write| matches!(fails(store, &make, write).await, CellError::TooLarge(_));
        assert!(too_large(set("k", text(max + 1))).await);
        assert!(too_large(set("new", text(max + 1))).await);
        assert_eq!(get(store, "new").await, None);
        apply(store, make.write([set("list", json!([text(max - 4)]))])).await;
        assert!(too_large(write("list", CellOp::Append { item: json!(12) })).await);
        assert_eq!(get(store, "list").await.unwrap().revision, 1);
        apply(store, make.write([set("object", json!({"a": text(max - 10)}))])).await;
        let fields = [("b".to_owned(), json!("too much"))].into_iter().collect();
        assert!(too_large(write("object", CellOp::Merge { fields })).await);
    }

    /// C9, D1: keys and namespaces have 1 to 256 characters of any script.
    async fn keys_and_owners_have_1_to_256_characters(store: &Shared) {
        let make = Make::new();
        let named = |owner: String, key: String| {
            let key = CellKey { space: Space::Kv, owner, key };
            CellWrite { key, ..set("", 1) }
        };
        let long = |n| "ü".repeat(n);
        apply(store, make.write([named(long(256), long(256))])).await;
        let empty = async |write| matches!(fails(store, &make, write).await, CellError::Empty(_));
        let too_large = async |write| matches!(fails(store, &make, write).await, CellError::TooLarge(_));
        assert!(empty(named("ns".to_owned(), String::new())).await);
        assert!(empty(named(String::new(), "k".to_owned())).await);
        assert!(too_large(named("ns".to_owned(), long(257))).await);
        assert!(too_large(named(long(257), "k".to_owned())).await);
    }

    /// D9: operations are applied in order, and each one sees the result of the previous ones.
    async fn operations_on_one_cell_see_each_other(store: &Shared) {
        let make = Make::new();
        let commit = make.write([
            set("k", 1),
            increment("k", 2),
            expecting(delete("k"), Precondition::Live(2)),
            expecting(write("k", CellOp::Check), Precondition::Exactly(3)),
            from(increment("k", 1), 50, false),
            expecting(set("other", 1), Precondition::Absent),
        ]);
        let expected = [
            result(1, true, false),
            giving(3, result(2, false, true)),
            result(3, false, true),
            result(3, false, false),
            giving(51, result(4, true, false)),
            result(1, true, false),
        ];
        assert_eq!(apply(store, commit).await.results, expected);
        let cell = get(store, "k").await.unwrap();
        assert_eq!((cell.value, cell.revision), (Some(json!(51)), 4));
    }

    /// C7: results of operations are put into the checkpoint of the same commit.
    async fn results_are_put_into_the_next_state(store: &Shared) {
        let make = Make::new();
        apply(store, make.write([set("n", 41), set("list", json!(["first"]))])).await;
        let head = started(store, make.create(new_run(run(1)))).await;
        let state = bytes(r#"{"a/b":{"~":{}},"kept":907.3038322028689,"vars":{"n":"old"}}"#);
        let step = RunUpdate { next: vec![NextState { state, ..next("filled") }], ..step(&head, "") };
        let commit = Commit {
            cells: vec![
                increment("n", 1),
                set("new", "x"),
                write("list", CellOp::RemoveFirst),
                delete("none"),
            ],
            bindings: vec![
                filled(0, ResultPart::Value, "/vars/n"),
                filled(0, ResultPart::Revision, "/vars/revision"),
                filled(1, ResultPart::Created, "/vars/created"),
                filled(2, ResultPart::Value, "/a~1b/~0/~0it~1em"),
                filled(3, ResultPart::Value, "/vars/nothing"),
                filled(3, ResultPart::Created, "/top"),
            ],
            ..make.step(step)
        };
        let mut twice = commit.clone();
        let next_step = twice.step.as_mut().unwrap();
        next_step.next.push(next("after"));
        let refused = refuse(store, twice).await;
        assert!(refused.to_string().contains("several next states"), "{refused}");
        let head = moved(store, commit).await;
        let expected = json!({
            "a/b": {"~": {"~it/em": "first"}},
            "kept": 907.303_832_202_868_9,
            "top": false,
            "vars": {"n": 42, "revision": 2, "created": true, "nothing": null},
        });
        assert_eq!(serde_json::from_slice::<Value>(&head.state).unwrap(), expected);
        assert_eq!(load(store, run(1)).await.head, head);
    }

    /// C2: cells in different spaces or of different owners are separate.
    async fn spaces_and_owners_are_separate(store: &Shared) {
        let make = Make::new();
        let spaces = [Space::Kv, Space::Execution, Space::Workflow];
        let names = spaces.into_iter().flat_map(|space| ["a", "b", "ab", "A"].map(|owner| (space, owner)));
        let names: Vec<_> = names.collect();
        for (number, (space, owner)) in names.iter().enumerate() {
            let key = CellKey { space: *space, owner: (*owner).to_owned(), key: "k".to_owned() };
            apply(store, make.write([CellWrite { key, ..set("", number) }])).await;
        }
        for (number, (space, owner)) in names.iter().enumerate() {
            let query = CellQuery { space: *space, owner: (*owner).to_owned(), ..ask::cells(at(0)) };
            let found = ask::all_cells(store, ME, query).await;
            assert_eq!(found.len(), 1, "{space:?} {owner}");
            assert_eq!((&found[0].value, found[0].revision), (&Some(json!(number)), 1));
        }
    }

    /// D5: increments are atomic under any concurrency.
    async fn a_hot_counter_counts_exactly(store: &Shared) {
        const TASKS: u64 = 64;
        const EACH: u64 = 20;
        let make = std::sync::Arc::new(Make::new());
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (store, make) = (store.clone(), make.clone());
            tasks.spawn(async move {
                for _ in 0..EACH {
                    apply(&store, make.write([increment("hot", 1)])).await;
                }
            });
        }
        tasks.join_all().await;
        let cell = get(store, "hot").await.unwrap();
        assert_eq!((cell.value, cell.revision), (Some(json!(TASKS * EACH)), TASKS * EACH));
    }

    /// C5: of many compare-and-sets on one revision one wins, and the others succeed after they read again.
    async fn concurrent_compare_and_sets_lose_no_update(store: &Shared) {
        const TASKS: u64 = 8;
        const EACH: u64 = 5;
        let make = std::sync::Arc::new(Make::new());
        apply(store, make.write([set("k", 0)])).await;
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (store, make) = (store.clone(), make.clone());
            tasks.spawn(async move {
                let mut done = 0;
                while done < EACH {
                    let cell = get(&store, "k").await.unwrap();
                    let value = cell.value.unwrap().as_u64().unwrap() + 1;
                    let write = expecting(set("k", value), Precondition::Live(cell.revision));
                    match store.commit(ME, make.write([write])).await {
                        Ok(_) => done += 1,
                        Err(CommitError::Refused(refused)) => {
                            assert!(matches!(error_of(refused), CellError::Conflict { live: true, .. }));
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
        tasks.join_all().await;
        let cell = get(store, "k").await.unwrap();
        assert_eq!((cell.value, cell.revision), (Some(json!(TASKS * EACH)), TASKS * EACH + 1));
    }

    /// D9: two commits that write the same cells in opposite order both succeed.
    async fn opposite_orders_do_not_deadlock(store: &Shared) {
        let make = std::sync::Arc::new(Make::new());
        let mut tasks = JoinSet::new();
        for number in 0..20 {
            let (store, make) = (store.clone(), make.clone());
            tasks.spawn(async move {
                let writes = [increment("a", 1), increment("b", 1)];
                let [a, b] = writes;
                let writes = if number % 2 == 0 { [a, b] } else { [b, a] };
                apply(&store, make.write(writes)).await;
            });
        }
        tasks.join_all().await;
        for key in ["a", "b"] {
            assert_eq!(get(store, key).await.unwrap().value, Some(json!(20)));
        }
    }
}
