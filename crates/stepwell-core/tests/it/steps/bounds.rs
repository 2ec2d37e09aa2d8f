//! Any document is read or refused within a time limit.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use stepwell_core::WorkflowSource;
use stepwell_core::document::{MAX_BYTES, SourceProblems, to_json};

/// Reads a document and returns the time this took.
fn read(text: &str) -> (Result<WorkflowSource, SourceProblems>, Duration) {
    let begun = (Instant::now(), processor_time());
    let read = WorkflowSource::read(text, Some("test"));
    let time = match (begun.1, processor_time()) {
        (Some(begun), Some(ended)) => ended.saturating_sub(begun),
        _ => begun.0.elapsed(),
    };
    (read, time)
}

/// Returns the CPU time of this thread, which does not depend on the load of the machine. `None` except on Linux.
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Time limit for one document. Builds without optimisation get more time.
const SOON: Duration = Duration::from_secs(if cfg!(debug_assertions) { 6 } else { 1 });

fn refused_quickly(what: &str, text: &str) -> SourceProblems {
    assert!(text.len() <= MAX_BYTES, "{what} has {} bytes", text.len());
    let (read, time) = read(text);
    assert!(time < SOON, "{what} took {time:?}");
    let Err(problems) = read else { panic!("{what}: nothing is wrong with it") };
    problems
}

fn read_quickly(what: &str, text: &str) -> WorkflowSource {
    assert!(text.len() <= MAX_BYTES, "{what} has {} bytes", text.len());
    let (read, time) = read(text);
    assert!(time < SOON, "{what} took {time:?}");
    read.unwrap_or_else(|problems| panic!("{what}: {problems}"))
}

#[test]
fn yaml_alias_bombs_are_refused() {
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..30 {
        let row = format!("*a{}, ", n - 1).repeat(9);
        let _ = writeln!(laughs, "a{n}: &a{n} [{}]", row.trim_end_matches(", "));
    }
    assert!(refused_quickly("lists of lists", &laughs).to_string().contains("values"));
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(500_000), "*a,".repeat(90_000));
    assert!(refused_quickly("a long text many times", &long).to_string().contains("bytes"));
    let mut deep = "a0: &a0 [x]\n".to_owned();
    for n in 1..60 {
        let _ = writeln!(deep, "a{n}: &a{n} {}*a{}{}", "[".repeat(20), n - 1, "]".repeat(20));
    }
    assert!(refused_quickly("lists that are deep by their names", &deep).to_string().contains("deeper"));
}

#[test]
fn large_documents_are_read_or_refused_quickly() {
    let keys: String = (0..49_000).map(|n| format!("k{n}: 1\n")).collect();
    assert!(to_json(&keys).is_ok());
    refused_quickly("many fields", &keys);
    let more: String = (0..100_000).map(|n| format!("k{n}: 1\n")).take(90_000).collect();
    assert!(refused_quickly("too many fields", &more[..MAX_BYTES.min(more.len() / 8 * 8)]).0.len() == 1);
    let scalar = format!("steps: [{{ type: vars.set, values: {{ x: \"{}\" }} }}]", "x".repeat(1_000_000));
    read_quickly("a huge text", &scalar);
    let brackets = "[".repeat(1_000_000);
    refused_quickly("brackets", &brackets);
    refused_quickly("braces", &"{a: ".repeat(200_000));
    refused_quickly("dashes", &"- ".repeat(500_000));
    refused_quickly("questions", &"? ".repeat(500_000));
    refused_quickly("anchors", &"&a ".repeat(300_000));
    refused_quickly("a million quotes", &"'".repeat(1_000_001));
    refused_quickly("tabs", &"\t".repeat(1_000_000));
    refused_quickly("one long line of text", &format!("{}: x", "k".repeat(1_000_000)));
}

#[test]
fn documents_full_of_mistakes_are_refused_quickly() {
    let fields: String = (0..40_000).map(|n| format!(", f{n}: 1")).collect();
    refused_quickly("unknown fields", &format!("steps: [{{ type: control.break{fields} }}]"));
    let types: String = (0..20_000).map(|n| format!("  - {{ type: control.brea{n} }}\n")).collect();
    refused_quickly("unknown types", &format!("steps:\n{types}"));
    let names: String = (0..8_000)
        .map(|n| format!("  - {{ id: variable{n}, type: vars.set, values: {{ variable{n}: {{ $expr: vars.varyable{n}x }} }} }}\n"))
        .collect();
    refused_quickly("unknown variables", &format!("steps:\n{names}"));
    let same: String = (0..20_000).map(|_| "  - { id: a, type: control.break }\n").collect();
    refused_quickly("the same id", &format!("steps:\n{same}"));
    let writes: String = (0..8_000).map(|_| "      - [{ type: vars.set, values: { x: 1 } }]\n").collect();
    refused_quickly("conflicts", &format!("steps:\n  - type: control.parallel\n    branches:\n{writes}"));
}

#[test]
fn long_documents_compile_quickly() {
    let calls: String = (0..1_990)
        .map(|n| {
            format!(
                "  - {{ id: s{n}, type: action.call, action: x, input: {{ a: {{ $expr: payload.a }} }} }}\n"
            )
        })
        .collect();
    read_quickly("many calls", &format!("steps:\n{calls}"));
    let too_many: String =
        (0..10_000).map(|n| format!("  - {{ id: s{n}, type: action.call, action: x }}\n")).collect();
    let problems = refused_quickly("too many calls", &format!("steps:\n{too_many}"));
    assert!(problems.to_string().contains("places"), "{problems}");
    let ifs: String = (0..600).map(|n| format!("  - {{ type: control.if, condition: payload.a = {n}, then: [{{ type: vars.set, values: {{ x: {n} }} }}], else: [{{ type: control.return }}] }}\n")).collect();
    read_quickly("many ifs", &format!("steps:\n{ifs}"));
    let guarded: String = (0..160).map(|n| format!("  - {{ id: s{n}, type: control.try, retry: 3, timeout: 5s, onError: continue, condition: payload.a, body: [{{ type: action.call, action: x }}], catch: [] }}\n")).collect();
    read_quickly("many guarded blocks", &format!("steps:\n{guarded}"));
}

/// A document with `depth` nested blocks of one type.
fn nested(depth: usize, open: &str, close: &str) -> String {
    format!("steps: [{}{{ type: action.call, action: x }}{}]", open.repeat(depth), close.repeat(depth))
}

#[test]
fn deep_blocks_compile_or_are_refused_quickly() {
    let guards = "retry: 2, timeout: 5s, onError: [{ type: action.call, action: y }], condition: payload.a";
    read_quickly(
        "parallel",
        &nested(16, "{ type: control.parallel, branches: [[", "], [{ type: action.call, action: z }]] }"),
    );
    refused_quickly(
        "too much parallel",
        &nested(17, "{ type: control.parallel, branches: [[", "], [{ type: action.call, action: z }]] }"),
    );
    read_quickly("loops", &nested(29, "{ type: control.forEach, items: [1], body: [", "] }"));
    read_quickly(
        "guarded loops",
        &nested(
            14,
            &format!("{{ type: control.forEach, items: [1], {guards}, onItemError: collect, body: ["),
            "] }",
        ),
    );
    read_quickly(
        "guarded tries",
        &nested(
            15,
            &format!("{{ type: control.try, {guards}, catch: [{{ type: action.call, action: z }}], body: ["),
            "] }",
        ),
    );
    read_quickly(
        "guarded items",
        &nested(7, &format!("{{ type: control.forEach, items: [1], parallel: 2, {guards}, body: ["), "] }"),
    );
    read_quickly("errors in errors", &nested(29, "{ type: action.call, action: x, onError: [", "] }"));
    let wide = "{ type: control.parallel, branches: [".to_owned()
        + &"[{ type: action.call, action: x }], ".repeat(1_900)
        + "] }";
    read_quickly("many branches", &format!("steps: [{wide}]"));
}
