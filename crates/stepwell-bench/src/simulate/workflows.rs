//! The simulated workflows as an author writes them. `model` describes their allowed moves independently.

use std::sync::OnceLock;

use serde_json::Value;
use stepwell_core::retry::{Backoff, Retry};
use stepwell_core::spec::{ActionSpec, ChildRule, Join, Place, Quorum, Transition, Wait};
use stepwell_core::{Definition, Spec};

/// Returns all simulated workflows.
pub(crate) fn all() -> &'static [Definition] {
    static ALL: OnceLock<Vec<Definition>> = OnceLock::new();
    ALL.get_or_init(|| {
        let specs =
            [chain(), flaky(), mended(), gate(), both(), race(), inbox(), parent(), child(), napper(), nap()];
        let built = specs.into_iter().map(Spec::build).collect::<Result<_, _>>();
        built.expect("the simulated workflows are correct")
    })
}

/// Returns a transition whose action saves its output in the context field named after the transition.
fn acts(id: &str, from: &str, to: &str, action: &str) -> Transition {
    let action =
        ActionSpec { name: action.into(), input: Value::Null, save_as: Some(id.to_owned()), version: None };
    Transition::new(id, from, to).action_with(action)
}

/// Steps in a row, one of which increments a counter; the last one signals another run.
fn chain() -> Spec {
    Spec::new("chain")
        .step("s0")
        .step("s1")
        .step("s2")
        .step("s3")
        .end("done")
        .transition(acts("first", "s0", "s1", "work"))
        .transition(acts("second", "s1", "s2", "count"))
        .auto("pass", "s2", "s3")
        .transition(acts("last", "s3", "done", "tell"))
}

/// An action that sometimes fails, is retried with growing pauses, and finally leads to another place.
fn flaky() -> Spec {
    let retry = Retry {
        attempts: 3,
        delay_ms: 200,
        max_delay_ms: 500,
        place: Some("handled".into()),
        ..Retry::default()
    };
    Spec::new("flaky")
        .step("trying")
        .step("handled")
        .end("done")
        .end("repaired")
        .transition(acts("try", "trying", "done", "flaky").retry(retry).timeout_ms(1_500))
        .transition(acts("repair", "handled", "repaired", "count"))
}

/// An action that fails without automatic retries: a client retries it.
fn mended() -> Spec {
    Spec::new("mended")
        .step("broken")
        .step("whole")
        .end("done")
        .transition(acts("mend", "broken", "whole", "fragile"))
        .transition(acts("finish", "whole", "done", "count"))
}

/// A wait for an answer with a timeout.
fn gate() -> Spec {
    Spec::new("gate")
        .step("asking")
        .wait("answer", "GO")
        .end("done")
        .end("late")
        .signal("GO")
        .transition(acts("ask", "asking", "answer", "work"))
        .transition(acts("go", "answer", "done", "count"))
        .transition(acts("give-up", "answer", "late", "work").after_ms(3_000))
}

/// Two branches, both required; one of them waits for a signal with a timeout.
fn both() -> Spec {
    Spec::new("both")
        .step("begin")
        .fork("split", ["l0", "r0"])
        .step("l0")
        .step("l1")
        .wait("r0", "NOTE")
        .step("r1")
        .join("meet", Quorum::All, ["l1", "r1"])
        .end("done")
        .signal("NOTE")
        .auto("start", "begin", "split")
        .transition(acts("left1", "l0", "l1", "work"))
        .transition(acts("left2", "l1", "meet", "count"))
        .transition(acts("noted", "r0", "r1", "work"))
        .transition(Transition::new("unnoted", "r0", "r1").after_ms(4_000))
        .transition(acts("right2", "r1", "meet", "count"))
        .transition(acts("last", "meet", "done", "work"))
}

/// Two branches, of which the first to finish cancels the other.
fn race() -> Spec {
    let of = vec!["x".into(), "y".into()];
    Spec::new("race")
        .fork("split", ["x", "y"])
        .step("x")
        .step("y")
        .place("first", Place::Join(Join { of, quorum: Quorum::Any, cancel_rest: true, ..Join::default() }))
        .end("done")
        .transition(acts("run-x", "x", "first", "count"))
        .transition(acts("run-y", "y", "first", "count"))
        .transition(acts("won", "first", "done", "work"))
}

/// Applies signals one after the other until it is closed.
fn inbox() -> Spec {
    let retry = Retry { attempts: 60, delay_ms: 80, backoff: Backoff::Fixed, ..Retry::default() };
    Spec::new("inbox")
        .step("open")
        .end("done")
        .signal("ADD")
        .signal("CLOSE")
        .transition(acts("add", "open", "open", "add").on_signal("ADD").retry(retry))
        .on_signal("close", "open", "CLOSE", "done")
}

/// Starts children and waits for all of them.
fn parent() -> Spec {
    let kids = Wait { children: Some(ChildRule::All), error_place: Some("bereft".into()), ..Wait::default() };
    Spec::new("parent")
        .step("begin")
        .place("kids", Place::Wait(kids))
        .step("bereft")
        .end("done")
        .end("sad")
        .transition(acts("spawn", "begin", "kids", "spawn"))
        .transition(acts("gather", "kids", "done", "count"))
        .transition(acts("mourn", "bereft", "sad", "work"))
}

/// A child that may fail permanently.
fn child() -> Spec {
    Spec::new("child")
        .step("c0")
        .step("c1")
        .end_with("done", serde_json::json!({"number": {"$expr": "number"}}))
        .transition(acts("one", "c0", "c1", "work"))
        .transition(acts("two", "c1", "done", "doomed"))
}

/// A child that sleeps for longer than the simulation lasts.
fn napper() -> Spec {
    Spec::new("napper")
        .step("asleep")
        .end("awake")
        .transition(Transition::new("wake", "asleep", "awake").after_ms(10_000_000))
}

/// Two timers in a row.
fn nap() -> Spec {
    Spec::new("nap")
        .step("asleep")
        .step("dozing")
        .end("awake")
        .transition(Transition::new("stir", "asleep", "dozing").after_ms(1_200))
        .transition(acts("rise", "dozing", "awake", "count").after_ms(700))
}
