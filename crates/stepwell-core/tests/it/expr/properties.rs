//! Properties of random expressions: nothing panics, and integer arithmetic is exact.

use proptest::prelude::{Just, Strategy, prop, prop_oneof, proptest};
use serde_json::{Value, json};
use stepwell_core::expr::{Budget, Data, Expr, Roots};

use super::eval;

/// Generates expressions of at most 200 characters from tokens, so that the parser gets past the first character.
fn tokens() -> impl Strategy<Value = String> {
    const PIECES: &str = "a¦payload¦.¦.amount¦.items¦[0]¦[-1]¦[¦]¦[]¦(¦)¦{¦}¦,¦;¦:¦?¦??¦?:¦+¦-¦*¦/¦%¦&¦=¦==¦!=¦<¦<=¦>\
        ¦>=¦and¦or¦in¦$not(¦$string(¦count(¦$coalesce(¦$keys(¦$zip(¦$substring(¦$pad(¦$split(¦$round(¦$formatNumber(\
        ¦$fromMillis(¦$x¦$x :=¦$¦$$¦1¦0¦2.5¦1e308¦9223372036854775807¦'s'¦\"t\"¦'¦\"¦`¦\\¦\\u¦null¦true¦ ¦\n¦/*¦*/¦é\
        ¦😀¦λ¦..¦[1..3]¦~>¦:=¦|¦^(¦@¦#¦!¦**¦.*¦.**¦{'a':";
    let pieces: Vec<&str> = PIECES.split('¦').collect();
    let between = prop::sample::select(vec!["", " "]);
    (prop::collection::vec(prop::sample::select(pieces), 0..60), between)
        .prop_map(|(pieces, between)| pieces.join(between).chars().take(200).collect())
}

fn documents() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        Just(json!(true)),
        (-3i64..4).prop_map(Value::from),
        Just(json!(0.5)),
        "[a-c]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map("[a-c]|payload|items|amount", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn nothing_panics(source in tokens()) {
        if let Err(error) = eval(&source) {
            assert!(error.expr.get(error.span.clone()).is_some(), "{source:?}: {:?}", error.span);
            assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn nothing_panics_on_any_data(source in tokens(), data in documents()) {
        if let Ok(expr) = Expr::parse(&source) {
            let scope = Data::new(&data);
            let found = expr.eval(&scope, &mut Budget::default());
            let list = expr.eval_list(&scope, &mut Budget::default());
            let truth = expr.truth(&scope, &mut Budget::default());
            // `eval`, `eval_list` and `truth` agree on whether there is a value.
            match (&found, &list) {
                (Ok(Some(_)), Ok(list)) => assert!(list.is_some(), "{source}"),
                (Ok(None), Ok(list)) => assert!(list.as_ref().is_none_or(Vec::is_empty), "{source}"),
                (found, list) => assert!(found.is_err() && list.is_err(), "{source}: {found:?} {list:?}"),
            }
            if let Ok(None) = found {
                assert_eq!(truth, Ok(false));
                expr.missing(&scope, &mut Budget::default());
            }
        }
    }

    #[test]
    fn any_text_is_parsed_or_refused(source in "\\PC{0,80}") {
        let _ = eval(&source);
    }

    #[test]
    fn integer_arithmetic_is_exact_or_refused(a: i64, b: i64) {
        let roots = [("a", &json!(a)), ("b", &json!(b))];
        let run = |source: &str| Expr::parse(source).unwrap().eval(&Roots(&roots), &mut Budget::default()).ok();
        assert_eq!(run("a + b"), a.checked_add(b).map(|n| Some(json!(n))));
        assert_eq!(run("a - b"), a.checked_sub(b).map(|n| Some(json!(n))));
        assert_eq!(run("a * b"), a.checked_mul(b).map(|n| Some(json!(n))));
        assert_eq!(run("a < b"), Some(Some(json!(a < b))));
        assert_eq!(run("a = b"), Some(Some(json!(a == b))));
    }
}
