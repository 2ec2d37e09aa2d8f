//! Values of a run's context that are kept beside it, typed and indexed, so that runs can be found by them.
//!
//! A step writes those that it changes ([`ShadowWrite`]), in its own commit. A [`Refill`] makes a run's columns what
//! they should be, whoever wrote them, unless the run has moved since it was read.

use stepwell_core::shadow::{MAX_NAME_BYTES, MAX_TEXT_BYTES, ShadowType, ShadowValue};
use stepwell_core::{Definition, DefinitionHash, LimitExceeded, Name, RunId};

/// A shadow column of a run gets a value, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowWrite {
    /// The run's workflow: a column belongs to one.
    pub workflow: Name,
    /// The column.
    pub name: Name,
    /// What it holds from here on; `None` = nothing.
    pub value: Option<ShadowValue>,
}

impl ShadowWrite {
    /// A value that no index holds is no value of a column.
    pub(crate) fn check(&self) -> Result<(), LimitExceeded> {
        match &self.value {
            Some(ShadowValue::Text(text)) if text.len() > MAX_TEXT_BYTES => Err(LimitExceeded {
                limit: "shadow_bytes".to_owned(),
                what: format!("the shadow column `{}`", self.name),
                actual: text.len() as u64,
                max: MAX_TEXT_BYTES as u64,
            }),
            _ => Ok(()),
        }
    }

    /// What of it is kept as text.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let value = match &self.value {
            Some(ShadowValue::Text(text)) => Some(("shadow column", text.as_str())),
            _ => None,
        };
        [("workflow", self.workflow.as_str()), ("shadow column", self.name.as_str())].into_iter().chain(value)
    }
}

/// What a run's shadow columns should be. Others that it has go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refill {
    /// The run.
    pub run: RunId,
    /// The version it was read at; if it has moved since, nothing is written.
    pub version: u64,
    /// Its workflow.
    pub workflow: Name,
    /// The columns that hold something, each once.
    pub columns: Vec<(Name, Refilled)>,
}

/// What a column that holds something should hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refilled {
    /// This.
    Is(ShadowValue),
    /// What it holds, and if that is nothing, or of another type, this.
    Begins(ShadowValue),
}

/// A shadow column of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowRow {
    /// The run.
    pub run: RunId,
    /// Its workflow.
    pub workflow: Name,
    /// The column.
    pub name: Name,
    /// What it holds.
    pub value: ShadowValue,
}

/// A value as the three columns of a database hold it.
pub fn split(value: &ShadowValue) -> (Option<&str>, Option<f64>, Option<bool>) {
    match value {
        ShadowValue::Text(text) => (Some(text), None, None),
        ShadowValue::Number(number) => (None, Some(*number), None),
        ShadowValue::Boolean(value) => (None, None, Some(*value)),
    }
}

/// Reads what [`split`] wrote; `None` if there is nothing.
pub fn joined(text: Option<String>, number: Option<f64>, boolean: Option<bool>) -> Option<ShadowValue> {
    text.map(ShadowValue::Text)
        .or_else(|| number.map(ShadowValue::Number))
        .or_else(|| boolean.map(ShadowValue::Boolean))
}

/// What a view of a workflow shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Viewed {
    /// Its durable runs.
    Runs,
    /// Its flows that rest behind handles.
    Flows,
}

impl Viewed {
    /// The table, the column with the id that shadow columns go by, and which of its rows.
    fn rows(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Viewed::Runs => ("runs", "id", ""),
            Viewed::Flows => ("handles", "run", " and r.kind = 'flow'"),
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Viewed::Runs => "runs_of_",
            Viewed::Flows => "flows_of_",
        }
    }
}

/// A database's own words for the view of a workflow's runs or flows.
#[derive(Debug, Clone, Copy)]
pub struct Dialect<'a> {
    /// What a run has besides its shadow columns.
    pub shown: &'a str,
    /// The tenant whose runs they are.
    pub tenant: &'a str,
    /// The workflow of a run, where it is compared.
    pub workflow: &'a str,
}

/// The statements that make the view of a workflow's runs or flows, with its shadow columns as columns. A view of the same
/// name is replaced.
///
/// A filter on one of the columns goes by its index: a run without a value is shown too, but is none that is looked for.
pub fn view(definition: &Definition, of: Viewed, dialect: Dialect<'_>) -> String {
    let Dialect { shown, tenant, workflow: compared } = dialect;
    let (workflow, name) = (literal(definition.name()), identifier(&view_name(of, definition.name())));
    let (table, id, which) = of.rows();
    let (mut columns, mut joins) = (String::new(), String::new());
    for (number, column) in (1..).zip(definition.shadows()) {
        let held = match column.kind() {
            ShadowType::String => "as_text",
            ShadowType::Number => "as_number",
            ShadowType::Boolean => "as_boolean",
        };
        columns.push_str(&format!(",\n       s{number}.{held} as {}", identifier(column.name())));
        joins.push_str(&format!(
            "\n  left join shadows s{number} on s{number}.tenant = {tenant} and s{number}.run = r.{id} \
             and s{number}.workflow = {workflow} and s{number}.name = {}",
            literal(column.name())
        ));
    }
    format!(
        "drop view if exists {name};\ncreate view {name} as\nselect {shown}{columns}\n  from {table} r{joins}\n \
         where r.tenant = {tenant} and {compared} = {workflow}{which};\n"
    )
}

/// What the view of a workflow's runs or flows is called.
pub fn view_name(of: Viewed, workflow: &str) -> String {
    let whole = format!("{}{workflow}", of.prefix());
    if whole.len() <= MAX_NAME_BYTES {
        return whole;
    }
    // Databases cut longer names off; what is left of two must not be the same.
    let hash = DefinitionHash::of(workflow.as_bytes()).short();
    let room = MAX_NAME_BYTES - hash.len() - 1;
    let end = (0..=room).rev().find(|end| whole.is_char_boundary(*end)).unwrap_or(0);
    format!("{}_{hash}", &whole[..end])
}

fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
