//! Calls in a simulation: mocks answer them, or actions that affect nothing but the in-memory store run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use stepwell_core::document::cases::{Case, Mock};
use stepwell_core::expr::{Budget, Data};
use stepwell_core::snapshot::ActivationId;
use stepwell_core::template::Template;
use stepwell_core::{Definition, Failure, Name, RunId, Timestamp, WorkflowSource};
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use super::SimulationError;
use super::trace::AnswerSource;
use crate::action::{ActionError, BoxAction};
use crate::cx::Cx;
use crate::engine::Builder;
use crate::start::Start;

/// Name of the workflow that replaces a mocked workflow.
const STAND_IN: &str = "simulator.mocked";

const STAND_IN_DOCUMENT: &str = "
steps:
  - id: fails
    type: control.fail
    condition: $exists(payload.error)
    code: { $expr: payload.error.code }
    message: { $expr: payload.error.message }
  - { id: done, type: control.return, value: { $expr: payload.output ?? null } }
";

/// Error code of a call without a mock.
pub(super) const NOT_MOCKED: &str = "notMocked";

/// A call that the simulator has recorded.
#[derive(Debug, Clone)]
pub(super) struct Called {
    pub(super) run: RunId,
    pub(super) workflow: Name,
    pub(super) activation: ActivationId,
    /// Version of the run at the time of the call.
    pub(super) version: u64,
    pub(super) transition: Name,
    pub(super) action: Name,
    pub(super) attempt: u32,
    pub(super) at: Timestamp,
    pub(super) input: Value,
    pub(super) result: Result<Value, Failure>,
    pub(super) how: AnswerSource,
}

/// Answers calls and records them.
pub(super) struct Script {
    workflow: Name,
    mocks: BTreeMap<String, Vec<Answer>>,
    others: BTreeSet<Name>,
    /// A call without a mock fails.
    is_strict: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of uses of each mock.
    used: BTreeMap<String, usize>,
    calls: Vec<Called>,
    /// Runs that were only recorded, by their idempotency keys.
    keys: BTreeMap<String, RunId>,
    not_started: u64,
    /// Runs that were started for real.
    started: BTreeSet<String>,
}

enum Answer {
    Output(Template),
    Error(Failure),
}

impl Script {
    pub(super) fn new(
        definition: &Definition,
        others: &[Definition],
        case: &Case,
        is_strict: bool,
    ) -> Result<Self, SimulationError> {
        let mut mocks = BTreeMap::new();
        for (name, all) in &case.mocks {
            let answers = all.iter().map(|mock| match mock {
                Mock::Error(failure) => Ok(Answer::Error(failure.clone())),
                Mock::Output(output) => Template::compile(output).map(Answer::Output).map_err(|problems| {
                    let why: Vec<_> = problems.iter().map(ToString::to_string).collect();
                    SimulationError::Case(format!("the mock of `{name}`: {}", why.join("; ")))
                }),
            });
            mocks.insert(name.clone(), answers.collect::<Result<_, _>>()?);
        }
        let others = others.iter().map(|other| other.name().clone()).collect();
        let (workflow, state) = (definition.name().clone(), Mutex::default());
        Ok(Script { workflow, mocks, others, is_strict, state })
    }

    /// Wraps every action of these workflows, so that the script answers its calls.
    pub(super) fn equip(self: &Arc<Self>, builder: Builder, workflows: &[Definition]) -> Builder {
        let mut builder = builder;
        let mut versions: BTreeMap<Name, Option<u32>> = BTreeMap::new();
        for workflow in workflows {
            for action in workflow.spec().transitions.iter().filter_map(|one| one.action.as_ref()) {
                let version = versions.entry(action.name.clone()).or_default();
                *version = version.or(action.version);
            }
        }
        for (name, version) in versions {
            let (script, action) = (self.clone(), name.clone());
            builder = builder.wrapped(name, version, move |real| script.clone().scripted(action, real));
        }
        let stand_in =
            WorkflowSource::read(STAND_IN_DOCUMENT, Some(STAND_IN)).expect("the document above is valid");
        builder.workflow(stand_in.definition().clone())
    }

    /// Wraps an action, so that the script answers its calls.
    fn scripted(self: Arc<Self>, name: Name, real: Option<BoxAction>) -> BoxAction {
        Arc::new(move |cx, input| {
            let (script, name, real) = (self.clone(), name.clone(), real.clone());
            Box::pin(async move { script.call(cx, &name, input, real).await })
        })
    }

    async fn call(
        &self,
        cx: Cx,
        action: &Name,
        input: Value,
        real: Option<BoxAction>,
    ) -> Result<Value, ActionError> {
        let at = cx.now();
        // The recorded input contains the names of secrets, not their values.
        let shown = cx.call().input.clone();
        let (result, how) = match self.mocked(&cx, action, &shown) {
            Some(answer) => (answer, AnswerSource::Mocked),
            None => self.unmocked(&cx, action, input, real).await,
        };
        let called = Called {
            run: cx.run(),
            workflow: cx.workflow().clone(),
            activation: cx.activation(),
            version: cx.snapshot().version(),
            transition: cx.transition().clone(),
            action: action.clone(),
            attempt: cx.attempt(),
            at,
            input: shown,
            result: result.clone(),
            how,
        };
        self.state().calls.push(called);
        let stands_in = match how {
            AnswerSource::Mocked => true,
            AnswerSource::NotMocked => !self.is_strict,
            AnswerSource::Real | AnswerSource::Recorded => false,
        };
        if action.as_str() == "workflow.call" && stands_in {
            // The result comes from the run that replaces the called workflow, when it ends.
            let brings = match result {
                Ok(output) => json!({ "output": output }),
                Err(error) => json!({ "error": error }),
            };
            cx.start_child(Start::new(STAND_IN).input(&brings))?;
            return Ok(Value::Null);
        }
        result.map_err(ActionError::from)
    }

    /// Returns the answer of the mock for a call, if there is one. A mock of the step takes precedence over one of the
    /// action.
    fn mocked(&self, cx: &Cx, action: &Name, input: &Value) -> Option<Result<Value, Failure>> {
        let step = Some(cx.transition().as_str()).filter(|_| *cx.workflow() == self.workflow);
        // The pages of a loop are fetched by the transition `STEP.page`.
        let step = step.map(|step| step.strip_suffix(".page").unwrap_or(step));
        let by_step = step.filter(|step| self.mocks.contains_key(*step));
        let name = by_step.or_else(|| Some(action.as_str()).filter(|name| self.mocks.contains_key(*name)))?;
        let answers = self.mocks.get(name)?;
        let number = {
            let mut state = self.state();
            let used = state.used.entry(name.to_owned()).or_default();
            *used += 1;
            *used - 1
        };
        Some(match answers.get(number).or(answers.last())? {
            Answer::Error(failure) => Err(failure.clone()),
            Answer::Output(template) => {
                let scope = json!({ "input": input, "attempt": cx.attempt() });
                let made = template.render(&Data::new(&scope).with_now(cx.now()), &mut Budget::default());
                made.map_err(|error| {
                    Failure::new("mock", format!("the mock of `{name}`: {error}")).non_retryable()
                })
            }
        })
    }

    async fn unmocked(
        &self,
        cx: &Cx,
        action: &Name,
        input: Value,
        real: Option<BoxAction>,
    ) -> (Result<Value, Failure>, AnswerSource) {
        let name = action.as_str();
        let target = |field: &str| input.get(field).and_then(Value::as_str).unwrap_or_default();
        let is_there = match name {
            "workflow.call" | "workflow.start" => self.others.contains(target("workflow")),
            "workflow.signal" => self.state().started.contains(target("run")),
            _ => true,
        };
        match (name, real, is_there) {
            ("workflow.start", _, false) => {
                (Ok(json!({ "run": self.not_started(&input) })), AnswerSource::Recorded)
            }
            // A simulation has no outlets, and its runs are durable.
            ("flow.useStrategy", Some(_), _) => (Ok(json!({ "done": true })), AnswerSource::Recorded),
            ("flow.sendOut", Some(_), _) => (Ok(json!({ "sent": target("outlet") })), AnswerSource::Recorded),
            ("workflow.signal", _, false) => (Ok(json!({ "done": true })), AnswerSource::Recorded),
            (_, Some(real), true) => {
                // Keep the simulated action out of the caller's log.
                let result = real(cx.clone(), input).with_subscriber(NoSubscriber::default()).await;
                if let (Ok(output), "workflow.start") = (&result, name) {
                    self.state().started.extend(output["run"].as_str().map(str::to_owned));
                }
                (result.map_err(Failure::from), AnswerSource::Real)
            }
            _ if self.is_strict => (Err(self.refusal(cx, action, &input)), AnswerSource::NotMocked),
            _ => (Ok(Value::Null), AnswerSource::NotMocked),
        }
    }

    fn refusal(&self, cx: &Cx, action: &Name, input: &Value) -> Failure {
        let step = cx.transition();
        let what = match (action.as_str(), input.get("workflow").and_then(Value::as_str)) {
            ("workflow.call", Some(workflow)) => format!("the workflow `{workflow}`"),
            _ => format!("`{action}`"),
        };
        let message = format!("step `{step}` calls {what}, which has no mock; add `mocks: {{ {step}: … }}`");
        Failure::new(NOT_MOCKED, message).non_retryable()
    }

    /// Returns the id of a run that is only recorded. The same idempotency key returns the same id.
    fn not_started(&self, input: &Value) -> String {
        let mut state = self.state();
        let key = input.get("key").and_then(Value::as_str).map(str::to_owned);
        if let Some(known) = key.as_ref().and_then(|key| state.keys.get(key)) {
            return known.to_string();
        }
        state.not_started += 1;
        let run = RunId::new(uuid::Uuid::from_u64_pair(u64::MAX, state.not_started));
        state.keys.extend(key.map(|key| (key, run)));
        run.to_string()
    }

    /// Returns the recorded calls, in order.
    pub(super) fn calls(&self) -> Vec<Called> {
        self.state().calls.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
