//! Random expressions of the dialect give on random data what another JSONata gives.
//!
//! The other one is no authority: where the two differ, the reference implementation decided. What is known to
//! differ is in `is_known`, with its reason.

use jsonata_core::Expression;
use jsonata_core::value::JValue;
use proptest::prelude::{Just, ProptestConfig, Strategy, prop, prop_oneof, proptest};
use proptest::strategy::Union;
use serde_json::{Value, json};
use stepwell_core::expr::{Budget, Data, Expr, ExprError};

/// A value, undefined (`Ok(None)`), or an error.
type Ours = Result<Option<Value>, ExprError>;
type Theirs = Result<Option<Value>, String>;

fn ours(source: &str, data: &Value) -> Ours {
    Expr::parse(source)?.eval(&Data::new(data), &mut Budget::roomy())
}

fn theirs(source: &str, data: &Value) -> Theirs {
    let expr = Expression::compile(source).map_err(|error| error.to_string())?;
    let data = JValue::from_json_str(&data.to_string()).map_err(|error| error.to_string())?;
    let found = expr.evaluate(&data).map_err(|error| error.to_string())?;
    if found.is_undefined() {
        return Ok(None);
    }
    let text = found.to_json_string().map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map(Some).map_err(|error| error.to_string())
}

/// 1 and 1.0 are the same.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

fn agree(ours: &Ours, theirs: &Theirs) -> bool {
    match (ours, theirs) {
        (Ok(None), Ok(None)) | (Err(_), Err(_)) => true,
        (Ok(Some(a)), Ok(Some(b))) => same(a, b),
        _ => false,
    }
}

/// What is ours on purpose, or theirs by mistake.
fn is_known(source: &str, ours: &Ours, theirs: &Theirs) -> bool {
    let message = ours.as_ref().err().map_or("", |error| &*error.message);
    // Documented: an infinity is an error here, at once.
    message.starts_with("division by zero")
        // Documented: membership is by value.
        || source.contains(" in ")
        || is_theirs(source, ours, theirs)
}

/// Where the other implementation differs from the reference one.
fn is_theirs(source: &str, ours: &Ours, theirs: &Theirs) -> bool {
    // It takes the value at hand for nothing.
    source.contains("$exists($)")
        // It does not look into lists within lists.
        || source.contains("$keys(")
        // It flattens a list that is written as a step.
        || source.contains("^(") && source.contains(".[")
        // It evaluates a predicate behind something undefined only if that calls a function.
        || source.contains('[') && ours.is_err() && *theirs == Ok(None)
}

fn documents() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        Just(json!(true)),
        (-3i64..4).prop_map(Value::from),
        Just(json!(0.5)),
        "[xy]{0,2}".prop_map(Value::from),
    ];
    let inner = leaf.prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map("[abc]", inner, 0..3)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    });
    // Mostly objects with lists of objects, as documents are.
    prop::collection::btree_map("[abc]", inner, 1..4)
        .prop_map(|fields| Value::Object(fields.into_iter().collect()))
}

/// One of the forms, with an expression in the place of each `#`.
fn joined(
    forms: &'static [&'static str],
    inner: impl Strategy<Value = String> + Clone,
) -> Union<impl Strategy<Value = String>> {
    Union::new(forms.iter().map(move |form| {
        prop::collection::vec(inner.clone(), 3).prop_map(move |with| {
            let mut with = with.into_iter();
            let mut text = String::new();
            for piece in form.split_inclusive('#') {
                match piece.strip_suffix('#') {
                    Some(before) => {
                        text.push_str(before);
                        text.push_str(&with.next().unwrap_or_default());
                    }
                    None => text.push_str(piece),
                }
            }
            text
        })
    }))
}

fn expressions() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "a",
        "b",
        "c",
        "a.b",
        "a.b.c",
        "b.c",
        "$",
        "$$",
        "$.a",
        "1",
        "2",
        "-1",
        "0",
        "0.5",
        "'x'",
        "'xy'",
        "true",
        "false",
        "null",
        "[]",
        "[1..3]",
        "*",
        "a.*",
        "**",
        "a[0]",
        "b[-1]",
        "a[]",
        "a.b[]",
        "c.[a]",
        "a.{'k': b}",
    ]);
    leaf.prop_map(str::to_owned).prop_recursive(3, 12, 3, |inner| {
        joined(
            &[
                "(#)",
                "(#).a",
                "(#)[0]",
                "(#)[1]",
                "(#)[-1]",
                "(#)[]",
                "(#)[#]",
                "a[#]",
                "b[#].c",
                "a.(#)",
                "(#).(#)",
                "(#).[#]",
                "(#).*",
                "[#, #]",
                "[#]",
                "[[#]]",
                "{'k': #}",
                "{'k': #, 'l': #}",
                "a.{'k': #}",
                "(#){'k': #}",
                "((#)^($))",
                "(# + #)",
                "(# - #)",
                "(# * #)",
                "(# & #)",
                "(# = #)",
                "(# != #)",
                "(# < #)",
                "(# >= #)",
                "(# and #)",
                "(# or #)",
                "(# ? # : #)",
                "(# ? #)",
                "($v := #; $v)",
                "($v := #; [$v, #])",
                "$count(#)",
                "$exists(#)",
                "$not(#)",
                "$boolean(#)",
                "$string(#)",
                "$type(#)",
                "$append(#, #)",
                "$reverse(#)",
                "$distinct(#)",
                "$zip(#, #)",
                "$keys(#)",
                "$sum(#)",
                "$max(#)",
                "$join(#, '-')",
                "$lookup(#, 'a')",
                "$sort(#)",
                "(# ~> $count())",
            ],
            inner,
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_two_agree(source in expressions(), data in documents()) {
        let (ours, theirs) = (ours(&source, &data), theirs(&source, &data));
        assert!(
            agree(&ours, &theirs) || is_known(&source, &ours, &theirs),
            "{source}\non     {data}\nours   {ours:?}\ntheirs {theirs:?}"
        );
    }
}
