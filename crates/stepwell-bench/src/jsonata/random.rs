//! Random expressions of the dialect on random data, held against the package `jsonata`, which is the reference.
//!
//! Two answers agree if both are the same value, both are undefined, or both are errors. What else may happen is a
//! deviation that is written down.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use clap::Args;
use serde_json::{Map, Value, json};

use super::case::{Case, Expected, Input};
use super::{Got, deviation, evaluated, shown};
use crate::script::Random;

/// The program that evaluates with the package.
const ORACLE: &str = include_str!("oracle.mjs");
/// Differences that are shown.
const SHOWN: usize = 10;

/// Options of `jsonata-random`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The folder whose `node_modules` holds the package `jsonata`.
    #[arg(long, value_name = "FOLDER")]
    modules: PathBuf,
    /// How many expressions.
    #[arg(long, default_value_t = 20_000)]
    count: u64,
    /// What they follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Ask the package something else now and then: the comparison has to find it.
    #[arg(long)]
    plant: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Compares; an error if something differs that is not written down.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let mut random = Maker(Random::new(options.seed));
    let mut oracle = Oracle::start(options)?;
    let (mut agreed, mut values, mut errors) = (0_u64, 0_u64, 0_u64);
    let (mut deviations, mut differences) = (BTreeMap::<&str, u64>::new(), Vec::new());
    for number in 0..options.count {
        let (expr, data) = (random.expression(3), random.document());
        let asked = if options.plant && number % 100 == 0 { format!("[[{expr}]]") } else { expr.clone() };
        let expected = oracle.ask(&asked, &data)?;
        let bindings = Map::new();
        let case = Case { name: number.to_string(), expr, input: Input::Value(data), bindings, expected };
        let got = evaluated(&case);
        values += u64::from(matches!(got, Ok(Some(_))));
        errors += u64::from(got.is_err());
        if agree(&case.expected, &got) {
            agreed += 1;
        } else if let Some(kind) = deviation::of(&case, &got) {
            *deviations.entry(kind).or_default() += 1;
        } else {
            let Input::Value(data) = &case.input else { continue };
            differences.push(json!({
                "expr": case.expr, "data": data, "expected": case.expected.to_string(), "got": shown(&got),
            }));
        }
    }
    oracle.stop();
    for difference in differences.iter().take(SHOWN) {
        eprintln!("DIFFERS {difference}");
    }
    let report = json!({
        "workload": "jsonata-random", "expressions": options.count, "seed": options.seed, "agreed": agreed,
        "values": values, "errors": errors, "deviations": deviations, "differences": differences.len(),
        "planted": options.plant,
    });
    println!("{report}");
    match differences.len() {
        0 => Ok(()),
        many => Err(format!("{many} expressions give something else than JSONata")),
    }
}

fn agree(expected: &Expected, got: &Got) -> bool {
    expected.is_met_by(got) || matches!((expected, got), (Expected::Code(_), Err(_)))
}

/// The package, asked line by line.
struct Oracle {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Oracle {
    fn start(options: &Options) -> Result<Self, String> {
        let script = options.modules.join("oracle.mjs");
        std::fs::write(&script, ORACLE).map_err(|error| format!("{}: {error}", script.display()))?;
        let mut node = Command::new("node");
        node.arg(&script).arg(&options.modules).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = node.spawn().map_err(|error| format!("`node` cannot be run: {error}"))?;
        let answers = BufReader::new(child.stdout.take().ok_or("`node` has no output")?);
        Ok(Oracle { child, answers })
    }

    fn ask(&mut self, expr: &str, data: &Value) -> Result<Expected, String> {
        let gone = || "`node` has ended: is the package `jsonata` installed?".to_owned();
        let stdin = self.child.stdin.as_mut().ok_or_else(gone)?;
        writeln!(stdin, "{}", json!({"expr": expr, "data": data})).map_err(|_| gone())?;
        let mut line = String::new();
        if self.answers.read_line(&mut line).map_err(|error| error.to_string())? == 0 {
            return Err(gone());
        }
        let mut answer: Value = serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))?;
        Ok(match (answer["code"].as_str(), answer.get("value").is_some()) {
            (Some(code), _) => Expected::Code(code.to_owned()),
            (None, true) => Expected::Value { value: answer["value"].take(), is_unordered: false },
            (None, false) => Expected::Undefined,
        })
    }

    fn stop(mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Makes expressions and documents.
struct Maker(Random);

impl Maker {
    fn below(&mut self, end: usize) -> usize {
        (self.0.next() % end as u64) as usize
    }

    fn pick(&mut self, of: &[&str]) -> String {
        of[self.below(of.len())].to_owned()
    }

    /// Mostly objects with lists of objects, as documents are.
    fn document(&mut self) -> Value {
        let fields = 1 + self.below(3);
        Value::Object((0..fields).map(|_| (self.pick(&["a", "b", "c"]), self.value(3))).collect())
    }

    fn value(&mut self, depth: u32) -> Value {
        match self.below(if depth == 0 { 5 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(7) as i64 - 3),
            3 => json!(0.5),
            4 => json!(self.pick(&["", "x", "y", "xy", "10", "a b"])),
            5 | 6 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => {
                let fields = self.below(3);
                Value::Object(
                    (0..fields).map(|_| (self.pick(&["a", "b", "c"]), self.value(depth - 1))).collect(),
                )
            }
        }
    }

    /// An expression: one of the forms, with others in the places of `#` (any), `§` (a text) and `¤` (a number).
    fn expression(&mut self, depth: u32) -> String {
        if depth == 0 || self.below(8) == 0 {
            return self.pick(LEAVES);
        }
        let form = self.pick(FORMS);
        self.filled(&form, depth - 1)
    }

    fn filled(&mut self, form: &str, depth: u32) -> String {
        let mut text = String::new();
        for c in form.chars() {
            match c {
                '#' => text.push_str(&self.expression(depth)),
                '§' | '¤' => {
                    let typed = self.pick(if c == '§' { TEXTS } else { NUMBERS });
                    text.push_str(&self.filled(&typed, depth.saturating_sub(1)));
                }
                plain => text.push(plain),
            }
        }
        text
    }
}

const LEAVES: &[&str] = &[
    "a",
    "b",
    "c",
    "a.b",
    "a.b.c",
    "b.c",
    "$",
    "$$",
    "$.a",
    "1",
    "2",
    "-1",
    "0",
    "0.5",
    "1.5",
    "'x'",
    "'xy'",
    "'a,b'",
    "'10'",
    "true",
    "false",
    "null",
    "[]",
    "[1..3]",
    "*",
    "a.*",
    "**",
    "a[0]",
    "b[-1]",
    "a[]",
    "a.b[]",
    "c.[a]",
    "a.{'k': b}",
];

/// Expressions that give a text.
const TEXTS: &[&str] = &["'x'", "'a,b'", "'xyz'", "$string(#)", "('x' & #)", "#"];

/// Expressions that give a number.
const NUMBERS: &[&str] = &["1", "0", "-2", "2.5", "$count(#)", "$length($string(#))", "#"];

const FORMS: &[&str] = &[
    "(#)",
    "(#).a",
    "(#)[0]",
    "(#)[1]",
    "(#)[-1]",
    "(#)[]",
    "(#)[#]",
    "a[#]",
    "b[#].c",
    "a.(#)",
    "(#).(#)",
    "(#).[#]",
    "(#).*",
    "[#, #]",
    "[#]",
    "[[#]]",
    "{'k': #}",
    "{'k': #, 'l': #}",
    "a.{'k': #}",
    "(#){'k': #}",
    "((#)^($))",
    "((#)^(>a))",
    "(¤ + ¤)",
    "(¤ - ¤)",
    "(¤ * ¤)",
    "(¤ / ¤)",
    "(¤ % ¤)",
    "(-¤)",
    "(# & #)",
    "(# = #)",
    "(# != #)",
    "(¤ < ¤)",
    "(§ <= §)",
    "(§ > §)",
    "(¤ >= ¤)",
    "(# in #)",
    "(# and #)",
    "(# or #)",
    "(# ? # : #)",
    "(# ? #)",
    "[¤..¤]",
    "($v := #; $v)",
    "($v := #; [$v, #])",
    "$count(#)",
    "$exists(#)",
    "$not(#)",
    "$boolean(#)",
    "$string(#)",
    "$number(#)",
    "$type(#)",
    "$append(#, #)",
    "$reverse(#)",
    "$distinct(#)",
    "$zip(#, #)",
    "$keys(#)",
    "$merge([#, #])",
    "$sum(#)",
    "$max(#)",
    "$min(#)",
    "$average(#)",
    "$abs(¤)",
    "$floor(¤)",
    "$ceil(¤)",
    "$round(¤)",
    "$round(¤, 1)",
    "$power(¤, 2)",
    "$sqrt(¤)",
    "$join([§, §], §)",
    "$lookup(#, 'a')",
    "$sort(#)",
    "$length(§)",
    "$uppercase(§)",
    "$trim(§)",
    "$contains(§, §)",
    "$split(§, §)",
    "$split(§, ',', ¤)",
    "$substring(§, ¤)",
    "$substring(§, ¤, ¤)",
    "$substringBefore(§, §)",
    "$substringAfter(§, 'x')",
    "$pad(§, ¤)",
    "$pad(§, -4, §)",
    "$replace(§, §, 'z')",
    "$replace(§, §, 'z', ¤)",
    "(# ~> $count())",
    "(# ~> $string())",
];
