//! Actions: plain async functions, what they are given and how they fail.

use std::marker::PhantomData;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stepwell_core::schema::Misfit;
use stepwell_core::{Failure, Name};

use crate::cx::Cx;
use crate::host::BoxFuture;

/// Code that runs before a transition is committed: an async function of a [`Cx`], or of a [`Cx`] and an input that
/// `serde` can read. What it returns goes where the transition's `saveAs` says; what it staged in the context is
/// committed together with that, or not at all.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an action",
    label = "an action is an async function of a `Cx`, or of a `Cx` and an input",
    note = "the input implements `Deserialize`, the output `Serialize`, and the error turns into `ActionError`"
)]
pub trait Action<Shape>: Send + Sync + 'static {
    /// Runs it.
    fn run(&self, cx: Cx, input: Value) -> BoxFuture<Result<Value, ActionError>>;
}

impl<F, Fut, I, O, E> Action<fn(I) -> Result<O, E>> for F
where
    F: Fn(Cx, I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, E>> + Send + 'static,
    I: DeserializeOwned + Send + 'static,
    O: Serialize,
    E: Into<ActionError>,
{
    fn run(&self, cx: Cx, input: Value) -> BoxFuture<Result<Value, ActionError>> {
        match serde_json::from_value(input) {
            Ok(input) => {
                let work = self(cx, input);
                Box::pin(async move { given(work.await) })
            }
            Err(error) => {
                let message = format!("the input is not what the action takes: {error}");
                Box::pin(async move { Err(ActionError::new("invalidInput", message).finally()) })
            }
        }
    }
}

impl<F, Fut, O, E> Action<fn() -> Result<O, E>> for F
where
    F: Fn(Cx) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, E>> + Send + 'static,
    O: Serialize,
    E: Into<ActionError>,
{
    fn run(&self, cx: Cx, _input: Value) -> BoxFuture<Result<Value, ActionError>> {
        let work = self(cx);
        Box::pin(async move { given(work.await) })
    }
}

fn given<O: Serialize, E: Into<ActionError>>(result: Result<O, E>) -> Result<Value, ActionError> {
    let output = result.map_err(Into::into)?;
    serde_json::to_value(output).map_err(|error| {
        ActionError::new("invalidOutput", format!("the output cannot be written as JSON: {error}")).finally()
    })
}

/// The code of a failure that says that the input was wrong.
pub(crate) const UNFIT: &str = "unfit";

/// Why an action failed. Any error turns into one (code `error`); with [`ActionError::new`] it gets a code of its own,
/// for `retryOn` and for programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionError(Failure);

impl ActionError {
    /// A failure that may be tried again.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        ActionError(Failure::new(code, message))
    }

    /// The same, not to be tried again.
    #[must_use]
    pub fn finally(self) -> Self {
        ActionError(self.0.finally())
    }

    /// What was given is wrong: a flow that waits for somebody's input pauses again and shows them why, with what is wrong
    /// where.
    pub fn unfit() -> Self {
        ActionError::new(UNFIT, "the input is not accepted").finally()
    }

    /// The same with something that is wrong with a field; `pointer` is a JSON pointer into the input.
    #[must_use]
    pub fn field(mut self, pointer: impl Into<String>, message: impl Into<String>) -> Self {
        let misfit =
            Misfit { pointer: pointer.into(), keyword: "action".to_owned(), message: message.into() };
        self.0.errors.push(misfit);
        self
    }

    /// What is recorded.
    pub fn failure(&self) -> &Failure {
        &self.0
    }
}

impl<E: std::error::Error + 'static> From<E> for ActionError {
    fn from(error: E) -> Self {
        if let Some(failure) = (&error as &dyn std::any::Any).downcast_ref::<Failure>() {
            return ActionError(failure.clone());
        }
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            message = format!("{message}: {source}");
            cause = source.source();
        }
        ActionError::new("error", message)
    }
}

impl From<ActionError> for Failure {
    fn from(error: ActionError) -> Self {
        error.0
    }
}

/// What is to be said of an action: what it does, and JSON schemas of its input and output.
#[derive(Debug, Clone, PartialEq)]
pub struct ActionInfo {
    /// Its name.
    pub name: Name,
    /// What it does.
    pub about: String,
    /// The schema of its input.
    pub input: Value,
    /// The schema of its output.
    pub output: Value,
}

impl ActionInfo {
    pub(crate) fn of<I: JsonSchema, O: JsonSchema>(name: Name, about: String) -> Self {
        let (input, output) = (schemars::schema_for!(I).to_value(), schemars::schema_for!(O).to_value());
        ActionInfo { name, about, input, output }
    }
}

/// An action whose shape is no longer in its type, so that a registry can hold many.
pub(crate) type BoxAction = Arc<dyn Fn(Cx, Value) -> BoxFuture<Result<Value, ActionError>> + Send + Sync>;

pub(crate) fn boxed<Shape: 'static>(action: impl Action<Shape>) -> BoxAction {
    let shape: PhantomData<fn(Shape)> = PhantomData;
    Arc::new(move |cx, input| {
        let _ = shape;
        action.run(cx, input)
    })
}
