//! Proves that every promise can be reached through every door: Rust, workflow documents, HTTP and the command line.
//!
//! The checks of documents, HTTP and the command line are a client in Python. The door to Rust is a test that the table
//! of guarantees names. The resulting table is the chapter "Doors" of that page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use serde_json::Value;

use super::figures::{at_least, exactly, measured, one, verdict};
use super::{Size, clients, judged};
use crate::artifacts::{Artifacts, Kind};
use crate::{process, stores};

const PAGE: &str = "docs/guarantees.md";
const CHAPTER: &str = "## Doors\n";
const FIRST_LINE: &str = "| | Rust | YAML | HTTP | command line |";
/// Test executables with tests of the library.
const TESTS: [&str; 3] = ["it-core", stores::ENGINE, "it-store"];
/// Beginnings of the names of tests of the library.
const LIBRARY: [&str; 3] = ["core::", "stepwell::", "suite::"];

/// Runs every check through every door, and compares the result with the table in the guarantees.
pub(super) fn prove(size: Size) -> Result<(), String> {
    let page = process::root().join(PAGE);
    let text = fs::read_to_string(&page).map_err(|error| format!("cannot read {PAGE}: {error}"))?;
    let tests = tests(size)?;
    let by_promise = named(&text);
    let mut tables = Vec::new();
    let mut all_met = true;
    for store in if size == Size::Full { &["sqlite", "postgres"][..] } else { &["sqlite"] } {
        let line = one(&super::measured(&mut clients::doors(store, size)?, size)?).cloned()?;
        measured(&line, &["checks", "seconds"])?;
        all_met &= exactly(&line, "failed", 0)?;
        all_met &= at_least(&line, "promises", 94.0)?;
        let (table, missing) = table(&line, &by_promise, &tests)?;
        all_met &= judged(missing.is_empty(), &format!("cells without a check or a reason: {missing:?}"));
        tables.push(table);
    }
    if let [sqlite, postgres] = &tables[..] {
        all_met &= judged(sqlite == postgres, "both databases give the same table");
    }
    verdict(all_met)?;
    compare(&text, &tables[0])
}

/// Fails if the table is not the one in the page. Then it writes the new one to a file, so that it can be taken over.
fn compare(text: &str, table: &str) -> Result<(), String> {
    let known = known(text);
    if known == table {
        return Ok(());
    }
    let path = process::target_folder()?.join("xtask/doors.md");
    fs::write(&path, table).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    let differs = table.lines().zip(known.lines().chain(std::iter::repeat(""))).find(|(new, old)| new != old);
    let (new, old) = differs.unwrap_or(("", "a line too many"));
    Err(format!(
        "the table of doors in {PAGE} is out of date: replace it by {}\n  new: {new}\n  old: {old}",
        path.display()
    ))
}

/// Returns the table in the page.
fn known(text: &str) -> String {
    let chapter = text.split_once(CHAPTER).map_or("", |(_, chapter)| chapter);
    let rows = chapter.lines().skip_while(|line| *line != FIRST_LINE);
    rows.take_while(|line| line.starts_with('|')).fold(String::new(), |all, line| all + line + "\n")
}

/// Returns the names of the library's tests: those that pass now, or in the short form those that exist. There, other
/// steps run them.
fn tests(size: Size) -> Result<BTreeSet<String>, String> {
    let built = Artifacts::of(&["--tests"])?;
    let mut names = BTreeSet::new();
    for name in TESTS {
        let mut command = built.find(Kind::Test, name)?.command();
        match size {
            Size::Full => command.args(["--test-threads", "4"]).env(stores::WHICH, stores::MEMORY),
            Size::Short => command.arg("--list"),
        };
        let captured = process::capture(&mut command, "", size.limit(), |_| ())?;
        process::succeeded(&command, captured.status)?;
        names.extend(captured.stdout.lines().filter_map(test_name).map(str::to_owned));
    }
    Ok(names)
}

/// Returns the test that a line of the test harness reports as passed, or lists.
fn test_name(line: &str) -> Option<&str> {
    line.strip_suffix(": test").or_else(|| line.strip_prefix("test ")?.strip_suffix(" ... ok"))
}

/// Returns the tests of the library that the page names for each promise.
fn named(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut promise = String::new();
    for line in text.lines().filter(|line| line.starts_with('|')) {
        match line.split('|').nth(1).map(str::trim) {
            Some("") | None => {}
            Some(first) => promise = first.to_owned(),
        }
        let tests =
            line.split('`').skip(1).step_by(2).filter(|span| LIBRARY.iter().any(|of| span.starts_with(of)));
        found.entry(promise.clone()).or_default().extend(tests.map(str::to_owned));
    }
    found
}

/// Returns the table, and the promises that no test of the library shows.
fn table(
    line: &Value,
    named: &BTreeMap<String, Vec<String>>,
    tests: &BTreeSet<String>,
) -> Result<(String, Vec<String>), String> {
    let cells = line["cells"].as_object().ok_or("`cells` is not an object")?;
    let order = line["order"].as_array().ok_or("`order` is not a list")?;
    let listed = line["missing"].as_array().ok_or("`missing` is not a list")?;
    let mut missing: Vec<String> = listed.iter().map(ToString::to_string).collect();
    let mut text = format!("{FIRST_LINE}\n|---|---|---|---|---|\n");
    for promise in order.iter().filter_map(Value::as_str) {
        let shown = |test: &String| {
            let mut parts = test.rsplitn(3, "::");
            let (name, module) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let suffix = format!("{module}::{name}");
            tests.iter().any(|known| *known == suffix || known.ends_with(&format!("::{suffix}")))
        };
        let has_test = named.get(promise).is_some_and(|tests| tests.iter().any(shown));
        let rust = if has_test { Value::Bool(true) } else { cells[promise]["rust"].clone() };
        if rust.is_null() {
            missing.push(format!("{promise}: {PAGE} names no test of the library"));
        }
        let cell = |value: &Value| match value {
            Value::Bool(true) => "yes".to_owned(),
            Value::String(why) => format!("no: {}", why.replace('|', "\\|")),
            _ => "?".to_owned(),
        };
        let doors = &cells[promise];
        let mut row = [&rust, &doors["yaml"], &doors["http"], &doors["cli"]].map(cell);
        // A reason that holds for several doors is written once.
        for door in (1..row.len()).rev() {
            if row[door].starts_with("no: ") && row[..door].contains(&row[door]) {
                row[door] = "no".to_owned();
            }
        }
        let _ = writeln!(text, "| {promise} | {} |", row.join(" | "));
    }
    Ok((text, missing))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PAGE: &str = "| A1 | Says. | `core::a::one`, `server::b::two` | core |\n| | More. | `stepwell::c::three` | engine |\n\
                        | A2 | Says. | `server::d::four` | server |\n";

    fn made(tests: &[&str]) -> (String, Vec<String>) {
        let cells = json!({"A1": {"yaml": true, "http": true, "cli": "it has none"}, "A2": {"rust": "x", "yaml": true}});
        let line = json!({"order": ["A1", "A2"], "missing": [], "cells": cells});
        let tests = tests.iter().map(|name| (*name).to_owned()).collect();
        table(&line, &named(PAGE), &tests).unwrap()
    }

    #[test]
    fn rust_cell_needs_a_test_that_exists() {
        let (text, missing) = made(&["c::three"]);
        assert_eq!(missing, [""; 0]);
        assert!(text.contains("| A1 | yes | yes | yes | no: it has none |\n| A2 | no: x | yes |"), "{text}");
        assert_eq!(made(&["c::thirty"]).1.len(), 1);
    }

    #[test]
    fn names_are_read_from_the_test_harness() {
        assert_eq!(test_name("a::b: test"), Some("a::b"));
        assert_eq!(test_name("test a::b ... ok"), Some("a::b"));
        assert_eq!(test_name("test a::b ... FAILED"), None);
    }

    #[test]
    fn table_is_found_in_the_page() {
        let table = format!("{FIRST_LINE}\n|---|\n| A1 | yes |\n");
        assert_eq!(known(&format!("| A1 | no |\n\n{CHAPTER}\nText.\n\n{table}\n| B1 | yes |\n")), table);
        assert_eq!(known(&table), "");
    }
}
