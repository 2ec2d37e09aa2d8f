//! Shadow columns: typed and indexed copies of values in a run's context, by which runs can be found.
//!
//! A step writes the columns that it changes in its own commit ([`ShadowWrite`]). A [`ShadowRefill`] corrects a run's
//! columns, unless the run has changed since it was read.

use std::cmp::Ordering;
use std::ops::{Bound, RangeBounds};

use serde::{Deserialize, Serialize};
use stepwell_core::shadow::{MAX_NAME_BYTES, MAX_TEXT_BYTES, ShadowType, ShadowValue};
use stepwell_core::{Definition, DefinitionHash, LimitExceeded, Name, RunId};
use uuid::Uuid;

use crate::handle::HandleHash;
use crate::store::{StoreError, after_prefix, bad_cursor};

/// A write to one shadow column of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowWrite {
    /// The run's workflow. A column belongs to one workflow.
    pub workflow: Name,
    pub name: Name,
    /// The new value; `None` = the column has no value.
    pub value: Option<ShadowValue>,
}

impl ShadowWrite {
    /// Rejects a text that is too long for an index.
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

    /// Returns the values that are stored as text, each with its name for error messages.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let value = match &self.value {
            Some(ShadowValue::Text(text)) => Some(("shadow column", text.as_str())),
            _ => None,
        };
        [("workflow", self.workflow.as_str()), ("shadow column", self.name.as_str())].into_iter().chain(value)
    }
}

/// The correct shadow columns of a run. Columns that are not listed are removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowRefill {
    pub run: RunId,
    /// The version at which the run was read. Nothing is written if the run has another version by then.
    pub version: u64,
    pub workflow: Name,
    /// The columns that have a value, each once.
    pub columns: Vec<(Name, RefillColumn)>,
}

/// The correct value of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefillColumn {
    /// The column has this value.
    Set(ShadowValue),
    /// The column keeps its value. If it has none, or one of another type, it gets this one.
    SetIfMissing(ShadowValue),
}

/// A stored shadow column of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowRow {
    pub run: RunId,
    pub workflow: Name,
    pub name: Name,
    pub value: ShadowValue,
}

/// A filter on one shadow column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShadowFilter {
    pub name: Name,
    pub is: ShadowCondition,
}

/// A condition on the value of a shadow column. A run without a value does not match.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ShadowCondition {
    Equals(ShadowValue),
    /// Texts within a range, in the order of their UTF-8 bytes.
    Texts {
        from: Bound<String>,
        to: Bound<String>,
    },
    /// Numbers within a range.
    Numbers {
        from: Bound<f64>,
        to: Bound<f64>,
    },
}

// Sound because a query whose bounds are NaN is refused.
impl Eq for ShadowCondition {}

impl ShadowFilter {
    /// Selects runs whose column has this value.
    pub fn equals(name: impl Into<Name>, value: impl Into<ShadowValue>) -> Self {
        ShadowFilter { name: name.into(), is: ShadowCondition::Equals(value.into()) }
    }

    /// Selects runs whose column is a text that begins with `prefix`. No character is a wildcard.
    pub fn prefix(name: impl Into<Name>, prefix: &str) -> Self {
        let to = after_prefix(prefix).map_or(Bound::Unbounded, Bound::Excluded);
        ShadowFilter::texts(name, Bound::Included(prefix.to_owned()), to)
    }

    /// Selects runs whose column is a text within these bounds, in the order of UTF-8 bytes.
    pub fn texts(name: impl Into<Name>, from: Bound<String>, to: Bound<String>) -> Self {
        ShadowFilter { name: name.into(), is: ShadowCondition::Texts { from, to } }
    }

    /// Selects runs whose column is a number within these bounds.
    pub fn numbers(name: impl Into<Name>, from: Bound<f64>, to: Bound<f64>) -> Self {
        ShadowFilter { name: name.into(), is: ShadowCondition::Numbers { from, to } }
    }
}

impl ShadowCondition {
    /// Returns the type of the values that can match.
    pub fn kind(&self) -> ShadowType {
        match self {
            ShadowCondition::Equals(value) => value.kind(),
            ShadowCondition::Texts { .. } => ShadowType::String,
            ShadowCondition::Numbers { .. } => ShadowType::Number,
        }
    }

    /// Returns true if the value matches.
    pub fn has(&self, value: &ShadowValue) -> bool {
        match (self, value) {
            (ShadowCondition::Equals(wanted), value) => wanted == value,
            (ShadowCondition::Texts { from, to }, ShadowValue::Text(text)) => within(from, to, text),
            (ShadowCondition::Numbers { from, to }, ShadowValue::Number(number)) => within(from, to, number),
            _ => false,
        }
    }

    /// Returns true if no value that a column can hold matches, because it differs from every one.
    pub fn is_unstorable(&self) -> bool {
        matches!(self, ShadowCondition::Equals(value) if !value.fits())
    }

    /// Returns comparisons that are equivalent together, each as an SQL operator and the value on its right.
    pub fn comparisons(&self) -> Vec<(&'static str, ShadowValue)> {
        fn both<T: Clone>(from: &Bound<T>, to: &Bound<T>, least: T) -> [Option<(&'static str, T)>; 2] {
            let from = match from {
                Bound::Included(value) => (">=", value.clone()),
                Bound::Excluded(value) => (">", value.clone()),
                Bound::Unbounded => (">=", least),
            };
            let to = match to {
                Bound::Included(value) => Some(("<=", value.clone())),
                Bound::Excluded(value) => Some(("<", value.clone())),
                Bound::Unbounded => None,
            };
            [Some(from), to]
        }
        match self {
            ShadowCondition::Equals(value) => vec![("=", value.clone())],
            ShadowCondition::Texts { from, to } => {
                let both = both(from, to, String::new()).into_iter().flatten();
                both.map(|(operator, text)| (operator, ShadowValue::Text(text))).collect()
            }
            ShadowCondition::Numbers { from, to } => {
                let both = both(from, to, f64::NEG_INFINITY).into_iter().flatten();
                both.map(|(operator, number)| (operator, ShadowValue::Number(number))).collect()
            }
        }
    }

    /// Returns the condition that both ranges hold. `None` if one is not a range, or if their types differ.
    fn narrowed(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (ShadowCondition::Texts { from, to }, ShadowCondition::Texts { from: start, to: end }) => {
                let (from, to) = (later(from, start), earlier(to, end));
                Some(ShadowCondition::Texts { from, to })
            }
            (ShadowCondition::Numbers { from, to }, ShadowCondition::Numbers { from: start, to: end }) => {
                let (from, to) = (later(from, start), earlier(to, end));
                Some(ShadowCondition::Numbers { from, to })
            }
            _ => None,
        }
    }
}

fn within<T: PartialOrd>(from: &Bound<T>, to: &Bound<T>, value: &T) -> bool {
    RangeBounds::<T>::contains(&(from.as_ref(), to.as_ref()), value)
}

/// Returns the greater of two lower bounds.
fn later<T: PartialOrd + Clone>(a: &Bound<T>, b: &Bound<T>) -> Bound<T> {
    match (a, b) {
        (Bound::Unbounded, other) | (other, Bound::Unbounded) => other.clone(),
        (Bound::Included(one) | Bound::Excluded(one), Bound::Included(other) | Bound::Excluded(other)) => {
            match one.partial_cmp(other) {
                Some(Ordering::Greater) => a.clone(),
                Some(Ordering::Equal) if matches!(a, Bound::Excluded(_)) => a.clone(),
                _ => b.clone(),
            }
        }
    }
}

/// Returns the smaller of two upper bounds.
fn earlier<T: PartialOrd + Clone>(a: &Bound<T>, b: &Bound<T>) -> Bound<T> {
    match (a, b) {
        (Bound::Unbounded, other) | (other, Bound::Unbounded) => other.clone(),
        (Bound::Included(one) | Bound::Excluded(one), Bound::Included(other) | Bound::Excluded(other)) => {
            match one.partial_cmp(other) {
                Some(Ordering::Less) => a.clone(),
                Some(Ordering::Equal) if matches!(a, Bound::Excluded(_)) => a.clone(),
                _ => b.clone(),
            }
        }
    }
}

/// Rejects bounds that no database can compare with a column.
pub(crate) fn check_filters(filters: &[ShadowFilter]) -> Result<(), StoreError> {
    for filter in filters {
        let bounds = match &filter.is {
            ShadowCondition::Equals(_) => continue,
            ShadowCondition::Texts { from, to } => {
                [from, to].map(|bound| bound.clone().map(ShadowValue::Text))
            }
            ShadowCondition::Numbers { from, to } => [from, to].map(|bound| bound.map(ShadowValue::Number)),
        };
        for bound in bounds {
            if let Bound::Included(value) | Bound::Excluded(value) = bound
                && !value.fits()
            {
                let name = &filter.name;
                return Err(StoreError::Invalid(format!(
                    "a bound of shadow column `{name}` must be a finite number, or a text of at most {MAX_TEXT_BYTES} \
                     bytes without NUL characters"
                )));
            }
        }
    }
    Ok(())
}

/// Returns the filter whose index is searched, and the others. An equality is preferred, because its runs are in the
/// order of their ids. Several ranges of one column are combined.
pub fn leading(filters: &[ShadowFilter]) -> Option<(ShadowFilter, Vec<&ShadowFilter>)> {
    let equals = filters.iter().position(|filter| matches!(filter.is, ShadowCondition::Equals(_)));
    let first = equals.unwrap_or(0);
    let mut lead = filters.get(first)?.clone();
    let mut others = Vec::new();
    for (index, filter) in filters.iter().enumerate() {
        if index == first {
            continue;
        }
        match lead.is.narrowed(&filter.is) {
            Some(is) if filter.name == lead.name => lead.is = is,
            _ => others.push(filter),
        }
    }
    Some((lead, others))
}

/// The part of a column's index that a range selects. Both ends are exclusive: no run has the smallest or the greatest
/// possible id.
#[derive(Debug, Clone, PartialEq)]
pub struct ShadowSpan<T> {
    pub after: (T, Uuid),
    pub before: (T, Uuid),
}

impl<T: PartialOrd> ShadowSpan<T> {
    fn of(
        from: Bound<T>,
        to: Bound<T>,
        (least, end): (T, T),
        place: Option<(T, Uuid)>,
        is_descending: bool,
    ) -> Self {
        let from = match from {
            Bound::Included(value) => (value, Uuid::nil()),
            Bound::Excluded(value) => (value, Uuid::max()),
            Bound::Unbounded => (least, Uuid::nil()),
        };
        let before = match to {
            Bound::Included(value) => (value, Uuid::max()),
            Bound::Excluded(value) => (value, Uuid::nil()),
            Bound::Unbounded => (end, Uuid::max()),
        };
        let (after, before) = match place {
            Some(place) if is_descending && place < before => (from, place),
            Some(place) if !is_descending && place > from => (place, before),
            _ => (from, before),
        };
        ShadowSpan { after, before }
    }
}

/// The span of a range by the type of its column.
#[derive(Debug, Clone, PartialEq)]
pub enum ShadowSpans {
    Texts(ShadowSpan<String>),
    Numbers(ShadowSpan<f64>),
}

impl ShadowSpans {
    /// Returns the part of the index after a position, or before it in descending order. `None` if the condition is not
    /// a range.
    pub fn of(
        is: &ShadowCondition,
        place: Option<&RangePlace>,
        is_descending: bool,
    ) -> Result<Option<Self>, StoreError> {
        let wrong = |place: &RangePlace| bad_cursor(&place.cursor);
        match is {
            ShadowCondition::Equals(_) => Ok(None),
            ShadowCondition::Texts { from, to } => {
                // Greater than every text that a column can hold.
                let end = char::MAX.to_string().repeat(MAX_TEXT_BYTES / char::MAX.len_utf8() + 1);
                let place = place.map(|place| match place.value.contains('\0') {
                    false => Ok((place.value.clone(), place.run.uuid())),
                    true => Err(wrong(place)),
                });
                let ends = (String::new(), end);
                let place = place.transpose()?;
                let span = ShadowSpan::of(from.clone(), to.clone(), ends, place, is_descending);
                Ok(Some(ShadowSpans::Texts(span)))
            }
            ShadowCondition::Numbers { from, to } => {
                let place = place.map(|place| match place.value.parse::<f64>() {
                    Ok(number) if number.is_finite() => Ok((number, place.run.uuid())),
                    _ => Err(wrong(place)),
                });
                let ends = (f64::NEG_INFINITY, f64::INFINITY);
                let span = ShadowSpan::of(*from, *to, ends, place.transpose()?, is_descending);
                Ok(Some(ShadowSpans::Numbers(span)))
            }
        }
    }

    /// Returns true if a column's value and its run are within the span.
    pub(crate) fn has(&self, value: &ShadowValue, run: RunId) -> bool {
        match (self, value) {
            (ShadowSpans::Texts(span), ShadowValue::Text(text)) => {
                let (after, before) = ((&span.after.0, span.after.1), (&span.before.0, span.before.1));
                (text, run.uuid()) > after && (text, run.uuid()) < before
            }
            (ShadowSpans::Numbers(span), ShadowValue::Number(number)) => {
                (*number, run.uuid()) > span.after && (*number, run.uuid()) < span.before
            }
            _ => false,
        }
    }
}

/// A position in a listing that a range of a column orders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangePlace {
    pub run: RunId,
    /// The handle, in a listing of handles.
    pub handle: Option<HandleHash>,
    value: String,
    cursor: String,
}

impl RangePlace {
    /// Parses a cursor of [`range_cursor`].
    pub fn of_run(cursor: Option<&str>) -> Result<Option<Self>, StoreError> {
        let Some(cursor) = cursor else { return Ok(None) };
        let read = || {
            let (run, value) = cursor.split_once(':')?;
            let (run, value, cursor) = (run.parse().ok()?, value.to_owned(), cursor.to_owned());
            Some(RangePlace { run, handle: None, value, cursor })
        };
        read().map(Some).ok_or_else(|| bad_cursor(cursor))
    }

    /// Parses a cursor of [`handle_range_cursor`].
    pub fn of_handle(cursor: Option<&str>) -> Result<Option<Self>, StoreError> {
        let Some(cursor) = cursor else { return Ok(None) };
        let read = || {
            let (run, rest) = cursor.split_once(':')?;
            let (handle, value) = rest.split_once(':')?;
            let (run, handle) = (run.parse().ok()?, Some(HandleHash::parse(handle)?));
            Some(RangePlace { run, handle, value: value.to_owned(), cursor: cursor.to_owned() })
        };
        read().map(Some).ok_or_else(|| bad_cursor(cursor))
    }
}

impl RangePlace {
    /// Returns true if the position is at this value of the column.
    pub(crate) fn is_at(&self, value: &ShadowValue) -> bool {
        plain(value) == self.value
    }
}

fn plain(value: &ShadowValue) -> String {
    match value {
        ShadowValue::Text(text) => text.clone(),
        ShadowValue::Number(number) => number.to_string(),
        ShadowValue::Boolean(value) => value.to_string(),
    }
}

/// Returns the cursor after this run in a listing that a range of a column orders.
pub fn range_cursor(run: RunId, value: &ShadowValue) -> String {
    format!("{run}:{}", plain(value))
}

/// Returns the cursor after this handle in a listing that a range of a column orders.
pub fn handle_range_cursor(run: RunId, handle: HandleHash, value: &ShadowValue) -> String {
    format!("{run}:{handle}:{}", plain(value))
}

/// Compares two values of one column.
pub(crate) fn compare(a: &ShadowValue, b: &ShadowValue) -> Ordering {
    match (a, b) {
        (ShadowValue::Text(a), ShadowValue::Text(b)) => a.cmp(b),
        (ShadowValue::Number(a), ShadowValue::Number(b)) => a.total_cmp(b),
        (ShadowValue::Boolean(a), ShadowValue::Boolean(b)) => a.cmp(b),
        _ => Ordering::Equal,
    }
}

/// Splits a value into the three database columns for text, number and boolean.
pub fn split(value: &ShadowValue) -> (Option<&str>, Option<f64>, Option<bool>) {
    match value {
        ShadowValue::Text(text) => (Some(text), None, None),
        ShadowValue::Number(number) => (None, Some(*number), None),
        ShadowValue::Boolean(value) => (None, None, Some(*value)),
    }
}

/// Combines the database columns that [`split`] wrote; `None` if all are empty.
pub fn joined(text: Option<String>, number: Option<f64>, boolean: Option<bool>) -> Option<ShadowValue> {
    text.map(ShadowValue::Text)
        .or_else(|| number.map(ShadowValue::Number))
        .or_else(|| boolean.map(ShadowValue::Boolean))
}

/// The rows of a workflow that a view shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShadowView {
    /// Durable runs of the workflow.
    Runs,
    /// Flows of the workflow whose state is in handles.
    Flows,
}

impl ShadowView {
    /// Returns the table, its column with the run's id, and a condition on its rows.
    fn rows(self) -> (&'static str, &'static str, &'static str) {
        match self {
            ShadowView::Runs => ("runs", "id", ""),
            ShadowView::Flows => ("handles", "run", " and r.kind = 'flow'"),
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            ShadowView::Runs => "runs_of_",
            ShadowView::Flows => "flows_of_",
        }
    }
}

/// SQL fragments of a database for the view of a workflow's runs or flows.
#[derive(Debug, Clone, Copy)]
pub struct Dialect<'a> {
    /// The columns to select besides the shadow columns.
    pub shown: &'a str,
    /// An expression for the tenant's id.
    pub tenant: &'a str,
    /// An expression for the workflow of a row, used in the comparison.
    pub workflow: &'a str,
}

/// Returns the statements that create the view of a workflow's runs or flows, with its shadow columns as columns. They
/// replace a view of the same name.
///
/// A filter on a shadow column uses its index. A run without a value is in the view too, but such a filter does not
/// find it.
pub fn view(definition: &Definition, of: ShadowView, dialect: Dialect<'_>) -> String {
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

/// Returns the name of the view of a workflow's runs or flows.
pub fn view_name(of: ShadowView, workflow: &str) -> String {
    let whole = format!("{}{workflow}", of.prefix());
    if whole.len() <= MAX_NAME_BYTES {
        return whole;
    }
    // Databases truncate longer names. The hash keeps two truncated names different.
    let hash = DefinitionHash::of(workflow.as_bytes()).short();
    let max_bytes = MAX_NAME_BYTES - hash.len() - 1;
    let end = (0..=max_bytes).rev().find(|end| whole.is_char_boundary(*end)).unwrap_or(0);
    format!("{}_{hash}", &whole[..end])
}

fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
