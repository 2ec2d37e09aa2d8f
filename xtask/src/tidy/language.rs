//! Checks of the language: the rules of plain English that a machine can see. Their limits only fall.

use std::collections::BTreeMap;

use crate::tree::{self, File, Finding, Tree};

/// Maximum length of a test's name.
const LONGEST_TEST_NAME: usize = 60;

/// Maximum width of a line of prose in a document. Tables, code and the changelog's one-line entries may be wider.
const WIDEST_PROSE: usize = 106;

/// Number of words up to which a doc comment counts as short: it repeats the name of its item.
const SHORT_DOC_WORDS: usize = 3;

/// Number of short doc comments. It only falls.
const SHORT_DOCS: usize = 11;

/// Maximum number of words in a sentence of a document.
const LONGEST_SENTENCE: usize = 30;

const QUESTION_WORDS: &[&str] =
    &["What", "Who", "Whoever", "Whose", "Which", "Whichever", "Whether", "How", "Whatever"];

/// Words of a dialect that readers could not follow. The dots keep this list from finding itself.
const BANNED: &[&str] = &[
    "who.ever",
    "some.body",
    "any.body",
    "no.body",
    "unless said other.wise",
    "has to be sa.id",
    "let go o.f",
    "lets go o.f",
    "given awa.y",
    "gives awa.y",
    "stands stil.l",
    "stand stil.l",
    "workers else.where",
    "worker else.where",
    "goes on wit.h",
    "go on wit.h",
    "gone on wit.h",
    "in vai.n",
    "fore.seen",
    "ti.died",
    "for eve.r",
    "heard o.f",
    "hears o.f",
    "told o.f",
    "is doin.g",
];

/// Names that several public types may have, because users always write them with their module.
const COMMON_TYPES: &[&str] = &["Options", "OpenError", "Handle", "Error", "Builder", "Query"];

/// Number of other public type names that are defined twice. It only falls.
const DUPLICATE_TYPES: usize = 1;

/// Checks that no doc comment starts with a question word.
pub(super) fn openings(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let mut is_first = true;
        for (number, line) in file.lines() {
            let text = doc_text(line);
            if let Some(word) = text.filter(|_| is_first).and_then(|text| text.split_whitespace().next())
                && QUESTION_WORDS.contains(&word)
            {
                let message = format!("the doc comment starts with `{word}`: start with a verb or a noun");
                findings.push(file.finding(number, message));
            }
            is_first = text.is_none();
        }
    }
    findings
}

/// Checks that comments, texts and documents contain no banned word.
pub(super) fn banned(tree: &Tree) -> Vec<Finding> {
    let banned: Vec<String> = BANNED.iter().map(|word| word.replace('.', "")).collect();
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, text) in prose(file) {
            let text = text.to_lowercase();
            if let Some(word) = banned.iter().find(|word| tree::has_word(&text, word)) {
                findings.push(file.finding(number, format!("`{word}`: say it in plain words")));
            }
        }
    }
    findings
}

/// Checks the length of the names of tests.
pub(super) fn test_names(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| file.is_test()) {
        for (number, line) in file.lines() {
            let Some(name) = super::rust::function_name(line) else { continue };
            if name.len() > LONGEST_TEST_NAME {
                let message = format!("`{name}` has {} characters: name one claim", name.len());
                findings.push(file.finding(number, message));
            }
        }
    }
    findings
}

/// Checks that a public type name is defined once.
pub(super) fn duplicate_types(tree: &Tree) -> Vec<Finding> {
    let mut found: BTreeMap<&str, Vec<Finding>> = BTreeMap::new();
    for file in tree.rust_in("crates").filter(|file| file.is_source() && !file.path.contains("/bin/")) {
        for (number, line) in file.lines() {
            let after =
                ["pub struct ", "pub enum ", "pub trait "].iter().find_map(|kind| line.strip_prefix(kind));
            let Some(name) = after.and_then(|after| after.split(|c| !tree::is_identifier(c)).next()) else {
                continue;
            };
            if !COMMON_TYPES.contains(&name) {
                let message = format!("`{name}` is the name of several public types: give each its own");
                found.entry(name).or_default().push(file.finding(number, message));
            }
        }
    }
    let twice: Vec<_> = found.into_values().filter(|places| places.len() > 1).collect();
    if twice.len() <= DUPLICATE_TYPES { Vec::new() } else { twice.into_iter().flatten().collect() }
}

/// Checks that public items of the libraries have a doc comment. Fields and variants whose name says everything need
/// none, which the compiler's own lint does not allow.
pub(super) fn documented(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_in("crates").filter(|file| file.is_source() && !is_program(file)) {
        let lines = file.shipped_lines();
        for (at, (number, line)) in lines.iter().enumerate() {
            let Some(name) = public_item(line) else { continue };
            if !is_documented(&lines[..at]) {
                findings.push(file.finding(*number, format!("`{name}` is public and has no doc comment")));
            }
        }
    }
    findings
}

/// Checks that doc comments say more than the name of their item.
pub(super) fn short_docs(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let (mut start, mut words) = (0, 0);
        for (number, line) in file.lines().chain([(0, "")]) {
            if let Some(text) = doc_text(line) {
                start = if start == 0 { number } else { start };
                words += text.split_whitespace().count();
                continue;
            }
            if (1..=SHORT_DOC_WORDS).contains(&words) {
                let message = "the doc comment is too short: delete it, or add the unit, bound or invariant";
                findings.push(file.finding(start, message));
            }
            (start, words) = (0, 0);
        }
    }
    if findings.len() <= SHORT_DOCS { Vec::new() } else { findings }
}

/// Checks the length of sentences in documents.
pub(super) fn sentences(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.has_extension("md") && !is_generated(file)) {
        let (mut start, mut words) = (0, 0);
        let mut end = |start: usize, words: usize| {
            if words > LONGEST_SENTENCE {
                findings.push(file.finding(start, format!("a sentence of {words} words: split it")));
            }
        };
        for (number, line) in document_prose(file) {
            if line.trim().is_empty() || begins_block(line) {
                end(start, std::mem::take(&mut words));
            }
            for word in line.split_whitespace().map(|word| word.trim_matches(['*', '`', '>', '#'])) {
                start = if words == 0 { number } else { start };
                words += usize::from(!word.is_empty());
                if word.ends_with(['.', '!', '?', ':', ';']) {
                    end(start, std::mem::take(&mut words));
                }
            }
        }
        end(start, words);
    }
    findings
}

/// Checks the width of prose in documents.
pub(super) fn widths(tree: &Tree) -> Vec<Finding> {
    let is_free = |file: &File| is_generated(file) || file.path == "CHANGELOG.md";
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.has_extension("md") && !is_free(file)) {
        for (number, line) in document_prose(file) {
            let width = line.chars().count();
            if width > WIDEST_PROSE {
                findings.push(file.finding(number, format!("{width} characters wide: wrap at about 100")));
            }
        }
    }
    findings
}

fn is_generated(file: &File) -> bool {
    file.path.contains("/reference/")
}

/// Returns the lines of a document with those of code blocks and tables emptied.
fn document_prose(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    file.lines().map(move |(number, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        let is_prose = !is_code && !is_fence && !line.trim_start().starts_with('|');
        (number, if is_prose { line } else { "" })
    })
}

/// Returns `true` if a line of a document begins a heading, a quotation or an item of a list.
fn begins_block(line: &str) -> bool {
    let line = line.trim_start();
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    line.starts_with(['#', '>'])
        || ["- ", "* "].iter().any(|mark| line.starts_with(mark))
        || number.len() < line.len() && number.starts_with('.')
}

/// Returns `true` for crates that no other crate depends on: their public items are for their own modules.
fn is_program(file: &File) -> bool {
    file.path.starts_with("crates/stepwell-bench/")
}

/// Returns `true` if the lines above an item end with a doc comment, attributes left out.
fn is_documented(above: &[(usize, &str)]) -> bool {
    let mut in_attribute = false;
    for line in above.iter().rev().map(|(_, line)| line.trim()) {
        let is_end = line.ends_with(")]") || line.ends_with(']') && line.starts_with("#[");
        in_attribute = (in_attribute || is_end) && !line.starts_with("#[");
        if !in_attribute && !line.starts_with("#[") {
            return line.starts_with("///");
        }
    }
    false
}

/// Returns the name of the public item that begins on this line.
fn public_item(line: &str) -> Option<&str> {
    let mut words = line.trim_start().strip_prefix("pub ")?.split_whitespace();
    let kind = words.find(|word| !matches!(*word, "async" | "unsafe"))?;
    let name = match kind {
        "const" => words.find(|word| *word != "fn")?,
        "fn" | "struct" | "enum" | "trait" | "type" | "static" => words.next()?,
        _ => return None,
    };
    name.split(|c| !tree::is_identifier(c)).next().filter(|name| !name.is_empty())
}

fn doc_text(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))
}

/// Extensions of files whose lines are read as a whole: documents, examples, scripts and settings.
const WHOLE_LINES: [&str; 8] = ["md", "py", "ts", "mjs", "yaml", "yml", "toml", "html"];

/// Returns the parts of each line that people read: comments, and texts outside tests. A text of one word is a name.
fn prose(file: &File) -> Vec<(usize, String)> {
    let strings = |line: &str| {
        let texts = line.split('"').skip(1).step_by(2).filter(|text| text.contains(' '));
        texts.collect::<Vec<_>>().join(" ")
    };
    let is_whole = WHOLE_LINES.iter().any(|extension| file.has_extension(extension));
    let read = |line: &str| match () {
        () if is_whole => line.to_owned(),
        () if file.has_extension("sql") => line.split_once("--").map_or("", |(_, text)| text).to_owned(),
        () if tree::is_comment(line) => line.to_owned(),
        () if file.is_test() => String::new(),
        () => strings(line),
    };
    let has_prose = is_whole || file.has_extension("sql") || file.has_extension("rs");
    let lines = file.lines().filter(|_| has_prose);
    lines.map(|(number, line)| (number, read(line))).filter(|(_, text)| !text.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::{places, tree};

    fn word(dotted: &str) -> String {
        dotted.replace('.', "")
    }

    #[test]
    fn question_word_at_the_start_is_found() {
        let text = "/// Which one.\nfn a() {}\n/// Returns it.\n/// What follows is fine.\nfn b() {}\n";
        assert_eq!(places(&openings(&tree(&[("crates/a/src/a.rs", text)]))), ["crates/a/src/a.rs:1"]);
    }

    #[test]
    fn banned_words_are_found_in_prose_only() {
        let bad = word("some.body");
        let rust = format!("// {bad} waits\nlet a = \"{bad} waits\";\nlet {bad} = \"{bad}\";\n");
        let test = format!("let a = \"{bad} waits\"; // fine\n// {bad} waits\n");
        let sql = format!("-- {bad}\nselect {bad};\n");
        let files = [
            ("crates/a/src/a.rs", &*rust),
            ("crates/a/tests/it/a.rs", &*test),
            ("a.sql", &*sql),
            ("a.md", &*bad),
        ];
        let found = banned(&tree(&files));
        let expected =
            ["crates/a/src/a.rs:1", "crates/a/src/a.rs:2", "crates/a/tests/it/a.rs:2", "a.sql:1", "a.md:1"];
        assert_eq!(places(&found), expected);
    }

    #[test]
    fn banned_words_are_found_in_examples_and_scripts() {
        let bad = word("is doin.g");
        let paths = ["a.py", "a.ts", "a.mjs", "a.yaml", "a.yml", "a.toml", "a.html"];
        let text = format!("fine\n# it {bad} this\n");
        let files = paths.map(|path| (path, text.as_str()));
        assert_eq!(places(&banned(&tree(&files))), paths.map(|path| format!("{path}:2")));
        assert_eq!(banned(&tree(&[("a.json", &text)])), []);
    }

    #[test]
    fn short_doc_comments_are_counted() {
        let short = "/// Its id.\npub struct A;\n".repeat(SHORT_DOCS);
        assert_eq!(short_docs(&tree(&[("crates/a/src/a.rs", &short)])), []);
        let more = format!("//! Says enough about it.\n\n{short}/// Its\n/// id.\npub struct B;\n");
        let found = short_docs(&tree(&[("crates/a/src/a.rs", &more)]));
        assert_eq!((found.len(), places(&found)[0].as_str()), (SHORT_DOCS + 1, "crates/a/src/a.rs:3"));
    }

    #[test]
    fn long_sentence_is_found() {
        let words = |count: usize| vec!["word"; count].join(" ");
        let text = format!(
            "Short. {}.\n\n- {}\n  {}\n- {}\n| {} |\n",
            words(30),
            words(15),
            words(16),
            words(15),
            words(40)
        );
        assert_eq!(places(&sentences(&tree(&[("docs/a.md", &text)]))), ["docs/a.md:3"]);
    }

    #[test]
    fn long_test_name_is_found() {
        let text = format!("fn {}() {{}}\nfn {}() {{}}\n", "a".repeat(60), "b".repeat(61));
        let files = tree(&[("crates/a/tests/it/a.rs", &text), ("crates/a/src/a.rs", &text)]);
        assert_eq!(places(&test_names(&files)), ["crates/a/tests/it/a.rs:2"]);
    }

    #[test]
    fn public_type_defined_twice_is_found() {
        let (one, two) =
            ("pub struct A;\npub enum B {}\npub struct Options;\n", "pub trait A {}\npub struct B;\n");
        let files =
            tree(&[("crates/a/src/a.rs", one), ("crates/b/src/b.rs", two), ("crates/c/src/c.rs", one)]);
        assert_eq!(duplicate_types(&files).len(), 6);
        let files =
            tree(&[("crates/a/src/a.rs", "pub struct A;\n"), ("crates/b/src/b.rs", "pub struct B;\n")]);
        assert_eq!(duplicate_types(&files), []);
    }

    #[test]
    fn undocumented_public_item_is_found() {
        let text = "/// Documented.\n#[derive(Debug)]\n#[on(\n    label = \"a\"\n)]\npub struct A {\n    pub field: u8,\n}\npub async fn b() {}\npub(crate) fn c() {}\npub const fn d() {}\npub use a::A;\n";
        let found = documented(&tree(&[("crates/a/src/a.rs", text)]));
        assert_eq!(places(&found), ["crates/a/src/a.rs:9", "crates/a/src/a.rs:11"]);
    }

    #[test]
    fn wide_prose_is_found() {
        let wide = "x".repeat(107);
        let text = format!("{wide}\n| {wide} |\n```\n{wide}\n```\n");
        assert_eq!(places(&widths(&tree(&[("docs/a.md", &text)]))), ["docs/a.md:1"]);
    }
}
