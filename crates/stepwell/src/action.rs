//! Actions: async functions that run before a transition is committed, their descriptions and their errors.

use std::marker::PhantomData;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stepwell_core::document::ActionFacts;
use stepwell_core::schema::SchemaViolation;
use stepwell_core::{Failure, Name};
use stepwell_store::StoreError;

use crate::actor::Permission;
use crate::cx::Cx;
use crate::data::DataError;
use crate::host::BoxFuture;

/// An async function that runs before a transition is committed. Its arguments are a [`Cx`], or a [`Cx`] and an input
/// that implements `Deserialize`. The output is stored where the transition's `saveAs` points. Changes that were
/// staged in the context are committed together with the output, or not at all.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an action",
    label = "an action is an async function of a `Cx`, or of a `Cx` and an input",
    note = "the input implements `Deserialize`, the output `Serialize`, and the error turns into `ActionError`"
)]
pub trait Action<Shape>: Send + Sync + 'static {
    /// Runs the action with this input.
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
                let message = format!("the input does not match the action's input type: {error}");
                Box::pin(async move { Err(ActionError::new("invalidInput", message).non_retryable()) })
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
        ActionError::new("invalidOutput", format!("the output cannot be written as JSON: {error}"))
            .non_retryable()
    })
}

/// The failure code for rejected user input.
pub(crate) const VALIDATION_FAILED: &str = "validationFailed";

/// The error of an action. Every error type converts into one with the code `error`. [`ActionError::new`] sets another
/// code, for `retryOn` and for programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionError(Failure);

impl ActionError {
    /// Creates an error that allows retries.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        ActionError(Failure::new(code, message))
    }

    /// Marks the error as permanent: the action is not retried.
    #[must_use]
    pub fn non_retryable(self) -> Self {
        ActionError(self.0.non_retryable())
    }

    /// Sets the HTTP status of the response that is the error. Handlers read it as `error.status`, and lists of codes
    /// name it as `http404` or `http4xx`.
    #[must_use]
    pub fn status(self, status: u16) -> Self {
        ActionError(self.0.status(status))
    }

    /// Creates an error for rejected user input. A flow that waits for input pauses again and shows the field errors
    /// to the user.
    pub fn validation() -> Self {
        ActionError::new(VALIDATION_FAILED, "the input is not accepted").non_retryable()
    }

    /// Adds an error for one field. `pointer` is a JSON pointer into the input.
    #[must_use]
    pub fn field(mut self, pointer: impl Into<String>, message: impl Into<String>) -> Self {
        let violation = SchemaViolation {
            pointer: pointer.into(),
            keyword: "action".to_owned(),
            message: message.into(),
        };
        self.0.errors.push(violation);
        self
    }

    /// Returns the failure as it is recorded in the run.
    pub fn failure(&self) -> &Failure {
        &self.0
    }
}

impl<E: std::error::Error + 'static> From<E> for ActionError {
    fn from(error: E) -> Self {
        if let Some(failure) = (&error as &dyn std::any::Any).downcast_ref::<Failure>() {
            return ActionError(failure.clone());
        }
        let code = code_of(&error);
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            message = format!("{message}: {source}");
            cause = source.source();
        }
        match code {
            "invalid" | "denied" | "keyReused" => ActionError::new(code, message).non_retryable(),
            code => ActionError::new(code, message),
        }
    }
}

/// Returns the code of an error of the data store, or `error` for other errors.
fn code_of(error: &dyn std::any::Any) -> &'static str {
    match (error.downcast_ref::<DataError>(), error.downcast_ref::<StoreError>()) {
        (Some(data), _) => data.code(),
        (_, Some(StoreError::Unavailable(_))) => "unavailable",
        _ => "error",
    }
}

impl From<ActionError> for Failure {
    fn from(error: ActionError) -> Self {
        error.0
    }
}

/// The description of an action with JSON schemas of its input and output.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ActionInfo {
    pub name: Name,
    /// One sentence for people.
    pub about: String,
    /// Version of the action. A workflow can require a specific one.
    pub version: u32,
    /// JSON schema of the input, with hints for editors under `x-workflow-editor`.
    pub input: Value,
    /// JSON schema of the output.
    pub output: Value,
    /// False if the action only reads or computes. Default: true.
    pub has_side_effects: bool,
    /// The permission that the publisher of a workflow needs to call this action.
    pub permission: Option<Permission>,
    /// Translation key of the label in the Studio.
    pub label_key: String,
    /// Group in the list of actions. Default: the part of the name before the first dot.
    pub group: String,
    /// Name of the icon in the Studio. Default: `zap`.
    pub icon: String,
    /// Remote workers execute the action.
    #[serde(rename = "remote")]
    pub is_remote: bool,
    /// JSON pointers into the input. Secrets are allowed there and below. Default: none, which allows no secrets.
    pub secret_fields: Vec<String>,
    /// The action only stages changes, so a remote worker can stage it with the result of its task.
    #[serde(rename = "stageable")]
    pub is_stageable: bool,
    /// Codes of the errors that the action itself raises. `None`: it may raise any code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codes: Option<Vec<String>>,
}

/// The `format` of input fields that hold the text of an expression.
pub(crate) const EXPRESSION_FORMAT: &str = "expression";

/// The schema keyword for editor hints.
const HINTS: &str = "x-workflow-editor";

impl ActionInfo {
    /// Describes an action with input type `I` and output type `O`. The schemas are derived from the types.
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
            is_stageable: false,
            codes: None,
        }
    }

    /// Declares the codes of the errors that the action itself raises. A `catch` or `retryOn` of another code then is a
    /// warning. Default: it may raise any code.
    #[must_use]
    pub fn codes<C: Into<String>>(mut self, codes: impl IntoIterator<Item = C>) -> Self {
        self.codes = Some(codes.into_iter().map(Into::into).collect());
        self
    }

    /// Returns the properties that warnings about workflow documents depend on.
    pub fn facts(&self) -> ActionFacts {
        let fields = self.output.get("properties").and_then(Value::as_object);
        let is_paged = fields.is_some_and(|fields| fields.contains_key("next_cursor"));
        let is_list = |schema: &Value| schema.get("type").and_then(Value::as_str) == Some("array");
        let lists = fields.into_iter().flatten().filter(|(_, schema)| is_paged && is_list(schema));
        ActionFacts { codes: self.codes.clone(), lists: lists.map(|(name, _)| name.clone()).collect() }
    }

    /// Sets the version of the action. Default: 1.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Declares that the action only reads or computes.
    #[must_use]
    pub fn without_side_effects(mut self) -> Self {
        self.has_side_effects = false;
        self
    }

    /// Declares that the action only stages changes: it may read, but has no effect before its commit.
    #[must_use]
    pub(crate) fn stageable(mut self) -> Self {
        self.is_stageable = true;
        self
    }

    /// Allows secrets in the input at these JSON pointers and below them.
    #[must_use]
    pub fn secret_fields<F: Into<String>>(mut self, fields: impl IntoIterator<Item = F>) -> Self {
        self.secret_fields = fields.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the permission that the publisher of a workflow needs to call this action.
    #[must_use]
    pub fn permission(mut self, permission: Permission) -> Self {
        self.permission = Some(permission);
        self
    }

    /// Sets the group in the list of actions.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = group.into();
        self
    }

    /// Sets the name of the icon.
    #[must_use]
    pub fn icon(mut self, icon: impl Into<String>) -> Self {
        self.icon = icon.into();
        self
    }

    /// Sets the translation key of the label.
    #[must_use]
    pub fn label_key(mut self, key: impl Into<String>) -> Self {
        self.label_key = key.into();
        self
    }

    /// Adds an editor hint to a field of the input: the widget, the source of suggestions, and whether other values
    /// are allowed.
    #[must_use]
    pub fn hint(mut self, field: &str, hint: Value) -> Self {
        if let Some(Value::Object(schema)) = self.input.pointer_mut(&format!("/properties/{field}")) {
            schema.insert(HINTS.to_owned(), hint);
        }
        self
    }

    /// Declares another spelling of a field of the input, which the type of the input accepts as a serde alias.
    #[must_use]
    pub(crate) fn alias(mut self, field: &str, spelling: &str) -> Self {
        if let Some(Value::Object(fields)) = self.input.pointer_mut("/properties")
            && let Some(mut schema) = fields.get(field).cloned()
        {
            schema["description"] = format!("Another spelling of `{field}`.").into();
            fields.insert(spelling.to_owned(), schema);
        }
        self
    }

    /// Declares that a field of the input holds the text of an expression, which is checked before a workflow runs.
    #[must_use]
    pub(crate) fn expression(mut self, field: &str) -> Self {
        if let Some(Value::Object(schema)) = self.input.pointer_mut(&format!("/properties/{field}")) {
            schema.insert("format".to_owned(), EXPRESSION_FORMAT.into());
        }
        self
    }
}

/// A type-erased action, so that a registry can store actions of any type.
pub(crate) type BoxAction = Arc<dyn Fn(Cx, Value) -> BoxFuture<Result<Value, ActionError>> + Send + Sync>;

pub(crate) fn boxed<Shape: 'static>(action: impl Action<Shape>) -> BoxAction {
    let shape: PhantomData<fn(Shape)> = PhantomData;
    Arc::new(move |cx, input| {
        let _ = shape;
        action.run(cx, input)
    })
}
