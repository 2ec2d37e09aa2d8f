//! The `malformed` workload: hundreds of documents with mistakes in them, made by hand and by rule. Each is refused with a place
//! and a reason, none takes long, and none is too much.

use std::panic::catch_unwind;
use std::time::Instant;

use serde_json::json;
use stepwell_core::Document;

/// How often a document is read again that took too long.
const TRIES: u32 = 9;

/// How many documents.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Documents that are made by rule, besides those made by hand.
    #[arg(long, default_value_t = 400)]
    generated: usize,
    /// The longest that one may take, in milliseconds.
    #[arg(long, default_value_t = 50.0)]
    most_ms: f64,
    /// A planted bug: one of the documents is right. It must be found, or this proves nothing.
    #[arg(long)]
    plant: bool,
    /// Fewer documents.
    #[arg(long)]
    short: bool,
    /// JSON only.
    #[arg(long)]
    json: bool,
}

/// What the rules work on.
const SOUND: [&str; 4] = [
    include_str!("../../../examples/workflows/approval.yaml"),
    include_str!("../../../examples/workflows/order.yaml"),
    include_str!("../../../examples/workflows/cursor-sync.yaml"),
    include_str!("../../../examples/workflows/provisioning.yaml"),
];

/// Each with one thing that cannot be: what to look for, and what to put in its place.
const RULES: &[(&str, &str, &str)] = &[
    ("a type that is none", "type: action.call", "type: action.cal"),
    ("a type of another kind", "type: action.call", "type: [action.call]"),
    ("no type", "      type: action.call\n", "\n"),
    ("a field that is none", "action:", "acton:"),
    ("a broken expression", "$expr: payload", "$expr: payload +"),
    ("a name that nothing writes", "vars.", "vars.zzz_"),
    ("a name that is none", "$expr: payload.", "$expr: payloda."),
    ("a marker that is none", "$expr", "$exp"),
    ("an id with a blank", "- id: ", "- id: 1 "),
    ("a list that is text", "input: { type: object", "input: { type: objekt"),
    ("another language", "apiVersion: stepwell/v1", "apiVersion: stepwell/v9"),
    ("another kind", "kind: Workflow", "kind: Workflaw"),
    ("a tab", "  steps:", "\tsteps:"),
    ("a brace that is not closed", "{ $expr:", "{{ $expr:"),
    ("a condition that is a number", "condition: {", "condition: 5 #{"),
    ("steps that are an object", "  steps:", "  steps: {}\n  stops:"),
    ("an unknown function", "$expr: vars", "$expr: $frobnicate(vars)"),
    ("a lambda", "$expr: payload", "$expr: function($x){$x} & payload"),
    ("a duration that is none", "delay: ", "delay: soon-"),
    ("a version that is text", "version: 1", "version: one"),
];

/// Reads a document: how many milliseconds that took, and what came of it.
fn timed(text: &str) -> (f64, std::thread::Result<Result<(), stepwell_core::document::Problems>>) {
    let begin = Instant::now();
    let read = catch_unwind(|| Document::read(text, Some("malformed")).map(drop));
    (begin.elapsed().as_secs_f64() * 1_000.0, read)
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let generated = if options.short { 60 } else { options.generated };
    let mut documents = by_hand();
    let made_by_hand = documents.len();
    documents.extend(by_rule(generated));
    if options.plant {
        documents.push(("nothing at all".to_owned(), SOUND[0].to_owned()));
    }
    let (mut accepted, mut panicked, mut placeless, mut slow, mut longest) = (0, 0, 0, 0, 0.0_f64);
    let mut problems = 0;
    for (what, text) in &documents {
        let (mut took, mut read) = timed(text);
        // Somebody else may have had the processor: what is slow is slow every time.
        for _ in 0..TRIES {
            if took <= options.most_ms {
                break;
            }
            let again = timed(text);
            (took, read) = (took.min(again.0), again.1);
        }
        longest = longest.max(took);
        if took > options.most_ms {
            slow += 1;
            eprintln!("{what}: took {took:.1} ms");
        }
        match read {
            Err(_) => panicked += 1,
            Ok(Ok(())) => {
                accepted += 1;
                eprintln!("{what}: nothing was found wrong with it");
            }
            Ok(Err(found)) => {
                problems += found.0.len();
                let is_told = |problem: &stepwell_core::document::Problem| {
                    problem.at.line > 0 && problem.at.column > 0 && !problem.message.is_empty()
                };
                if found.0.is_empty() || !found.0.iter().all(is_told) {
                    placeless += 1;
                    eprintln!("{what}: {found}");
                }
            }
        }
    }
    let line = json!({
        "workload": "malformed", "documents": documents.len(), "by_hand": made_by_hand, "problems": problems,
        "accepted": accepted, "panicked": panicked, "without_place": placeless, "slow": slow,
        "longest_ms": longest, "planted": options.plant
    });
    println!("{line}");
    if accepted + panicked + placeless + slow == 0 {
        return Ok(());
    }
    Err("a document with a mistake was not refused as it should be".to_owned())
}

/// Every rule at every place of every document, as many as are asked for, spread over all of them.
fn by_rule(count: usize) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (number, sound) in SOUND.iter().enumerate() {
        for (what, from, to) in RULES {
            for (at, _) in sound.match_indices(from) {
                let broken = format!("{}{to}{}", &sound[..at], &sound[at + from.len()..]);
                all.push((format!("document {number}, byte {at}: {what}"), broken));
            }
        }
        // Cut off in the middle of something.
        for at in (40..sound.len()).step_by(97).filter(|at| sound.is_char_boundary(*at)) {
            let cut = &sound[..at];
            if cut.trim_end().ends_with(['{', ':', ',', '[', '"', '\'']) {
                all.push((format!("document {number}: cut off at byte {at}"), cut.to_owned()));
            }
        }
    }
    let step = (all.len() / count.max(1)).max(1);
    all.into_iter().step_by(step).take(count).collect()
}

/// One step that cannot be, with its id before it.
const STEPS: &[(&str, &str)] = &[
    ("a number that does not fit", "type: vars.set, values: { x: 123456789012345678901234567890 }"),
    ("not a number", "type: vars.set, values: { x: .nan }"),
    ("a call of nothing", "type: action.call"),
    ("an if without a condition", "type: control.if, then: []"),
    ("an if without steps", "type: control.if, condition: true, then: []"),
    ("a loop over nothing", "type: control.forEach, body: [{ type: control.break }]"),
    ("a loop without a body", "type: control.forEach, items: []"),
    ("a loop of no items at once", "type: control.forEach, items: [], parallel: 0, body: [{ type: log }]"),
    ("a break outside", "type: control.break"),
    ("a continue outside", "type: control.continue"),
    ("a try without a catch", "type: control.try, body: [{ type: control.return }]"),
    ("branches that are text", "type: control.parallel, branches: both"),
    ("no branches", "type: control.parallel, branches: []"),
    ("a branch without steps", "type: control.parallel, branches: [[]]"),
    ("a sleep of no time", "type: wait.sleep, for: 0s"),
    ("a sleep of nothing", "type: wait.sleep"),
    ("a sleep until never", "type: wait.sleep, until: never"),
    ("a sleep both ways", "type: wait.sleep, for: 1s, until: '2030-01-01T00:00:00Z'"),
    ("a wait for nothing", "type: wait.signal"),
    ("an event of no name", "type: wait.event"),
    ("half a correlation", "type: wait.event, eventName: X, correlation: { event: event.id }"),
    ("a form that is none", "type: human.task, form: { type: objekt }"),
    ("a workflow of no name", "type: workflow.call"),
    ("nothing to set", "type: vars.set, values: {}"),
    ("a path that is none", "type: vars.set, values: { 'a..b': 1 }"),
    ("a retry without attempts", "type: action.call, action: x, retry: { delay: 1s }"),
    ("a retry that is text", "type: action.call, action: x, retry: often"),
    ("a backoff that is none", "type: action.call, action: x, retry: { attempts: 1, backoff: slow }"),
    ("an error that does what", "type: action.call, action: x, onError: explode"),
    ("a timeout of a return", "type: control.return, timeout: 1s"),
    ("a result of nothing", "type: control.return, saveAs: x"),
    ("an onTimeout without a timeout", "type: wait.signal, signal: X, onTimeout: []"),
    (
        "an item that is called payload",
        "type: control.forEach, items: [], itemVar: payload, body: [{ type: log }]",
    ),
    ("a secret of no name", "type: action.call, action: x, input: { y: { $secret: 5 } }"),
    ("a secret and more", "type: action.call, action: x, input: { $secret: A, b: 1 }"),
];

/// A whole document that cannot be.
const DOCUMENTS: &[(&str, &str)] = &[
    ("nothing", ""),
    ("only a comment", "# nothing\n"),
    ("text", "hello"),
    ("a number", "42"),
    ("a list", "- 1\n- 2\n"),
    ("no steps", "metadata: { name: x }\n"),
    ("no spec", "apiVersion: stepwell/v1\nkind: Workflow\nmetadata: { name: x }\n"),
    ("steps and places", "steps: []\nplaces: {}\n"),
    ("a step that is text", "steps: [hello]\n"),
    ("a step that is nothing", "steps: [~]\n"),
    ("a field twice", "steps: []\nsteps: []\n"),
    ("a tag", "steps: !!map {}\n"),
    ("an anchor that is not there", "steps: *nobody\n"),
    ("an alias inside itself", "steps: &a [*a]\n"),
    ("a merge key", "base: &b { id: x }\nsteps: [{ <<: *b }]\n"),
    ("a number for a key", "1: x\nsteps: []\n"),
    ("two documents", "steps: []\n---\nsteps: []\n"),
    ("bytes that are no text", "steps: [\u{0}]\n"),
    ("an id of `end`", "steps: [{ id: end, type: control.return }]\n"),
    ("an id with a point", "steps: [{ id: a.b, type: control.return }]\n"),
    (
        "an id twice",
        "steps: [{ id: a, type: vars.set, values: { x: 1 } }, { id: a, type: control.return }]\n",
    ),
    ("steps after a return", "steps: [{ id: a, type: control.return }, { id: b, type: control.return }]\n"),
    ("a trigger of no type", "trigger: {}\nsteps: [{ type: control.return }]\n"),
    ("a trigger of another type", "trigger: { type: moon }\nsteps: [{ type: control.return }]\n"),
    ("a schedule without a time", "trigger: { type: schedule }\nsteps: [{ type: control.return }]\n"),
    ("a place that is none", "places: { a: { kind: stp } }\ninitial: a\n"),
    ("places without an end", "places: { a: { kind: step } }\ninitial: a\ntransitions: []\n"),
    (
        "two branches that write the same",
        "steps:\n  - id: p\n    type: control.parallel\n    branches:\n      - [{ id: a, type: vars.set, values: { x: 1 } }]\n      - [{ id: b, type: vars.set, values: { x: 2 } }]\n",
    ),
    (
        "a break out of a fork",
        "steps:\n  - id: l\n    type: control.forEach\n    items: [1]\n    body:\n      - id: p\n        type: control.parallel\n        branches: [[{ type: control.break }]]\n",
    ),
];

fn by_hand() -> Vec<(String, String)> {
    let step = |body: &str| format!("steps:\n  - {{ id: a, {body} }}\n");
    let mut documents: Vec<_> = DOCUMENTS.iter().map(|(what, text)| (*what, (*text).to_owned())).collect();
    documents.extend(STEPS.iter().map(|(what, body)| (*what, step(body))));
    let expression =
        |source: String| step(&format!("type: vars.set, values: {{ x: {{ $expr: '{source}' }} }}"));
    let nested = |depth: usize| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
    let blocks = (0..3_000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    documents.extend([
        ("very deep", format!("steps: {}{}\n", "[".repeat(5_000), "]".repeat(5_000))),
        ("very deep blocks", blocks),
        ("very long", format!("steps: [{}]\n", "x".repeat(2 * 1024 * 1024))),
        ("a bomb of aliases", bomb()),
        ("a long expression", expression(format!("{}1", "1 + ".repeat(3_000)))),
        ("a deep expression", expression(nested(500))),
    ]);
    documents.into_iter().map(|(what, text)| (what.to_owned(), text)).collect()
}

/// Each list holds the one before it ten times.
fn bomb() -> String {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let inner = format!("*a{}", level - 1);
        text.push_str(&format!("a{level}: &a{level} [{}]\n", vec![inner; 10].join(", ")));
    }
    text
}
