//! Checks the conventions that no compiler checks.

use crate::tree::{Finding, Tree};

mod documents;
mod language;
mod rust;
mod seams;
mod words;

/// A convention and the function that checks it.
struct Check {
    name: &'static str,
    run: fn(&Tree) -> Vec<Finding>,
}

const CHECKS: &[Check] = &[
    Check { name: "no unfinished code", run: rust::unfinished },
    Check { name: "no unwrap outside tests", run: rust::unwraps },
    Check { name: "no ignored tests", run: rust::ignored_tests },
    Check { name: "functions are short", run: rust::long_functions },
    Check { name: "sources start with their purpose", run: rust::openings },
    Check { name: "SQL files state their guarantee", run: words::sql_openings },
    Check { name: "no catch-all file names", run: words::drawers },
    Check { name: "no machine-specific paths", run: words::machine_paths },
    Check { name: "no private registries", run: words::registries },
    Check { name: "links resolve", run: documents::links },
    Check { name: "guarantees name real tests", run: documents::guarantees },
    Check { name: "expected documents exist", run: documents::expected },
    Check { name: "doc comments start with a verb or a noun", run: language::openings },
    Check { name: "no banned words", run: language::banned },
    Check { name: "test names are short", run: language::test_names },
    Check { name: "public type names are unique", run: language::duplicate_types },
    Check { name: "public items are documented", run: language::documented },
    Check { name: "documents are wrapped", run: language::widths },
    Check { name: "doc comments add something", run: language::short_docs },
    Check { name: "sentences are short", run: language::sentences },
    Check { name: "every crate uses the workspace lints", run: seams::lints },
    Check { name: "crates depend on lower layers only", run: seams::arrows },
    Check { name: "backends do not interpret workflows", run: seams::backends },
];

/// Runs every check over the project and prints every finding.
pub(crate) fn tidy() -> Result<(), String> {
    let tree = Tree::read()?;
    let mut count = 0;
    for check in CHECKS {
        let findings = (check.run)(&tree);
        for finding in &findings {
            eprintln!("{finding} [{}]", check.name);
        }
        count += findings.len();
    }
    eprintln!("tidy: {} checks over {} files, {count} findings", CHECKS.len(), tree.files.len());
    if count == 0 { Ok(()) } else { Err(format!("tidy: {count} findings, listed above")) }
}
