//! Checks of the documents.

use crate::tree::{File, Finding, Tree};

const EXPECTED: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
];

const GUARANTEES: &str = "docs/guarantees.md";

pub(super) fn expected(tree: &Tree) -> Vec<Finding> {
    let missing = EXPECTED.iter().filter(|path| tree.file(path).is_none());
    missing.map(|path| Finding::new(path, 1, "this file is missing")).collect()
}

/// Checks that every relative link resolves to a file or folder of the project.
pub(super) fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.has_extension("md")) {
        for (number, line) in prose(file) {
            for target in targets(&line).filter(|target| is_relative(target)) {
                if !resolved(&file.path, target).is_some_and(|path| tree.has(&path)) {
                    findings.push(file.finding(number, format!("the link to `{target}` does not resolve")));
                }
            }
        }
    }
    findings
}

/// Checks that every test named in the tables of the guarantees exists: `crate::module::name` needs the crate, and a
/// function in a source file that is named like the module or declares it. The suite counts as a crate.
pub(super) fn guarantees(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.file(GUARANTEES) else { return Vec::new() };
    let mut findings = Vec::new();
    for (number, line) in file.lines().filter(|(_, line)| line.trim_start().starts_with('|')) {
        for path in code_spans(line).filter(|span| span.contains("::")) {
            let mut parts = path.trim_end_matches("()").rsplit("::");
            let (name, module) = (parts.next().unwrap_or(path), parts.next().unwrap_or_default());
            let first = parts.last().unwrap_or(module);
            let mut found = tree.rust().filter(|source| defines(source, name)).peekable();
            if found.peek().is_none() {
                findings.push(file.finding(number, format!("`{path}`: no `fn {name}` in the project")));
            } else if !found.any(|source| is_of_crate(source, first) && is_in_module(source, module)) {
                let message = format!("`{path}`: `fn {name}` is in no module `{module}` of `{first}`");
                findings.push(file.finding(number, message));
            }
        }
    }
    findings
}

/// Returns the lines outside code blocks, without their code spans.
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

/// Returns the link targets of a line: `[text](target "title")`, and `[label]: target` alone on a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let labelled = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    inline.chain(labelled.and_then(|(_, target)| target.split_whitespace().next()))
}

fn is_relative(target: &str) -> bool {
    let has_scheme = target.split(['/', '#']).next().is_some_and(|first| first.contains(':'));
    !target.is_empty() && !target.starts_with('#') && !target.starts_with("//") && !has_scheme
}

/// Returns the path of a target from the root, or `None` if it leaves the project.
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

/// Returns `true` if a source file belongs to the crate, whose name may lack the prefix `stepwell-`.
fn is_of_crate(source: &File, name: &str) -> bool {
    let folder = source.path.strip_prefix("crates/").unwrap_or(&source.path).split('/').next();
    let folder = folder.unwrap_or_default();
    match name {
        "suite" => source.path.contains("/src/suite/"),
        name => folder.strip_prefix("stepwell-").unwrap_or(folder) == name,
    }
}

/// Returns `true` if a source file is the module, is in its folder or declares it. A crate is a module too.
fn is_in_module(source: &File, module: &str) -> bool {
    let path = source.path.trim_end_matches(".rs");
    path.split('/').any(|part| part == module)
        || source.text.contains(&format!("mod {module} {{"))
        || is_of_crate(source, module)
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
    fn resolving_and_external_links_pass() {
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
        for wrong in ["a::other::nothing_is_lost", "kill::nothing_is_lost", "b::kill::nothing_is_lost"] {
            let found = guarantees(&tree(&[(GUARANTEES, &format!("| A1 | `{wrong}` |\n")), source]));
            assert_eq!(places(&found), ["docs/guarantees.md:1"], "{wrong}");
        }
        assert_eq!(guarantees(&tree(&[source])), []);
    }
}
