//! Proves that the server keeps to its contract: schemathesis asks everything in it, rightly and wrongly, and judges every answer.

mod report;
mod served;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::figures::{at_least, exactly, verdict};
use super::{Size, judged};
use crate::process;
use report::Report;
use served::Served;

/// The version of schemathesis: what it finds is what it knows to look for.
const VERSION: &str = "4.32.5";
const SEED: &str = "20260117";
const LEAST_REQUESTS: f64 = 20_000.0;
const INSTALL_LIMIT: Duration = Duration::from_secs(10 * 60);
/// What server-sent events are sent as: such an answer has no end, so nothing can be said of all of it.
const ENDLESS: &str = "text/event-stream";
/// Mistakes in a contract, each with what has to find it. A check that does not see them sees nothing.
const PLANTED: [Planted; 3] = [
    Planted {
        what: "an answer's field has another type",
        pointer: "/components/schemas/Version/properties/version/type",
        value: "integer",
        operation: "version",
        found_by: "response_schema_conformance",
    },
    Planted {
        what: "more is allowed than the server takes",
        pointer: "/paths/~1v1~1runs/get/parameters",
        value: "900",
        operation: "listRuns",
        found_by: "positive_data_acceptance",
    },
    Planted {
        what: "less is allowed than the server takes",
        pointer: "/paths/~1v1~1runs/get/parameters",
        value: "9",
        operation: "listRuns",
        found_by: "negative_data_rejection",
    },
];

/// A mistake that is put into the contract.
struct Planted {
    what: &'static str,
    /// What is changed; of parameters it is the largest `limit`.
    pointer: &'static str,
    value: &'static str,
    operation: &'static str,
    found_by: &'static str,
}

pub(super) fn prove(size: Size) -> Result<(), String> {
    let schemathesis = installed()?;
    // Whoever looks for the cause of a finding names a server that is built already, one that checks more.
    let stepwell =
        env::var_os("STEPWELL_PROVED").map_or_else(|| super::server(size), |program| Ok(program.into()))?;
    let contract = contract_of(&stepwell)?;
    let served = Served::start(&stepwell, &folder()?)?;
    served.fill()?;
    let endless = endless(&contract);
    eprintln!("not asked, because they do not end: {}", endless.join(", "));
    eprintln!("not revoked and not rotated: the key that schemathesis asks with, of all keys");
    let begun = Instant::now();
    served.keep("contract.json", &contract)?;
    let mut command = served.schemathesis(&schemathesis, "contract.json", "all");
    command.args([
        "--url",
        &served.url,
        "--phases",
        "examples,coverage,fuzzing,stateful",
        "--seed",
        SEED,
        "--workers",
        "1",
    ]);
    command.args(["--max-examples", if size == Size::Full { "160" } else { "3" }]);
    for operation in &endless {
        command.args(["--exclude-operation-id", operation]);
    }
    let report = asked(&mut command, &served.folder.join("all.ndjson"), size)?;
    report.failures.iter().take(50).for_each(|failure| eprintln!("{failure}\n"));
    let figures = figures(&report, begun.elapsed());
    println!("{figures}");
    judge(&figures, count_of(&contract) - endless.len(), size)?;
    served.is_well()?;
    PLANTED.iter().try_for_each(|planted| is_found(planted, &schemathesis, &served, contract.clone(), size))
}

/// The folder of this proof; what the last run left there is gone.
fn folder() -> Result<PathBuf, String> {
    let folder = process::target_folder()?.join("contract");
    let failed = |error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    Ok(folder)
}

/// Schemathesis in an environment of its own, installed unless it is there.
pub(super) fn installed() -> Result<PathBuf, String> {
    let environment = process::target_folder()?.join("schemathesis");
    let program = environment.join("bin/schemathesis");
    let is_there = || {
        let said = Command::new(&program).arg("--version").output();
        said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains(VERSION))
    };
    if is_there() {
        return Ok(program);
    }
    process::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment), INSTALL_LIMIT)?;
    let mut install = Command::new(environment.join("bin/python"));
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    process::run(install.arg(format!("schemathesis=={VERSION}")), INSTALL_LIMIT)?;
    match is_there() {
        true => Ok(program),
        false => Err(format!("schemathesis {VERSION} was installed and is not there: {}", program.display())),
    }
}

/// The contract as the program itself says it.
fn contract_of(stepwell: &Path) -> Result<Value, String> {
    let mut command = Command::new(stepwell);
    let captured = process::capture(command.arg("openapi"), "", Duration::from_secs(60), |_| ())?;
    process::succeeded(&command, captured.status)?;
    serde_json::from_str(&captured.stdout).map_err(|error| format!("the contract is no JSON: {error}"))
}

fn operations(contract: &Value) -> impl Iterator<Item = &Value> {
    let paths = contract["paths"].as_object().into_iter().flat_map(|paths| paths.values());
    paths.filter_map(Value::as_object).flat_map(|methods| methods.values())
}

fn count_of(contract: &Value) -> usize {
    operations(contract).count()
}

/// Operations whose answers do not end.
fn endless(contract: &Value) -> Vec<String> {
    let is_endless = |operation: &&Value| operation["responses"]["200"]["content"].get(ENDLESS).is_some();
    let ids =
        operations(contract).filter(is_endless).filter_map(|operation| operation["operationId"].as_str());
    ids.map(str::to_owned).collect()
}

/// Runs schemathesis, and reads what it reports. Failures are in there; that it could not do its work is an error.
fn asked(command: &mut Command, file: &Path, size: Size) -> Result<Report, String> {
    command.arg("--report-ndjson-path").arg(file);
    eprintln!("running {}", process::shown(command));
    let captured = process::capture(command, "", size.limit(), |_| ())?;
    let report = Report::read(file)?;
    // 1 = it has found something.
    match (captured.status.code(), report.failures.is_empty()) {
        (Some(0), true) | (Some(1), false) => Ok(report),
        (code, _) => Err(format!(
            "schemathesis ended with {code:?}, and {} failures are in its report: {}",
            report.failures.len(),
            captured.stdout
        )),
    }
}

fn figures(report: &Report, took: Duration) -> Value {
    json!({
        "requests": report.requests,
        "operations": report.operations.len(),
        "failures": report.failures.len(),
        "server_errors": report.server_errors,
        "unanswered": report.unanswered,
        "phases": report.phases,
        "seconds": took.as_secs(),
    })
}

fn judge(figures: &Value, operations: usize, size: Size) -> Result<(), String> {
    let mut all_met = exactly(figures, "failures", 0)? & exactly(figures, "server_errors", 0)?;
    all_met &= exactly(figures, "unanswered", 0)? & exactly(figures, "operations", operations as u64)?;
    for phase in ["examples", "coverage", "fuzzing", "stateful"] {
        let count = figures["phases"][phase].as_u64().unwrap_or_default();
        all_met &= judged(count > 0, &format!("requests of phase {phase}: {count}, more than 0"));
    }
    if size == Size::Full {
        all_met &= at_least(figures, "requests", LEAST_REQUESTS)?;
    }
    verdict(all_met)
}

/// The same server with a contract that says something else: that has to be found, by the check that is for it.
fn is_found(
    planted: &Planted,
    schemathesis: &Path,
    served: &Served,
    mut contract: Value,
    size: Size,
) -> Result<(), String> {
    planted.put(&mut contract)?;
    planted.keep_only_the_operation(&mut contract);
    served.keep("planted.json", &contract)?;
    let mut command = served.schemathesis(schemathesis, "planted.json", planted.found_by);
    command.args(["--url", &served.url, "--phases", "coverage", "--seed", SEED]);
    command.args(["--include-operation-id", planted.operation]);
    let report = asked(&mut command, &served.folder.join("planted.ndjson"), size)?;
    let count = report.failures.len();
    match judged(count > 0, &format!("planted, {}: {count} found", planted.what)) {
        true => Ok(()),
        false => Err(format!("a planted mistake was not found: {}", planted.what)),
    }
}

impl Planted {
    fn put(&self, contract: &mut Value) -> Result<(), String> {
        let gone = || format!("there is no `{}` in the contract any more", self.pointer);
        let there = contract.pointer_mut(self.pointer).ok_or_else(gone)?;
        match there {
            Value::Array(parameters) => {
                let limit = parameters.iter_mut().find(|one| one["name"] == "limit").ok_or_else(gone)?;
                let most: u64 = self.value.parse().map_err(|_| gone())?;
                limit["schema"]["maximum"] = most.into();
            }
            there => *there = self.value.into(),
        }
        Ok(())
    }

    /// Removes all other paths: schemathesis takes seconds to prepare the operations that it then leaves out.
    fn keep_only_the_operation(&self, contract: &mut Value) {
        let has_it = |path: &Value| {
            path.as_object()
                .is_some_and(|methods| methods.values().any(|one| one["operationId"] == self.operation))
        };
        if let Some(paths) = contract["paths"].as_object_mut() {
            paths.retain(|_, path| has_it(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Value {
        let phases = json!({"examples": 9, "coverage": 9_000, "fuzzing": 9_000, "stateful": 3_000});
        json!({"requests": 20_000, "operations": 100, "failures": 0, "server_errors": 0, "unanswered": 0,
            "phases": phases, "seconds": 300})
    }

    #[test]
    fn everything_has_to_be_asked_and_nothing_may_be_found() {
        judge(&line(), 100, Size::Full).unwrap();
        for (field, value) in [
            ("failures", 1),
            ("server_errors", 1),
            ("unanswered", 1),
            ("operations", 99),
            ("requests", 19_999),
        ] {
            let mut line = line();
            line[field] = json!(value);
            assert!(judge(&line, 100, Size::Full).is_err(), "{field}");
        }
        let mut few = line();
        few["requests"] = json!(500);
        judge(&few, 100, Size::Short).unwrap();
        few["phases"]["stateful"] = json!(0);
        assert!(judge(&few, 100, Size::Short).is_err());
    }

    #[test]
    fn operations_that_do_not_end_are_known_by_what_they_answer_with() {
        let contract = json!({"paths": {
            "/a": {"get": {"operationId": "a", "responses": {"200": {"content": {ENDLESS: {}}}}}},
            "/b": {"get": {"operationId": "b", "responses": {"200": {"content": {"application/json": {}}}}},
                "delete": {"operationId": "c", "responses": {"204": {}}}},
        }});
        assert_eq!((count_of(&contract), endless(&contract)), (3, vec!["a".to_owned()]));
    }

    #[test]
    fn a_mistake_can_only_be_planted_where_something_is() {
        let mut contract = json!({
            "components": {"schemas": {"Version": {"properties": {"version": {"type": "string"}}}}},
            "paths": {"/v1/runs": {"get": {"parameters": [{"name": "limit", "schema": {"maximum": 200}}]}}},
        });
        for planted in &PLANTED {
            planted.put(&mut contract).unwrap();
        }
        assert_eq!(contract["components"]["schemas"]["Version"]["properties"]["version"]["type"], "integer");
        assert_eq!(contract["paths"]["/v1/runs"]["get"]["parameters"][0]["schema"]["maximum"], 9);
        assert!(PLANTED.iter().all(|planted| planted.put(&mut json!({})).is_err()));
        let mut two = json!({"paths": {"/a": {"get": {"operationId": "version"}}, "/b": {"get": {"operationId": "b"}}}});
        PLANTED[0].keep_only_the_operation(&mut two);
        assert_eq!(two, json!({"paths": {"/a": {"get": {"operationId": "version"}}}}));
    }
}
