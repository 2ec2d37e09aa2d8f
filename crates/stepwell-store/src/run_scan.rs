//! The parts of indexes that a listing of runs reads, and how it combines them to a page.
//!
//! Every store reads the same parts in the same order, so that pages end at the same places.

use stepwell_core::{RunId, Timestamp};
use uuid::Uuid;

use crate::bad::Seen;
use crate::run::{RunRow, RunSummary, Status};
use crate::run_query::{IdPrefix, MAX_ROWS_READ, MAX_RUN_COUNT, RunFilter, RunOrder, RunQuery};
use crate::shadow::{ShadowCondition, ShadowFilter, leading};
use crate::store::{Page, StoreError, bad_cursor, page_rows};

/// Maximum difference between the time in an id and the time at which the run was created, in milliseconds. Runs with a
/// greater difference are in an index of their own, so that a range of times is a range of ids.
const MAX_ID_SKEW_MS: i64 = 60_000;
/// Number of rows that a listing by time reads of that index, before and after its range of ids.
const UNORDERED_ROWS: u32 = 500;

/// An index of runs in which a listing finds them in the order of their ids.
#[derive(Debug, Clone, PartialEq)]
pub enum RunIndex {
    /// All runs of the tenant.
    All,
    /// The runs of the filter's workflow.
    Workflow,
    /// The children of the filter's parent.
    Parent,
    /// The descendants of the filter's root.
    Root,
    /// The run with the filter's start key.
    Key,
    /// The runs with this status: pending, suspended or failed.
    Status(Status),
    /// The failed runs with the filter's error code.
    Error,
    /// The runs whose id does not contain the time at which they were created.
    Unordered,
    /// The runs whose shadow column has a value.
    Column(ShadowFilter),
}

impl RunIndex {
    /// Returns true if the index holds this run, apart from start keys and shadow columns.
    pub(crate) fn has(&self, filter: &RunFilter, row: &RunRow) -> bool {
        match self {
            RunIndex::All | RunIndex::Key => true,
            RunIndex::Workflow | RunIndex::Column(_) => {
                filter.workflow.as_ref().is_none_or(|name| row.workflow == *name)
            }
            RunIndex::Parent => row.parent.as_ref().map(|parent| parent.run) == filter.parent,
            RunIndex::Root => {
                row.parent.is_some() && Some(row.root) == filter.root && Some(row.run) != filter.root
            }
            RunIndex::Status(status) => row.status == *status,
            RunIndex::Error => row.error.is_some() && row.error == filter.error,
            RunIndex::Unordered => row.is_unordered(),
        }
    }
}

/// A part of an index: the ids within two bounds, both inclusive.
#[derive(Debug, Clone, PartialEq)]
pub struct RunScan {
    pub index: RunIndex,
    pub from: Uuid,
    pub to: Uuid,
    /// Maximum number of rows to read.
    pub most: u32,
    /// Filters on shadow columns that the index does not cover.
    pub columns: Vec<ShadowFilter>,
}

impl RunRow {
    /// Returns true if the time in the run's id is not the time at which the run was created.
    pub fn is_unordered(&self) -> bool {
        let of_id = i64::try_from(self.run.uuid().as_u128() >> 80).unwrap_or(i64::MAX);
        of_id.abs_diff(self.created_at.micros().div_euclid(1_000)) > MAX_ID_SKEW_MS.unsigned_abs()
    }
}

/// Returns the smallest id with a time in milliseconds.
fn first_id(ms: i64) -> Uuid {
    let most = (1_u128 << 48) - 1;
    let ms = u128::try_from(ms).unwrap_or(0);
    if ms > most { Uuid::max() } else { Uuid::from_u128(ms << 80) }
}

/// A range of ids, both ends inclusive.
type Ids = (u128, u128);

fn within((from, to): Ids, (least, greatest): Ids) -> Option<Ids> {
    Some((from.max(least), to.min(greatest))).filter(|(from, to)| from <= to)
}

impl RunFilter {
    /// Returns the ids that runs created in the filter's range of times have, except for unordered runs.
    fn ids_by_time(&self) -> Option<Ids> {
        let ms = |at: Timestamp| at.micros().div_euclid(1_000);
        if self.created_after.is_none() && self.created_before.is_none() {
            return None;
        }
        let from =
            self.created_after.map_or(0, |at| first_id(ms(at).saturating_sub(MAX_ID_SKEW_MS)).as_u128());
        let to = self.created_before.map_or(u128::MAX, |at| {
            first_id(ms(at).saturating_add(MAX_ID_SKEW_MS + 1)).as_u128().saturating_sub(1)
        });
        Some((from, to.max(from)))
    }

    /// Returns the indexes to read, which together hold every run that matches, each once.
    fn indexes(&self) -> Vec<RunIndex> {
        let in_need = [Status::Pending, Status::Suspended, Status::Failed];
        let equality = leading(&self.shadows).map(|(lead, _)| lead).filter(is_equality);
        if self.start_key.is_some() {
            return vec![RunIndex::Key];
        }
        if self.id_prefix.is_some_and(IdPrefix::is_narrow) {
            return vec![RunIndex::All];
        }
        if let Some(lead) = equality {
            return vec![RunIndex::Column(lead)];
        }
        match (self.parent, self.root, self.error.as_deref().map(|error| error.ends_with('*'))) {
            (Some(_), ..) => vec![RunIndex::Parent],
            // The root itself is not in the index of descendants.
            (None, Some(_), _) => vec![RunIndex::Root, RunIndex::All],
            (None, None, Some(false)) => vec![RunIndex::Error],
            (None, None, Some(true)) => vec![RunIndex::Status(Status::Failed)],
            (None, None, None)
                if self.status.is_empty() || !self.status.iter().all(|s| in_need.contains(s)) =>
            {
                let of_all = if self.workflow.is_some() { RunIndex::Workflow } else { RunIndex::All };
                vec![of_all]
            }
            (None, None, None) => self.statuses().into_iter().map(RunIndex::Status).collect(),
        }
    }

    /// Returns the filters on shadow columns that an index does not cover.
    fn columns_besides(&self, index: &RunIndex) -> Vec<ShadowFilter> {
        match (index, leading(&self.shadows)) {
            (RunIndex::Column(_), Some((_, others))) => others.into_iter().cloned().collect(),
            _ => self.shadows.clone(),
        }
    }

    /// Returns the parts of indexes to read within these ids, newest first. Parts in the same list are read together.
    fn scans(&self, ids: Ids, most: u32) -> Vec<Vec<RunScan>> {
        let indexes = self.indexes();
        let lanes = u32::try_from(indexes.len()).unwrap_or(1).max(1);
        let scan = |index: &RunIndex, ids: Option<Ids>, most: u32| {
            let (from, to) = ids?;
            let (from, to) = (Uuid::from_u128(from), Uuid::from_u128(to));
            let columns = self.columns_besides(index);
            Some(RunScan { index: index.clone(), from, to, most: most.max(1), columns })
        };
        let by_root = |index: &RunIndex| self.root.filter(|_| *index == RunIndex::All && lanes == 2);
        let main = |ids: Option<Ids>, most: u32| -> Vec<RunScan> {
            let of = |index: &RunIndex| match by_root(index) {
                Some(root) => {
                    let root = root.uuid().as_u128();
                    // One row, and never the last of the maximum, so that the page does not end there.
                    scan(index, within((root, root), ids?), 2)
                }
                None => scan(index, ids, most / lanes),
            };
            indexes.iter().filter_map(of).collect()
        };
        let is_narrow = |index: &RunIndex| matches!(index, RunIndex::Key | RunIndex::Parent | RunIndex::Root);
        let (times, (least, greatest)) = (self.ids_by_time(), ids);
        let Some(times) = times.filter(|_| !indexes.iter().any(is_narrow)) else {
            return vec![main(Some(ids), most)];
        };
        let unordered = UNORDERED_ROWS.min(most / 4);
        let later = times.1.checked_add(1).and_then(|from| within((from, u128::MAX), (least, greatest)));
        let earlier = times.0.checked_sub(1).and_then(|to| within((0, to), (least, greatest)));
        let beside = |ids| scan(&RunIndex::Unordered, ids, unordered).into_iter().collect::<Vec<_>>();
        vec![beside(later), main(within(times, ids), most - 2 * unordered), beside(earlier)]
    }

    fn ids(&self) -> Ids {
        self.id_prefix.map_or((0, u128::MAX), |prefix| {
            let (from, to) = prefix.bounds();
            (from.as_u128(), to.as_u128())
        })
    }

    /// Returns what to read for counts by status: parts of indexes, each with the filter on its runs.
    ///
    /// Statuses with an index of their own are counted there. The others share the remaining rows.
    pub fn count_scans(&self) -> Vec<(RunFilter, RunScan)> {
        let is_broad =
            |index: &RunIndex| matches!(index, RunIndex::All | RunIndex::Workflow | RunIndex::Status(_));
        let is_narrow = self.error.is_some() || self.id_prefix.is_some_and(IdPrefix::is_narrow);
        let is_split = !is_narrow && self.indexes().iter().all(is_broad);
        let in_need = [Status::Pending, Status::Suspended, Status::Failed];
        let (alone, together): (Vec<_>, Vec<_>) =
            self.statuses().into_iter().partition(|status| is_split && in_need.contains(status));
        let mut parts: Vec<(Vec<Status>, u32)> =
            alone.into_iter().map(|status| (vec![status], MAX_RUN_COUNT + 1)).collect();
        let rest = MAX_ROWS_READ - (MAX_RUN_COUNT + 1) * u32::try_from(parts.len()).unwrap_or(0);
        if !together.is_empty() {
            parts.push((together, rest));
        }
        let of = |(status, most): (Vec<Status>, u32)| {
            let filter = RunFilter { status, ..self.clone() };
            let scans = filter.scans(filter.ids(), most).into_iter().flatten();
            scans.map(|scan| (filter.clone(), scan)).collect::<Vec<_>>()
        };
        parts.into_iter().flat_map(of).collect()
    }

    /// Returns the range that orders the listing, if all filters on shadow columns are ranges, and the other filters.
    pub fn leading_range(&self) -> Option<(ShadowFilter, Vec<ShadowFilter>)> {
        let (lead, others) = leading(&self.shadows).filter(|(lead, _)| !is_equality(lead))?;
        Some((lead, others.into_iter().cloned().collect()))
    }

    /// Returns the smallest and the greatest id that a run may have.
    pub fn id_bounds(&self) -> (Uuid, Uuid) {
        let (from, to) = self.ids();
        (Uuid::from_u128(from), Uuid::from_u128(to))
    }
}

fn is_equality(filter: &ShadowFilter) -> bool {
    matches!(filter.is, ShadowCondition::Equals(_))
}

impl RunQuery {
    /// Returns true if the listing is in descending order.
    pub fn is_descending(&self) -> bool {
        match self.order {
            Some(order) => order == RunOrder::Desc,
            None => self.filter.leading_range().is_none(),
        }
    }

    /// Returns the parts of indexes to read after the cursor. The parts of a list are read together and merged, the
    /// lists one after the other. Not for a listing in the order of a column.
    pub fn scans(&self) -> Result<Vec<Vec<RunScan>>, StoreError> {
        let after = |cursor: &String| cursor.parse::<RunId>().map_err(|_| bad_cursor(cursor));
        let after = self.cursor.as_ref().map(after).transpose()?.map(|run| run.uuid().as_u128());
        let ids = match (after, self.is_descending()) {
            (None, _) => Some(self.filter.ids()),
            (Some(after), true) => after.checked_sub(1).and_then(|to| within((0, to), self.filter.ids())),
            (Some(after), false) => {
                after.checked_add(1).and_then(|from| within((from, u128::MAX), self.filter.ids()))
            }
        };
        let mut scans = ids.map_or_else(Vec::new, |ids| self.filter.scans(ids, MAX_ROWS_READ));
        if !self.is_descending() {
            scans.reverse();
        }
        Ok(scans)
    }
}

/// The rows that were read from a part of an index.
#[derive(Debug, Default)]
pub struct ScannedPart {
    /// Rows that match, in the order of the listing. More than the page needs are not read.
    pub rows: Vec<Seen<RunSummary>>,
    /// The cursor of the last row that was read, if the maximum number of rows was reached.
    pub end: Option<String>,
}

/// A page of a listing of runs, while it is read.
#[derive(Debug)]
pub struct RunPage {
    rows: Vec<Seen<RunSummary>>,
    end: Option<String>,
    limit: u32,
    is_descending: bool,
}

impl RunPage {
    /// Begins the page of a query.
    pub fn of(query: &RunQuery) -> Self {
        let (limit, is_descending) = (query.limit, query.is_descending());
        RunPage { rows: Vec::new(), end: None, limit, is_descending }
    }

    /// Returns the number of rows that are missing: those of the page, and one that shows that another page follows.
    pub fn wanted(&self) -> usize {
        match self.end {
            Some(_) => 0,
            None => (page_rows(self.limit) + 1).saturating_sub(self.rows.len()),
        }
    }

    /// Adds the rows of parts that were read together. After a part that was not read to its end, rows are unknown, so
    /// the page ends there.
    pub fn add(&mut self, parts: Vec<ScannedPart>) {
        let (is_single, is_descending) = (parts.len() == 1, self.is_descending);
        let is_after = |a: &str, b: &str| if is_descending { a < b } else { a > b };
        let mut rows = Vec::new();
        for ScannedPart { rows: found, end } in parts {
            rows.extend(found);
            // The nearest end: what comes after it is not known of every part.
            self.end = match (self.end.take(), end) {
                (Some(one), Some(other)) if is_after(&one, &other) => Some(other),
                (one, other) => one.or(other),
            };
        }
        if !is_single {
            // The text of an id sorts like the id.
            rows.sort_by(|(one, _): &Seen<RunSummary>, (other, _)| match is_descending {
                true => other.cmp(one),
                false => one.cmp(other),
            });
            if let Some(end) = &self.end {
                rows.retain(|(cursor, _)| cursor.as_ref().is_none_or(|cursor| !is_after(cursor, end)));
            }
        }
        self.rows.extend(rows);
    }

    /// Returns the page with its cursor.
    pub fn page(self) -> Result<Page<RunSummary>, StoreError> {
        let is_full = self.rows.len() > page_rows(self.limit);
        let page = Page::sorted(self.rows, self.limit)?;
        let next = if is_full { page.next } else { self.end };
        Ok(Page { next, ..page })
    }
}
