//! What tidy asks of the documents.

use crate::tree::{File, Finding, Tree};

const EXPECTED: &[&str] =
    &["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE-MIT", "LICENSE-APACHE"];

const GUARANTEES: &str = "docs/guarantees.md";

pub(super) fn expected(tree: &Tree) -> Vec<Finding> {
    let missing = EXPECTED.iter().filter(|path| tree.file(path).is_none());
    missing.map(|path| Finding::new(path, 1, "the file is missing: every reader expects it")).collect()
}

/// Every link to a file of the project leads to one.
pub(super) fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.has_extension("md")) {
        for (number, line) in prose(file) {
            for target in targets(&line).filter(|target| is_relative(target)) {
                if !resolved(&file.path, target).is_some_and(|path| tree.has(&path)) {
                    findings.push(file.finding(number, format!("the link to `{target}` leads nowhere")));
                }
            }
        }
    }
    findings
}

/// Every test named in a row of the guarantees' tables is a function somewhere.
pub(super) fn guarantees(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.file(GUARANTEES) else { return Vec::new() };
    let mut findings = Vec::new();
    for (number, line) in file.lines().filter(|(_, line)| line.trim_start().starts_with('|')) {
        for path in code_spans(line).filter(|span| span.contains("::")) {
            let name = path.rsplit("::").next().unwrap_or(path).trim_end_matches("()");
            if !tree.rust().any(|source| defines(source, name)) {
                findings
                    .push(file.finding(number, format!("`{path}`: there is no `fn {name}` in the project")));
            }
        }
    }
    findings
}

/// The lines outside code blocks, with the code within them blanked.
fn prose(file: &File) -> impl Iterator<Item = (usize, String)> {
    let mut fence: Option<&str> = None;
    file.lines().filter_map(move |(number, line)| {
        let mark = ["```", "~~~"].into_iter().find(|mark| line.trim_start().starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (None, None) => return Some((number, line.split('`').step_by(2).collect::<Vec<_>>().join("_"))),
            _ => {}
        }
        None
    })
}

/// Where the links of a line lead: `[text](target "title")`, and `[label]: target` alone on a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let labelled = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    inline.chain(labelled.and_then(|(_, target)| target.split_whitespace().next()))
}

fn is_relative(target: &str) -> bool {
    let has_scheme = target.split(['/', '#']).next().is_some_and(|first| first.contains(':'));
    !target.is_empty() && !target.starts_with('#') && !target.starts_with("//") && !has_scheme
}

/// The target's path from the root, or nothing when it leaves the project.
fn resolved(from: &str, target: &str) -> Option<String> {
    let target = target.trim_matches(['<', '>']).split(['#', '?']).next()?;
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if target.starts_with('/') {
        parts.clear();
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn defines(source: &File, name: &str) -> bool {
    let head = format!("fn {name}");
    source.text.match_indices(&head).any(|(at, _)| source.text[at + head.len()..].starts_with(['(', '<']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::{places, tree};

    #[test]
    fn missing_documents_are_named() {
        let mut files: Vec<(&str, &str)> = EXPECTED.iter().map(|path| (*path, "")).collect();
        assert_eq!(expected(&tree(&files)), []);
        files.remove(0);
        assert_eq!(places(&expected(&tree(&files))), ["README.md:1"]);
    }

    #[test]
    fn broken_links_are_found() {
        let text = "[a](b.md) and [c](../gone.md#x)\n\n[label]: missing.md\n";
        let findings = links(&tree(&[("docs/a.md", text), ("docs/b.md", "")]));
        assert_eq!(places(&findings), ["docs/a.md:1", "docs/a.md:3"]);
        assert!(findings[0].to_string().contains("../gone.md#x"));
    }

    #[test]
    fn links_that_lead_somewhere_or_elsewhere_are_fine() {
        let text = "[a](b.md#part \"title\") [c](../README.md) [d](../docs/) [e](/README.md) [f](#here)\n\
            [g](https://example.com/x) [h](mailto:a@example.com) `[i](none.md)`\n```\n[j](none.md)\n```\n";
        assert_eq!(links(&tree(&[("docs/a.md", text), ("docs/b.md", ""), ("README.md", "")])), []);
    }

    #[test]
    fn guarantees_name_tests_that_exist() {
        let source = ("crates/a/tests/it/kill.rs", "#[test]\nfn nothing_is_lost() {}\nfn generic<T>() {}\n");
        let good = "Not in a table: `a::b`.\n\n| A1 | `a::kill::nothing_is_lost`, `a::generic` | `plain` |\n";
        assert_eq!(guarantees(&tree(&[(GUARANTEES, good), source])), []);
        let bad = "| id | test |\n|---|---|\n| A1 | `a::kill::nothing_is` |\n";
        assert_eq!(places(&guarantees(&tree(&[(GUARANTEES, bad), source]))), ["docs/guarantees.md:3"]);
        assert_eq!(guarantees(&tree(&[source])), []);
    }
}
