//! Queries for runs: the filter, the order, the page, and counts by status.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};
use uuid::Uuid;

use crate::run::{RunRow, Status};
use crate::shadow::{ShadowFilter, check_filters};
use crate::store::{StoreError, after_prefix};

/// Maximum number of rows that a listing of runs or a count reads. A listing that has read so many ends its page early,
/// with a cursor.
pub const MAX_ROWS_READ: u32 = 5_000;
/// Maximum of a count of runs. A greater number is reported as this one, with [`RunCount::more`].
pub const MAX_RUN_COUNT: u32 = 1_000;

/// A filter on runs. A run must match every field that is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RunFilter {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<Name>,
    /// Excludes workflows whose name begins with this text. Has no effect if `workflow` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_prefix: Option<String>,
    /// Runs with one of these statuses; empty = every status.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<Status>,
    /// Only children of this run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// Only runs of this tree: the root itself and its descendants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<RunId>,
    /// Only runs whose id begins with these digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_prefix: Option<IdPrefix>,
    /// Only runs of this workflow version, the author's number. Requires `workflow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Only runs pinned to this definition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<DefinitionHash>,
    /// Only failed runs that stopped with this error code. A trailing `*` selects all codes with the prefix before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Only the run that was started with this idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_key: Option<String>,
    /// Only runs created at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_after: Option<Timestamp>,
    /// Only runs created before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before: Option<Timestamp>,
    /// Only runs whose last commit was at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_after: Option<Timestamp>,
    /// Only runs whose last commit was before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_before: Option<Timestamp>,
    /// Only runs whose shadow columns match these filters. Requires `workflow`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shadows: Vec<ShadowFilter>,
}

/// The operation under which the idempotency keys of starts are recorded; [`RunFilter::start_key`] is one of them.
pub const START_OPERATION: &str = "start";

impl RunFilter {
    /// Selects the runs of a workflow.
    pub fn of(workflow: impl Into<Name>) -> Self {
        RunFilter { workflow: Some(workflow.into()), ..RunFilter::default() }
    }

    /// Selects the runs with one of these statuses.
    pub fn with_status(status: impl IntoIterator<Item = Status>) -> Self {
        RunFilter { status: status.into_iter().collect(), ..RunFilter::default() }
    }

    /// Rejects a version or a filter on shadow columns without a workflow, because both belong to one workflow; invalid
    /// bounds; and empty ranges of time.
    pub fn check(&self) -> Result<(), StoreError> {
        let wrong = |why: &str| Err(StoreError::Invalid(why.to_owned()));
        if !self.shadows.is_empty() && self.workflow.is_none() {
            return wrong("a filter on shadow columns needs a workflow: name the workflow of the runs");
        }
        if self.version.is_some() && self.workflow.is_none() {
            return wrong("a filter on the workflow version needs a workflow: name the workflow of the runs");
        }
        for (name, after, before) in [
            ("created", self.created_after, self.created_before),
            ("updated", self.updated_after, self.updated_before),
        ] {
            if let (Some(after), Some(before)) = (after, before)
                && after >= before
            {
                return Err(StoreError::Invalid(format!(
                    "the end of the range of {name} times, {before}, must be later than its start, {after}"
                )));
            }
        }
        check_filters(&self.shadows)
    }

    /// Returns the prefix that the workflow's name must not have.
    pub fn excluded_prefix(&self) -> Option<&str> {
        self.without_prefix.as_deref().filter(|_| self.workflow.is_none())
    }

    /// Returns the statuses that a run may have.
    pub fn statuses(&self) -> Vec<Status> {
        let is_wanted = |status: &Status| self.status.is_empty() || self.status.contains(status);
        Status::ALL.into_iter().filter(is_wanted).collect()
    }

    /// Returns the bounds of the error code: from and to inclusive, and before exclusive.
    pub fn error_bounds(&self) -> (Option<&str>, Option<&str>, Option<String>) {
        match self.error.as_deref().map(|error| (error, error.strip_suffix('*'))) {
            None => (None, None, None),
            Some((_, Some(prefix))) => (Some(prefix), None, after_prefix(prefix)),
            Some((error, None)) => (Some(error), Some(error), None),
        }
    }

    /// Returns true if no run can match because a text contains a NUL character, which no store keeps.
    pub fn is_unstorable(&self) -> bool {
        let texts = [self.workflow.as_deref(), self.error.as_deref(), self.start_key.as_deref()];
        let is_unstorable = |filter: &ShadowFilter| filter.name.contains('\0') || filter.is.is_unstorable();
        texts.into_iter().flatten().any(|text| text.contains('\0')) || self.shadows.iter().any(is_unstorable)
    }

    /// Returns true if the row of a run matches, apart from its version, its key and its shadow columns.
    pub(crate) fn has(&self, row: &RunRow) -> bool {
        let (from, to, before) = self.error_bounds();
        let error = row.error.as_deref();
        let (created, updated) = (row.created_at, row.updated_at);
        self.workflow.as_ref().is_none_or(|name| row.workflow == *name)
            && self.excluded_prefix().is_none_or(|prefix| !row.workflow.starts_with(prefix))
            && (self.status.is_empty() || self.status.contains(&row.status))
            && self.parent.is_none_or(|run| row.parent.as_ref().is_some_and(|parent| parent.run == run))
            && self.root.is_none_or(|root| row.root == root)
            && self.id_prefix.is_none_or(|prefix| prefix.has(row.run))
            && self.definition.is_none_or(|hash| row.definition == hash)
            && from.is_none_or(|from| error.is_some_and(|error| error >= from))
            && to.is_none_or(|to| error.is_some_and(|error| error <= to))
            && before.is_none_or(|before| error.is_some_and(|error| *error < *before))
            && self.created_after.is_none_or(|after| created >= after)
            && self.created_before.is_none_or(|before| created < before)
            && self.updated_after.is_none_or(|after| updated >= after)
            && self.updated_before.is_none_or(|before| updated < before)
    }
}

/// The first digits of a run's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IdPrefix {
    /// The digits, followed by zeros.
    least: Uuid,
    /// Number of hexadecimal digits, 1 to 32.
    digits: u32,
}

impl IdPrefix {
    /// Returns the smallest and the greatest id with this prefix.
    pub fn bounds(self) -> (Uuid, Uuid) {
        let free = 128 - 4 * self.digits;
        let rest = u128::MAX.checked_shr(128 - free).unwrap_or(0);
        (self.least, Uuid::from_u128(self.least.as_u128() | rest))
    }

    /// Returns true if the prefix includes the time of creation, so that it selects few runs.
    pub(crate) fn is_narrow(self) -> bool {
        self.digits >= 12
    }

    fn has(self, run: RunId) -> bool {
        let (least, greatest) = self.bounds();
        (least..=greatest).contains(&run.uuid())
    }
}

/// A text that is not the beginning of an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not the beginning of a run's id: give 1 to 32 hexadecimal digits, with the hyphens of a UUID or without"
)]
pub struct BadIdPrefix(String);

impl FromStr for IdPrefix {
    type Err = BadIdPrefix;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || BadIdPrefix(text.to_owned());
        let in_place = |(at, c): (usize, char)| c != '-' || [8, 13, 18, 23].contains(&at);
        if !text.char_indices().all(in_place) {
            return Err(wrong());
        }
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        let is_hex = digits.chars().all(|c| c.is_ascii_hexdigit());
        let count = u32::try_from(digits.len()).ok().filter(|count| (1..=32).contains(count) && is_hex);
        let count = count.ok_or_else(wrong)?;
        let least = u128::from_str_radix(&digits, 16).map_err(|_| wrong())?;
        let least = Uuid::from_u128(least << (128 - 4 * count));
        Ok(IdPrefix { least, digits: count })
    }
}

impl fmt::Display for IdPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.least.simple().to_string();
        f.write_str(&digits[..self.digits as usize])
    }
}

impl TryFrom<String> for IdPrefix {
    type Error = BadIdPrefix;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<IdPrefix> for String {
    fn from(prefix: IdPrefix) -> Self {
        prefix.to_string()
    }
}

/// The order of a listing of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RunOrder {
    /// Oldest first, or the smallest value of a column first.
    Asc,
    /// Newest first, or the greatest value of a column first.
    Desc,
}

/// A query for runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunQuery {
    pub filter: RunFilter,
    /// `None` = newest first. If all filters on shadow columns are ranges, the listing is in the order of the first
    /// filter's column and then of id, and `None` = smallest value first.
    pub order: Option<RunOrder>,
    /// Maximum number of runs; see [`page_rows`](crate::store::page_rows).
    pub limit: u32,
    /// [`Page::next`](crate::Page::next) of the previous page; `None` = the first page.
    pub cursor: Option<String>,
}

impl RunQuery {
    /// Rejects an invalid filter; see [`RunFilter::check`].
    pub fn check(&self) -> Result<(), StoreError> {
        self.filter.check()
    }
}

impl From<RunFilter> for RunQuery {
    fn from(filter: RunFilter) -> Self {
        RunQuery { filter, ..RunQuery::default() }
    }
}

/// The number of runs with a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunCount {
    pub status: Status,
    /// Number of runs, at most [`MAX_RUN_COUNT`].
    pub count: u32,
    /// True if there may be more: the count or the number of rows read has reached its maximum.
    pub more: bool,
}

/// Counts of runs by status, while they are counted.
#[derive(Debug)]
pub struct RunCounts(Vec<RunCount>);

impl RunCounts {
    /// Begins to count the runs that a filter selects.
    pub fn of(filter: &RunFilter) -> Self {
        let zero = |status| RunCount { status, count: 0, more: false };
        RunCounts(filter.statuses().into_iter().map(zero).collect())
    }

    /// Adds runs of one status.
    pub fn add(&mut self, status: Status, runs: u32) {
        if let Some(of) = self.0.iter_mut().find(|of| of.status == status) {
            let all = of.count.saturating_add(runs);
            of.more |= all > MAX_RUN_COUNT;
            of.count = all.min(MAX_RUN_COUNT);
        }
    }

    /// Notes that there may be more runs of these statuses.
    pub fn may_have_more(&mut self, of: &[Status]) {
        self.0.iter_mut().filter(|count| of.contains(&count.status)).for_each(|count| count.more = true);
    }

    /// Returns the counts in the order of a run's life.
    pub fn counts(self) -> Vec<RunCount> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_prefix_is_read_with_hyphens_and_without() {
        let id: RunId = "01a2b3c4-d5e6-7f80-9102-a3b4c5d6e7f8".parse().unwrap();
        for text in ["0", "01a2b3c4", "01a2b3c4-", "01a2b3c4d5", "01A2B3C4-D5", &id.to_string()] {
            assert!(text.parse::<IdPrefix>().unwrap().has(id), "{text}");
        }
        for text in ["1", "01a2b3c5", "01a2b3c4-d5e6-7f80-9102-a3b4c5d6e7f9"] {
            assert!(!text.parse::<IdPrefix>().unwrap().has(id), "{text}");
        }
        for text in ["", "-", "01-a2", "xyz", "01a2b3c4-d5e6-7f80-9102-a3b4c5d6e7f80"] {
            let error = text.parse::<IdPrefix>().unwrap_err().to_string();
            assert!(error.contains("hexadecimal digits"), "{text}: {error}");
        }
    }

    #[test]
    fn filter_is_serialized_and_read_back() {
        let filter = RunFilter {
            status: vec![Status::Failed, Status::Suspended],
            root: Some(RunId::nil()),
            id_prefix: Some("01a2".parse().unwrap()),
            version: Some(3),
            definition: Some(DefinitionHash::of(b"x")),
            error: Some("http.*".to_owned()),
            created_after: Some(Timestamp::from_micros(1_000_000)),
            shadows: vec![
                ShadowFilter::equals("city", "Bonn"),
                ShadowFilter::prefix("city", "B"),
                ShadowFilter::numbers("amount", std::ops::Bound::Excluded(1.5), std::ops::Bound::Unbounded),
            ],
            ..RunFilter::of("orders")
        };
        let text = serde_json::to_string(&filter).unwrap();
        assert_eq!(serde_json::from_str::<RunFilter>(&text).unwrap(), filter, "{text}");
        assert_eq!(serde_json::to_string(&RunFilter::default()).unwrap(), "{}");
        assert!(serde_json::from_str::<RunFilter>("{\"stats\":[]}").is_err());
    }
}
