//! `stepwell workflow` and `stepwell schema`, as authors of workflow documents use them.

use serde_json::{Value, json};

use super::{run, said};

/// Runs `stepwell` with a document on standard input. Returns its exit code, standard output and standard error.
fn stepwell(arguments: &[&str], document: &str) -> (Option<i32>, String, String) {
    said(&run(arguments, document))
}

const SOUND: &str = "\
apiVersion: stepwell/v1
kind: Workflow
metadata: { name: greet }
spec:
  input: { type: object, properties: { who: { type: string } } }
  steps:
    - { id: count, type: action.call, action: store.increment, input: { namespace: greetings, key: { $expr: payload.who } } }
    - { id: own, type: action.call, action: greetings.send, input: { number: { $expr: vars.count.value } } }
";

#[test]
fn a_valid_document_is_reported_with_hash_and_own_actions() {
    let (code, out, err) = stepwell(&["workflow", "validate", "-"], SOUND);
    assert_eq!((code, err.lines().count()), (Some(0), 1), "{err}");
    assert!(
        err.starts_with("-: warning: line 8") && err.contains("`greetings.send` is not built in"),
        "{err}"
    );
    assert!(out.starts_with("greet: valid, hash ") && out.contains("`greetings.send`"), "{out}");
    let (_, out, _) = stepwell(&["workflow", "validate", "-", "--json"], SOUND);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&told["valid"], &told["ownActions"]), (&json!(true), &json!(["greetings.send"])));
}

#[test]
fn all_problems_are_reported_with_line_and_column() {
    let broken = SOUND.replace("payload.who", "paylod.who").replace("id: own,", "id: own, retri: 3,");
    let (code, out, err) = stepwell(&["workflow", "validate", "-"], &broken);
    assert_eq!((code, out.as_str()), (Some(6), ""));
    assert!(err.contains("2 problems") && err.contains("did you mean `payload`?"), "{err}");
    assert!(err.contains("line 8, column 18") && err.contains("did you mean `retry`?"), "{err}");
    let (code, out, _) = stepwell(&["workflow", "validate", "-", "--json"], &broken);
    let told: Value = serde_json::from_str(&out).unwrap();
    let lines: Vec<_> = told["problems"].as_array().unwrap().iter().map(|one| one["line"].clone()).collect();
    assert_eq!((code, told["valid"].clone(), lines), (Some(6), json!(false), vec![json!(7), json!(8)]));
}

#[test]
fn an_invalid_call_is_reported_with_its_position() {
    let broken = SOUND.replace("namespace: greetings", "namespase: greetings, by: many");
    let (code, out, _) = stepwell(&["workflow", "validate", "-", "--json"], &broken);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, Some(6));
    for problem in told["problems"].as_array().unwrap() {
        assert_eq!((&problem["code"], &problem["line"]), (&json!("badCall"), &json!(7)), "{problem}");
    }
    let (_, _, err) = stepwell(&["workflow", "validate", "-"], &broken);
    assert!(err.contains("line 7, column ") && err.contains("`namespace`"), "{err}");
}

#[test]
fn a_document_with_places_is_validated() {
    let text = "name: gate\nsignals: { GO: {} }\ninitial: shut\nplaces: { shut: { kind: wait, signal: GO }, open: { kind: end } }\ntransitions: [{ id: go, from: shut, to: open }]\n";
    let (code, out, err) = stepwell(&["workflow", "validate", "-"], text);
    assert!(code == Some(0) && out.starts_with("gate: valid"), "{out}{err}");
    let broken = text.replace("to: open", "to: opne");
    let (code, _, err) = stepwell(&["workflow", "validate", "-"], &broken);
    assert!(code == Some(6) && err.contains("line 5") && err.contains("did you mean `open`?"), "{err}");
}

#[test]
fn a_wrong_field_of_a_graph_is_reported_with_its_line() {
    let sound = "name: gate\nplaces: { shut: { kind: step }, open: { kind: end } }\ntransitions: [{ id: go, from: shut, to: open }]\n";
    for (field, told) in [
        ("initial: [shut]", "line 4, column 1: `initial`: invalid type"),
        ("initial: shtu", "line 4, column 1: `initial`: the initial place `shtu` does not exist"),
        ("initial: shut\nfiring: some", "line 5, column 1: `firing`: unknown variant `some`"),
        ("initial: shut\nsignals: { GO: { payloda: {} } }", "signal `GO`: `payloda`: unknown field"),
    ] {
        let (code, out, err) = stepwell(&["workflow", "validate", "-"], &format!("{sound}{field}\n"));
        assert_eq!((code, out.as_str()), (Some(6), ""), "{field}");
        assert!(err.contains(told), "{told}\n{err}");
    }
}

#[test]
fn a_document_is_the_same_in_yaml_and_json() {
    let convert = |to: &str, text: &str| {
        let (code, out, err) = stepwell(&["workflow", "convert", "-", "--to", to], text);
        assert_eq!((code, err.as_str()), (Some(0), ""));
        out
    };
    let as_json = convert("json", SOUND);
    let as_yaml = convert("yaml", &as_json);
    assert_eq!(convert("json", &as_yaml), as_json);
    let hash = |text: &str| stepwell(&["workflow", "validate", "-"], text).1;
    assert_eq!((hash(&as_json), hash(&as_yaml)), (hash(SOUND), hash(SOUND)));
    let (code, _, err) = stepwell(&["workflow", "convert", "-", "--to", "json"], "a: [1");
    assert!(code == Some(6) && err.contains("line "), "{err}");
}

#[test]
fn the_names_in_scope_of_a_step_are_listed() {
    let (code, out, _) = stepwell(&["workflow", "scope", "-", "own", "--json"], SOUND);
    let told: Value = serde_json::from_str(&out).unwrap();
    let paths: Vec<_> =
        told["names"].as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
    assert_eq!((code, paths), (Some(0), vec!["payload", "payload.who", "vars", "vars.count", "meta"]));
    let (code, _, err) = stepwell(&["workflow", "scope", "-", "onw"], SOUND);
    assert!(code == Some(3) && err.contains("`onw`"), "{err}");
}

#[test]
fn actions_are_listed_for_a_designer() {
    let (code, out, _) = stepwell(&["workflow", "actions", "--json"], "");
    let told: Vec<Value> = serde_json::from_str(&out).unwrap();
    let names: Vec<_> = told.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(code, Some(0));
    for name in [
        "store.increment",
        "links.lookup",
        "http.request",
        "email.send",
        "log",
        "transform",
        "workflow.start",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    for action in &told {
        for field in ["version", "input", "output", "hasSideEffects", "labelKey", "group", "icon"] {
            assert!(!action[field].is_null(), "{field} of {action}");
        }
    }
}

#[test]
fn the_editor_schema_accepts_valid_documents_only() {
    let (code, out, _) = stepwell(&["schema"], "");
    let schema: Value = serde_json::from_str(&out).unwrap();
    let value: Value =
        serde_json::from_str(&stepwell(&["workflow", "convert", "-", "--to", "json"], SOUND).1).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    assert!(code == Some(0) && validator.is_valid(&value));
    let mut broken = value;
    broken["spec"]["steps"][0]["type"] = json!("action.cal");
    assert!(!validator.is_valid(&broken));
}

/// Writes a file with this text into the temporary folder and returns its path.
fn file(folder: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn two_documents_are_compared_step_by_step() {
    let folder = tempfile::tempdir().unwrap();
    let one = file(&folder, "one.yaml", SOUND);
    let two = file(&folder, "two.yaml", &SOUND.replace("namespace: greetings", "namespace: hellos"));
    assert_eq!(
        stepwell(&["workflow", "diff", &one, &one, "--exit-code"], ""),
        (Some(0), String::new(), String::new())
    );
    let (code, out, err) = stepwell(&["workflow", "diff", &one, &two], "");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(out, "~ step `count` /input/namespace: \"greetings\" -> \"hellos\"");
    let (code, out, err) = stepwell(&["workflow", "diff", &one, &two, "--json", "--exit-code"], "");
    assert_eq!((code, err.as_str()), (Some(4), ""));
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&told[0]["kind"], &told[0]["id"], &told[0]["to"]),
        (&json!("changed"), &json!("count"), &json!("hellos"))
    );
    let (code, _, err) = stepwell(&["workflow", "diff", &one, "-"], "a: [1");
    assert!(code == Some(6) && err.contains("line "), "{err}");
    let (code, _, _) = stepwell(&["workflow", "diff", &one, "nowhere.yaml"], "");
    assert_eq!(code, Some(3));
}

#[test]
fn documents_are_bundled_and_validated() {
    let folder = tempfile::tempdir().unwrap();
    let greet = file(&folder, "greet.yaml", SOUND);
    let other = file(&folder, "other.yaml", "steps: [{ id: say, type: control.return, value: 1 }]");
    let (code, bundle, err) = stepwell(&["workflow", "bundle", &greet, &other], "");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let (code, out, err) = stepwell(&["workflow", "validate", "-"], &bundle);
    assert!(code == Some(0) && err.contains("`greetings.send` is not built in"), "{err}");
    let lines: Vec<_> = out.lines().collect();
    assert!(
        lines.len() == 2 && lines[0].starts_with("greet: valid") && lines[1].starts_with("other: valid"),
        "{out}"
    );
    let (_, as_json, _) = stepwell(&["workflow", "bundle", "-", "-o", "json"], &bundle);
    let told: Value = serde_json::from_str(&as_json).unwrap();
    assert_eq!((&told["kind"], told["items"].as_array().map(Vec::len)), (&json!("Bundle"), Some(2)));
    let (_, out, _) = stepwell(&["workflow", "validate", "-", "--json"], &as_json);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&told["valid"], &told["items"][1]["name"]), (&json!(true), &json!("other")));
}

#[test]
fn problems_in_a_bundle_are_reported_with_their_position() {
    let bundle = "kind: Bundle\nitems:\n  - { name: a, steps: [{ id: n, type: action.call, action: store.increment, input: {} }] }\n";
    let (code, _, err) = stepwell(&["workflow", "validate", "-"], bundle);
    assert!(code == Some(6) && err.contains("line 3, column ") && err.contains("`namespace`"), "{err}");
    let broken = bundle.replace("action.call", "action.cal");
    let (code, out, err) = stepwell(&["workflow", "bundle", "-"], &broken);
    assert_eq!((code, out.as_str()), (Some(6), ""));
    assert!(err.contains("line 3") && err.contains("did you mean `action.call`?"), "{err}");
    let folder = tempfile::tempdir().unwrap();
    let one = file(&folder, "one.yaml", SOUND);
    let (code, _, err) = stepwell(&["workflow", "bundle", &one, &one], "");
    assert!(code == Some(6) && err.contains("another item has the name `greet`"), "{err}");
}
