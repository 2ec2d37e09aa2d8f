//! Responses for people that are neither a table nor a list of fields: a run, its graph, its diff and its export.

use std::fmt::Write;

use serde_json::Value;

use super::show::{Colour, indented, painted, rows_of, text};
use super::table::one_line;

/// Returns the response of an operation for people, if it has a form of its own.
pub(super) fn of(operation: &str, answer: &Value) -> Option<String> {
    match operation {
        "showRun" => Some(run(answer)),
        "showRunVersion" => Some(version(answer)),
        "drawRun" | "drawWorkflow" => Some(graph(answer)),
        "diffRun" => Some(diff(answer)),
        "exportRun" => Some(test_case(answer)),
        _ => None,
    }
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

/// Returns a field as one line of text.
fn field(value: &Value, name: &str) -> String {
    one_line(&text(&value[name]))
}

/// Returns a section with a heading, or nothing if it is empty.
fn section(heading: &str, body: &str) -> String {
    match body.is_empty() {
        true => String::new(),
        false => format!("\n{}\n{body}", painted(heading, Some(Colour::Bold))),
    }
}

/// Returns data as indented YAML, or nothing if there is none.
fn data(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Object(fields) if fields.is_empty() => String::new(),
        value => indented(&stepwell::core::document::yaml(value), 2),
    }
}

fn error(error: &Value) -> String {
    let note = if error["final"] == true { " (a retry cannot succeed)" } else { "" };
    format!("{}: {}{note}", field(error, "code"), field(error, "message"))
}

/// Describes the limit for which a pending run waits.
fn queued(waiting: &Value) -> String {
    let key = waiting["key"].as_str().map(|key| format!(" of `{}`", one_line(key))).unwrap_or_default();
    let position = waiting["position"].as_u64().map(|at| format!(", position {at}")).unwrap_or_default();
    format!("the limit `{}`{key}{position}", field(waiting, "limit"))
}

fn run(run: &Value) -> String {
    let workflow = format!("{}, version {}", field(run, "workflow"), field(run, "definitionVersion"));
    let (workflow, failure) = (Value::from(workflow), Value::from(error(&run["error"])));
    let queued = Value::from(queued(&run["waitingFor"]));
    let mut rows = vec![("id", &run["id"]), ("workflow", &workflow), ("status", &run["status"])];
    if run["waitingFor"].is_object() {
        rows.push(("waits for", &queued));
    }
    if run["error"].is_object() {
        rows.push(("error", &failure));
    }
    rows.push(("version", &run["version"]));
    if list(run, "places").next().is_some() {
        rows.push(("places", &run["places"]));
    }
    rows.extend([("created", &run["createdAt"]), ("updated", &run["updatedAt"])]);
    for (name, field) in [("next step", "wakeAt"), ("deadline", "deadline"), ("owner", "owner")] {
        rows.extend(run.get(field).map(|value| (name, value)));
    }
    if run["bufferedSignals"].as_u64().is_some_and(|many| many > 0) {
        rows.push(("buffered", &run["bufferedSignals"]));
    }
    let mut out = rows_of(&rows);
    out.push_str(&section("result", &data(&run["result"])));
    out.push_str(&section("data", &data(&run["context"])));
    let attempts = list(run, "attempts").map(|attempts| {
        let next = attempts["nextAt"].as_str().map(|at| format!(", next attempt at {at}"));
        let task = &attempts["task"];
        let worker = task["worker"].as_str().map(|worker| format!(", leased by `{}`", one_line(worker)));
        let task = task["id"].as_str().map(|id| format!(", task {id}{}", worker.unwrap_or_default()));
        let (step, failed) = (field(attempts, "transition"), field(attempts, "failed"));
        format!("  `{step}`: {failed} failed{}{}\n", next.unwrap_or_default(), task.unwrap_or_default())
    });
    out.push_str(&section("attempts", &attempts.collect::<String>()));
    let failures = list(run, "failures").map(|failed| {
        format!("  {}  `{}`  {}\n", field(failed, "at"), field(failed, "transition"), error(&failed["error"]))
    });
    out.push_str(&section("failures", &failures.collect::<String>()));
    out
}

fn version(shown: &Value) -> String {
    let entry = &shown["entry"];
    let mut rows = vec![("version", &shown["version"]), ("at", &shown["at"])];
    for name in ["action", "exited", "entered", "payload", "input", "output", "durationMs"] {
        rows.extend(entry.get(name).filter(|value| !value.is_null()).map(|value| (name, value)));
    }
    let mut out = rows_of(&rows);
    out.push_str(&section("data", &data(&shown["state"]["context"])));
    out
}

/// Draws a graph as text: each place with its status, and below it the edges that leave it.
fn graph(graph: &Value) -> String {
    let mut out = format!("{}\n", painted(&field(graph, "workflow"), Some(Colour::Bold)));
    let width = list(graph, "nodes").map(|node| field(node, "id").chars().count()).max().unwrap_or(0);
    for node in in_order(graph) {
        let name = field(node, "id");
        let (mark, colour) = match node["status"].as_str() {
            Some("active") => ("▶", Some(Colour::Blue)),
            Some("waiting") => ("▶", Some(Colour::Yellow)),
            Some("completed") => ("✓", Some(Colour::Green)),
            Some(_) => ("·", Some(Colour::Dim)),
            None => ("○", None),
        };
        let mut notes = vec![field(node, "kind")];
        notes.extend((node["initial"] == true).then(|| "start".to_owned()));
        notes.extend(node["status"].as_str().filter(|status| *status != "idle").map(str::to_owned));
        let many = node["activations"].as_u64().filter(|many| *many > 1);
        notes.extend(many.map(|many| format!("{many} activations")));
        let line = format!("{mark} {name:width$}  {}", notes.join(", "));
        let _ = writeln!(out, "{}", painted(&line, colour));
        let edges: Vec<_> = list(graph, "edges").filter(|edge| edge["from"] == node["id"]).collect();
        for (at, edge) in edges.iter().enumerate() {
            let branch = if at + 1 == edges.len() { "└─" } else { "├─" };
            let _ = writeln!(out, "    {branch}{}", arrow(edge));
        }
    }
    if list(graph, "nodes").any(|node| node.get("status").is_some()) {
        out.push_str("▶ the run is here, ✓ completed, · not yet\n");
    }
    out
}

/// Returns an edge as text: ` signal APPROVE ──▶ done`.
fn arrow(edge: &Value) -> String {
    let (kind, label) = (field(edge, "kind"), field(edge, "label"));
    let what = match (label.trim_start_matches("/ "), kind.as_str()) {
        ("", "auto") => return format!("─▶ {}", field(edge, "to")),
        ("", kind) => kind.to_owned(),
        (label, "auto" | "error" | "retry") => label.to_owned(),
        (label, kind) => format!("{kind} {label}"),
    };
    format!(" {what} ──▶ {}", field(edge, "to"))
}

/// Returns the places, beginning with the initial one, each after a place that leads to it where possible.
fn in_order(graph: &Value) -> Vec<&Value> {
    let nodes: Vec<&Value> = list(graph, "nodes").collect();
    let mut ordered: Vec<&Value> = nodes.iter().filter(|node| node["initial"] == true).copied().collect();
    let mut at = 0;
    while ordered.len() < nodes.len() {
        // Places that no edge reaches follow in their own order.
        let Some(from) = ordered.get(at).copied() else {
            let left = nodes.iter().find(|node| !ordered.iter().any(|seen| seen["id"] == node["id"]));
            let Some(left) = left else { break };
            ordered.push(left);
            continue;
        };
        for edge in list(graph, "edges").filter(|edge| edge["from"] == from["id"]) {
            let to = nodes.iter().find(|node| node["id"] == edge["to"]);
            if let Some(to) = to.filter(|to| !ordered.iter().any(|seen| seen["id"] == to["id"])) {
                ordered.push(to);
            }
        }
        at += 1;
    }
    ordered
}

fn diff(diff: &Value) -> String {
    let (from, to) = (field(diff, "from"), field(diff, "to"));
    let heading = format!("version {from} → version {to}");
    let mut out = format!("{}\n", painted(&heading, Some(Colour::Bold)));
    for change in list(diff, "changes") {
        let path = match field(change, "path") {
            root if root.is_empty() => "/".to_owned(),
            path => path,
        };
        let sides = [("-", "oldValue", Colour::Red), ("+", "value", Colour::Green)];
        for (sign, side, colour) in sides {
            if let Some(value) = change.get(side) {
                let line = one_line(&format!("{sign} {path}: {value}"));
                let _ = writeln!(out, "{}", painted(&line, Some(colour)));
            }
        }
    }
    if list(diff, "changes").next().is_none() {
        out.push_str("no changes\n");
    }
    out
}

/// Summarizes an exported test case.
fn test_case(case: &Value) -> String {
    let mut rows = vec![("test case", &case["name"])];
    for (name, field) in [("starts at", "now"), ("event", "event"), ("input", "input")] {
        rows.extend(case.get(field).map(|value| (name, value)));
    }
    let mut out = rows_of(&rows);
    let mocks = case["mocks"].as_object().into_iter().flatten().map(|(step, results)| {
        let all = results.as_array().map(Vec::as_slice).unwrap_or_default();
        let failed = all.iter().filter(|result| result.get("error").is_some()).count();
        let failed = if failed == 0 { String::new() } else { format!(", {failed} failed") };
        format!("  `{}`: {}{failed}\n", one_line(step), counted(all.len(), "result"))
    });
    out.push_str(&section("recorded calls", &mocks.collect::<String>()));
    let happens = list(case, "happens").map(|happening| {
        let kinds = [("after", ""), ("signal", "payload"), ("event", "data"), ("cancel", "")];
        let (kind, content) =
            kinds.into_iter().find(|(kind, _)| happening.get(kind).is_some()).unwrap_or_default();
        let content = happening.get(content).map(|content| format!(" {content}")).unwrap_or_default();
        let line = one_line(&format!("{kind} {}{content}", text(&happening[kind])));
        format!("  {line}\n")
    });
    out.push_str(&section("then", &happens.collect::<String>()));
    let expected = &case["expect"];
    let mut ends = format!("  outcome {}\n", field(expected, "outcome"));
    if expected["error"].is_object() {
        let _ = writeln!(ends, "  error {}", field(&expected["error"], "code"));
    }
    if let Some(result) = expected.get("result") {
        let _ = writeln!(ends, "  result {}", one_line(&result.to_string()));
    }
    if let Some(calls) = expected["calls"].as_array() {
        let _ = writeln!(ends, "  {}", counted(calls.len(), "call"));
    }
    out.push_str(&section("expected", &ends));
    out.push_str(
        "\n`--format yaml` prints the test case itself, for the `tests` of the workflow document.\n",
    );
    out
}

fn counted(many: usize, what: &str) -> String {
    if many == 1 { format!("1 {what}") } else { format!("{many} {what}s") }
}
