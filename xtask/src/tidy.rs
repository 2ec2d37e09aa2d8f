//! Checks the conventions that no compiler checks.

use crate::tree::{Finding, Tree};

mod documents;
mod rust;
mod seams;
mod words;

/// One convention.
struct Check {
    name: &'static str,
    run: fn(&Tree) -> Vec<Finding>,
}

const CHECKS: &[Check] = &[
    Check { name: "no unfinished code", run: rust::unfinished },
    Check { name: "no unwrap outside tests", run: rust::unwraps },
    Check { name: "no ignored tests", run: rust::ignored_tests },
    Check { name: "functions fit a screen", run: rust::long_functions },
    Check { name: "files say their job", run: rust::openings },
    Check { name: "statements say what they guarantee", run: words::sql_openings },
    Check { name: "no file is a drawer", run: words::drawers },
    Check { name: "no paths of one machine", run: words::machine_paths },
    Check { name: "no private registries", run: words::registries },
    Check { name: "links lead somewhere", run: documents::links },
    Check { name: "guarantees name real tests", run: documents::guarantees },
    Check { name: "the expected documents are there", run: documents::expected },
    Check { name: "every crate takes the workspace's lints", run: seams::lints },
    Check { name: "crates depend only downwards", run: seams::arrows },
    Check { name: "backends know no workflow", run: seams::backends },
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
    if count == 0 {
        Ok(())
    } else {
        Err(format!("tidy: {count} findings, listed above; each names its file"))
    }
}
