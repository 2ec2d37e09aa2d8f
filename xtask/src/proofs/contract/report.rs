//! Reads the report of schemathesis: every request, its response, and failed checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::Value;

/// The counts and failures of one run of schemathesis.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) requests: u64,
    pub(super) server_errors: u64,
    /// Number of requests without a response in time.
    pub(super) unanswered: u64,
    /// Labels of the tested operations, such as `GET /v1/runs`.
    pub(super) operations: BTreeSet<String>,
    /// Number of requests by phase.
    pub(super) phases: BTreeMap<String, u64>,
    /// Failures as readable text.
    pub(super) failures: Vec<String>,
}

impl Report {
    pub(super) fn read(file: &Path) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let mut report = Report::default();
        for line in BufReader::new(File::open(file).map_err(|error| failed(&error))?).lines() {
            let line = line.map_err(|error| failed(&error))?;
            report.take(&serde_json::from_str(&line).map_err(|error| failed(&error))?);
        }
        Ok(report)
    }

    fn take(&mut self, event: &Value) {
        if let Some(scenario) = event.get("ScenarioFinished") {
            self.scenario(scenario);
        }
        // Errors of schemathesis itself.
        for name in ["NonFatalError", "FatalError"] {
            if let Some(error) = event.get(name) {
                self.failures.push(format!("{name}: {error}"));
            }
        }
    }

    fn scenario(&mut self, scenario: &Value) {
        let recorder = &scenario["recorder"];
        let interactions = recorder["interactions"].as_object().into_iter().flatten();
        for (_, interaction) in interactions {
            self.requests += 1;
            match interaction["response"]["status_code"].as_u64() {
                Some(status) => self.server_errors += u64::from(status >= 500),
                None => self.unanswered += 1,
            }
            let phase = scenario["phase"].as_str().unwrap_or_default().to_lowercase();
            *self.phases.entry(phase).or_default() += 1;
        }
        // The label of a chain of several operations is not an operation.
        if let Some(label) = recorder["label"].as_str().filter(|label| label.contains(" /")) {
            self.operations.insert(label.to_owned());
        }
        for (case, checks) in recorder["checks"].as_object().into_iter().flatten() {
            let failed = checks.as_array().into_iter().flatten().filter(|check| check["status"] != "success");
            self.failures.extend(failed.map(|check| told(check, &recorder["interactions"][case])));
        }
    }
}

/// Formats a failed check with its request and response.
fn told(check: &Value, interaction: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let failure = &check["failure_info"]["failure"];
    let (request, response) = (&interaction["request"], &interaction["response"]);
    format!(
        "{} of {}: {}\n  request: {} {} {}\n  response: {} {}",
        text(&check["name"]),
        text(&failure["operation"]),
        text(&failure["message"]).replace('\n', " "),
        text(&request["method"]),
        text(&request["uri"]),
        request["body"],
        response["status_code"],
        response["content"],
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_and_failures_are_counted() {
        let answered = |status: u64| json!({"request": {"method": "GET", "uri": "/a"}, "response": {"status_code": status}});
        let failed = json!({"name": "a_check", "status": "failure",
            "failure_info": {"failure": {"operation": "GET /a", "message": "It is wrong"}}});
        let recorder = json!({
            "label": "GET /a",
            "interactions": {"1": answered(200), "2": answered(503), "3": {"request": {}, "response": null}},
            "checks": {"1": [{"name": "other", "status": "success"}], "2": [failed]},
        });
        let mut report = Report::default();
        report.take(&json!({"ScenarioFinished": {"phase": "Coverage", "recorder": recorder}}));
        report.take(
            &json!({"ScenarioFinished": {"phase": "Stateful", "recorder": {"label": "Stateful tests"}}}),
        );
        report.take(&json!({"NonFatalError": {"value": "boom"}}));
        assert_eq!((report.requests, report.server_errors, report.unanswered), (3, 1, 1));
        assert_eq!(report.operations.into_iter().collect::<Vec<_>>(), ["GET /a"]);
        assert_eq!(report.phases["coverage"], 3);
        let [wrong, error] = report.failures.as_slice() else { panic!("{:?}", report.failures) };
        assert!(wrong.starts_with("a_check of GET /a: It is wrong"), "{wrong}");
        assert!(error.contains("boom"), "{error}");
    }
}
