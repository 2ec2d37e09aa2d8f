//! Lists and counts runs in memory.

use std::iter;

use stepwell_core::RunId;
use stepwell_core::shadow::ShadowValue;

use super::Tables;
use crate::bad::Seen;
use crate::commit::KeyLifetime;
use crate::run::{RunRow, RunSummary};
use crate::run_query::{MAX_ROWS_READ, RunCount, RunCounts, RunFilter, RunQuery, START_OPERATION};
use crate::run_scan::{RunIndex, RunPage, RunScan, ScannedPart};
use crate::shadow::{RangePlace, ShadowFilter, ShadowSpans, compare, range_cursor};
use crate::store::{Page, StoreError};

impl Tables {
    pub(super) fn runs(&self, query: &RunQuery) -> Result<Page<RunSummary>, StoreError> {
        query.check()?;
        let mut page = RunPage::of(query);
        if let Some((lead, others)) = query.filter.leading_range() {
            let place = RangePlace::of_run(query.cursor.as_deref())?;
            let spans = ShadowSpans::of(&lead.is, place.as_ref(), query.is_descending())?;
            let rows = self.in_range(&query.filter, &lead, spans.as_ref(), query.is_descending());
            page.add(vec![self.range_part(&query.filter, &others, rows, page.wanted())]);
            return page.page();
        }
        for parts in query.scans()? {
            if page.wanted() > 0 {
                let wanted = page.wanted();
                let read = |scan| self.part(&query.filter, scan, query.is_descending(), wanted);
                page.add(parts.iter().map(read).collect());
            }
        }
        page.page()
    }

    pub(super) fn run_counts(&self, filter: &RunFilter) -> Result<Vec<RunCount>, StoreError> {
        filter.check()?;
        let mut counts = RunCounts::of(filter);
        if let Some((lead, others)) = filter.leading_range() {
            let spans = ShadowSpans::of(&lead.is, None, false)?;
            let rows: Vec<_> = self.in_range(filter, &lead, spans.as_ref(), false);
            let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).take(MAX_ROWS_READ as usize).collect();
            if rows.len() == MAX_ROWS_READ as usize {
                counts.may_have_more(&filter.statuses());
            }
            let wanted = rows.iter().filter(|row| self.matches(filter, &others, row));
            wanted.for_each(|row| counts.add(row.status, 1));
            return Ok(counts.counts());
        }
        for (filter, scan) in filter.count_scans() {
            let rows: Vec<_> = self.in_scan(&filter, &scan, true).take(scan.most as usize).collect();
            if rows.len() == scan.most as usize {
                counts.may_have_more(&filter.statuses());
            }
            let wanted = rows.into_iter().filter(|row| self.matches(&filter, &scan.columns, row));
            wanted.for_each(|row| counts.add(row.status, 1));
        }
        Ok(counts.counts())
    }

    /// Returns the runs of a part of an index, in order.
    fn in_scan<'a>(
        &'a self,
        filter: &'a RunFilter,
        scan: &'a RunScan,
        is_descending: bool,
    ) -> Box<dyn Iterator<Item = &'a RunRow> + 'a> {
        let rows = self.runs.range(RunId::new(scan.from)..=RunId::new(scan.to)).map(|(_, row)| row);
        let has =
            move |row: &&RunRow| scan.index.has(filter, row) && self.is_indexed(filter, &scan.index, row);
        match is_descending {
            true => Box::new(rows.rev().filter(has)),
            false => Box::new(rows.filter(has)),
        }
    }

    fn is_indexed(&self, filter: &RunFilter, index: &RunIndex, row: &RunRow) -> bool {
        match index {
            RunIndex::Column(lead) => self.has_column(row.run, &row.workflow, lead),
            RunIndex::Key => {
                let key = filter.start_key.clone().unwrap_or_default();
                let key = self.keys.get(&(START_OPERATION.to_owned(), key));
                key.is_some_and(|key| key.lifetime == KeyLifetime::WithRun(row.run))
            }
            _ => true,
        }
    }

    fn matches(&self, filter: &RunFilter, columns: &[ShadowFilter], row: &RunRow) -> bool {
        let definition = self.definitions.get(&row.definition);
        let is_version = |version| {
            definition.is_some_and(|known| known.version == version && known.workflow == row.workflow)
        };
        filter.has(row)
            && filter.version.is_none_or(is_version)
            && columns.iter().all(|filter| self.has_column(row.run, &row.workflow, filter))
    }

    fn part(&self, filter: &RunFilter, scan: &RunScan, is_descending: bool, wanted: usize) -> ScannedPart {
        let rows = self.in_scan(filter, scan, is_descending).map(|row| (row.run.to_string(), row));
        self.read(filter, &scan.columns, rows, scan.most as usize, wanted)
    }

    fn range_part(
        &self,
        filter: &RunFilter,
        columns: &[ShadowFilter],
        rows: Vec<(ShadowValue, &RunRow)>,
        wanted: usize,
    ) -> ScannedPart {
        let rows = rows.into_iter().map(|(value, row)| (range_cursor(row.run, &value), row));
        self.read(filter, columns, rows, MAX_ROWS_READ as usize, wanted)
    }

    /// Reads rows until there are enough that match, or the maximum number is read.
    fn read<'a>(
        &self,
        filter: &RunFilter,
        columns: &[ShadowFilter],
        rows: impl Iterator<Item = (String, &'a RunRow)>,
        most: usize,
        wanted: usize,
    ) -> ScannedPart {
        let mut part = ScannedPart::default();
        for (count, (cursor, row)) in iter::zip(1.., rows) {
            if self.matches(filter, columns, row) {
                part.rows.push(self.seen(&cursor, row));
            }
            if part.rows.len() == wanted {
                break;
            }
            if count == most {
                part.end = Some(cursor);
                break;
            }
        }
        part
    }

    fn seen(&self, cursor: &str, row: &RunRow) -> Seen<RunSummary> {
        let definition_version = self.definitions.get(&row.definition).map(|known| known.version);
        let summary = RunSummary { definition_version, ..row.clone().summary() };
        (Some(cursor.to_owned()), Ok(summary))
    }

    /// Returns the runs within a range of a column, in the order of the column and then of id.
    fn in_range(
        &self,
        filter: &RunFilter,
        lead: &ShadowFilter,
        spans: Option<&ShadowSpans>,
        is_descending: bool,
    ) -> Vec<(ShadowValue, &RunRow)> {
        let of_workflow = |row: &&RunRow| filter.workflow.as_ref() == Some(&row.workflow);
        let value = |row: &RunRow| {
            let held = self.shadows.get(&(row.run, lead.name.clone()))?;
            Some(held.value.clone()).filter(|value| spans.is_some_and(|spans| spans.has(value, row.run)))
        };
        let is_held = |row: &&RunRow| self.has_column(row.run, &row.workflow, lead);
        let rows = self.runs.values().filter(of_workflow).filter(is_held);
        let mut rows: Vec<_> = rows.filter_map(|row| Some((value(row)?, row))).collect();
        rows.sort_by(|(a, one), (b, other)| compare(a, b).then(one.run.cmp(&other.run)));
        if is_descending {
            rows.reverse();
        }
        rows
    }
}
