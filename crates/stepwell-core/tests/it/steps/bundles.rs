//! Bundles: several workflows in one file.

use stepwell_core::Limits;
use stepwell_core::document::{BUNDLE_TIMES, Bundle, MAX_BYTES, WorkflowSource};

const TWO: &str = "\
apiVersion: stepwell/v1
kind: Bundle
metadata: { description: both }
items:
  - metadata: { name: a }
    spec:
      steps:
        - { id: say, type: control.return, value: 1 }
  - name: b
    steps: [{ id: say, type: control.return, value: 2 }]
";

fn lines(text: &str) -> Vec<(usize, usize, String)> {
    let problems = Bundle::read(text).expect_err("it is wrong").0;
    problems.into_iter().map(|problem| (problem.at.line, problem.at.column, problem.message)).collect()
}

#[test]
fn a_bundle_is_the_same_in_yaml_and_json() {
    let bundle = Bundle::read(TWO).unwrap();
    let names: Vec<_> = bundle.items().iter().map(WorkflowSource::name).collect();
    assert_eq!(names, ["a", "b"]);
    let hashes =
        |bundle: &Bundle| -> Vec<_> { bundle.items().iter().map(|item| item.definition().hash()).collect() };
    for text in [bundle.to_yaml(), bundle.to_value().to_string()] {
        assert!(Bundle::is_one(&text));
        assert_eq!(hashes(&Bundle::read(&text).unwrap()), hashes(&bundle));
    }
    assert!(!Bundle::is_one("steps: []") && !Bundle::is_one("kind: [") && Bundle::is_one(TWO));
    assert!(Bundle::read("kind: Bundle\nitems: []").unwrap().items().is_empty());
}

#[test]
fn problems_in_items_have_their_position_in_the_file() {
    let broken = TWO
        .replace("type: control.return, value: 1", "type: control.retrun, value: 1")
        .replace("value: 2 }", "value: { $expr: paylod.x } }");
    let told = lines(&broken);
    let places: Vec<_> = told.iter().map(|(line, column, _)| (*line, *column)).collect();
    assert_eq!(places, [(8, 28), (10, 62)], "{told:?}");
    assert!(told[0].2.contains("`control.return`") && told[1].2.contains("`payload`"), "{told:?}");
}

#[test]
fn duplicate_or_missing_item_names_are_refused() {
    let told = lines(&TWO.replace("name: b", "name: a"));
    assert_eq!((told.len(), told[0].0), (1, 9));
    assert!(told[0].2.contains("another item has the name `a`, in line 5"), "{told:?}");
    let told = lines(&TWO.replace("  - name: b\n    steps", "  - steps"));
    assert!(told[0].2.contains("needs a name"), "{told:?}");
}

#[test]
fn invalid_bundle_is_refused() {
    for (text, line, why) in [
        ("apiVersion: v2\nkind: Bundle\nitems: []", 1, "`apiVersion`"),
        ("items: []", 1, "needs `kind`"),
        ("kind: Workflow\nitems: []", 1, "`kind` must be `Bundle`"),
        ("kind: Bundle", 1, "needs `items`"),
        ("kind: Bundle\nitems: 3", 2, "list of workflows"),
        ("kind: Bundle\nitem: []\nitems: []", 2, "did you mean `items`?"),
        ("kind: Bundle\nitems:\n  - 3", 3, "must be an object"),
        ("kind: Bundle\nitems:\n  - { kind: Bundle, name: a, items: [] }", 3, "`kind` must be `Workflow`"),
        ("[1]", 1, "must be an object"),
    ] {
        let told = lines(text);
        assert!(told.iter().any(|(at, _, said)| *at == line && said.contains(why)), "{text}: {told:?}");
    }
}

#[test]
fn bundle_may_be_longer_than_a_document_up_to_a_limit() {
    let long = "x".repeat(MAX_BYTES - 200);
    let item = |name: &str| {
        format!("  - {{ name: {name}, steps: [{{ id: s, type: control.return, value: {long} }}] }}\n")
    };
    let two = format!("kind: Bundle\nitems:\n{}{}", item("a"), item("b"));
    assert_eq!(Bundle::read(&two).unwrap().items().len(), 2);
    let too_long = " ".repeat(BUNDLE_TIMES * MAX_BYTES + 1);
    assert!(lines(&too_long)[0].2.contains("at most"));
}

#[test]
fn bundled_documents_carry_their_names() {
    let limits = Limits::default();
    let bare = WorkflowSource::read("steps: [{ id: s, type: control.return }]", Some("a")).unwrap();
    let whole =
        WorkflowSource::read("spec: { steps: [{ id: s, type: control.return }] }", Some("b")).unwrap();
    let bundle = Bundle::of(vec![bare.clone(), whole], &limits).unwrap();
    assert_eq!(bundle.items()[0].value()["name"], "a");
    assert_eq!(bundle.items()[1].value()["metadata"]["name"], "b");
    assert!(Bundle::read(&bundle.to_yaml()).is_ok());
    assert!(Bundle::of(vec![bare.clone(), bare], &limits).is_err());
}
