//! Actions: plain async functions, what they are given and how they fail.

use std::marker::PhantomData;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stepwell_core::schema::Misfit;
use stepwell_core::{Failure, Name};

use crate::actor::Permission;
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
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ActionInfo {
    /// Its name.
    pub name: Name,
    /// What it does.
    pub about: String,
    /// Which edition of it this is.
    pub version: u32,
    /// The schema of its input, with hints for editors under `x-workflow-editor`.
    pub input: Value,
    /// The schema of its output.
    pub output: Value,
    /// It changes something, here or outside.
    pub has_side_effects: bool,
    /// What whoever has made a workflow known needs to be allowed for it to be called there.
    pub permission: Option<Permission>,
    /// The key under which a designer finds its label in its own languages.
    pub label_key: String,
    /// What it is listed with.
    pub group: String,
    /// The name of its icon.
    pub icon: String,
    /// Workers elsewhere do it.
    #[serde(rename = "remote")]
    pub is_remote: bool,
    /// Where in its input secrets may stand: JSON pointers, each with everything below it. Without any, none may.
    pub secret_fields: Vec<String>,
}

/// Under what name a schema holds its hints for editors.
const HINTS: &str = "x-workflow-editor";

impl ActionInfo {
    /// What is to be said of an action that takes an `I` and gives an `O`.
    pub fn of<I: JsonSchema, O: JsonSchema>(name: impl Into<Name>, about: impl Into<String>) -> Self {
        let (name, about) = (name.into(), about.into());
        let (input, output) = (schemars::schema_for!(I).to_value(), schemars::schema_for!(O).to_value());
        let group = name.split_once('.').map_or("other", |(group, _)| group).to_owned();
        ActionInfo {
            label_key: format!("actions.{name}.label"),
            name,
            about,
            version: 1,
            input,
            output,
            has_side_effects: true,
            permission: None,
            group,
            icon: "zap".to_owned(),
            secret_fields: Vec::new(),
            is_remote: false,
        }
    }

    /// Which edition of it this is.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// It only reads or computes.
    #[must_use]
    pub fn without_side_effects(mut self) -> Self {
        self.has_side_effects = false;
        self
    }

    /// Where in its input secrets may stand: JSON pointers, each with everything below it.
    #[must_use]
    pub fn secret_fields<F: Into<String>>(mut self, fields: impl IntoIterator<Item = F>) -> Self {
        self.secret_fields = fields.into_iter().map(Into::into).collect();
        self
    }

    /// What whoever has made a workflow known needs to be allowed.
    #[must_use]
    pub fn permission(mut self, permission: Permission) -> Self {
        self.permission = Some(permission);
        self
    }

    /// What it is listed with.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = group.into();
        self
    }

    /// The name of its icon.
    #[must_use]
    pub fn icon(mut self, icon: impl Into<String>) -> Self {
        self.icon = icon.into();
        self
    }

    /// The key under which a designer finds its label.
    #[must_use]
    pub fn label_key(mut self, key: impl Into<String>) -> Self {
        self.label_key = key.into();
        self
    }

    /// How an editor shows a field of the input: which widget, where suggestions come from, whether others are allowed.
    #[must_use]
    pub fn hint(mut self, field: &str, hint: Value) -> Self {
        if let Some(Value::Object(schema)) = self.input.pointer_mut(&format!("/properties/{field}")) {
            schema.insert(HINTS.to_owned(), hint);
        }
        self
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
