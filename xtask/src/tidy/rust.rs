//! Checks of Rust sources.

use crate::tree::{self, File, Finding, Tree};

/// Maximum number of lines of a function, from `fn` to the closing brace.
const LONGEST_FUNCTION: usize = 70;

/// Assembled from parts, so that the check does not find this file.
const UNFINISHED: &[&str] = &[
    concat!("to", "do!("),
    concat!("unimpl", "emented!("),
    concat!("db", "g!("),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];
const IGNORE: &str = concat!("#[ign", "ore");

pub(super) fn unfinished(tree: &Tree) -> Vec<Finding> {
    let marks = |file: &File, number, line: &str| {
        let mark = UNFINISHED.iter().find(|mark| tree::has_word(line, mark))?;
        Some(file.finding(number, format!("`{mark}` marks unfinished work: finish it or remove it")))
    };
    tree.rust()
        .flat_map(|file| {
            file.lines().filter_map(|(number, line)| marks(file, number, line)).collect::<Vec<_>>()
        })
        .collect()
}

pub(super) fn unwraps(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_in("crates").filter(|file| file.is_source()) {
        for (number, _) in file.code_lines().filter(|(_, line)| line.contains(".unwrap()")) {
            let message =
                "`.unwrap()` outside tests: return the error, or `expect` with the invariant as its text";
            findings.push(file.finding(number, message));
        }
    }
    findings
}

pub(super) fn ignored_tests(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let lines = file.lines().filter(|(_, line)| line.contains(IGNORE) && !tree::is_comment(line));
        findings.extend(lines.map(|(number, _)| {
            file.finding(number, format!("`{IGNORE}]`: run the test or remove it; make a long one a proof"))
        }));
    }
    findings
}

pub(super) fn long_functions(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let lines = file.shipped_lines();
        for (start, (number, line)) in lines.iter().enumerate() {
            let Some(name) = function_name(line) else { continue };
            let length = tree::end_of_item(&lines, start) + 1 - start;
            if length > LONGEST_FUNCTION {
                let message =
                    format!("`fn {name}` has {length} lines, more than {LONGEST_FUNCTION}: split it");
                findings.push(file.finding(*number, message));
            }
        }
    }
    findings
}

pub(super) fn openings(tree: &Tree) -> Vec<Finding> {
    let silent = tree.rust().filter(|file| file.is_source() && !file.text.starts_with("//!"));
    silent
        .map(|file| file.finding(1, "the file must start with a `//!` sentence about its purpose"))
        .collect()
}

/// Returns the name of the function that begins on this line.
pub(super) fn function_name(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let plain = line.strip_prefix("fn ").map(|after| ("", after));
    let (before, after) = plain.or_else(|| line.split_once(" fn "))?;
    let is_qualifier = |word: &str| {
        word.starts_with("pub")
            || word.starts_with("extern")
            || word.starts_with('"')
            || matches!(word, "async" | "const" | "unsafe" | "default" | "in" | "crate)" | "super)")
    };
    if !before.split_whitespace().all(is_qualifier) {
        return None;
    }
    let name = after.split(|c| !tree::is_identifier(c)).next()?;
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::{places, tree};

    #[test]
    fn unfinished_code_is_found_in_tests_too() {
        for mark in UNFINISHED {
            let bad = tree(&[("crates/a/tests/it/x.rs", &format!("fn a() {{\n    {mark});\n}}\n"))]);
            assert_eq!(places(&unfinished(&bad)), ["crates/a/tests/it/x.rs:2"], "{mark}");
        }
        let good = tree(&[("a.rs", "let todos = undebugged!(x);\n"), ("notes.md", UNFINISHED[3])]);
        assert_eq!(unfinished(&good), []);
    }

    #[test]
    fn unwrap_is_for_tests() {
        let shipped = "//! A.\nfn a() {\n    b().unwrap();\n}\n";
        assert_eq!(places(&unwraps(&tree(&[("crates/a/src/b.rs", shipped)]))), ["crates/a/src/b.rs:3"]);
        let in_test_module = "//! A.\n/// b().unwrap();\n#[cfg(test)]\nmod tests {\n    fn a() {\n        b().unwrap();\n    }\n}\n";
        let good = tree(&[
            ("crates/a/src/b.rs", in_test_module),
            ("crates/a/src/suite/b.rs", shipped),
            ("crates/a/tests/it/main.rs", shipped),
        ]);
        assert_eq!(unwraps(&good), []);
    }

    #[test]
    fn code_after_a_test_item_is_checked() {
        let text = "#[cfg(test)]\nmod tests;\nfn a() {\n    b().unwrap();\n}\n";
        assert_eq!(places(&unwraps(&tree(&[("crates/a/src/b.rs", text)]))), ["crates/a/src/b.rs:4"]);
    }

    #[test]
    fn tests_are_not_ignored() {
        let bad = format!("#[test]\n{IGNORE} = \"slow\"]\nfn a() {{}}\n");
        assert_eq!(
            places(&ignored_tests(&tree(&[("crates/a/tests/it/b.rs", &bad)]))),
            ["crates/a/tests/it/b.rs:2"]
        );
        assert_eq!(ignored_tests(&tree(&[("a.rs", "#[test]\nfn ignore() {}\n")])), []);
    }

    fn method_of(lines: usize) -> String {
        let body = "        x();\n".repeat(lines - 2);
        format!(
            "impl A {{\n    fn short(&self) {{}}\n    pub(crate) async fn f(&self) {{\n{body}    }}\n}}\n"
        )
    }

    #[test]
    fn functions_over_the_limit_are_found() {
        let at_limit = method_of(LONGEST_FUNCTION);
        assert_eq!(long_functions(&tree(&[("crates/a/src/b.rs", &at_limit)])), []);
        let over = method_of(LONGEST_FUNCTION + 1);
        assert_eq!(places(&long_functions(&tree(&[("crates/a/src/b.rs", &over)]))), ["crates/a/src/b.rs:3"]);
        assert_eq!(long_functions(&tree(&[("crates/a/tests/it/b.rs", &over)])), []);
    }

    #[test]
    fn a_signature_without_a_body_is_not_a_long_function() {
        let methods = "    fn f(\n        &self,\n    ) -> X;\n".repeat(40);
        assert_eq!(
            long_functions(&tree(&[("crates/a/src/b.rs", &format!("trait A {{\n{methods}}}\n"))])),
            []
        );
    }

    #[test]
    fn functions_are_distinguished_from_comments() {
        assert_eq!(function_name("    pub(in crate) const fn a<T>(x: T) {"), Some("a"));
        assert_eq!(function_name("extern \"C\" fn b() {"), Some("b"));
        assert_eq!(function_name("/// The fn that does it."), None);
        assert_eq!(function_name("let f: fn(u8) = x;"), None);
    }

    #[test]
    fn sources_start_with_their_purpose() {
        let bad = tree(&[("crates/a/src/b.rs", "use x;\n"), ("xtask/src/c.rs", "// x\n")]);
        assert_eq!(places(&openings(&bad)), ["crates/a/src/b.rs:1", "xtask/src/c.rs:1"]);
        let good = tree(&[("crates/a/src/b.rs", "//! Does b.\n"), ("crates/a/tests/it/main.rs", "mod b;\n")]);
        assert_eq!(openings(&good), []);
    }
}
