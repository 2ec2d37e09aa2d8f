//! Values survive the conversion between YAML and JSON without loss.

use proptest::prelude::*;
use serde_json::{Map, Number, Value, json};
use stepwell_core::document::{MAX_NAME, to_json, yaml};

/// Texts that a reader or writer of YAML may misinterpret.
const ODD: &[&str] = &[
    "",
    " ",
    "~",
    "null",
    "Null",
    "NULL",
    "true",
    "True",
    "no",
    "y",
    "on",
    "0",
    "-0",
    "+1",
    "1_000",
    "0x1F",
    "0o17",
    "0b11",
    "017",
    ".5",
    "5.",
    "1e3",
    "1E+3",
    "-1e-3",
    ".inf",
    "-.INF",
    ".nan",
    "12:30:45",
    "2001-01-01",
    "2001-12-14t21:59:43.10-05:00",
    "<<",
    "=",
    "- a",
    "-",
    "--",
    "---",
    "...",
    "--- a",
    "? a",
    "?",
    ":",
    "a: b",
    "a:b",
    "a :b",
    "a #b",
    "#a",
    "&a",
    "*a",
    "!a",
    "!!str a",
    "%a",
    "@a",
    "`a`",
    "'a'",
    "\"a\"",
    "'",
    "\"",
    "[a]",
    "{a}",
    "a, b",
    "]",
    "}",
    ",",
    "| a",
    "> a",
    "|",
    ">",
    "\\",
    "\\n",
    "a\\",
    "a\nb",
    "\na",
    "a\n",
    "a\n\n",
    "\n",
    "\n\n",
    " a\nb ",
    "a\n b\n  c\n",
    "a \nb",
    "\ta",
    "a\t",
    "a\r\nb",
    "\r",
    "\u{0}",
    "\u{1b}[0m",
    "\u{7f}",
    "\u{85}",
    "\u{a0}",
    "\u{2028}",
    "\u{2029}",
    "\u{feff}",
    "\u{feff}a",
    "\u{fffd}",
    "\u{ffff}",
    "\u{1f600}",
    "é",
    "a\u{301}",
    "\u{202e}a",
    " a",
    "a ",
    "  ",
    "$expr",
    "a\u{0}b",
    "\u{d7ff}",
    "\u{e000}",
    "123456789012345678901234567890",
];

fn odd_text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(ODD).prop_map(str::to_owned),
        (prop::sample::select(ODD), prop::sample::select(ODD)).prop_map(|(a, b)| format!("{a}{b}")),
        "[ -~]{0,12}",
        "\\PC{0,6}",
        any::<String>(),
        (1_usize..3_000).prop_map(|n| "long words ".repeat(n / 11 + 1)),
        (1_usize..3_000).prop_map(|n| "x".repeat(n)),
    ]
}

/// Any text short enough for a name.
fn name() -> impl Strategy<Value = String> {
    odd_text().prop_map(|text| text.chars().take(MAX_NAME).collect())
}

const FLOATS: &[f64] = &[
    1e300,
    -1e300,
    1e-300,
    -0.0,
    0.0,
    1.0,
    -1.0,
    1e20,
    1e16,
    1e15,
    123456789012345680.0,
    0.1,
    5e-324,
    f64::MAX,
];

fn number() -> impl Strategy<Value = Number> {
    prop_oneof![
        any::<i64>().prop_map(Number::from),
        any::<u64>().prop_map(Number::from),
        prop::sample::select(vec![i64::MIN, i64::MAX, 0, -1]).prop_map(Number::from),
        Just(Number::from(u64::MAX)),
        prop::sample::select(FLOATS).prop_filter_map("finite", Number::from_f64),
        any::<f64>().prop_filter_map("finite", Number::from_f64),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number().prop_map(Value::Number),
        odd_text().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(name(), inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Checks that `text` reads back as `value`. Compares JSON texts, so that the sign of zero counts too.
fn is_kept(value: &Value, text: &str) -> Result<(), String> {
    let read = to_json(text).map_err(|problems| format!("{problems}\n{text}"))?;
    let (before, after) = (value.to_string(), read.to_string());
    match before == after {
        true => Ok(()),
        false => Err(format!("{value}\nbecame\n{read}\nby\n{text}")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_json_round_trips_through_yaml(value in value()) {
        let kept = is_kept(&value, &yaml(&value));
        prop_assert!(kept.is_ok(), "{}", kept.unwrap_err());
    }

    #[test]
    fn any_json_text_is_read_unchanged(value in value()) {
        for text in [value.to_string(), serde_json::to_string_pretty(&value).expect("it is plain data")] {
            let kept = is_kept(&value, &text);
            prop_assert!(kept.is_ok(), "{}", kept.unwrap_err());
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in any::<String>()) {
        let _ = to_json(&text);
        let _ = stepwell_core::WorkflowSource::read(&text, Some("test"));
    }
}

#[test]
fn too_deep_values_are_refused() {
    let nested = |depth: usize, map: bool| {
        (0..depth).fold(json!(1), |inner, _| if map { json!({ "a": inner }) } else { json!([inner]) })
    };
    for map in [false, true] {
        let deep = nested(64, map);
        assert_eq!(to_json(&yaml(&deep)).expect("it is not too deep"), deep);
        assert_eq!(to_json(&deep.to_string()).expect("it is not too deep"), deep);
        let problems = to_json(&nested(65, map).to_string()).expect_err("it is too deep");
        assert!(problems.to_string().contains("nested deeper"), "{problems}");
    }
}

#[test]
fn json_of_other_programs_is_read() {
    let cases = [
        (r#"{"a":"\ud83d\ude00"}"#, json!({"a": "😀"})),
        (r#"{"a\/b":"\u00e9\b\f"}"#, json!({"a/b": "é\u{8}\u{c}"})),
        ("{\n\t\"a\": [\n\t\t1,\n\t\t2\n\t]\n}\n", json!({"a": [1, 2]})),
        ("{\"a\"\n:\n1}", json!({"a": 1})),
        ("{\"a\":{\"b\":[]},\"c\":\"x: y # z\"}", json!({"a": {"b": []}, "c": "x: y # z"})),
        ("{\"a\":-1E+2,\"b\":1e-2}", json!({"a": -100.0, "b": 0.01})),
        ("\u{feff}{\"a\": 1}", json!({"a": 1})),
    ];
    for (text, value) in cases {
        assert_eq!(to_json(text).unwrap_or_else(|problems| panic!("{text}: {problems}")), value, "{text}");
    }
    for length in [MAX_NAME + 1, 1_023, 1_024, 1_025, 5_000] {
        let name = "k".repeat(length);
        let texts = [format!("{{\"{name}\": 1}}"), format!("{name}: 1\n"), format!("'{name}': 1\n")];
        for text in texts {
            let problems = to_json(&text).expect_err("the name is too long").to_string();
            assert!(problems.contains("at most 1000 characters"), "{length}: {problems}");
        }
    }
}

#[test]
fn crlf_bom_and_yaml_directives_are_read() {
    let crlf = "steps:\r\n  - id: a\r\n    type: action.call\r\n    action: x\r\n";
    assert_eq!(
        to_json(crlf).expect("it can be read"),
        json!({"steps": [{"id": "a", "type": "action.call", "action": "x"}]})
    );
    assert_eq!(to_json("\u{feff}a: 1\n").expect("it can be read"), json!({"a": 1}));
    assert_eq!(to_json("%YAML 1.2\n---\na: 1\n...\n").expect("it can be read"), json!({"a": 1}));
}
