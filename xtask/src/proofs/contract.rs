//! Proves that the server keeps to its contract: schemathesis sends valid and invalid requests for every operation and
//! checks every response.

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

/// Pinned version of schemathesis, because the checks depend on it.
const VERSION: &str = "4.32.5";
const SEED: &str = "20260117";
const LEAST_REQUESTS: f64 = 20_000.0;
const INSTALL_LIMIT: Duration = Duration::from_secs(10 * 60);
/// Content type of server-sent events. Such a response has no end, so it cannot be checked as a whole.
const ENDLESS: &str = "text/event-stream";
/// Mistakes planted in the contract, each with the check that must find it.
const PLANTED: [Planted; 3] = [
    Planted {
        what: "a response field has another type",
        pointer: "/components/schemas/Version/properties/version/type",
        value: "integer",
        operation: "version",
        found_by: "response_schema_conformance",
    },
    Planted {
        what: "the contract allows more than the server accepts",
        pointer: "/paths/~1v1~1runs/get/parameters",
        value: "900",
        operation: "listRuns",
        found_by: "positive_data_acceptance",
    },
    Planted {
        what: "the contract allows less than the server accepts",
        pointer: "/paths/~1v1~1runs/get/parameters",
        value: "9",
        operation: "listRuns",
        found_by: "negative_data_rejection",
    },
];

/// A mistake planted in the contract.
struct Planted {
    what: &'static str,
    /// JSON pointer to the changed value. For a list of parameters, the maximum of `limit` is changed.
    pointer: &'static str,
    value: &'static str,
    operation: &'static str,
    found_by: &'static str,
}

pub(super) fn prove(size: Size) -> Result<(), String> {
    let schemathesis = installed()?;
    // To debug a finding, set this variable to an already built server, for example one with more checks.
    let stepwell =
        env::var_os("STEPWELL_PROVED").map_or_else(|| super::server(size), |program| Ok(program.into()))?;
    let contract = contract_of(&stepwell)?;
    let served = Served::start(&stepwell, &folder()?)?;
    served.fill()?;
    let endless = endless(&contract);
    eprintln!("not tested, because their responses do not end: {}", endless.join(", "));
    eprintln!("not revoked or rotated: the API key that schemathesis uses");
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

/// Returns the folder of this proof, emptied of earlier results.
fn folder() -> Result<PathBuf, String> {
    let folder = process::target_folder()?.join("contract");
    let failed = |error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    Ok(folder)
}

/// Returns the path of schemathesis. Installs it into its own virtual environment if it is missing.
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
        false => Err(format!(
            "schemathesis {VERSION} is still missing after its installation: {}",
            program.display()
        )),
    }
}

/// Returns the contract that the program prints.
fn contract_of(stepwell: &Path) -> Result<Value, String> {
    let mut command = Command::new(stepwell);
    let captured = process::capture(command.arg("openapi"), "", Duration::from_secs(60), |_| ())?;
    process::succeeded(&command, captured.status)?;
    serde_json::from_str(&captured.stdout).map_err(|error| format!("the contract is not JSON: {error}"))
}

fn operations(contract: &Value) -> impl Iterator<Item = &Value> {
    let paths = contract["paths"].as_object().into_iter().flat_map(|paths| paths.values());
    paths.filter_map(Value::as_object).flat_map(|methods| methods.values())
}

fn count_of(contract: &Value) -> usize {
    operations(contract).count()
}

/// Returns the operations whose responses do not end.
fn endless(contract: &Value) -> Vec<String> {
    let is_endless = |operation: &&Value| operation["responses"]["200"]["content"].get(ENDLESS).is_some();
    let ids =
        operations(contract).filter(is_endless).filter_map(|operation| operation["operationId"].as_str());
    ids.map(str::to_owned).collect()
}

/// Runs schemathesis and reads its report, which contains the failures. Returns an error if schemathesis could not do
/// its work.
fn asked(command: &mut Command, file: &Path, size: Size) -> Result<Report, String> {
    command.arg("--report-ndjson-path").arg(file);
    eprintln!("running {}", process::shown(command));
    let captured = process::capture(command, "", size.limit(), |_| ())?;
    let report = Report::read(file)?;
    // Status 1 means that schemathesis has found failures.
    match (captured.status.code(), report.failures.is_empty()) {
        (Some(0), true) | (Some(1), false) => Ok(report),
        (code, _) => Err(format!(
            "schemathesis ended with {code:?} and reported {} failures: {}",
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

/// Checks the same server against a contract with a planted mistake, which the named check must find.
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
    match judged(count > 0, &format!("planted mistake ({}): {count} failures found", planted.what)) {
        true => Ok(()),
        false => Err(format!("a planted mistake was not found: {}", planted.what)),
    }
}

impl Planted {
    fn put(&self, contract: &mut Value) -> Result<(), String> {
        let gone = || format!("the contract no longer contains `{}`", self.pointer);
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

    /// Removes all other paths, because schemathesis takes seconds to prepare operations that it then leaves out.
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
    fn every_operation_is_tested_without_failures() {
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
    fn endless_operations_are_known_by_content_type() {
        let contract = json!({"paths": {
            "/a": {"get": {"operationId": "a", "responses": {"200": {"content": {ENDLESS: {}}}}}},
            "/b": {"get": {"operationId": "b", "responses": {"200": {"content": {"application/json": {}}}}},
                "delete": {"operationId": "c", "responses": {"204": {}}}},
        }});
        assert_eq!((count_of(&contract), endless(&contract)), (3, vec!["a".to_owned()]));
    }

    #[test]
    fn mistake_is_planted_only_where_something_exists() {
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
