//! No document takes long to be read or refused, whatever is in it.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use stepwell_core::Document;
use stepwell_core::document::{MAX_BYTES, Problems, to_json};

/// Reads it, and returns how long that took; builds without optimisation get more time.
fn read(text: &str) -> (Result<Document, Problems>, Duration) {
    let begun = (Instant::now(), processor_time());
    let read = Document::read(text, Some("test"));
    let time = match (begun.1, processor_time()) {
        (Some(begun), Some(ended)) => ended.saturating_sub(begun),
        _ => begun.0.elapsed(),
    };
    (read, time)
}

/// The time this thread has had a processor, which does not depend on what else the machine does; only Linux tells.
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

const SOON: Duration = Duration::from_secs(if cfg!(debug_assertions) { 6 } else { 1 });

fn is_refused_soon(what: &str, text: &str) -> Problems {
    assert!(text.len() <= MAX_BYTES, "{what} has {} bytes", text.len());
    let (read, time) = read(text);
    assert!(time < SOON, "{what} took {time:?}");
    let Err(problems) = read else { panic!("{what}: nothing is wrong with it") };
    problems
}

fn is_read_soon(what: &str, text: &str) -> Document {
    assert!(text.len() <= MAX_BYTES, "{what} has {} bytes", text.len());
    let (read, time) = read(text);
    assert!(time < SOON, "{what} took {time:?}");
    read.unwrap_or_else(|problems| panic!("{what}: {problems}"))
}

#[test]
fn aliases_do_not_multiply_without_end() {
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..30 {
        let row = format!("*a{}, ", n - 1).repeat(9);
        let _ = writeln!(laughs, "a{n}: &a{n} [{}]", row.trim_end_matches(", "));
    }
    assert!(is_refused_soon("lists of lists", &laughs).to_string().contains("values"));
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(500_000), "*a,".repeat(90_000));
    assert!(is_refused_soon("a long text many times", &long).to_string().contains("bytes"));
    let mut deep = "a0: &a0 [x]\n".to_owned();
    for n in 1..60 {
        let _ = writeln!(deep, "a{n}: &a{n} {}*a{}{}", "[".repeat(20), n - 1, "]".repeat(20));
    }
    assert!(is_refused_soon("lists that are deep by their names", &deep).to_string().contains("deeper"));
}

#[test]
fn many_keys_and_values_are_read_or_refused_soon() {
    let keys: String = (0..49_000).map(|n| format!("k{n}: 1\n")).collect();
    assert!(to_json(&keys).is_ok());
    is_refused_soon("many fields", &keys);
    let more: String = (0..100_000).map(|n| format!("k{n}: 1\n")).take(90_000).collect();
    assert!(is_refused_soon("too many fields", &more[..MAX_BYTES.min(more.len() / 8 * 8)]).0.len() == 1);
    let scalar = format!("steps: [{{ type: vars.set, values: {{ x: \"{}\" }} }}]", "x".repeat(1_000_000));
    is_read_soon("a huge text", &scalar);
    let brackets = "[".repeat(1_000_000);
    is_refused_soon("brackets", &brackets);
    is_refused_soon("braces", &"{a: ".repeat(200_000));
    is_refused_soon("dashes", &"- ".repeat(500_000));
    is_refused_soon("questions", &"? ".repeat(500_000));
    is_refused_soon("anchors", &"&a ".repeat(300_000));
    is_refused_soon("a million quotes", &"'".repeat(1_000_001));
    is_refused_soon("tabs", &"\t".repeat(1_000_000));
    is_refused_soon("one long line of text", &format!("{}: x", "k".repeat(1_000_000)));
}

#[test]
fn a_document_of_mistakes_only_is_refused_soon() {
    let fields: String = (0..40_000).map(|n| format!(", f{n}: 1")).collect();
    is_refused_soon("unknown fields", &format!("steps: [{{ type: control.break{fields} }}]"));
    let types: String = (0..20_000).map(|n| format!("  - {{ type: control.brea{n} }}\n")).collect();
    is_refused_soon("unknown types", &format!("steps:\n{types}"));
    let names: String = (0..8_000)
        .map(|n| format!("  - {{ id: variable{n}, type: vars.set, values: {{ variable{n}: {{ $expr: vars.varyable{n}x }} }} }}\n"))
        .collect();
    is_refused_soon("unknown variables", &format!("steps:\n{names}"));
    let same: String = (0..20_000).map(|_| "  - { id: a, type: control.break }\n").collect();
    is_refused_soon("the same id", &format!("steps:\n{same}"));
    let writes: String = (0..8_000).map(|_| "      - [{ type: vars.set, values: { x: 1 } }]\n").collect();
    is_refused_soon("conflicts", &format!("steps:\n  - type: control.parallel\n    branches:\n{writes}"));
}

#[test]
fn a_long_document_is_compiled_soon() {
    let calls: String = (0..1_990)
        .map(|n| {
            format!(
                "  - {{ id: s{n}, type: action.call, action: x, input: {{ a: {{ $expr: payload.a }} }} }}\n"
            )
        })
        .collect();
    is_read_soon("many calls", &format!("steps:\n{calls}"));
    let too_many: String =
        (0..10_000).map(|n| format!("  - {{ id: s{n}, type: action.call, action: x }}\n")).collect();
    let problems = is_refused_soon("too many calls", &format!("steps:\n{too_many}"));
    assert!(problems.to_string().contains("places"), "{problems}");
    let ifs: String = (0..600).map(|n| format!("  - {{ type: control.if, condition: payload.a = {n}, then: [{{ type: vars.set, values: {{ x: {n} }} }}], else: [{{ type: control.return }}] }}\n")).collect();
    is_read_soon("many ifs", &format!("steps:\n{ifs}"));
    let guarded: String = (0..160).map(|n| format!("  - {{ id: s{n}, type: control.try, retry: 3, timeout: 5s, onError: continue, condition: payload.a, body: [{{ type: action.call, action: x }}], catch: [] }}\n")).collect();
    is_read_soon("many guarded blocks", &format!("steps:\n{guarded}"));
}

/// A block of one type, so many inside one another.
fn nested(depth: usize, open: &str, close: &str) -> String {
    format!("steps: [{}{{ type: action.call, action: x }}{}]", open.repeat(depth), close.repeat(depth))
}

#[test]
fn deep_blocks_are_compiled_or_refused_soon() {
    let guards = "retry: 2, timeout: 5s, onError: [{ type: action.call, action: y }], condition: payload.a";
    is_read_soon(
        "parallel",
        &nested(16, "{ type: control.parallel, branches: [[", "], [{ type: action.call, action: z }]] }"),
    );
    is_refused_soon(
        "too much parallel",
        &nested(17, "{ type: control.parallel, branches: [[", "], [{ type: action.call, action: z }]] }"),
    );
    is_read_soon("loops", &nested(29, "{ type: control.forEach, items: [1], body: [", "] }"));
    is_read_soon(
        "guarded loops",
        &nested(
            14,
            &format!("{{ type: control.forEach, items: [1], {guards}, onItemError: collect, body: ["),
            "] }",
        ),
    );
    is_read_soon(
        "guarded tries",
        &nested(
            15,
            &format!("{{ type: control.try, {guards}, catch: [{{ type: action.call, action: z }}], body: ["),
            "] }",
        ),
    );
    is_read_soon(
        "guarded items",
        &nested(7, &format!("{{ type: control.forEach, items: [1], parallel: 2, {guards}, body: ["), "] }"),
    );
    is_read_soon("errors in errors", &nested(29, "{ type: action.call, action: x, onError: [", "] }"));
    let wide = "{ type: control.parallel, branches: [".to_owned()
        + &"[{ type: action.call, action: x }], ".repeat(1_900)
        + "] }";
    is_read_soon("many branches", &format!("steps: [{wide}]"));
}
