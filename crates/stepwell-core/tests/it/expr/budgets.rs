//! Limits on the size, depth and cost of expressions.

use serde_json::json;
use stepwell_core::expr::{Budget, Expr, ExprErrorKind, MAX_DEPTH, MAX_SOURCE_BYTES, Roots};

use super::{eval, failure, scope, value};

#[test]
fn size_and_depth_are_bounded() {
    let longest = format!("'{}'", "a".repeat(MAX_SOURCE_BYTES - 2));
    assert!(Expr::parse(&longest).is_ok());
    let error = Expr::parse(&format!("{longest} ")).unwrap_err();
    assert!(error.message.contains("longer than 8192 bytes") && error.expr.len() <= 100, "{error}");
    assert_eq!(error.code, "tooLong");

    let deepest = usize::try_from(MAX_DEPTH).unwrap() - 1;
    let nest = |open: &str, close: &str, n: usize| format!("{}1{}", open.repeat(n), close.repeat(n));
    for (open, close) in
        [("(", ")"), ("[", "]"), ("$not(", ")"), ("1 + (", ")"), ("{'a': ", "}"), ("a[", "]")]
    {
        let deep = nest(open, close, deepest / 3);
        assert!(Expr::parse(&deep).is_ok(), "{deep}");
        let error = Expr::parse(&nest(open, close, 500)).unwrap_err();
        assert!(error.message.contains("nested deeper than 64 levels"), "{error}");
        assert_eq!(error.code, "tooDeep");
    }
    assert!(eval(&nest("(", ")", deepest)).is_ok());
    for deep in [
        "-".repeat(8000) + "a",
        "a ? ".repeat(2000),
        "a ?? ".repeat(1600),
        "(".repeat(8000),
        "a[".repeat(4000),
        "a^(".repeat(2000),
        "$a := ".repeat(1000),
        "1".to_owned() + &" ~> $string()".repeat(600),
    ] {
        assert_eq!(Expr::parse(&deep).unwrap_err().kind, ExprErrorKind::Syntax);
    }
    // A long chain is not deep.
    assert_eq!(value(&format!("1{}", " + 1".repeat(2000))), Some(json!(2001)));
    assert_eq!(value(&format!("missing{}", ".a".repeat(4000))), None);
    assert_eq!(value(&format!("missing{}", "[0]".repeat(2500))), None);
}

#[test]
fn a_budget_is_spent_and_runs_out() {
    let parse = |source: &str| Expr::parse(source).unwrap();
    let scope = scope();

    let mut budget = Budget { steps: 2, ..Budget::default() };
    let error = parse("1 + 1").eval(&scope, &mut budget).unwrap_err();
    assert_eq!((error.kind, &error.expr[error.span.clone()]), (ExprErrorKind::Budget, "1"));
    assert_eq!((error.code, budget.steps), ("budget", 0));

    let mut budget = Budget { steps: 7, ..Budget::default() };
    assert!(parse("1 + 1").eval(&scope, &mut budget).is_ok());
    assert!(parse("1 + 1").eval(&scope, &mut budget).is_ok());
    assert!(parse("1 + 1").eval(&scope, &mut budget).is_err(), "one budget bounds all three");

    let mut budget = Budget { depth: 2, ..Budget::default() };
    assert!(parse("1 + 1").eval(&scope, &mut budget).is_ok());
    let error = parse("1 + (1)").truth(&scope, &mut budget).unwrap_err();
    assert_eq!((error.kind, error.code), (ExprErrorKind::Budget, "tooDeep"));
}

#[test]
fn budget_counts_created_values_and_not_those_read() {
    let text = "x".repeat(200_000);
    let big = json!({"text": text, "list": vec![0; 60_000]});
    let roots = [("big", &big)];
    let run = |source: &str| Expr::parse(source).unwrap().eval(&Roots(&roots), &mut Budget::default());
    let kind = |source: &str| run(source).map_err(|error| error.kind);

    assert_eq!(kind("$length(big.text) > 5 and big.text = big.text"), Ok(Some(json!(true))));
    assert_eq!(run("big.text & ''").unwrap().unwrap().as_str().map(str::len), Some(200_000));
    // A chain of `&` is charged for its text once.
    assert!(run("big.text & 'a' & 'b' & 'c' & 'd'").is_ok());
    // Lists and objects refer to their parts. Only the result is copied.
    assert_eq!(kind("{'a': big, 'b': [big, big]}.b[0].list[0]"), Ok(Some(json!(0))));
    // Returning existing data has its own, larger limit: `copied_bytes`.
    for source in ["[big.text, big.text]", "big", "big.list", "($a := big.text; [$a, $a])"] {
        assert!(run(source).is_ok(), "{source}");
        let mut budget = Budget { copied_bytes: 100_000, ..Budget::default() };
        let short = Expr::parse(source).unwrap().eval(&Roots(&roots), &mut budget);
        assert_eq!(short.map_err(|error| error.kind), Err(ExprErrorKind::Budget), "{source}");
    }
    for source in [
        "big.text & big.text",
        "big & ''",
        "$string(big)",
        "$uppercase(big.text) & $lowercase(big.text)",
        "$pad('', 1000000000000)",
        "$pad('', 1e300, 'é')",
        "$replace(big.text, 'x', 'xx')",
        "$split(big.text, '')",
        "[1..100000]",
        "$join([1..9].$$.big.text)",
        "$zip(big.list, big.list)",
        "$distinct([1..1000])",
        "big.list^($)",
        "$base64encode(big.text)",
    ] {
        assert_eq!(kind(source), Err(ExprErrorKind::Budget), "{source}");
    }
    for source in [
        "big.list or big.list",
        "1 in big.list or 2 in big.list",
        "big.list = big.list and big.list = big.list",
        "big.list[$ = 1]",
        "$sum(big.list) + $sum(big.list)",
        "big.** or big.**",
    ] {
        assert_eq!(kind(source), Err(ExprErrorKind::Budget), "{source}");
    }
    let scans = vec!["$length(big.text) = 0"; 200].join(" or ");
    assert_eq!(kind(&scans), Err(ExprErrorKind::Budget));
}

/// Regression: a list of short numbers cost four times the size of its JSON text, so a snapshot within its limit could
/// not be returned.
#[test]
fn copies_cost_at_most_their_size_as_json() {
    let values = [
        json!(vec![7; 1000]),
        json!({"a": [0, -1, 10, -100, 0.5, -1.5, 1e300, null, true, false, [], {}, [[]], ""]}),
        json!({"text": "é\n", "": 0, "fields": {"b": {}, "c": [1, 2]}}),
        json!(u64::MAX),
    ];
    for value in values {
        let bytes = value.to_string().len();
        let mut budget = Budget { copied_bytes: bytes, ..Budget::default() };
        let copy = Expr::parse("value").unwrap().eval(&Roots(&[("value", &value)]), &mut budget);
        assert_eq!(copy, Ok(Some(value.clone())), "{value}");
        assert!(budget.copied_bytes <= bytes / 2, "{value}: {} of {bytes} bytes left", budget.copied_bytes);
    }
}

#[test]
fn runaway_expressions_exceed_the_budget() {
    for source in [
        // Each assignment at least doubles the value.
        &format!("($a := [1, 1]; {} $count($a))", "$a := $append($a, $a); ".repeat(60)),
        &format!("($a := 'aa'; {} $length($a))", "$a := $a & $a; ".repeat(60)),
        &format!("($a := [1, 1]; {} $count($a))", "$a := [$a, $a]; ".repeat(60)),
        &format!("($a := 'aa'; {} $length($a))", "$a := $replace($a, 'a', $a); ".repeat(20)),
        // Nested maps multiply their lengths.
        "[1..99].([1..99].([1..99].([1..99].($ + 1))))",
        "$sum([1..300].[1..300])",
    ] {
        let error = failure(source);
        assert_eq!(error.kind, ExprErrorKind::Budget, "{source}: {error}");
    }
}

#[test]
fn created_values_are_never_too_deep_to_read_back() {
    let deep = |open: &str, times: usize| format!("($a := 1; {} $a)", open.repeat(times));
    for nest in ["$a := [[$a]]; ", "$a := {'a': $a}; "] {
        let made = value(&deep(nest, 100)).unwrap();
        let text = made.to_string();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), made);
        let error = failure(&deep(nest, 400));
        assert_eq!((error.kind, error.code), (ExprErrorKind::Budget, "tooDeep"));
    }
}

#[test]
fn converting_a_very_deep_value_to_text_is_an_error() {
    let mut deep = json!(1);
    for _ in 0..500 {
        deep = json!([deep]);
    }
    let roots = [("deep", &deep)];
    let run = |source: &str| Expr::parse(source).unwrap().eval(&Roots(&roots), &mut Budget::default());
    assert_eq!(run("deep & ''").unwrap_err().code, "tooDeep");
    assert_eq!(run("deep = deep and deep"), Ok(Some(json!(true))));
    assert_eq!(run("$count(deep.**)"), Ok(Some(json!(1))));
}
