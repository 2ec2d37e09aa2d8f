//! The invalid definition of `cargo xtask prove bad-definition`: five mistakes give five problems with their locations.

use std::collections::BTreeSet;

use stepwell_core::{Location, ProblemCode, Spec};

/// The file of the proof itself, so that test and proof cannot drift apart.
const DEFINITION: &str = include_str!("../../../../xtask/src/proofs/bad-definition.json");

#[test]
fn each_of_five_mistakes_is_reported_at_its_location() {
    let spec: Spec = serde_json::from_str(DEFINITION).unwrap();
    let problems = spec.build().unwrap_err().0;
    let found: Vec<_> = problems.iter().map(|problem| (problem.code, problem.at.to_string())).collect();
    let expected = [
        (ProblemCode::UnreachablePlace, "place `attic`".to_owned()),
        (ProblemCode::DeadEnd, "place `trap`".to_owned()),
        (ProblemCode::DuplicateTransition, "transition `approve`".to_owned()),
        (ProblemCode::UnknownSignal, "transition `escalate`".to_owned()),
        (ProblemCode::UnknownPlace, "transition `mislay`".to_owned()),
    ];
    assert_eq!(found, expected);
    assert_eq!(problems.iter().map(|problem| problem.code).collect::<BTreeSet<_>>().len(), 5);
    for problem in &problems {
        assert!(matches!(problem.at, Location::Place(_) | Location::Transition(_)), "{problem}");
        assert!(!problem.message.is_empty());
    }
}

#[test]
fn problems_serialize_as_code_where_and_message() {
    let spec: Spec = serde_json::from_str(DEFINITION).unwrap();
    let problems = serde_json::to_value(spec.build().unwrap_err()).unwrap();
    assert_eq!(problems[4]["code"], "unknownPlace");
    assert_eq!(problems[4]["where"], "transition `mislay`");
    assert_eq!(problems[4]["message"], "the target `nowhere` does not exist");
    assert_eq!(problems.as_array().unwrap().len(), 5);
}
