//! Proves that an invalid definition is refused with all its mistakes at once, each with its position.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::{Size, answered, judged};

/// A definition with five mistakes of five kinds.
const DEFINITION: &str = include_str!("bad-definition.json");

const MISTAKES: usize = 5;

/// Exit status of the command for a refused definition.
const REFUSED: i32 = 6;

pub(super) fn prove(size: Size) -> Result<(), String> {
    let definition: Value = serde_json::from_str(DEFINITION).map_err(|error| {
        format!("xtask's bad-definition.json must be wrong as a workflow, not as JSON: {error}")
    })?;
    let mut command = Command::new(super::server(size)?);
    command.args(["workflow", "validate", "--json", "-"]);
    let (status, answer) = answered(&mut command, DEFINITION, size)?;
    judge(&definition, status.code(), &answer)
}

fn judge(definition: &Value, code: Option<i32>, answer: &Value) -> Result<(), String> {
    let problems = answer["problems"].as_array().ok_or_else(|| format!("no list `problems` in {answer}"))?;
    let mut all_met = judged(code == Some(REFUSED), &format!("exit code {code:?}, must be {REFUSED}"));
    all_met &= judged(answer["valid"] == false, &format!("valid: {}, must be false", answer["valid"]));
    all_met &=
        judged(problems.len() == MISTAKES, &format!("{} problems, must be {MISTAKES}", problems.len()));
    let codes: BTreeSet<&str> = problems.iter().filter_map(|problem| problem["code"].as_str()).collect();
    all_met &=
        judged(codes.len() == MISTAKES, &format!("{} different codes, must be {MISTAKES}", codes.len()));

    let known: BTreeSet<&str> =
        names(&definition["places"]).chain(names(&definition["transitions"])).collect();
    for problem in problems {
        let location = problem["where"].as_str().unwrap_or_default();
        let code = problem["code"].as_str().unwrap_or_default();
        let what = format!("`{code}` at `{location}`: must name a place or a transition");
        all_met &= judged(words(location).any(|word| known.contains(word)), &what);
        let message = problem["message"].as_str().unwrap_or_default();
        all_met &= judged(!message.is_empty(), &format!("`{code}` says: {message}"));
    }
    if all_met { Ok(()) } else { Err("a bar was missed, see above".to_owned()) }
}

/// Returns the names of the parts of a definition: the keys of a map, or the ids of a list.
fn names(parts: &Value) -> impl Iterator<Item = &str> {
    let keys = parts.as_object().into_iter().flat_map(|map| map.keys().map(String::as_str));
    let ids = parts
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|part| part["id"].as_str().or(part["name"].as_str()));
    keys.chain(ids)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition() -> Value {
        json!({"places": {"draft": {}, "done": {}}, "transitions": [{"id": "submit", "from": "draft"}]})
    }

    fn answer() -> Value {
        let places = ["place draft", "places.done", "transition `submit`", "/transitions/submit/to", "draft"];
        let problem =
            |(index, place)| json!({"code": format!("code-{index}"), "where": place, "message": "No."});
        json!({"valid": false, "problems": places.into_iter().enumerate().map(problem).collect::<Vec<_>>()})
    }

    fn holds(code: Option<i32>, answer: &Value) -> bool {
        judge(&definition(), code, answer).is_ok()
    }

    #[test]
    fn five_problems_in_five_places_pass() {
        assert!(holds(Some(REFUSED), &answer()));
    }

    #[test]
    fn wrong_status_or_verdict_fails() {
        assert!(!holds(Some(0), &answer()));
        assert!(!holds(None, &answer()));
        let mut valid = answer();
        valid["valid"] = json!(true);
        assert!(!holds(Some(REFUSED), &valid));
        assert!(!holds(Some(REFUSED), &json!({"error": "no such command"})));
    }

    #[test]
    fn too_few_or_equal_problems_fail() {
        let mut four = answer();
        four["problems"].as_array_mut().unwrap().pop();
        assert!(!holds(Some(REFUSED), &four));
        let mut twice = answer();
        twice["problems"][1]["code"] = json!("code-0");
        assert!(!holds(Some(REFUSED), &twice));
    }

    #[test]
    fn problem_without_position_or_message_fails() {
        for (field, value) in [("where", "definition"), ("where", "drafty"), ("message", "")] {
            let mut vague = answer();
            vague["problems"][2][field] = json!(value);
            assert!(!holds(Some(REFUSED), &vague), "{field}: {value}");
        }
    }

    #[test]
    fn the_definition_is_json_with_named_parts() {
        let definition: Value = serde_json::from_str(DEFINITION).unwrap();
        assert!(names(&definition["places"]).next().is_some());
        assert!(names(&definition["transitions"]).next().is_some());
    }
}
