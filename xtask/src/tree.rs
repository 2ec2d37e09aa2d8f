//! Reads the files of the project for the checks of tidy and purity.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use crate::process;

/// All files of the project.
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
}

/// One file. The text of a binary file is empty.
pub(crate) struct File {
    /// Relative to the workspace root, with `/` as separator.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A violation of a convention at one line of a file.
#[derive(Debug, PartialEq)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl Tree {
    /// Reads all files that git tracks or does not ignore.
    pub(crate) fn read() -> Result<Tree, String> {
        let root = process::root();
        let mut files = Vec::new();
        for path in listed(&root)? {
            match fs::read(root.join(&path)) {
                Ok(bytes) => files.push(File { path, text: text_of(bytes) }),
                // Deleted but not yet committed, or a link to a folder.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory) => {}
                Err(error) => return Err(format!("cannot read {path}: {error}")),
            }
        }
        Ok(Tree { files })
    }

    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Returns `true` if such a file exists, or a folder with files in it. The empty path is the root.
    pub(crate) fn has(&self, path: &str) -> bool {
        path.is_empty()
            || self.files.iter().any(|file| {
                file.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
    }

    pub(crate) fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.has_extension("rs"))
    }

    /// Returns the Rust files below a folder.
    pub(crate) fn rust_in(&self, folder: &str) -> impl Iterator<Item = &File> {
        self.rust()
            .filter(move |file| file.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
    }
}

impl File {
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    pub(crate) fn has_extension(&self, extension: &str) -> bool {
        self.name().rsplit_once('.').is_some_and(|(_, found)| found == extension)
    }

    /// Returns `true` for a source of a crate or of xtask, not for tests and examples next to it.
    pub(crate) fn is_source(&self) -> bool {
        let mut parts = self.path.split('/');
        match parts.next() {
            Some("crates") => parts.nth(1) == Some("src"),
            Some("xtask") => parts.next() == Some("src"),
            _ => false,
        }
    }

    /// Returns `true` if the whole file is test code: in a test folder, or part of the conformance suite for stores.
    pub(crate) fn is_test(&self) -> bool {
        let (folder, name) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        folder.split('/').any(|part| matches!(part, "tests" | "suite"))
            || matches!(name, "tests.rs" | "suite.rs")
    }

    /// Returns the lines with their numbers, starting at 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Returns the lines of a Rust file outside `#[cfg(test)]` items, or none for a test file.
    pub(crate) fn shipped_lines(&self) -> Vec<(usize, &str)> {
        if self.is_test() {
            return Vec::new();
        }
        let lines: Vec<(usize, &str)> = self.lines().collect();
        let mut kept = Vec::new();
        let mut at = 0;
        while at < lines.len() {
            if lines[at].1.trim() == "#[cfg(test)]" {
                at = end_of_item(&lines, at + 1) + 1;
            } else {
                kept.push(lines[at]);
                at += 1;
            }
        }
        kept
    }

    /// Returns the shipped lines that are not comments.
    pub(crate) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.shipped_lines().into_iter().filter(|(_, line)| !is_comment(line))
    }

    pub(crate) fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding::new(&self.path, line, message)
    }
}

impl Finding {
    pub(crate) fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

pub(crate) fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

pub(crate) fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Returns `true` if `line` contains `word` and not as part of a longer identifier. Where `word` itself ends with a
/// character other than a letter (`word(`, `word::`), no boundary is needed.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let joins = |inner: Option<char>, outer: Option<char>| {
        inner.is_some_and(is_identifier) && outer.is_some_and(is_identifier)
    };
    line.match_indices(word).any(|(start, _)| {
        let (before, after) = (&line[..start], &line[start + word.len()..]);
        !joins(word.chars().next(), before.chars().next_back())
            && !joins(word.chars().next_back(), after.chars().next())
    })
}

pub(crate) fn is_identifier(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the index of an item's last line. Relies on the layout of rustfmt: the closing brace is alone on a line, at
/// the indentation of the item.
pub(crate) fn end_of_item(lines: &[(usize, &str)], start: usize) -> usize {
    let last = lines.len().saturating_sub(1);
    let head = lines[start.min(last)..].iter().position(|(_, line)| {
        let line = line.trim_end();
        !line.trim_start().starts_with("#[") && line.ends_with(['{', ';', '}'])
    });
    let Some(head) = head.map(|offset| start + offset) else { return last };
    if !lines[head].1.trim_end().ends_with('{') {
        return head;
    }
    let closing = format!("{}}}", " ".repeat(indentation(lines[start].1)));
    let body = lines[head..].iter().position(|(_, line)| line.trim_end() == closing);
    body.map_or(last, |offset| head + offset)
}

fn listed(root: &Path) -> Result<Vec<String>, String> {
    let mut command = Command::new("git");
    command.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let output =
        command.output().map_err(|error| format!("cannot start `{}`: {error}", process::shown(&command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{}` ended with {}: {}", process::shown(&command), output.status, said.trim()));
    }
    let mut paths: Vec<String> = output
        .stdout
        .split(|byte| *byte == 0)
        .map(|path| String::from_utf8_lossy(path).into_owned())
        .collect();
    paths.retain(|path| !path.is_empty());
    paths.sort();
    // Git lists a file in conflict once for each side.
    paths.dedup();
    Ok(paths)
}

fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a tree of sample files.
    pub(crate) fn tree(files: &[(&str, &str)]) -> Tree {
        let file = |&(path, text): &(&str, &str)| File { path: path.to_owned(), text: text.to_owned() };
        Tree { files: files.iter().map(file).collect() }
    }

    /// Returns the position of each finding as `path:line`.
    pub(crate) fn places(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
    }

    #[test]
    fn code_in_test_items_is_not_shipped() {
        let text = "fn a() {}\n#[cfg(test)]\nmod t;\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n    fn b() {\n    }\n}\n// c\nfn d() {}\n";
        let tree = tree(&[("crates/a/src/lib.rs", text), ("crates/a/src/suite/x.rs", "fn e() {}\n")]);
        let numbers =
            |file: &File| file.shipped_lines().iter().map(|(number, _)| *number).collect::<Vec<_>>();
        assert_eq!(numbers(&tree.files[0]), [1, 10, 11]);
        assert_eq!(tree.files[0].code_lines().map(|(number, _)| number).collect::<Vec<_>>(), [1, 11]);
        assert!(numbers(&tree.files[1]).is_empty());
    }

    #[test]
    fn attribute_at_the_end_of_a_file_is_handled() {
        let tree = tree(&[("crates/a/src/lib.rs", "fn a() {}\n#[cfg(test)]\n")]);
        assert_eq!(tree.files[0].shipped_lines().len(), 1);
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("let x = Snapshot::new();", "Snapshot"));
        assert!(!has_word("let x = SnapshotRow::new();", "Snapshot"));
        assert!(has_word("core::dispatch(x)", "dispatch("));
        assert!(!has_word("redispatch(x)", "dispatch("));
    }

    #[test]
    fn folders_exist_by_their_files() {
        let tree = tree(&[("docs/a.md", "")]);
        assert!(tree.has("docs") && tree.has("docs/a.md") && tree.has(""));
        assert!(!tree.has("doc") && !tree.has("docs/a"));
    }

    #[test]
    fn the_project_itself_can_be_read() {
        let tree = Tree::read().unwrap();
        assert!(tree.file("xtask/src/tree.rs").is_some_and(File::is_source));
    }
}
