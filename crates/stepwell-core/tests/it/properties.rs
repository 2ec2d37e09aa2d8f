//! Properties of random runs of random workflows: a change is one valid version, any other decision changes nothing,
//! and a saved run decides like one that was never saved.

use proptest::collection::{btree_map, vec};
use proptest::prelude::{
    Just, Strategy, any, prop_assert, prop_assert_eq, prop_assume, prop_oneof, proptest,
};
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestRunner};
use serde_json::{Value, json};
use stepwell_core::graph::{Graph, open_waits};
use stepwell_core::patch::Patch;
use stepwell_core::snapshot::{ActivationId, ChildEnd};
use stepwell_core::{
    ActionCall, ActionResult, Answers, DecideError, Decision, Definition, Failure, History, Input, Limits,
    Refusal, Rejected, RetryRequest, RunId, Snapshot, Spec, Timestamp, available, dispatch, questions, start,
};

use crate::driver::{at, bytes};
use crate::random::{Happening, Plan, happenings, plan, signal};

/// Bounds the activations, so that branches that split repeatedly do not grow without end.
pub(crate) fn limits() -> Limits {
    Limits { activations: 40, ..Limits::default() }
}

/// A run with the state of its host: the time and the requested action calls.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) definition: Definition,
    pub(crate) snapshot: Snapshot,
    pub(crate) now: Timestamp,
    pub(crate) calls: Vec<ActionCall>,
}

/// Starts a run of the plan at version 0. `None` if the definition or the start is refused.
pub(crate) fn begun(plan: &Plan) -> Option<Run> {
    let definition = plan.spec().build_within(&limits()).ok()?;
    let context = json!({"n": 0, "until": at(30)});
    let created = start(&definition, RunId::nil(), context, at(0)).ok()?;
    Some(Run { definition, snapshot: created.snapshot, now: at(0), calls: Vec::new() })
}

impl Run {
    fn pick(&self, which: usize) -> ActivationId {
        let all = self.snapshot.activations();
        if all.is_empty() { which as u64 } else { all[which % all.len()].id }
    }

    /// Returns the input for a happening in the current state. `None` if only time passes or no call was requested yet.
    pub(crate) fn event(&self, happening: &Happening) -> Option<Input> {
        Some(match happening {
            Happening::Pass(_) => return None,
            Happening::Likely { which, n } => {
                let mut likely = self.likely(*n);
                likely.swap_remove(which % likely.len())
            }
            Happening::Signal { signal: number, payload } => Input::signal(signal(*number), payload.clone()),
            Happening::UnknownSignal => Input::signal("S", Value::Null),
            Happening::Advance => Input::advance(),
            Happening::AdvanceOne(which) => Input::Advanced { activation: Some(self.pick(*which)) },
            Happening::Timer(which) => Input::TimerFired { activation: self.pick(*which) },
            Happening::Done { call, n, children } => done(&self.call(*call)?, *n, *children),
            Happening::Failed { call, retries, is_final } => {
                let failure = Failure { is_final: *is_final, ..Failure::new("broken", "it broke") };
                Input::ActionFailed { call: self.call(*call)?, failure, retries: *retries, first: None }
            }
            Happening::Retry { call, manual } => {
                Input::Retried { retry: RetryRequest::of(&self.call(*call)?), manual: *manual }
            }
            Happening::Move { activation, to } => {
                let places: Vec<_> = self.definition.spec().places.keys().collect();
                let activation = activation.map(|which| self.pick(which));
                Input::Moved { activation, to: places[to % places.len()].clone() }
            }
            Happening::Child { activation, child, how } => {
                let waiting = self.snapshot.activations().iter().filter(|a| a.children.is_some());
                let waiting: Vec<_> = waiting.map(|a| a.id).collect();
                let activation = waiting.get(activation % waiting.len().max(1)).copied().unwrap_or(1);
                let end = match how {
                    0 => ChildEnd::Completed { output: json!(child) },
                    1 => ChildEnd::Failed { error: Failure::new("broken", "it broke") },
                    _ => ChildEnd::Cancelled,
                };
                Input::ChildDone { activation, child: *child, end }
            }
            Happening::Resolve(which) => {
                Input::WaitResolved { activation: self.pick(*which), payload: json!({"n": 1}) }
            }
            Happening::Patch(n) => Input::Patched { patch: Patch::set("n", json!(n)) },
            Happening::Cancel => Input::Cancelled,
        })
    }

    /// Returns inputs that the run is ready for.
    fn likely(&self, n: i64) -> Vec<Input> {
        let mut events = vec![Input::advance()];
        for wait in open_waits(&self.definition, &self.snapshot) {
            let signals = wait.signals.into_iter();
            events.extend(signals.map(|signal| Input::signal(signal, json!({ "n": n }))));
        }
        for activation in self.snapshot.activations() {
            let id = activation.id;
            events.push(Input::Advanced { activation: Some(id) });
            if activation.due().is_some_and(|due| due <= self.now) {
                events.push(Input::TimerFired { activation: id });
            }
            let missing = activation
                .children
                .iter()
                .flat_map(|all| (0..all.total).filter(|child| !all.ended.contains_key(child)));
            let end = ChildEnd::Completed { output: json!(n) };
            events.extend(missing.map(|child| Input::ChildDone { activation: id, child, end: end.clone() }));
            if n % 5 == 0 {
                let failure = Failure::new("broken", "it broke");
                events.push(Input::WaitFailed { activation: id, failure });
            }
            for call in self.calls.iter().filter(|call| call.activation == id) {
                events.push(done(call, n, 2));
                let failure = Failure::new("broken", "it broke");
                events.push(Input::ActionFailed {
                    call: call.clone(),
                    failure,
                    retries: n as u32 % 2,
                    first: None,
                });
                events.push(Input::Retried { retry: RetryRequest::of(call), manual: n % 3 == 0 });
            }
        }
        events
    }

    /// Returns one of the requested calls, mostly the newest, sometimes a stale one.
    fn call(&self, which: usize) -> Option<ActionCall> {
        let newest = self.calls.len().checked_sub(1)?;
        let back = if which.is_multiple_of(4) { which / 4 % self.calls.len() } else { 0 };
        self.calls.get(newest - back).cloned()
    }

    /// Answers exactly the questions that the input raises.
    fn answers(&self, event: &Input) -> Answers {
        let mut answers = Answers::none();
        for question in questions(&self.definition, &self.snapshot, event) {
            let says = !(question.activation + self.snapshot.version()).is_multiple_of(3);
            answers.put(question, says);
        }
        answers
    }

    pub(crate) fn decide(&self, event: &Input) -> Result<Decision, Rejected> {
        dispatch(&self.definition, &self.snapshot, event, &self.answers(event), self.now)
    }

    /// Applies the happenings, but undoes each one that ends the run.
    pub(crate) fn live(&mut self, past: &[Happening]) {
        for happening in past {
            let before = self.clone();
            self.go(happening);
            if self.snapshot.is_terminal() {
                *self = before;
            }
        }
    }

    /// Applies a happening as a host would. Returns the decision, or `None` if there was no input to decide.
    pub(crate) fn go(&mut self, happening: &Happening) -> Option<Result<Decision, Rejected>> {
        if let Happening::Pass(ms) = happening {
            self.now = self.now.plus_ms(*ms);
        }
        let event = self.event(happening)?;
        let decision = self.decide(&event);
        match &decision {
            Ok(Decision::Change(change)) => self.snapshot = change.snapshot.clone(),
            Ok(Decision::Act(call)) => self.calls.push(call.clone()),
            Ok(Decision::Retry { .. } | Decision::Stop(_)) | Err(_) => {}
        }
        Some(decision)
    }
}

fn done(call: &ActionCall, n: i64, children: u32) -> Input {
    let outcome = ActionResult {
        context: Patch::set("n", json!(n)),
        session: Patch::set(format!("slot{n}"), json!(n)),
        output: json!([n]),
        children,
        ..ActionResult::default()
    };
    Input::ActionDone { call: call.clone(), outcome }
}

/// Checks the invariants of every snapshot.
pub(crate) fn check_sound(run: &Run) -> Result<(), TestCaseError> {
    let (definition, snapshot) = (&run.definition, &run.snapshot);
    prop_assert_eq!(snapshot.contradictions(definition), [""; 0]);
    let restored = Snapshot::restore(definition, &bytes(snapshot));
    prop_assert_eq!(restored.as_ref(), Ok(snapshot));
    let drawn = Graph::with_status(definition, snapshot);
    let activations: usize = drawn.nodes.iter().filter_map(|node| node.activations).sum();
    prop_assert_eq!(activations, snapshot.activations().len());
    prop_assert!(open_waits(definition, snapshot).len() <= activations);
    let answers = Answers::none().with("lucky", true);
    prop_assert!(available(definition, snapshot, &answers, run.now).is_ok());
    Ok(())
}

/// Checks the invariants of every decision.
pub(crate) fn check_decision(
    before: &Run,
    event: &Input,
    decision: &Result<Decision, Rejected>,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(&before.decide(event), decision, "the same input gives the same decision");
    if before.snapshot.is_terminal() {
        prop_assert_eq!(decision, &Err(Rejected::Refused(Refusal::Terminal)));
    }
    match decision {
        Ok(Decision::Change(change)) => {
            prop_assert_eq!(change.snapshot.version(), before.snapshot.version() + 1);
            prop_assert_eq!(change.entry.version, change.snapshot.version());
            prop_assert!(change.snapshot.updated_at() >= before.snapshot.updated_at());
            for ended in &change.ended {
                prop_assert!(change.snapshot.activation(*ended).is_none(), "{} was ended", ended);
            }
            let newest = before.snapshot.activations().iter().map(|a| a.id).max().unwrap_or(0);
            for activation in change.snapshot.activations() {
                let known = before.snapshot.activation(activation.id);
                prop_assert!(known.is_some() || activation.id > newest, "{} is used again", activation.id);
                prop_assert!(known.is_none_or(|known| known.place == activation.place));
            }
        }
        Ok(Decision::Act(call)) => {
            let activation = before.snapshot.activation(call.activation);
            prop_assert!(activation.is_some(), "an action is requested for an existing activation");
        }
        Ok(Decision::Retry { at, .. }) => prop_assert!(*at >= before.now),
        Ok(Decision::Stop(_)) | Err(Rejected::Refused(_)) => {}
        Err(Rejected::Undecidable(error)) => {
            prop_assert!(matches!(error, DecideError::Limit(_)), "{error}");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_change_is_exactly_one_valid_version(
        plan in plan(),
        happenings in happenings(),
    ) {
        let run = begun(&plan);
        prop_assume!(run.is_some());
        let mut run = run.expect("assumed");
        check_sound(&run)?;
        let mut history = History::new(run.snapshot.clone());
        let mut states = vec![run.snapshot.clone()];
        for happening in &happenings {
            let before = run.clone();
            let Some(decision) = run.go(happening) else { continue };
            let event = before.event(happening).expect("it was decided");
            check_decision(&before, &event, &decision)?;
            match decision {
                Ok(Decision::Change(change)) => {
                    check_sound(&run)?;
                    prop_assert_eq!(history.push(change.entry, &run.snapshot), Ok(()));
                    states.push(run.snapshot.clone());
                }
                _ => prop_assert_eq!(bytes(&run.snapshot), bytes(&before.snapshot)),
            }
        }
        for (version, state) in states.iter().enumerate() {
            prop_assert_eq!(&history.rewind(version as u64), &Ok(state.clone()));
        }
    }

    #[test]
    fn saved_run_decides_like_one_never_saved(
        plan in plan(),
        past in happenings(),
        future in happenings(),
    ) {
        let run = begun(&plan);
        prop_assume!(run.is_some());
        let mut run = run.expect("assumed");
        for happening in past.iter().filter(|happening| !matches!(happening, Happening::Cancel)) {
            run.go(happening);
        }
        let mut saved = run.clone();
        saved.definition = Definition::from_canonical_within(&run.definition.canonical(), &limits())
            .expect("it was built before");
        for happening in &future {
            saved.snapshot = Snapshot::restore(&saved.definition, &bytes(&saved.snapshot))
                .map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(run.go(happening), saved.go(happening));
            prop_assert_eq!(bytes(&run.snapshot), bytes(&saved.snapshot));
        }
    }

    #[test]
    fn ended_run_refuses_every_input(plan in plan(), past in happenings(), number in any::<u8>()) {
        let run = begun(&plan);
        prop_assume!(run.is_some());
        let mut run = run.expect("assumed");
        for happening in past.iter().chain([&Happening::Cancel]) {
            run.go(happening);
        }
        prop_assert!(run.snapshot.is_terminal());
        prop_assert_eq!(run.snapshot.activations(), []);
        let end = ChildEnd::Cancelled;
        let activation = u64::from(number);
        let mut events = vec![
            Input::signal(signal(number % 4), json!({"n": 1})),
            Input::advance(),
            Input::Advanced { activation: Some(activation) },
            Input::TimerFired { activation },
            Input::WaitResolved { activation, payload: Value::Null },
            Input::WaitFailed { activation, failure: Failure::new("broken", "it broke") },
            Input::ChildDone { activation, child: 0, end },
            Input::Patched { patch: Patch::set("n", json!(1)) },
            Input::Moved { activation: None, to: "done".into() },
            Input::Moved { activation: Some(activation), to: "nowhere".into() },
            Input::Cancelled,
        ];
        for call in &run.calls {
            events.push(Input::ActionDone { call: call.clone(), outcome: ActionResult::default() });
            let failure = Failure::new("broken", "it broke");
            events.push(Input::ActionFailed { call: call.clone(), failure, retries: 0, first: None });
            events.push(Input::Retried { retry: RetryRequest::of(call), manual: true });
        }
        for event in events {
            prop_assert_eq!(run.decide(&event), Err(Rejected::Refused(Refusal::Terminal)));
        }
    }
}

fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        proptest::num::f64::NORMAL.prop_map(Value::from),
        "[a-c\"\\\\ü]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Value::from),
            btree_map("[a-c]", inner, 0..3).prop_map(|fields| fields.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn stored_patch_turns_one_value_into_the_other(
        before in document(),
        after in document(),
    ) {
        let patch = Patch::between(&before, &after);
        prop_assert_eq!(patch.is_empty(), before == after);
        for (path, value) in patch.edits() {
            let at = |document: &Value| path.iter().try_fold(document, |at, key| at.get(key)).cloned();
            let (was, is) = (at(&before), at(&after));
            prop_assert_eq!(is.as_ref(), value);
            prop_assert!(was != is);
        }
        let stored = serde_json::to_string(&patch).expect("a patch is plain data");
        let read: Patch = serde_json::from_str(&stored).expect("it was written before");
        prop_assert_eq!(&read, &patch);
        let mut document = before;
        read.apply(&mut document);
        prop_assert_eq!(document, after);
    }

    #[test]
    fn any_context_is_restored_as_saved(fields in btree_map("[a-z]{0,4}", document(), 0..4)) {
        let definition = Spec::new("any").step("a").end("z").auto("az", "a", "z").build();
        let definition = definition.expect("it is sound");
        let context: Value = fields.into_iter().collect();
        let created = start(&definition, RunId::nil(), context, at(0)).expect("any object is a context");
        let restored = Snapshot::restore(&definition, &bytes(&created.snapshot));
        prop_assert_eq!(restored, Ok(created.snapshot));
    }

    #[test]
    fn any_timestamp_round_trips_as_rfc_3339(micros in any::<i64>()) {
        let instant = Timestamp::from_micros(micros);
        let text = instant.to_string();
        prop_assert_eq!(text.parse(), Ok(instant), "{}", text);
        prop_assert!(text.ends_with('Z') && text.as_bytes()[10] == b'T', "{}", text);
    }
}

/// Counts of the outcomes of many random runs.
#[derive(Debug, Default)]
struct Seen {
    plans: u32,
    begun: u32,
    completed: u32,
    changes: u32,
    actions: u32,
    retries: u32,
    stops: u32,
    stopped: u32,
    ended: u32,
    nested: u32,
    absorbed: u32,
    gone_back: u32,
    moved: u32,
    refused: u32,
}

#[test]
fn random_workflows_are_mostly_valid_and_varied() {
    let mut runner = TestRunner::deterministic();
    let mut seen = Seen::default();
    for _ in 0..300 {
        let plan = plan().new_tree(&mut runner).expect("nothing is filtered").current();
        let happenings = happenings().new_tree(&mut runner).expect("nothing is filtered").current();
        seen.plans += 1;
        let Some(mut run) = begun(&plan) else { continue };
        seen.begun += 1;
        for happening in happenings.iter().filter(|happening| !matches!(happening, Happening::Cancel)) {
            match run.go(happening) {
                Some(Ok(Decision::Change(change))) => {
                    seen.changes += 1;
                    seen.stopped += u32::from(change.stopped.is_some());
                    seen.ended += u32::from(!change.ended.is_empty());
                    seen.nested += u32::from(change.snapshot.fork_instances().len() > 1);
                    let moved = !change.entry.transitions.is_empty() && change.entry.entered.is_empty();
                    seen.absorbed += u32::from(moved);
                    seen.gone_back += u32::from(change.entry.action.starts_with("__retry:"));
                    seen.moved += u32::from(change.entry.action == "__operator:move");
                }
                Some(Ok(Decision::Act(_))) => seen.actions += 1,
                Some(Ok(Decision::Retry { .. })) => seen.retries += 1,
                Some(Ok(Decision::Stop(_))) => seen.stops += 1,
                Some(Err(_)) => seen.refused += 1,
                None => {}
            }
        }
        seen.completed += u32::from(run.snapshot.is_terminal());
    }
    assert!(seen.begun * 10 >= seen.plans * 9, "{seen:?}");
    assert!(seen.completed * 10 >= seen.begun, "{seen:?}");
    let rare = [seen.retries, seen.stops, seen.stopped, seen.ended, seen.nested, seen.absorbed];
    assert!(rare.iter().all(|count| *count >= 5), "{seen:?}");
    assert!(seen.gone_back >= 5 && seen.moved >= 20, "{seen:?}");
    assert!(seen.changes >= 1_000 && seen.actions >= 100 && seen.refused >= 1_000, "{seen:?}");
}
