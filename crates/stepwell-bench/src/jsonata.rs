//! Runs a folder of JSONata's own test cases against the expression dialect and classifies each result.
//!
//! A case passes, is refused because it uses a construct outside the dialect, or deviates in a documented way. Anything
//! else is a failure.

mod case;
mod deviation;
mod grammar;
mod outside;
pub(crate) mod random;
mod reference;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use stepwell_core::Timestamp;
use stepwell_core::expr::{Budget, Data, Expr, ExprError, ExprErrorKind};

use case::{Case, Expected};
use reference::Reference;

/// Percentage of the cases within the dialect that must pass.
const BAR: f64 = 95.0;

/// Maximum number of kinds of deviation.
const MOST_KINDS: usize = 15;

/// The result of evaluating a case.
type Got = Result<Option<Value>, ExprError>;

/// The classification of a case.
enum Verdict {
    Passed,
    Refused,
    /// Differs in documented ways; holds the ids of the deviations.
    Deviates(Vec<&'static str>),
    Failed(String),
}

#[derive(Default)]
struct Tally {
    passed: usize,
    refused: usize,
    /// Number of cases that differ in documented ways.
    deviating: usize,
    /// Number of these cases for each deviation.
    deviations: BTreeMap<&'static str, usize>,
    failures: Vec<Value>,
}

/// Options of the `jsonata` workload.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Folder that contains `groups` and `datasets`.
    folder: PathBuf,
    /// Folder whose `node_modules` contains the package `jsonata`. With it, the package must confirm every deviation.
    #[arg(long, value_name = "FOLDER")]
    modules: Option<PathBuf>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs every case below the folder. Returns an error if the dialect does not meet the bar.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let mut tally = Tally::default();
    let modules = options.modules.as_deref();
    let mut reference = modules.map(|modules| Reference::start(modules, None)).transpose()?;
    for case in case::read(&options.folder)? {
        let got = evaluated(&case);
        match judged(&case, &got, reference.as_mut())? {
            Verdict::Passed => tally.passed += 1,
            Verdict::Refused => tally.refused += 1,
            Verdict::Deviates(kinds) => {
                tally.deviating += 1;
                for kind in kinds {
                    *tally.deviations.entry(kind).or_default() += 1;
                }
            }
            Verdict::Failed(got) => tally.failures.push(json!({
                "case": case.name,
                "expr": case.expr,
                "expected": case.expected.to_string(),
                "got": got,
            })),
        }
    }
    tally.report(options);
    tally.judged()
}

fn evaluated(case: &Case) -> Got {
    evaluated_within(case, Budget::generous())
}

fn evaluated_within(case: &Case, mut budget: Budget) -> Got {
    let now = Timestamp::from_millis(1_700_000_000_000);
    let data = case.data().map_or(Data::nothing(), Data::new);
    let scope = data.with_bindings(&case.bindings).with_now(now);
    Expr::parse(&case.expr)?.eval(&scope, &mut budget)
}

/// Classifies a result. With the package at hand, it must confirm the deviations.
fn judged(case: &Case, got: &Got, reference: Option<&mut Reference>) -> Result<Verdict, String> {
    if case.expected.is_met_by(got) {
        return Ok(Verdict::Passed);
    }
    if let Err(error) = got
        && error.kind == ExprErrorKind::Unsupported
        && outside::uses_what_is_outside(&case.expr)
    {
        return Ok(Verdict::Refused);
    }
    let kinds = match reference {
        Some(reference) => deviation::confirmed(reference, case, got)?,
        None => deviation::of(case, got).map(|kind| vec![kind]),
    };
    Ok(kinds.map_or_else(|| Verdict::Failed(shown(got)), Verdict::Deviates))
}

fn shown(got: &Got) -> String {
    match got {
        Ok(Some(value)) => value.to_string(),
        Ok(None) => "undefined".to_owned(),
        Err(error) => format!("{} {error}", error.code),
    }
}

impl Tally {
    fn all(&self) -> usize {
        self.passed + self.refused + self.deviating + self.failures.len()
    }

    /// Returns the percentage of the cases within the dialect that pass.
    fn percent(&self) -> f64 {
        let within = self.all() - self.refused;
        if within == 0 { 0.0 } else { self.passed as f64 * 100.0 / within as f64 }
    }

    fn report(&self, options: &Options) {
        if options.json {
            let report = json!({
                "workload": "jsonata",
                "cases": self.all(),
                "confirmed": options.modules.is_some(),
                "deviating": self.deviating,
                "passed": self.passed,
                "refused": self.refused,
                "deviations": self.deviations,
                "failed": self.failures,
                "percent": self.percent(),
            });
            println!("{report}");
            return;
        }
        for failure in &self.failures {
            let text = |field: &str| failure[field].as_str().unwrap_or_default().to_owned();
            println!("FAILED {}", text("case"));
            println!("  {}", text("expr").replace('\n', "\n  "));
            println!("  expected {}", text("expected"));
            println!("  got      {}", text("got"));
        }
        println!("{:5} cases", self.all());
        println!("{:5} passed", self.passed);
        println!("{:5} refused (outside the dialect)", self.refused);
        let confirmed = if options.modules.is_some() { ", confirmed by the package" } else { "" };
        println!("{:5} deviate in {} documented ways{confirmed}", self.deviating, self.deviations.len());
        for (kind, count) in &self.deviations {
            println!("{count:10} {kind}: {}", deviation::reason(kind));
        }
        println!("{:5} failed", self.failures.len());
        println!("{:.2} % of the cases within the dialect pass", self.percent());
    }

    fn judged(&self) -> Result<(), String> {
        if !self.failures.is_empty() {
            return Err(format!("{} cases failed", self.failures.len()));
        }
        if self.percent() < BAR {
            return Err(format!("{:.2} % of the cases pass; {BAR} % are required", self.percent()));
        }
        if deviation::kinds() > MOST_KINDS {
            return Err(format!(
                "there are {} kinds of deviation; at most {MOST_KINDS} are allowed",
                deviation::kinds()
            ));
        }
        Ok(())
    }
}

impl Expected {
    /// Returns `true` if the result differs only in the last binary digit of its numbers.
    fn is_nearly(&self, got: &Got) -> bool {
        matches!((self, got), (Expected::Value { value, .. }, Ok(Some(got))) if case::nearly_same(value, got))
    }

    fn is_met_by(&self, got: &Got) -> bool {
        match (self, got) {
            (Expected::Undefined, Ok(None)) => true,
            (Expected::Value { value, is_unordered }, Ok(Some(got))) => case::same(value, got, *is_unordered),
            (Expected::Code(code), Err(error)) => error.code == code,
            _ => false,
        }
    }
}
