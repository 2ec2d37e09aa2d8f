//! Properties of every sequence of operations on a cell.

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof, proptest};
use proptest::sample::select;
use serde_json::{Number, Value, json};
use stepwell_core::Limits;
use stepwell_store::suite::make::{at, delete, increment, set, set_until, write};
use stepwell_store::{Cell, CellError, CellOp, CellWrite, Precondition};

fn values() -> impl Strategy<Value = Value> {
    select(vec![json!(null), json!(3), json!("text"), json!([1, 2]), json!({"a": 1}), json!(u64::MAX)])
}

fn writes() -> impl Strategy<Value = CellWrite> {
    let op = prop_oneof![
        values().prop_map(|value| set("k", value)),
        (values(), 0_i64..40).prop_map(|(value, seconds)| set_until("k", value, seconds)),
        Just(delete("k")),
        (-2_i64..3).prop_map(|by| increment("k", by)),
        values().prop_map(|item| write("k", CellOp::Append { item })),
        Just(write("k", CellOp::RemoveFirst)),
        Just(write("k", CellOp::Check)),
    ];
    let expect = prop_oneof![
        4 => Just(Precondition::Anything),
        1 => Just(Precondition::Absent),
        1 => (0_u64..6).prop_map(Precondition::Live),
        1 => (0_u64..6).prop_map(Precondition::Exactly),
    ];
    (op, expect).prop_map(|(write, expect)| CellWrite { expect, ..write })
}

proptest! {
    /// D3, D4, C5: every write raises the revision by one, and nothing else does. An expired value counts as absent.
    #[test]
    fn revisions_count_writes_and_results_match(writes in vec((0_i64..4, writes()), 1..40)) {
        let mut cell: Option<Cell> = None;
        let mut seconds = 0;
        for (tick, write) in writes {
            seconds += tick;
            let now = at(seconds);
            let existed = cell.as_ref().is_some_and(|cell| cell.live(now).is_some());
            let revision = cell.as_ref().map_or(0, |cell| cell.revision);
            let Ok((written, result)) = write.apply(cell.clone(), now, &Limits::default()) else { continue };
            assert_eq!(result.existed, existed);
            if let Some(written) = &written {
                assert_eq!(written.revision, revision + 1);
                assert_eq!(result.created, written.value.is_some() && !existed);
                assert_eq!(written.updated_at, now);
                assert_eq!(written.created_at, cell.as_ref().map_or(now, |cell| cell.created_at));
            }
            cell = written.or(cell);
            assert_eq!(result.revision, cell.as_ref().map_or(0, |cell| cell.revision));
        }
    }

    /// D17: integers are added exactly, or the operation fails.
    #[test]
    fn integers_add_up_or_overflow(value in any_integer(), by in any_integer()) {
        let cell = set("k", Value::Number(value.clone())).apply(None, at(0), &Limits::default()).unwrap().0;
        let wide = |number: &Number| number.as_i64().map(i128::from).or(number.as_u64().map(i128::from)).unwrap();
        let sum = wide(&value) + wide(&by);
        let fits = i128::from(i64::MIN) <= sum && sum <= i128::from(u64::MAX);
        match increment("k", by).apply(cell, at(0), &Limits::default()) {
            Ok((_, result)) => {
                let Some(Value::Number(given)) = result.value else { panic!("an increment returns a number") };
                assert_eq!((wide(&given), fits), (sum, true));
            }
            Err(error) => assert!(!fits && matches!(error, CellError::Overflow { .. }), "{error}"),
        }
    }
}

fn any_integer() -> impl Strategy<Value = Number> {
    let edges =
        select(vec![Number::from(0), Number::from(i64::MIN), Number::from(i64::MAX), Number::from(u64::MAX)]);
    prop_oneof![
        edges,
        proptest::num::i64::ANY.prop_map(Number::from),
        proptest::num::u64::ANY.prop_map(Number::from),
        (-3_i64..4).prop_map(Number::from),
    ]
}
