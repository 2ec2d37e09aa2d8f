//! `stepwell expr`: evaluates expressions for people and for programs.

use std::process::Output;

use serde_json::{Value, json};

use super::{run, said};

/// Runs `stepwell expr` with `input` on standard input.
fn expr(arguments: &[&str], input: &str) -> Output {
    run(&[&["expr"], arguments].concat(), input)
}

#[test]
fn an_expression_is_evaluated_on_json() {
    let order = r#"{"items": [{"price": 2}, {"price": 30}]}"#;
    let eval = |arguments: &[&str]| said(&expr(&[&["eval"], arguments].concat(), order));
    assert_eq!(eval(&["items[price > 10].price", "--input", "-"]), (Some(0), "30".into(), "".into()));
    assert_eq!(eval(&["items[price > 10].price", "--input", "-", "--list"]).1, "[30]");
    assert_eq!(eval(&["items[price > 99].price", "--input", "-", "--list"]).1, "[]");
    assert_eq!(eval(&["1 + 1", "--json"]).1, r#"{"result":2}"#);
    assert_eq!(eval(&["$now()", "--now", "2026-01-01T00:00:00Z"]).1, r#""2026-01-01T00:00:00.000Z""#);
    // Without `--now`, the clock of the system is used.
    assert_eq!(eval(&["$millis() > 1700000000000"]).1, "true");

    let folder = tempfile::tempdir().unwrap();
    let bindings = folder.path().join("bindings.json");
    std::fs::write(&bindings, r#"{"limit": 5}"#).unwrap();
    let bindings = &format!("@{}", bindings.display());
    assert_eq!(eval(&["items[price < $limit].price", "--input", "-", "--bindings", bindings]).1, "2");
}

#[test]
fn an_undefined_result_names_the_missing_field() {
    let (code, out, err) = said(&expr(&["eval", "itms.price", "--input", "-"], r#"{"items": []}"#));
    assert_eq!((code, out.as_str()), (Some(0), ""));
    assert_eq!(err, "undefined: `itms` has no value; did you mean `items`?");
    let (_, out, _) = said(&expr(&["eval", "missing", "--json"], ""));
    assert_eq!(out, r#"{"undefined":true}"#);
}

#[test]
fn invalid_expressions_and_usage_have_their_exit_codes() {
    let (code, out, err) = said(&expr(&["eval", "1 +"], ""));
    assert_eq!((code, out.as_str()), (Some(6), ""));
    assert!(err.starts_with("stepwell: S0207: expected a value"), "{err}");
    let (code, out, _) = said(&expr(&["eval", "$map([1], $string)", "--json"], ""));
    let out: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, Some(6));
    assert_eq!((&out["error"]["code"], &out["error"]["refused"]), (&json!("unsupported"), &json!(true)));
    assert_eq!(said(&expr(&["eval", "a", "--input", "-"], "{")).0, Some(6), "no JSON");
    assert_eq!(said(&expr(&["eval", "a", "--input", "@no/such/file"], "")).0, Some(3));
    for usage in [vec!["eval"], vec!["eval", "1", "--batch"], vec!["eval", "1", "--now", "soon"], vec![]] {
        assert_eq!(said(&expr(&usage, "")).0, Some(2), "{usage:?}");
    }
}

#[test]
fn a_batch_has_an_answer_for_every_line() {
    let lines = [
        (json!({"expr": "a + $b", "data": {"a": 1}, "bindings": {"b": 2}}), json!({"result": 3})),
        (json!({"expr": "$", "data": null}), json!({"result": null})),
        (json!({"expr": "$"}), json!({"undefined": true})),
        (json!({"expr": "$[1]", "data": [1, [2]], "bindings": null}), json!({"result": [2]})),
    ];
    let mut input: String = lines.iter().map(|(line, _)| format!("{line}\n\n")).collect();
    input.push_str("not json\n{\"data\": 1}\n{\"expr\": \"1\", \"bindings\": 5}\n[1]\n");
    input.push_str("{\"expr\": \"'a' + 1\"}\n{\"expr\": \"/a/\"}\n\u{fffd}\n{\"expr\": \"1\"}");
    let (code, out, err) = said(&expr(&["eval", "--batch"], &input));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let answers: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for ((line, expected), answer) in lines.iter().zip(&answers) {
        assert_eq!(answer, expected, "{line}");
    }
    let errors: Vec<_> = answers[4..].iter().map(|answer| &answer["error"]).collect();
    let codes: Vec<_> = errors.iter().map(|error| error["code"].as_str().unwrap_or("none")).collect();
    assert_eq!(codes, ["input", "input", "input", "input", "T2001", "unsupported", "input", "none"]);
    let refused: Vec<_> = errors.iter().map(|error| error["refused"].as_bool().unwrap_or(false)).collect();
    assert_eq!(refused, [false, false, false, false, false, true, false, false]);
    assert_eq!(answers.last(), Some(&json!({"result": 1})));
}

#[test]
fn the_functions_are_listed() {
    let (code, out, _) = said(&expr(&["functions"], ""));
    assert_eq!(code, Some(0));
    assert!(out.lines().any(|line| line.starts_with("string  substring(text?, start, length?)")), "{out}");
    let rows: Value = serde_json::from_str(&said(&expr(&["functions", "--json"], "")).1).unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), out.lines().count());
    assert!(rows.iter().any(|row| row["name"] == "sum" && row["group"] == "number"));
}
