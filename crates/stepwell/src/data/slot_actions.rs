//! Slots as workflow actions: `state.*`. A write returns its result as the fields of the output, which the commit fills
//! in for slots that runs share.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value, json};
use stepwell_core::expr::{Budget, Data, Expr};
use stepwell_store::{CellOp, OpResult, ResultPart};

use crate::action::{ActionError, ActionInfo};
use crate::actor::Permission;
use crate::builtin::{READS, WRITES};
use crate::cx::Cx;
use crate::data::changes::{Amount, slot_ops};
use crate::data::error::DataError;
use crate::data::staged::{Session, StagedSlot};
use crate::engine::Builder;

/// The runs that share a slot.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum SlotScope {
    /// Only this run has the slot. It is part of the run's state.
    Session,
    /// The root run and all its descendants share the slot. It is deleted with the root run.
    Execution,
    /// All runs of the workflow share the slot. It stays until it is deleted.
    Workflow,
}

/// Declares the input of an action on one slot.
macro_rules! slot_input {
    ($(#[$about:meta])* $name:ident { $($fields:tt)* }) => {
        $(#[$about])*
        #[derive(Debug, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        struct $name {
            /// Scope of the slot: `session` for this run, `execution` for the root run and its descendants, `workflow`
            /// for all runs of the workflow.
            scope: SlotScope,
            /// Key of the slot: 1 to 256 characters (limit `key_chars`).
            key: String,
            $($fields)*
        }
    };
}

slot_input! {
    /// Reads the value of a slot.
    GetInput {
        /// Value that the slot counts as before its first write. In the scope `session` also after a delete.
        #[serde(default)]
        initial: Option<Value>,
    }
}

slot_input! {
    /// Sets the value of a slot.
    SetInput {
        /// Value of the slot: any JSON.
        value: Value,
        /// Write only if the slot is at this revision, otherwise fail with `conflict`. 0: only if the slot has no
        /// value. Not allowed in the scope `session`.
        #[serde(default)]
        if_revision: Option<u64>,
    }
}

slot_input! {
    /// Deletes the value of a slot.
    DeleteInput {
        /// Delete only if the slot is at this revision, otherwise fail with `conflict`. Not allowed in the scope
        /// `session`.
        #[serde(default)]
        if_revision: Option<u64>,
    }
}

slot_input! {
    /// Adds to the number in a slot, or subtracts from it.
    AddInput {
        /// Amount: any number. Default: 1.
        #[serde(default = "one")]
        by: Number,
        /// Number that the slot counts as before its first write. Default: 0.
        #[serde(default)]
        initial: Option<Number>,
    }
}

slot_input! {
    /// Sets fields of the object in a slot.
    MergeInput {
        /// Fields to set. They replace fields of the same name.
        fields: Map<String, Value>,
        /// Object that the slot counts as before its first write. Default: an empty object.
        #[serde(default)]
        initial: Option<Map<String, Value>>,
    }
}

slot_input! {
    /// Appends an item to the list in a slot.
    AppendInput {
        /// Item to append: any JSON.
        item: Value,
        /// List that the slot counts as before its first write. Default: an empty list.
        #[serde(default)]
        initial: Option<Vec<Value>>,
    }
}

slot_input! {
    /// Removes an item from the list in a slot.
    RemoveInput {
        /// List that the slot counts as before its first write. Default: an empty list.
        #[serde(default)]
        initial: Option<Vec<Value>>,
    }
}

slot_input! {
    /// Replaces the value of a slot by the result of an expression over it.
    UpdateInput {
        /// Expression for the new value, as text. It reads the current value as `value` and the arguments as `args`.
        expression: String,
        /// Arguments of the expression: any JSON. Default: null.
        #[serde(default)]
        args: Value,
        /// Value that the slot counts as before its first write. In the scope `session` also after a delete.
        #[serde(default)]
        initial: Option<Value>,
        /// Maximum number of attempts if other writes are committed first, at least 1. Default: 10.
        #[serde(default)]
        max_retries: Option<u32>,
    }
}

fn one() -> Number {
    1.into()
}

/// The value of a slot, if it has one.
#[derive(Debug, Serialize, JsonSchema)]
struct GetOutput {
    /// `false` if the slot has no value and no initial one.
    found: bool,
    /// The value, or `null` if there is none.
    value: Value,
    /// Revision of the slot: the number of writes to it, deletes included. `null` in the scope `session`.
    revision: Option<u64>,
}

/// The result of an operation that replaces or changes the value.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct WriteOutput {
    /// Revision of the slot after the write. `null` in the scope `session`.
    revision: Option<u64>,
    /// The slot had no value before.
    created: bool,
}

/// The result of a deletion.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct DeleteOutput {
    /// `false` if the slot had no value.
    deleted: bool,
}

/// The result of an addition or subtraction.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct AddOutput {
    /// Number in the slot after the operation.
    value: Number,
    /// Revision of the slot after the write. `null` in the scope `session`.
    revision: Option<u64>,
}

/// The item that a removal took off the list.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct RemoveOutput {
    /// `false` if the list was empty.
    found: bool,
    /// The removed item, or `null` if the list was empty.
    item: Value,
    /// Revision of the slot after the write. `null` in the scope `session`.
    revision: Option<u64>,
}

/// The value that an expression has computed for a slot.
#[derive(Debug, Serialize, JsonSchema)]
struct UpdateOutput {
    /// Value of the slot after the update.
    value: Value,
}

/// A slot of any scope.
enum AnySlot {
    Session(Session<Value>),
    Shared(StagedSlot<Value>),
}

impl AnySlot {
    fn new(cx: &Cx, scope: SlotScope, key: String, initial: Option<Value>) -> Result<Self, ActionError> {
        let initial = initial.filter(|initial| !initial.is_null());
        let shared = |slot: StagedSlot<Value>| match initial.clone() {
            Some(initial) => slot.initial(initial),
            None => Ok(slot),
        };
        Ok(match scope {
            SlotScope::Session => {
                let slot = cx.session(key);
                AnySlot::Session(match initial {
                    Some(initial) => slot.initial(initial)?,
                    None => slot,
                })
            }
            SlotScope::Execution => AnySlot::Shared(shared(cx.execution(key))?),
            SlotScope::Workflow => AnySlot::Shared(shared(cx.workflow_scope(key))?),
        })
    }

    /// Applies an operation and returns these parts of its result. For a shared slot they are placeholders, which the
    /// commit fills in.
    fn write<O: DeserializeOwned>(
        &self,
        cx: &Cx,
        op: Result<CellOp, String>,
        if_revision: Option<u64>,
        parts: &[(&str, ResultPart)],
    ) -> Result<O, ActionError> {
        let mut output = Map::new();
        match self {
            AnySlot::Session(slot) => {
                if if_revision.is_some() {
                    let why =
                        "`if_revision` is not allowed in the scope `session`: only this run writes there";
                    return Err(DataError::Invalid(why.to_owned()).into());
                }
                let result = slot.apply(op)?;
                for (field, part) in parts {
                    let value = match part {
                        ResultPart::Revision => Value::Null,
                        part => part.of(&result),
                    };
                    output.insert((*field).to_owned(), value);
                }
            }
            AnySlot::Shared(slot) => {
                let is_sum = matches!(op, Ok(CellOp::Increment { .. }));
                let number = slot.change(op, if_revision)?;
                let value = is_sum.then(|| 0.into());
                let placeholder = OpResult { revision: 0, created: false, existed: false, value };
                for (field, part) in parts {
                    cx.bind_result(number, *part, format!("/{field}"))?;
                    output.insert((*field).to_owned(), part.of(&placeholder));
                }
            }
        }
        Ok(serde_json::from_value(Value::Object(output))?)
    }
}

async fn get(cx: Cx, input: GetInput) -> Result<GetOutput, ActionError> {
    let (value, revision) = match AnySlot::new(&cx, input.scope, input.key, input.initial)? {
        AnySlot::Session(slot) => (slot.get()?, None),
        AnySlot::Shared(slot) => {
            let (value, revision) = slot.look().await?;
            (value, Some(revision))
        }
    };
    Ok(GetOutput { found: value.is_some(), value: value.unwrap_or_default(), revision })
}

/// The parts of a result that most writes return.
const WRITTEN: [(&str, ResultPart); 2] =
    [("revision", ResultPart::Revision), ("created", ResultPart::Created)];

async fn set(cx: Cx, input: SetInput) -> Result<WriteOutput, ActionError> {
    let slot = AnySlot::new(&cx, input.scope, input.key, None)?;
    slot.write(&cx, slot_ops::set(input.value), input.if_revision, &WRITTEN)
}

async fn delete(cx: Cx, input: DeleteInput) -> Result<DeleteOutput, ActionError> {
    let slot = AnySlot::new(&cx, input.scope, input.key, None)?;
    slot.write(&cx, Ok(CellOp::Delete), input.if_revision, &[("deleted", ResultPart::Existed)])
}

async fn increment(cx: Cx, input: AddInput) -> Result<AddOutput, ActionError> {
    let by = Amount::from(input.by.clone());
    add(&cx, input, by)
}

async fn decrement(cx: Cx, input: AddInput) -> Result<AddOutput, ActionError> {
    let by = Amount::from(input.by.clone()).negated();
    add(&cx, input, by)
}

fn add(cx: &Cx, input: AddInput, by: Amount) -> Result<AddOutput, ActionError> {
    let slot = AnySlot::new(cx, input.scope, input.key, input.initial.map(Value::Number))?;
    let parts = [("value", ResultPart::Value), ("revision", ResultPart::Revision)];
    slot.write(cx, slot_ops::increment(by), None, &parts)
}

async fn merge(cx: Cx, input: MergeInput) -> Result<WriteOutput, ActionError> {
    let slot = AnySlot::new(&cx, input.scope, input.key, input.initial.map(Value::Object))?;
    slot.write(&cx, slot_ops::merge(input.fields), None, &WRITTEN)
}

async fn append(cx: Cx, input: AppendInput) -> Result<WriteOutput, ActionError> {
    let slot = AnySlot::new(&cx, input.scope, input.key, input.initial.map(Value::Array))?;
    slot.write(&cx, slot_ops::append(input.item), None, &WRITTEN)
}

async fn remove_first(cx: Cx, input: RemoveInput) -> Result<RemoveOutput, ActionError> {
    remove(&cx, input, CellOp::RemoveFirst)
}

async fn remove_last(cx: Cx, input: RemoveInput) -> Result<RemoveOutput, ActionError> {
    remove(&cx, input, CellOp::RemoveLast)
}

fn remove(cx: &Cx, input: RemoveInput, op: CellOp) -> Result<RemoveOutput, ActionError> {
    let slot = AnySlot::new(cx, input.scope, input.key, input.initial.map(Value::Array))?;
    let parts =
        [("found", ResultPart::Found), ("item", ResultPart::Value), ("revision", ResultPart::Revision)];
    slot.write(cx, Ok(op), None, &parts)
}

async fn update(cx: Cx, input: UpdateInput) -> Result<UpdateOutput, ActionError> {
    let UpdateInput { scope, key, expression, args, initial, max_retries } = input;
    let expr = Expr::parse(&expression).map_err(|error| failed(&error))?;
    let now = cx.now();
    let changed = |before: Option<Value>| {
        let mut scope = Map::from_iter([("args".to_owned(), args)]);
        scope.extend(before.map(|before| ("value".to_owned(), before)));
        let scope = Value::Object(scope);
        let after = expr.eval(&Data::new(&scope).with_now(now), &mut Budget::default());
        after.map_err(|error| failed(&error))?.ok_or_else(|| {
            failed(&format_args!("`{expression}` has no value; use `state.delete` to delete the value"))
        })
    };
    let value = match AnySlot::new(&cx, scope, key, initial)? {
        AnySlot::Session(slot) => {
            let after = changed(slot.get()?)?;
            slot.set(&after)?;
            after
        }
        AnySlot::Shared(slot) => {
            let slot = match max_retries {
                Some(attempts) => slot.max_retries(attempts),
                None => slot,
            };
            slot.try_update(changed).await?
        }
    };
    Ok(UpdateOutput { value })
}

fn failed(why: &dyn std::fmt::Display) -> ActionError {
    ActionError::new("expression", why.to_string()).non_retryable()
}

/// Registers the `state.*` actions, which every engine has.
pub(crate) fn equip(builder: Builder) -> Builder {
    let builder = builder
        .described("state.get", "Reads the value of a slot.", get)
        .described("state.set", "Sets the value of a slot.", set)
        .described("state.update", "Replaces the value of a slot by an expression over it.", update)
        .described("state.delete", "Deletes the value of a slot.", delete)
        .described("state.increment", "Adds to the number in a slot.", increment)
        .described("state.decrement", "Subtracts from the number in a slot.", decrement)
        .described("state.merge", "Sets fields of the object in a slot.", merge)
        .described("state.append", "Appends an item to the list in a slot.", append)
        .described("state.remove_first", "Removes the first item of the list in a slot.", remove_first)
        .described("state.remove_last", "Removes the last item of the list in a slot.", remove_last)
        .describe("state.get", |info| {
            hinted(info).permission(Permission::Read).without_side_effects().codes(READS)
        });
    let writes =
        ["set", "delete", "increment", "decrement", "merge", "append", "remove_first", "remove_last"];
    let builder = writes.iter().fold(builder, |builder, verb| {
        builder.describe(&format!("state.{verb}"), |info| {
            hinted(info).permission(Permission::Manage).stageable().codes(WRITES)
        })
    });
    builder.describe("state.update", |info| {
        hinted(info).permission(Permission::Manage).stageable().codes(WRITES)
    })
}

/// Adds hints for editors.
fn hinted(info: ActionInfo) -> ActionInfo {
    info.hint("scope", json!({ "widget": "segmented" }))
        .hint("value", json!({ "widget": "json" }))
        .hint("item", json!({ "widget": "json" }))
        .hint("args", json!({ "widget": "json" }))
        .hint("initial", json!({ "widget": "json", "advanced": true }))
        .hint("if_revision", json!({ "advanced": true }))
        .hint("max_retries", json!({ "advanced": true }))
        .expression("expression")
        .icon("layers")
}
