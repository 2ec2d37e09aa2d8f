//! Compiles steps into places and transitions.
//!
//! A step becomes a place with the same name, and the transition that leaves it. Further places and transitions of a
//! step are named after it, with a dot: `order.join`. Steps are compiled from the last to the first, so that each
//! knows its next place. The error handler of a step is known in the same way. It is the innermost of its `onError`,
//! the enclosing `catch`, and the policy of the enclosing loop or fork.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::fields::Report;
use super::model::{Each, Goal, ItemErrors, OnError, Sleep, Span, Step, StepKind, Switch, Wait};
use super::problem::Position;
use crate::codes;
use crate::dispatch::INTERRUPTED;
use crate::heartbeat::HEARTBEAT_TIMEOUT;
use crate::ids::Name;
use crate::retry::{Backoff, Retry};
use crate::schema::Schema;
use crate::spec::{
    self, ActionSpec, Assign, BackoffTimer, Catch, Collect, DeliveryGuarantee, Fork, Guard, Join, Loop,
    LoopStep, Over, Quorum, Raise, Spec, Transition, TransitionTrigger,
};
use crate::template::{CHILD, EVENT};

/// Adds the places and transitions of a list of steps to a spec.
pub(super) fn steps(spec: Spec, steps: &[Step], report: &mut Report) -> Spec {
    let mut compiler = Compiler { spec, scopes: Vec::new(), signals: BTreeMap::new(), report };
    let end = compiler.place(END, spec::Place::End { output: None, error_place: None });
    let initial = compiler.list(steps, &end, &Around::default());
    compiler.spec.initial = Some(initial);
    let mut spec = compiler.spec;
    prune(&mut spec);
    check_end(&spec, steps, report);
    spec
}

/// Reports steps that end the run without the result that `output` requires.
fn check_end(spec: &Spec, steps: &[Step], report: &mut Report) {
    let (Some(output), Some(last)) = (&spec.output, steps.last()) else { return };
    let is_needed = Schema::compile(output).is_ok_and(|schema| !schema.check(&Value::Null).is_empty());
    if !is_needed {
        return;
    }
    if spec.places.contains_key(END) {
        let message = "the run can end after this step without the result that `output` requires: end with `control.return`";
        report.step = Some(last.id.clone());
        report.add("noResult", last.at, message);
    }
    let mut open: Vec<&Step> = steps.iter().collect();
    while let Some(step) = open.pop() {
        if matches!(step.kind, StepKind::Return { value: None }) {
            report.step = Some(step.id.clone());
            report.add("noResult", step.at, "`output` requires a result: set `value`");
        }
        open.extend(step.inner().into_iter().flatten());
    }
    report.step = None;
}

/// Removes unreachable places that no author wrote: the end after a `return`, and a join whose branches never meet.
fn prune(spec: &mut Spec) {
    let mut reached: BTreeSet<Name> = spec.initial.iter().cloned().collect();
    let mut open: Vec<Name> = reached.iter().cloned().collect();
    let mut leaving: BTreeMap<&Name, Vec<&Name>> = BTreeMap::new();
    for transition in &spec.transitions {
        let to = [Some(&transition.to), transition.error_place.as_ref()];
        leaving.entry(&transition.from).or_default().extend(to.into_iter().flatten());
    }
    while let Some(name) = open.pop() {
        let mut next = leaving.get(&name).cloned().unwrap_or_default();
        match spec.places.get(&name) {
            Some(spec::Place::Wait(wait)) => next.extend(&wait.error_place),
            Some(spec::Place::Fork(fork)) => {
                next.extend(&fork.branches);
                next.extend(fork.each.as_ref().and_then(|each| each.error_place.as_ref()));
                // A fork over an empty list has no branches and goes straight to the join.
                let join = format!("{name}.join");
                next.extend(
                    spec.places
                        .get_key_value(join.as_str())
                        .filter(|_| fork.each.is_some())
                        .map(|(join, _)| join),
                );
            }
            Some(spec::Place::Join(join)) => next.extend(&join.error_place),
            Some(spec::Place::Loop(round)) => {
                next.extend([&round.first, &round.then]);
                if let Over::Pages(pages) = &round.over {
                    next.push(&pages.fetch);
                }
                next.extend(&round.error_place);
            }
            Some(spec::Place::Catch(catch)) => next.push(&catch.first),
            Some(spec::Place::End { error_place, .. }) => next.extend(error_place),
            Some(spec::Place::Step {}) | None => {}
        }
        let new: Vec<Name> = next.into_iter().filter(|name| !reached.contains(*name)).cloned().collect();
        reached.extend(new.iter().cloned());
        open.extend(new);
    }
    let is_kept = |name: &Name| reached.contains(name) || !(name.contains('.') || name.as_str() == END);
    spec.places.retain(|name, _| is_kept(name));
    spec.transitions.retain(|transition| is_kept(&transition.from));
    for place in spec.places.values_mut() {
        match place {
            spec::Place::Loop(Loop { body, .. }) | spec::Place::Catch(Catch { body, .. }) => {
                body.retain(is_kept);
            }
            _ => {}
        }
    }
}

/// The end place after the last step. No step can have this id.
pub(super) const END: &str = "end";

/// The surroundings of a step.
#[derive(Debug, Clone, Default)]
pub(super) struct Around {
    /// The place that handles the errors of the step.
    handler: Option<Name>,
    /// The enclosing loop, unless a fork is in between.
    rounds: Option<Name>,
    /// True if there is an enclosing loop, but a fork between the loop and the step.
    is_cut_off: bool,
    /// True if the step writes variables of its branch instead of the run.
    is_local: bool,
}

impl Around {
    fn with_handler(&self, handler: Option<Name>) -> Self {
        Around { handler, ..self.clone() }
    }

    /// Returns the surroundings of a step in a branch of a fork.
    fn in_branch(&self, handler: Option<Name>, is_local: bool) -> Self {
        let is_cut_off = self.is_cut_off || self.rounds.is_some();
        Around { handler, rounds: None, is_cut_off, is_local: self.is_local || is_local }
    }

    fn path(&self, name: &str) -> String {
        if self.is_local { format!("locals.vars.{name}") } else { format!("vars.{name}") }
    }
}

pub(super) struct Compiler<'a> {
    spec: Spec,
    /// The places of the loops and error scopes that are being compiled, innermost last.
    scopes: Vec<Vec<Name>>,
    /// Signals declared with a payload, and the position of the step that declared each.
    signals: BTreeMap<String, (Position, Option<Value>)>,
    report: &'a mut Report,
}

impl Compiler<'_> {
    fn place(&mut self, name: impl Into<Name>, place: spec::Place) -> Name {
        let name = name.into();
        self.scopes.iter_mut().for_each(|scope| scope.push(name.clone()));
        self.spec.places.insert(name.clone(), place);
        name
    }

    fn transition(&mut self, transition: Transition) {
        self.spec.transitions.push(transition);
    }

    /// Runs `compile` and returns the places that it added.
    fn scoped<T>(&mut self, compile: impl FnOnce(&mut Self) -> T) -> (T, Vec<Name>) {
        self.scopes.push(Vec::new());
        let compiled = compile(self);
        (compiled, self.scopes.pop().unwrap_or_default())
    }

    /// Compiles a list of steps and returns its first place.
    fn list(&mut self, steps: &[Step], next: &Name, around: &Around) -> Name {
        let mut next = next.clone();
        for (index, step) in steps.iter().enumerate().rev() {
            let leads_on = step.condition.is_some()
                || !step.is_instant()
                || matches!(step.kind, StepKind::Set { .. })
                || !matches!(step.on_error, OnError::Fail);
            if let (false, Some(after)) = (leads_on, steps.get(index + 1)) {
                self.report.step = Some(after.id.clone());
                let message = format!("unreachable: the step `{}` before it always leads elsewhere", step.id);
                self.report.add("unreachable", after.at, message);
            }
            self.report.step = Some(step.id.clone());
            next = self.step(step, &next, around);
        }
        next
    }

    fn step(&mut self, step: &Step, next: &Name, around: &Around) -> Name {
        let handler = self.handler(step, next, around);
        let around = around.with_handler(handler);
        let is_call = matches!(step.kind, StepKind::Call { .. });
        let entry = match step.retry.as_ref().filter(|retry| retry.attempts > 0 && !is_call) {
            Some(retry) => self.compile_retries(step, retry, next, &around),
            None => self.compile_timeout(step, next, &around),
        };
        let Some(condition) = &step.condition else { return entry };
        let gate = self.place(format!("{}.when", step.id), spec::Place::Step {});
        let id = |word: &str| format!("{}.{word}", step.id);
        self.transition(Transition {
            guard: guard(condition),
            ..self.way(id("when"), &gate, &entry, &around)
        });
        self.transition(self.way(id("skip"), &gate, next, &around).priority(-1));
        gate
    }

    /// Creates a transition with the error handler of the step.
    fn way(&self, id: impl Into<Name>, from: &Name, to: &Name, around: &Around) -> Transition {
        let error_place = around.handler.clone();
        Transition { error_place, ..Transition::new(id, from.clone(), to.clone()) }
    }

    /// Compiles the error handling of a step and returns the place that handles its errors.
    fn handler(&mut self, step: &Step, next: &Name, around: &Around) -> Option<Name> {
        let steps = match &step.on_error {
            OnError::Fail => return around.handler.clone(),
            OnError::Steps(steps) if !steps.is_empty() => Some(steps),
            OnError::Continue | OnError::Steps(_) => None,
        };
        let (first, body) = self.scoped(|compiler| match steps {
            Some(steps) => {
                let first = compiler.list(steps, next, around);
                compiler.first_place_inside(format!("{}.error-out", step.id), first, around)
            }
            None => compiler.continue_after_error(step, next, around),
        });
        let catch = Catch { local: "error".to_owned(), first, body };
        Some(self.place(format!("{}.error", step.id), spec::Place::Catch(catch)))
    }

    /// Returns the first place of a loop or error scope, which must be inside it. If its first step leads outside,
    /// adds a place that only leads there.
    fn first_place_inside(&mut self, id: String, first: Name, around: &Around) -> Name {
        if self.scopes.last().is_some_and(|own| own.contains(&first)) {
            return first;
        }
        let here = self.place(id, spec::Place::Step {});
        self.transition(self.way(here.clone(), &here, &first, around));
        here
    }

    /// Continues the run after an error. The error is saved in place of the result.
    fn continue_after_error(&mut self, step: &Step, next: &Name, around: &Around) -> Name {
        let failed = self.place(format!("{}.failed", step.id), spec::Place::Step {});
        let mut way = self.way(format!("{}.failed", step.id), &failed, next, around);
        if let Some(name) = step.result_name() {
            way = way.set(around.path(name), json!({ "error": { "$expr": "error" } }));
        }
        self.transition(way);
        failed
    }

    /// Compiles the retries of a step, with the number of attempts and the delays of its policy.
    fn compile_retries(&mut self, step: &Step, retry: &Retry, next: &Name, around: &Around) -> Name {
        let id = |word: &str| format!("{}.{word}", step.id);
        let tries = format!("attempts.`{}`", step.id);
        let counter = format!("locals.attempts.{}", step.id);
        let retry_place = Name::from(id("retry"));
        let inner = Around { handler: Some(retry_place.clone()), ..around.clone() };
        let entry = self.compile_timeout(step, next, &inner);
        let (again, body) = self.scoped(|compiler| compiler.place(id("again"), spec::Place::Step {}));
        let catch = Catch { local: "error".to_owned(), first: again.clone(), body };
        self.place(retry_place, spec::Place::Catch(catch));
        let mut holds = format!("{tries} < {} and error.final != true", retry.attempts);
        if let Some(listed) = &retry.retry_on {
            holds = format!("{holds} and {}", codes::condition("error", listed));
            if let Some(statuses) = codes::status_condition("error", listed) {
                holds = format!("({holds}) or ({tries} < {} and {statuses})", retry.attempts);
            }
        } else if step.has_call_at_most_once() {
            holds = format!("{holds} and error.code != \"{INTERRUPTED}\"");
        }
        let begun = retry.budget_ms.map(|_| format!("attempts.`__{}`", step.id));
        let pause = match retry.backoff {
            _ if retry.needs_timer() => {
                let (retry, tries) = (retry.clone(), tries.clone());
                TransitionTrigger::Backoff(Box::new(BackoffTimer { retry, tries, since: begun.clone() }))
            }
            _ if retry.delay_ms == 0 => TransitionTrigger::Auto,
            Backoff::Fixed => TransitionTrigger::AfterMs(retry.delay_ms.min(retry.max_delay_ms).max(1)),
            Backoff::Exponential => {
                let (delay, most) = (retry.delay_ms, retry.max_delay_ms);
                // The number of doublings is capped where the maximum delay is reached, because more would overflow.
                let doublings = (0..63)
                    .find(|k| retry.delay_ms.saturating_mul(1 << k) >= retry.max_delay_ms)
                    .unwrap_or(0);
                TransitionTrigger::After(format!(
                    "$string($min([{most}, {delay} * $power(2, $min([{doublings}, {tries}]))])) & \"ms\""
                ))
            }
        };
        let more = json!({ "$expr": format!("{tries} + 1") });
        let mut way = self.way(id("again"), &again, &entry, around).on(pause).when(holds.clone());
        if begun.is_some() {
            way.error_place = Some(self.handler_or_rethrow(around.handler.clone(), step, next));
        }
        self.transition(way.set(counter.clone(), more));
        let spent =
            self.way(id("spent"), &again, next, around).guard(Guard::Not(Box::new(Guard::Expr(holds))));
        self.transition(Transition { fail: Some(rethrow("error")), ..spent });
        let begin = self.place(id("try"), spec::Place::Step {});
        let mut way = self.way(id("try"), &begin, &entry, around).set(counter, json!(0));
        if begun.is_some() {
            way = way.set(format!("locals.attempts.__{}", step.id), json!({ "$expr": "$millis()" }));
        }
        self.transition(way);
        begin
    }

    /// Compiles a step with a timeout as a race against a timer, if the transitions of the step cannot implement the
    /// timeout themselves.
    fn compile_timeout(&mut self, step: &Step, next: &Name, around: &Around) -> Name {
        let keeps_time = match &step.kind {
            StepKind::Call { .. } | StepKind::Wait(_) => true,
            // A timeout that cannot be evaluated must be an error before the other workflow is started.
            StepKind::Workflow { .. } => matches!(step.timeout, Some(Span::Ms(_))),
            _ => false,
        };
        let timeout = match &step.timeout {
            Some(timeout) if !keeps_time && !step.is_instant() => timeout,
            _ => return self.plain(step, next, around),
        };
        let id = |word: &str| format!("{}.{word}", step.id);
        let done = Name::from(id("done"));
        let handler = around.handler.as_ref().map(|_| done.clone());
        let entry = self.plain(step, &done, &around.in_branch(handler, false));
        let clock = self.place(id("clock"), spec::Place::Step {});
        let ring = Transition {
            error_place: Some(done.clone()),
            ..Transition::new(id("clock"), clock.clone(), done.clone())
        };
        self.transition(Transition { fail: Some(too_late(&step.id)), ..ring.on(after(timeout)) });
        let error_place = match &around.handler {
            Some(handler) => handler.clone(),
            None => {
                let late = self.place(id("late"), spec::Place::Step {});
                let way = Transition::new(id("late"), late.clone(), next.clone());
                self.transition(Transition { fail: Some(rethrow("error")), ..way });
                late
            }
        };
        let join = Join {
            quorum: Quorum::Any,
            cancel_rest: true,
            error_place: Some(error_place),
            ..Join::default()
        };
        let done = self.place(done, spec::Place::Join(join));
        self.transition(self.way(id("done"), &done, next, around));
        let branches = vec![entry, clock];
        self.place(id("race"), spec::Place::Fork(Fork { branches, each: None }))
    }

    fn plain(&mut self, step: &Step, next: &Name, around: &Around) -> Name {
        match &step.kind {
            StepKind::Call { action, version, input, delivery } => {
                self.call(step, (action, version, *delivery), input, next, around)
            }
            StepKind::If { condition, then, otherwise } => {
                self.either(step, condition, (then, otherwise), next, around)
            }
            StepKind::Switch(switch) => self.switch(step, switch, next, around),
            StepKind::Each(each) if each.parallel.is_some() => self.each_at_once(step, each, next, around),
            StepKind::Each(each) => {
                let over = Items::Each(each);
                let settled = each.errors == ItemErrors::Collect;
                let collect = collect(step, &each.result, settled, around);
                let passes_over = each.errors != ItemErrors::Fail;
                let rounds = Rounds { over, index: &each.index, most: each.most, collect, passes_over };
                self.rounds(step, rounds, &each.body, next, around)
            }
            StepKind::While { condition, index, most, result, body } => {
                let (over, collect) = (Items::While(condition), collect(step, result, false, around));
                let rounds = Rounds { over, index, most: *most, collect, passes_over: false };
                self.rounds(step, rounds, body, next, around)
            }
            // `break` leads to its loop and not past it: the loop saves the results of the rounds so far.
            StepKind::Break => self.back_to_loop(step, Some(LoopStep::Leave), next, around),
            StepKind::Continue => self.back_to_loop(step, None, next, around),
            StepKind::Try { body, local, codes, catch } => {
                self.try_catch(step, (body, local, codes.as_deref(), catch), next, around)
            }
            StepKind::Parallel { branches, settled, goal } => {
                self.parallel(step, branches, (*settled, *goal), next, around)
            }
            StepKind::Return { value } => {
                let error_place = around.handler.clone().filter(|_| value.is_some());
                self.place(step.id.as_str(), spec::Place::End { output: value.clone(), error_place })
            }
            StepKind::Fail { code, message, is_final, errors } => {
                let here = self.place(step.id.as_str(), spec::Place::Step {});
                let (code, message, errors) = (code.clone(), message.clone(), errors.clone());
                let fail = Raise::New { code, message, is_final: *is_final, errors };
                self.transition(Transition {
                    fail: Some(fail),
                    ..self.way(step.id.as_str(), &here, next, around)
                });
                here
            }
            StepKind::Set { values } => {
                let here = self.place(step.id.as_str(), spec::Place::Step {});
                let assign =
                    |(name, value): &(String, Value)| Assign { to: around.path(name), value: value.clone() };
                let set = values.iter().map(assign).collect();
                self.transition(Transition { set, ..self.way(step.id.as_str(), &here, next, around) });
                here
            }
            StepKind::Sleep(sleep) => {
                let here = self.place(step.id.as_str(), spec::Place::Step {});
                let on = match sleep {
                    Sleep::For(span) => after(span),
                    Sleep::Until(expr) => TransitionTrigger::Until(expr.clone()),
                };
                self.transition(self.way(step.id.as_str(), &here, next, around).on(on));
                here
            }
            StepKind::Wait(wait) => self.wait(step, wait, next, around),
            StepKind::Workflow { workflow, input } => self.workflow(step, workflow, input, next, around),
        }
    }

    fn either(
        &mut self,
        step: &Step,
        condition: &str,
        (then, otherwise): (&[Step], &[Step]),
        next: &Name,
        around: &Around,
    ) -> Name {
        let then = self.list(then, next, around);
        let otherwise = self.list(otherwise, next, around);
        let here = self.place(step.id.as_str(), spec::Place::Step {});
        let way = self.way(format!("{}.then", step.id), &here, &then, around);
        self.transition(Transition { guard: guard(condition), ..way });
        self.transition(self.way(format!("{}.else", step.id), &here, &otherwise, around).priority(-1));
        here
    }

    fn switch(&mut self, step: &Step, switch: &Switch, next: &Name, around: &Around) -> Name {
        let default = self.list(&switch.default, next, around);
        let cases: Vec<_> = switch.cases.iter().map(|case| self.list(&case.steps, next, around)).collect();
        self.report.step = Some(step.id.clone());
        let here = self.place(step.id.as_str(), spec::Place::Step {});
        for (number, (case, first)) in switch.cases.iter().zip(cases).enumerate() {
            let way = self.way(format!("{}.case{}", step.id, number + 1), &here, &first, around);
            self.transition(Transition { guard: guard(&case.condition), ..way });
        }
        self.transition(self.way(format!("{}.default", step.id), &here, &default, around).priority(-1));
        here
    }

    pub(super) fn call(
        &mut self,
        step: &Step,
        (action, version, delivery): (&str, &Option<u32>, DeliveryGuarantee),
        input: &Value,
        next: &Name,
        around: &Around,
    ) -> Name {
        let here = self.place(step.id.as_str(), spec::Place::Step {});
        let save_as = step.result_name().map(|name| around.path(name));
        let mut way = self.way(step.id.as_str(), &here, next, around);
        way.action =
            Some(ActionSpec { name: action.into(), input: input.clone(), save_as, version: *version });
        way.retry.clone_from(&step.retry);
        way.delivery = delivery;
        match &step.timeout {
            Some(Span::Ms(ms)) => way.timeout_ms = Some(*ms),
            Some(Span::Expr(_)) => {
                self.report.add(
                    "type",
                    step.at,
                    "`timeout` of a call must be a fixed duration, not an expression",
                );
            }
            None => {}
        }
        self.transition(way);
        here
    }

    fn rounds(
        &mut self,
        step: &Step,
        rounds: Rounds<'_>,
        body: &[Step],
        next: &Name,
        around: &Around,
    ) -> Name {
        let here = Name::from(step.id.as_str());
        let handler = if rounds.passes_over { Some(here.clone()) } else { around.handler.clone() };
        let inner =
            Around { handler, rounds: Some(here.clone()), is_cut_off: false, is_local: around.is_local };
        let ((first, over), body) = self.scoped(|compiler| {
            let first = compiler.list(body, &here, &inner);
            let first = compiler.first_place_inside(format!("{}.out", step.id), first, &inner);
            let over = match rounds.over {
                Items::While(condition) => Over::While(condition.to_owned()),
                Items::Each(each) => match &each.pages {
                    // A page that cannot be fetched is an error of the loop, not of an item.
                    Some(pages) => compiler.pages(step, each, pages, around),
                    None => Over::Items { list: each.items.clone(), item: each.item.clone() },
                },
            };
            (first, over)
        });
        let place = Loop {
            over,
            index: rounds.index.clone(),
            first,
            body,
            then: next.clone(),
            most: rounds.most,
            collect: rounds.collect,
            error_place: around.handler.clone(),
        };
        self.place(here, spec::Place::Loop(place))
    }

    fn each_at_once(&mut self, step: &Step, each: &Each, next: &Name, around: &Around) -> Name {
        let join = Name::from(format!("{}.join", step.id));
        let handler = match each.errors {
            _ if each.goal.is_some() => Some(join.clone()),
            ItemErrors::Fail => around.handler.as_ref().map(|_| join.clone()),
            ItemErrors::Continue | ItemErrors::Collect => Some(join.clone()),
        };
        let first = self.list(&each.body, &join, &around.in_branch(handler, true));
        let collect = collect(step, &each.result, each.errors == ItemErrors::Collect, around);
        let ignore_failures = each.errors == ItemErrors::Continue;
        let place = Join { collect, ignore_failures, error_place: around.handler.clone(), ..Join::default() };
        let place = self.with_goal(place, each.goal, step, next);
        self.place(join.clone(), spec::Place::Join(place));
        self.transition(self.way(join.clone(), &join, next, around));
        let over = spec::Each {
            items: each.items.clone(),
            item: each.item.clone(),
            index: each.index.clone(),
            limit: each.parallel.filter(|limit| *limit < u32::MAX),
            most: each.most,
            error_place: around.handler.clone(),
        };
        let fork = Fork { branches: vec![first], each: Some(over) };
        self.place(step.id.as_str(), spec::Place::Fork(fork))
    }

    fn parallel(
        &mut self,
        step: &Step,
        branches: &[Vec<Step>],
        (settled, goal): (bool, Option<Goal>),
        next: &Name,
        around: &Around,
    ) -> Name {
        self.check_writes(branches);
        self.report.step = Some(step.id.clone());
        let join = Name::from(format!("{}.join", step.id));
        let settled = settled || goal.is_some();
        let handler =
            if settled { Some(join.clone()) } else { around.handler.as_ref().map(|_| join.clone()) };
        let inner = around.in_branch(handler, false);
        let branches = branches.iter().map(|steps| self.list(steps, &join, &inner)).collect();
        let collect = collect(step, &None, settled, around);
        let place = Join { collect, error_place: around.handler.clone(), ..Join::default() };
        let place = self.with_goal(place, goal, step, next);
        self.place(join.clone(), spec::Place::Join(place));
        self.transition(self.way(join.clone(), &join, next, around));
        self.place(step.id.as_str(), spec::Place::Fork(Fork { branches, each: None }))
    }

    /// Sets the goal of a join. The other branches end as soon as the join fires or fails.
    fn with_goal(&mut self, join: Join, goal: Option<Goal>, step: &Step, next: &Name) -> Join {
        let Some(Goal { quorum, tolerate }) = goal else { return join };
        let error_place = self.handler_or_rethrow(join.error_place.clone(), step, next);
        Join { quorum, tolerate: Some(tolerate), cancel_rest: true, error_place: Some(error_place), ..join }
    }

    /// Returns the place that handles an error, or adds one that raises it again.
    fn handler_or_rethrow(&mut self, handler: Option<Name>, step: &Step, next: &Name) -> Name {
        handler.unwrap_or_else(|| {
            let id = Name::from(format!("{}.unhandled", step.id));
            let here = self.place(id.clone(), spec::Place::Step {});
            let way = Transition::new(id, here.clone(), next.clone());
            self.transition(Transition { fail: Some(rethrow("error")), ..way });
            here
        })
    }

    /// Reports parallel branches that write the same variable, because the last write would be random.
    fn check_writes(&mut self, branches: &[Vec<Step>]) {
        let mut writers: BTreeMap<String, usize> = BTreeMap::new();
        for (index, steps) in branches.iter().enumerate() {
            for (name, step) in written(steps) {
                let first = *writers.entry(name.clone()).or_insert(index);
                if first != index {
                    self.report.step = Some(step.id.clone());
                    let message = format!(
                        "another branch writes `vars.{name}` at the same time: give them different names"
                    );
                    self.report.add("conflict", step.at, message);
                }
            }
        }
    }

    /// Leads back to the enclosing loop, to leave it or to start its next round.
    fn back_to_loop(
        &mut self,
        step: &Step,
        loop_step: Option<LoopStep>,
        next: &Name,
        around: &Around,
    ) -> Name {
        let rounds = self.loop_around(step, next, around);
        let here = self.place(step.id.as_str(), spec::Place::Step {});
        let way = self.way(step.id.as_str(), &here, &rounds, around);
        self.transition(Transition { loop_step, ..way });
        here
    }

    /// Returns the enclosing loop, or reports that there is none.
    fn loop_around(&mut self, step: &Step, next: &Name, around: &Around) -> Name {
        if let Some(rounds) = around.rounds.clone() {
            return rounds;
        }
        let message = match around.is_cut_off {
            true => {
                "a branch cannot leave or continue the loop around its fork: let the branch end, and decide after the fork"
            }
            false => "the step is not inside a loop",
        };
        self.report.add("noLoop", step.at, format!("`{}`: {message}", step.word()));
        next.clone()
    }

    fn try_catch(
        &mut self,
        step: &Step,
        (body, local, codes, catch): (&[Step], &String, Option<&[String]>, &[Step]),
        next: &Name,
        around: &Around,
    ) -> Name {
        let place = Name::from(format!("{}.catch", step.id));
        let (first, inside) = self.scoped(|compiler| {
            let first = if catch.is_empty() { None } else { Some(compiler.list(catch, next, around)) };
            compiler.report.step = Some(step.id.clone());
            match (first, codes) {
                (Some(first), None) => {
                    compiler.first_place_inside(format!("{}.catch-out", step.id), first, around)
                }
                (None, None) => compiler.caught(step, next, around),
                (first, Some(codes)) => {
                    let first = first.unwrap_or_else(|| next.clone());
                    compiler.matched(step, local, codes, &first, around)
                }
            }
        });
        let catch = Catch { local: local.clone(), first, body: inside };
        self.place(place.clone(), spec::Place::Catch(catch));
        self.list(body, next, &around.with_handler(Some(place)))
    }

    /// Catches an error and continues with the next step.
    fn caught(&mut self, step: &Step, next: &Name, around: &Around) -> Name {
        let here = self.place(format!("{}.caught", step.id), spec::Place::Step {});
        self.transition(self.way(here.clone(), &here, next, around));
        here
    }

    /// Handles only errors with one of these codes. Other errors are raised again for the enclosing handler.
    fn matched(&mut self, step: &Step, local: &str, codes: &[String], first: &Name, around: &Around) -> Name {
        let here = self.place(format!("{}.match", step.id), spec::Place::Step {});
        let way = self.way(here.clone(), &here, first, around).when(codes::condition(local, codes));
        self.transition(way);
        let other = self.way(format!("{}.other", step.id), &here, first, around).priority(-1);
        self.transition(Transition { fail: Some(rethrow(local)), ..other });
        here
    }

    fn wait(&mut self, step: &Step, wait: &Wait, next: &Name, around: &Around) -> Name {
        self.declare(step, wait);
        let waits = Name::from(step.id.as_str());
        let prompt = wait.prompt.clone();
        let is_correlated = wait.event.as_ref().is_some_and(|event| event.key.is_some());
        let place = spec::Wait {
            signal: Some(wait.signal.as_str().into()),
            filter: wait.filter.clone(),
            error_place: around.handler.clone().filter(|_| prompt.is_some() || is_correlated),
            event: wait.event.clone(),
            prompt,
            form: wait.form.clone(),
            answerers: wait.answerers.clone(),
            ..spec::Wait::default()
        };
        self.place(waits.clone(), spec::Place::Wait(place));
        let mut way = self.way(waits.clone(), &waits, next, around);
        if let Some(name) = step.result_name() {
            way = way.set(around.path(name), json!({ "$expr": EVENT }));
        }
        self.transition(way);
        if let Some(ms) = wait.heartbeat_ms {
            let way = self.way(format!("{}.heartbeat", step.id), &waits, next, around).after_ms(ms);
            self.transition(Transition { fail: Some(no_heartbeat(&step.id)), heartbeat: true, ..way });
        }
        if let Some(timeout) = &step.timeout {
            self.time_limit(step, timeout, &waits, wait.on_timeout.as_deref(), next, around);
        } else if wait.on_timeout.is_some() {
            self.report.add("noEffect", step.at, "`onTimeout` has no effect without `timeout`");
        }
        waits
    }

    /// Declares the signal of a wait. A signal belongs to the workflow, so all steps that wait for it must agree on
    /// the payload schema.
    fn declare(&mut self, step: &Step, wait: &Wait) {
        let declared = self.spec.signals.entry(wait.signal.as_str().into()).or_default();
        let payload = wait.payload.clone();
        match self.signals.get(&wait.signal) {
            None if declared.payload.is_some() && payload.is_some() && declared.payload != payload => {
                let message = format!(
                    "`signals` declares another payload for `{}`: declare it there or here, not both",
                    wait.signal
                );
                self.report.add("conflict", step.at, message);
            }
            Some((first, known)) if *known != payload => {
                let message = format!(
                    "the step in line {} waits for `{}` with another payload schema: use another signal or the same schema",
                    first.line, wait.signal
                );
                self.report.add("conflict", step.at, message);
            }
            Some(_) => {}
            None => {
                declared.payload = declared.payload.take().or_else(|| payload.clone());
                self.signals.insert(wait.signal.clone(), (step.at, payload));
            }
        }
    }

    fn time_limit(
        &mut self,
        step: &Step,
        timeout: &Span,
        waits: &Name,
        on_timeout: Option<&[Step]>,
        next: &Name,
        around: &Around,
    ) {
        let id = format!("{}.timeout", step.id);
        let (to, fail) = match on_timeout {
            Some(steps) => (self.list(steps, next, around), None),
            None => (next.clone(), Some(too_late(&step.id))),
        };
        self.report.step = Some(step.id.clone());
        self.transition(Transition { fail, ..self.way(id, waits, &to, around).on(after(timeout)) });
    }

    fn workflow(
        &mut self,
        step: &Step,
        workflow: &Value,
        input: &Value,
        next: &Name,
        around: &Around,
    ) -> Name {
        let waits = Name::from(format!("{}.child", step.id));
        let place = spec::Wait {
            children: Some(spec::ChildRule::All),
            error_place: around.handler.clone(),
            ..spec::Wait::default()
        };
        self.place(waits.clone(), spec::Place::Wait(place));
        let mut way = self.way(waits.clone(), &waits, next, around);
        if let Some(name) = step.result_name() {
            way = way.set(around.path(name), json!({ "$expr": CHILD }));
        }
        self.transition(way);
        if let Some(timeout @ Span::Ms(_)) = &step.timeout {
            self.time_limit(step, timeout, &waits, None, next, around);
        }
        let here = self.place(step.id.as_str(), spec::Place::Step {});
        let given = json!({ "workflow": workflow, "input": input });
        let way = self.way(step.id.as_str(), &here, &waits, around).action("workflow.call");
        self.transition(way.input(given));
        here
    }
}

/// The source of the rounds of a loop.
enum Items<'a> {
    Each(&'a Each),
    While(&'a str),
}

/// The parts of a loop other than its steps.
struct Rounds<'a> {
    over: Items<'a>,
    index: &'a Option<String>,
    most: Option<u32>,
    collect: Option<Collect>,
    /// True if a failed round does not end the loop.
    passes_over: bool,
}

/// Returns the settings for collecting the results of rounds or branches, or `None` if they are not used.
fn collect(step: &Step, result: &Option<Value>, settled: bool, around: &Around) -> Option<Collect> {
    let save_as = step.save_as.as_ref().map(|name| around.path(name));
    (save_as.is_some() || settled).then(|| Collect { save_as, result: result.clone(), settled })
}

/// Returns the variables that steps write, as the first part of each path.
fn written(steps: &[Step]) -> Vec<(String, &Step)> {
    let mut found = Vec::new();
    for step in steps {
        let first = |path: &str| path.split('.').next().unwrap_or(path).to_owned();
        found.extend(step.result_name().map(|name| (first(name), step)));
        if let StepKind::Set { values } = &step.kind {
            found.extend(values.iter().map(|(name, _)| (first(name), step)));
        }
        let inner = match (&step.kind, &step.on_error) {
            // Branches of a fork over a list write their own variables.
            (StepKind::Each(each), OnError::Steps(steps)) if each.parallel.is_some() => {
                vec![steps.as_slice()]
            }
            (StepKind::Each(each), _) if each.parallel.is_some() => Vec::new(),
            _ => step.inner(),
        };
        inner.into_iter().for_each(|steps| found.extend(written(steps)));
    }
    found
}

fn guard(condition: &str) -> Option<Guard> {
    (condition != "true").then(|| Guard::Expr(condition.to_owned()))
}

fn after(span: &Span) -> TransitionTrigger {
    match span {
        Span::Ms(ms) => TransitionTrigger::AfterMs((*ms).max(1)),
        Span::Expr(expr) => TransitionTrigger::After(expr.clone()),
    }
}

fn too_late(step: &str) -> Raise {
    let message = format!("step `{step}` exceeded its timeout").into();
    Raise::New { code: "timeout".into(), message, is_final: None, errors: None }
}

fn no_heartbeat(step: &str) -> Raise {
    let message = format!("step `{step}` got no heartbeat in time").into();
    Raise::New { code: HEARTBEAT_TIMEOUT.into(), message, is_final: None, errors: None }
}

/// Raises the error in this local again, for the enclosing handler.
fn rethrow(local: &str) -> Raise {
    Raise::Again(local.to_owned())
}
