//! Runs a folder of JSONata's own test cases against the dialect, and says what became of each.
//!
//! A case passes, is refused on purpose because it uses what the dialect leaves out, or deviates in a way that
//! is written down. Nothing else may happen.

mod case;
mod deviation;
mod outside;
pub(crate) mod random;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use stepwell_core::Timestamp;
use stepwell_core::expr::{Budget, Data, Expr, ExprError, ExprErrorKind};

use case::{Case, Expected, Input};

/// The share of the cases within the dialect that has to pass, in percent.
const BAR: f64 = 95.0;

/// How many kinds of deviation there may be.
const MOST_KINDS: usize = 15;

/// What evaluating a case gave.
type Got = Result<Option<Value>, ExprError>;

/// What became of a case.
enum Verdict {
    Passed,
    Refused,
    /// The id of its kind.
    Deviates(&'static str),
    Failed(String),
}

#[derive(Default)]
struct Tally {
    passed: usize,
    refused: usize,
    deviations: BTreeMap<&'static str, usize>,
    failures: Vec<Value>,
}

/// Options of `jsonata`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The folder that holds `groups` and `datasets`.
    folder: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs every case below the folder; an error if the dialect does not meet the bar.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let mut tally = Tally::default();
    for case in case::read(&options.folder)? {
        let got = evaluated(&case);
        match judged(&case, &got) {
            Verdict::Passed => tally.passed += 1,
            Verdict::Refused => tally.refused += 1,
            Verdict::Deviates(kind) => *tally.deviations.entry(kind).or_default() += 1,
            Verdict::Failed(got) => tally.failures.push(json!({
                "case": case.name,
                "expr": case.expr,
                "expected": case.expected.to_string(),
                "got": got,
            })),
        }
    }
    tally.report(options.json);
    tally.judged()
}

fn evaluated(case: &Case) -> Got {
    let now = Timestamp::from_millis(1_700_000_000_000);
    let data = match &case.input {
        Input::Nothing => Data::nothing(),
        Input::Value(value) => Data::new(value),
    };
    let scope = data.with_bindings(&case.bindings).with_now(now);
    Expr::parse(&case.expr)?.eval(&scope, &mut Budget::roomy())
}

fn judged(case: &Case, got: &Got) -> Verdict {
    if case.expected.is_met_by(got) {
        return Verdict::Passed;
    }
    if let Err(error) = got
        && error.kind == ExprErrorKind::Unsupported
        && outside::uses_what_is_outside(&case.expr)
    {
        return Verdict::Refused;
    }
    match deviation::of(case, got) {
        Some(kind) => Verdict::Deviates(kind),
        None => Verdict::Failed(shown(got)),
    }
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
        self.passed + self.refused + self.deviations.values().sum::<usize>() + self.failures.len()
    }

    /// Of the cases that are within the dialect, how many pass.
    fn percent(&self) -> f64 {
        let within = self.all() - self.refused;
        if within == 0 { 0.0 } else { self.passed as f64 * 100.0 / within as f64 }
    }

    fn report(&self, as_json: bool) {
        let deviations: usize = self.deviations.values().sum();
        if as_json {
            let report = json!({
                "cases": self.all(),
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
        println!("{:5} refused on purpose", self.refused);
        println!("{deviations:5} deviations of {} kinds", self.deviations.len());
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
            return Err(format!("{:.2} % pass, and {BAR} % have to", self.percent()));
        }
        if deviation::kinds() > MOST_KINDS {
            return Err(format!("there are {} kinds of deviation: too many to remember", deviation::kinds()));
        }
        Ok(())
    }
}

/// Whether a case is met, for what only `case` knows how to compare.
impl Expected {
    fn is_met_by(&self, got: &Got) -> bool {
        match (self, got) {
            (Expected::Undefined, Ok(None)) => true,
            (Expected::Value { value, is_unordered }, Ok(Some(got))) => case::same(value, got, *is_unordered),
            (Expected::Code(code), Err(error)) => error.code == code,
            _ => false,
        }
    }
}
