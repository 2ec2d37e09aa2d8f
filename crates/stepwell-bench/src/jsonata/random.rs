//! Compares random expressions of the dialect on random data with the package `jsonata`, the reference.
//!
//! Two results agree if both are the same value, both are undefined, or both are errors with the same code. Any other
//! difference must be explained by documented deviations: the package, changed as these deviations describe, must give
//! exactly the result of the dialect.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, json};
use stepwell_core::expr::{Expr, ExprErrorKind};

use super::case::{Case, Expected, Input};
use super::grammar::Maker;
use super::reference::Reference;
use super::{deviation, evaluated, outside, shown};
use crate::script::Random;

/// Maximum number of differences printed.
const SHOWN: usize = 10;

/// Options of the `jsonata-random` workload.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Folder whose `node_modules` contains the package `jsonata`.
    #[arg(long, value_name = "FOLDER")]
    modules: PathBuf,
    /// Number of expressions to compare.
    #[arg(long, default_value_t = 20_000)]
    count: u64,
    /// Seed of the random expressions and data.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Plants a fault in the package. The comparison must detect it.
    #[arg(long, value_name = "FAULT")]
    plant: Option<String>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Compares the expressions. Returns an error if a difference is not explained by documented deviations.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let mut random = Maker(Random::new(options.seed));
    let mut reference = Reference::start(&options.modules, options.plant.as_deref())?;
    let (mut agreed, mut refused, mut values, mut errors) = (0_u64, 0_u64, 0_u64, 0_u64);
    let (mut deviations, mut differences) = (BTreeMap::<&str, u64>::new(), Vec::new());
    for number in 0..options.count {
        let mut case = Case {
            name: number.to_string(),
            expr: random.source(),
            input: Input::Value(random.document()),
            bindings: Map::new(),
            expected: Expected::Undefined,
        };
        case.expected = reference.ask(&case, &[])?;
        let got = evaluated(&case);
        values += u64::from(matches!(got, Ok(Some(_))));
        errors += u64::from(got.is_err());
        if case.expected.is_met_by(&got) {
            agreed += 1;
        } else if is_refused(&case.expr) {
            refused += 1;
        } else if let Some(ids) = deviation::confirmed(&mut reference, &case, &got)? {
            for id in ids {
                *deviations.entry(id).or_default() += 1;
            }
        } else {
            differences.push(json!({
                "expr": case.expr, "data": case.data(), "expected": case.expected.to_string(), "got": shown(&got),
            }));
        }
    }
    for difference in differences.iter().take(SHOWN) {
        eprintln!("DIFFERS {difference}");
    }
    let report = json!({
        "workload": "jsonata-random", "expressions": options.count, "seed": options.seed, "agreed": agreed,
        "refused": refused, "values": values, "errors": errors, "deviations": deviations,
        "differences": differences.len(), "planted": options.plant,
    });
    println!("{report}");
    match differences.len() {
        0 => Ok(()),
        many => Err(format!("{many} expressions differ from JSONata")),
    }
}

/// Returns `true` if the parser refuses the expression because of a construct outside the dialect.
fn is_refused(expr: &str) -> bool {
    let refused = matches!(Expr::parse(expr), Err(error) if error.kind == ExprErrorKind::Unsupported);
    refused && outside::uses_what_is_outside(expr)
}
