//! `stepwell workflow test` and `stepwell workflow simulate`: run workflow documents without side effects.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use stepwell::core::document::{Case, WorkflowSource};
use stepwell::simulate::{
    AnswerSource, Coverage, Simulated, SimulatedStep, Simulation, TestReport, Uncovered,
};

use crate::cli::json_argument;
use crate::exit::{Code, Failure};
use crate::output;
use crate::workflow::{invalid, load_document, read};

/// Options of `workflow test`.
#[derive(Debug, Args)]
pub(crate) struct Test {
    /// Workflow documents (YAML or JSON); `-` reads standard input.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Run only the test case with this name.
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// Fail unless the test cases cover every step.
    #[arg(long, conflicts_with = "case")]
    full: bool,
    /// Workflow document that is executed, not mocked, where a step calls or starts it; may be repeated.
    #[arg(long = "with", value_name = "FILE")]
    others: Vec<PathBuf>,
    /// Print the result as JSON, one line per file.
    #[arg(long)]
    json: bool,
}

/// Options of `workflow simulate`.
#[derive(Debug, Args)]
pub(crate) struct Simulate {
    /// Workflow document (YAML or JSON); `-` reads standard input.
    file: PathBuf,
    /// Input of the run: JSON, `@FILE`, or `-` for standard input.
    #[arg(long, value_name = "JSON", allow_negative_numbers = true)]
    input: Option<String>,
    /// Take mocks, initial data and events from the test case with this name.
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// Workflow document that is executed, not mocked, where a step calls or starts it; may be repeated.
    #[arg(long = "with", value_name = "FILE")]
    others: Vec<PathBuf>,
    /// Print the simulation as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the test cases of every file. Invalid files are reported after all others have run.
pub(crate) fn test(test: &Test) -> Result<(), Failure> {
    let runtime = runtime()?;
    let (mut wrong, mut names) = (Vec::new(), Vec::new());
    let (mut failed, mut holes, mut ran) = (0, 0, 0);
    for file in &test.files {
        let text = read(file)?;
        let document = match load_document(file, &text) {
            Ok(document) => document,
            Err(found) => {
                if test.json {
                    let line = json!({"file": file, "valid": false, "problems": found.problems});
                    output::line(&line.to_string())?;
                }
                wrong.push(format!("{}: {}", file.display(), found.message));
                continue;
            }
        };
        let is_asked = |case: &&Case| test.case.as_ref().is_none_or(|name| *name == case.name);
        let cases: Vec<_> = document.cases().iter().filter(is_asked).collect();
        names.extend(document.cases().iter().map(|case| case.name.clone()));
        if test.case.is_some() && cases.is_empty() {
            continue;
        }
        let simulation = with_others(Simulation::of(&document), &test.others)?;
        let report = runtime.block_on(simulation.test_all(cases));
        failed += report.cases.iter().filter(|case| !case.passed).count();
        ran += report.cases.len();
        holes += usize::from(!report.coverage.has_every_step());
        show_report(file, &report, test)?;
    }
    if !wrong.is_empty() {
        let message = if test.json { String::new() } else { wrong.join("\n") };
        return Err(Failure::new(Code::Invalid, message));
    }
    if let (Some(name), 0) = (&test.case, ran) {
        return Err(no_case(name, &names));
    }
    let message = match (failed, holes) {
        (0, holes) if !test.full || holes == 0 => return Ok(()),
        (0, holes) => {
            format!("the test cases of {holes} of {} documents do not cover every step", test.files.len())
        }
        (failed, _) => format!("{failed} of {ran} test cases failed"),
    };
    Err(Failure::new(Code::Failed, if test.json { String::new() } else { message }))
}

fn show_report(file: &Path, report: &TestReport, test: &Test) -> Result<(), Failure> {
    if test.json {
        let mut line = json!(report);
        line["file"] = json!(file);
        line["valid"] = json!(true);
        line["passed"] = json!(report.passed() && (!test.full || report.coverage.has_every_step()));
        // The details of passed cases are left out.
        for case in line["cases"].as_array_mut().into_iter().flatten().filter(|case| case["passed"] == true) {
            case.as_object_mut().map(|case| case.remove("simulated"));
        }
        return output::line(&line.to_string());
    }
    output::line(&format!("{} ({})", report.workflow, file.display()))?;
    for case in &report.cases {
        let word = if case.passed { "passed" } else { "FAILED" };
        let line = if case.passed { String::new() } else { format!(" (line {})", case.line) };
        output::line(&format!("  {word}  {}{line}", case.name))?;
        case.failures.iter().try_for_each(|failure| output::line(&format!("            {failure}")))?;
    }
    if report.cases.is_empty() {
        output::line("  no test cases")?;
    }
    show_coverage(&report.coverage, test.case.is_none())
}

fn show_coverage(coverage: &Coverage, with_list: bool) -> Result<(), Failure> {
    let Coverage { steps, branches, uncovered } = coverage;
    output::line(&format!(
        "  steps {} of {}, branches {} of {}",
        steps.covered, steps.total, branches.covered, branches.total
    ))?;
    let told = |one: &Uncovered| {
        let way = one.way.as_ref().map(|way| format!(", {way}")).unwrap_or_default();
        output::line(&format!("  not covered: line {}: `{}`{way}", one.line, one.step))
    };
    uncovered.iter().filter(|_| with_list).try_for_each(told)
}

fn no_case(name: &str, names: &[String]) -> Failure {
    let known = match names.is_empty() {
        true => "the documents have no test cases".to_owned(),
        false => format!(
            "the test cases are {}",
            names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        ),
    };
    Failure::new(Code::NotFound, format!("there is no test case `{name}`: {known}"))
}

/// Runs a workflow document once and shows its steps.
pub(crate) fn simulate(options: &Simulate) -> Result<(), Failure> {
    let is_stdin = |file: &Path| file.as_os_str() == "-";
    if is_stdin(&options.file) && options.input.as_deref() == Some("-") {
        let message = "the document and `--input` cannot both be read from standard input";
        return Err(Failure::new(Code::Invalid, message));
    }
    let document = load_document(&options.file, &read(&options.file)?).map_err(invalid)?;
    let mut case = match &options.case {
        None => Case::default(),
        Some(name) => {
            let names: Vec<_> = document.cases().iter().map(|case| case.name.clone()).collect();
            let found = document.cases().iter().find(|case| case.name == *name).cloned();
            found.ok_or_else(|| no_case(name, &names))?
        }
    };
    if let Some(input) = &options.input {
        (case.input, case.event) = (Some(json_argument::json("--input", input)?), None);
    }
    let simulation = with_others(Simulation::of(&document), &options.others)?;
    let simulated = runtime()?.block_on(simulation.run(&case));
    let simulated = simulated.map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
    match options.json {
        true => output::line(&json!(simulated).to_string())?,
        false => show(&simulated)?,
    }
    match &simulated.error {
        Some(error) => {
            let message = if options.json { String::new() } else { format!("the run failed: {error}") };
            Err(Failure::new(Code::Failed, message))
        }
        None => Ok(()),
    }
}

fn show(simulated: &Simulated) -> Result<(), Failure> {
    simulated.steps.iter().try_for_each(show_step)?;
    output::line(&format!("{} {} at {}", simulated.workflow, simulated.outcome.word(), simulated.now))?;
    if !simulated.waits.is_empty() {
        output::line(&format!("  waits at {}", simulated.waits.join(", ")))?;
    }
    if let Some(result) = &simulated.result {
        output::line(&format!("  result  {result}"))?;
    }
    for key in &simulated.store {
        output::line(&format!("  store   {}/{} = {}", key.namespace, key.key, key.value))?;
    }
    for link in &simulated.links {
        let (from, to) = (&link.from, &link.to);
        let relation = link.relation.as_deref().unwrap_or_default();
        let edge = format!("{}:{} -{relation}-> {}:{}", from.kind, from.id, to.kind, to.id);
        output::line(&format!("  link    {}: {edge}", link.namespace))?;
    }
    show_coverage(&simulated.coverage, false)
}

fn show_step(step: &SimulatedStep) -> Result<(), Failure> {
    let workflow = step.workflow.as_ref().map(|name| format!("{name}/")).unwrap_or_default();
    let mut line = format!("{}  {workflow}{}  {}", step.at, step.step, step.kind);
    line.extend(step.action.iter().filter(|action| **action != step.kind).map(|action| format!(" {action}")));
    line.extend(step.attempt.filter(|attempt| *attempt > 1).map(|attempt| format!(", attempt {attempt}")));
    line.extend(step.way.iter().map(|way| format!(": {way}")));
    line.push_str(match step.how {
        Some(AnswerSource::Mocked) => " (mocked)",
        Some(AnswerSource::Recorded) => " (recorded, not executed)",
        Some(AnswerSource::NotMocked) => " (not mocked)",
        Some(AnswerSource::Real) | None => "",
    });
    output::line(&line)?;
    let rows: [(&str, Option<String>); 3] = [
        ("input ", step.input.as_ref().map(Value::to_string)),
        ("output", step.output.as_ref().map(Value::to_string)),
        ("error ", step.error.as_ref().map(ToString::to_string)),
    ];
    let mut rows = rows.iter().filter_map(|(word, text)| Some((word, text.as_ref()?)));
    rows.try_for_each(|(word, text)| output::line(&format!("  {word}  {text}")))
}

fn with_others(simulation: Simulation, files: &[PathBuf]) -> Result<Simulation, Failure> {
    files.iter().try_fold(simulation, |simulation, file| {
        let other: WorkflowSource = load_document(file, &read(file)?).map_err(invalid)?;
        Ok(simulation.with(other.definition().clone()))
    })
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread().build().map_err(Failure::unexpected)
}
