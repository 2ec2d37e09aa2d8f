//! Lists and counts runs: reads parts of indexes row by row, and stops after a number of rows.

use std::collections::HashMap;
use std::sync::LazyLock;

use rusqlite::types::{Null, ToSql};
use rusqlite::{Connection, OptionalExtension, Row, params};
use stepwell_core::shadow::{ShadowType, ShadowValue};
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};
use stepwell_store::shadow::{RangePlace, ShadowSpans, range_cursor};
use stepwell_store::{
    Listing, MAX_ROWS_READ, Page, RunCount, RunCounts, RunFilter, RunIndex, RunPage, RunQuery, RunRow,
    RunScan, RunSummary, ScannedPart, ShadowCondition, ShadowFilter, Status, TenantId,
};
use uuid::Uuid;

use crate::listed::read_listed;
use crate::query::{Read, run_cursor};
use crate::rows;
use crate::shadows::{SpanParams, has_columns, held, value_at};
use crate::statements as sql;

/// The column of the statement that says whether a run matches the filter.
const MATCHES: usize = 22;
/// The column with the value that orders the listing.
const ORDERED_BY: usize = 23;

/// An index from which runs are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    All,
    Workflow,
    Parent,
    Root,
    Key,
    Status,
    Error,
    Unordered,
    Equal(ShadowType),
    Texts,
    Numbers,
}

impl Source {
    pub(crate) const ALL: [Source; 13] = [
        Source::All,
        Source::Workflow,
        Source::Parent,
        Source::Root,
        Source::Key,
        Source::Status,
        Source::Error,
        Source::Unordered,
        Source::Equal(ShadowType::String),
        Source::Equal(ShadowType::Number),
        Source::Equal(ShadowType::Boolean),
        Source::Texts,
        Source::Numbers,
    ];

    fn of(index: &RunIndex) -> Self {
        match index {
            RunIndex::All => Source::All,
            RunIndex::Workflow => Source::Workflow,
            RunIndex::Parent => Source::Parent,
            RunIndex::Root => Source::Root,
            RunIndex::Key => Source::Key,
            RunIndex::Status(_) => Source::Status,
            RunIndex::Error => Source::Error,
            RunIndex::Unordered => Source::Unordered,
            RunIndex::Column(filter) => Source::Equal(filter.is.kind()),
        }
    }

    /// Returns the index, and the condition that selects a part of it besides the ids.
    fn of_runs(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Source::All => ("runs_by_id", ""),
            Source::Workflow => ("runs_by_workflow", " and i.workflow = ?2"),
            Source::Parent => ("runs_by_parent", " and i.parent_run is not null and i.parent_run = ?12"),
            Source::Root => {
                ("runs_by_root", " and i.parent_run is not null and i.root = ?13 and i.id <> ?13")
            }
            Source::Key => (
                "runs_by_id",
                " and i.id = (select k.run from idempotency k
                    where k.tenant = ?1 and k.operation = 'start' and k.key = ?5 and k.run is not null)",
            ),
            Source::Status => (
                "runs_not_running",
                " and (i.status = 'pending' or i.status = 'suspended' or i.status = 'failed') and i.status = ?5",
            ),
            Source::Error => ("runs_by_error", " and i.error is not null and i.error = ?16"),
            Source::Unordered => ("runs_unordered", " and i.unordered = 1"),
            Source::Equal(_) | Source::Texts | Source::Numbers => return None,
        })
    }

    /// Returns the column of `shadows` that is searched, and the index on it.
    fn column(self) -> (&'static str, &'static str) {
        match self {
            Source::Equal(ShadowType::Number) | Source::Numbers => ("as_number", "shadows_by_number"),
            Source::Equal(ShadowType::Boolean) => ("as_boolean", "shadows_by_boolean"),
            _ => ("as_text", "shadows_by_text"),
        }
    }

    /// Returns the statement that reads this index.
    fn text(self, is_descending: bool) -> String {
        let order = if is_descending { " desc" } else { "" };
        let (from, part) = ("runs i indexed by runs_by_id", "i.id >= ?3 and i.id <= ?4");
        if let Some((index, condition)) = self.of_runs() {
            return sql::runs_list
                .replace(from, &format!("runs i indexed by {index}"))
                .replace(part, &format!("{part}{condition}"))
                .replace("i.id desc", &format!("i.id{order}"));
        }
        let (column, index) = self.column();
        let of_column = "s.tenant = ?1 and s.workflow = ?2 and s.name = ?5";
        let joined =
            format!("shadows s indexed by {index} cross join runs i on i.tenant = ?1 and i.id = s.run");
        let text = sql::runs_list.replace(from, &joined);
        if matches!(self, Source::Equal(_)) {
            let one = format!("s.{column} = ?6 and s.run >= ?3 and s.run <= ?4");
            return text
                .replace(part, &format!("{of_column} and {one}"))
                .replace("i.id desc", &format!("s.run{order}"));
        }
        let span = format!(
            "s.{column} is not null and (s.{column}, s.run) > (?6, ?7) and (s.{column}, s.run) < (?8, ?9) and {part}"
        );
        text.replace(part, &format!("{of_column} and {span}"))
            .replace("null as ordered_by", &format!("s.{column} as ordered_by"))
            .replace("i.id desc", &format!("s.{column}{order}, s.run{order}"))
    }

    /// Returns the statement that reads this index.
    pub(crate) fn statement(self, is_descending: bool) -> &'static str {
        static TEXTS: LazyLock<HashMap<(Source, bool), String>> = LazyLock::new(|| {
            let both = |source: Source| [true, false].map(|order| ((source, order), source.text(order)));
            Source::ALL.into_iter().flat_map(both).collect()
        });
        TEXTS.get(&(self, is_descending)).map_or(sql::runs_list, String::as_str)
    }
}

/// The part of an index to read, with its parameters.
struct Part<'a> {
    source: Source,
    filter: &'a RunFilter,
    columns: Vec<&'a ShadowFilter>,
    ids: (Uuid, Uuid),
    most: u32,
    is_descending: bool,
    /// The status, the key or the name of the column that is searched.
    name: Option<&'a str>,
    value: Option<&'a ShadowValue>,
    spans: Option<&'a ShadowSpans>,
}

impl<'a> Part<'a> {
    fn of(filter: &'a RunFilter, scan: &'a RunScan, is_descending: bool) -> Self {
        let (name, value) = match &scan.index {
            RunIndex::Status(status) => (Some(status.as_str()), None),
            RunIndex::Key => (filter.start_key.as_deref(), None),
            RunIndex::Column(ShadowFilter { name, is: ShadowCondition::Equals(value) }) => {
                (Some(name.as_str()), Some(value))
            }
            _ => (None, None),
        };
        let (source, ids) = (Source::of(&scan.index), (scan.from, scan.to));
        let (columns, most) = (scan.columns.iter().collect(), scan.most);
        Part { source, filter, columns, ids, most, is_descending, name, value, spans: None }
    }

    fn of_range(
        filter: &'a RunFilter,
        (lead, others): &'a (ShadowFilter, Vec<ShadowFilter>),
        spans: &'a ShadowSpans,
        is_descending: bool,
    ) -> Self {
        let source = match spans {
            ShadowSpans::Texts(_) => Source::Texts,
            ShadowSpans::Numbers(_) => Source::Numbers,
        };
        let (name, spans, ids) = (Some(lead.name.as_str()), Some(spans), filter.id_bounds());
        let (columns, most) = (others.iter().collect(), MAX_ROWS_READ);
        Part { source, filter, columns, ids, most, is_descending, name, value: None, spans }
    }

    /// Reads rows until `done` returns true or the maximum number is read. Returns true in the second case.
    fn read(
        &self,
        connection: &Connection,
        tenant: TenantId,
        mut each: impl FnMut(&Row<'_>, bool, bool) -> Read<bool>,
    ) -> Read<()> {
        let RunFilter { workflow, status, parent, root, version, definition, .. } = self.filter;
        let (error_from, error_to, error_before) = self.filter.error_bounds();
        let words: Vec<&str> = status.iter().copied().map(Status::as_str).collect();
        let words = (!words.is_empty()).then(|| serde_json::to_string(&words).expect("words are text"));
        let span = self.spans.map(SpanParams::of);
        let none: &dyn ToSql = &Null;
        let first = self.value.map(held).or(span.as_ref().map(|span| span.from)).unwrap_or(none);
        let mut statement = connection.prepare_cached(self.source.statement(self.is_descending))?;
        let time = |at: Option<Timestamp>| at.map(Timestamp::micros);
        let mut found = statement.query(params![
            tenant.uuid().into_bytes(),
            workflow.as_ref().map(Name::as_str),
            self.ids.0.into_bytes(),
            self.ids.1.into_bytes(),
            self.name,
            first,
            span.as_ref().map(|span| span.after),
            span.as_ref().map_or(none, |span| span.to),
            span.as_ref().map(|span| span.before),
            self.filter.excluded_prefix(),
            words,
            rows::id(parent.map(RunId::uuid)),
            rows::id(root.map(RunId::uuid)),
            definition.as_ref().map(DefinitionHash::as_bytes),
            version,
            error_from,
            error_to,
            error_before,
            time(self.filter.created_after),
            time(self.filter.created_before),
            time(self.filter.updated_after),
            time(self.filter.updated_before),
        ])?;
        let mut count = 0;
        while let Some(row) = found.next()? {
            count += 1;
            let matches = row.get::<_, Option<bool>>(MATCHES)? == Some(true);
            let is_last = count == self.most;
            if each(row, matches, is_last)? || is_last {
                break;
            }
        }
        Ok(())
    }

    /// Reads the rows of a page.
    fn page(&self, connection: &Connection, tenant: TenantId, wanted: usize) -> Read<ScannedPart> {
        let mut part = ScannedPart::default();
        let cursor = |row: &Row<'_>| match self.spans {
            Some(_) => Ok(range_cursor(rows::run_id(row, 0)?, &value_at(row, ORDERED_BY)?)),
            None => run_cursor(row),
        };
        let mut versions = Versions { connection, tenant, known: HashMap::new() };
        self.read(connection, tenant, |row, matches, is_last| {
            if matches {
                let read = |row: &Row<'_>| versions.summary(rows::run(row)?);
                let seen = read_listed(Listing::of("runs"), row, cursor, read)?;
                let is_wanted = match &seen.1 {
                    Ok(run) => has_columns(connection, tenant, run.run, &run.workflow, &self.columns)?,
                    Err(_) => true,
                };
                part.rows.extend(is_wanted.then_some(seen));
            }
            if part.rows.len() == wanted {
                return Ok(true);
            }
            if is_last {
                part.end = Some(cursor(row)?);
            }
            Ok(false)
        })?;
        Ok(part)
    }

    /// Adds the runs to counts by status.
    fn count(&self, connection: &Connection, tenant: TenantId, counts: &mut RunCounts) -> Read<()> {
        self.read(connection, tenant, |row, matches, is_last| {
            let run =
                || Ok::<_, rusqlite::Error>((rows::run_id(row, 0)?, Name::from(row.get::<_, String>(1)?)));
            let status = rows::read(row, 7, |text: String| text.parse::<Status>().ok());
            // An unreadable row has no status to count.
            if let (true, Ok(status), Ok((run, workflow))) = (matches, status, run())
                && has_columns(connection, tenant, run, &workflow, &self.columns)?
            {
                counts.add(status, 1);
            }
            if is_last {
                counts.may_have_more(&self.filter.statuses());
            }
            Ok(false)
        })
    }
}

/// The author's version numbers of the definitions of a page.
struct Versions<'c> {
    connection: &'c Connection,
    tenant: TenantId,
    known: HashMap<DefinitionHash, Option<u32>>,
}

impl Versions<'_> {
    fn summary(&mut self, run: RunRow) -> Read<RunSummary> {
        let hash = run.definition;
        let definition_version = match self.known.get(&hash) {
            Some(known) => *known,
            None => {
                let mut statement = self.connection.prepare_cached(sql::definition_version)?;
                let which = params![self.tenant.uuid().into_bytes(), hash.as_bytes()];
                let found = statement.query_row(which, |row| row.get(0)).optional()?;
                *self.known.entry(hash).or_insert(found)
            }
        };
        Ok(RunSummary { definition_version, ..run.summary() })
    }
}

/// Lists the runs that match a query, one page.
pub(crate) fn runs(connection: &Connection, tenant: TenantId, query: &RunQuery) -> Read<Page<RunSummary>> {
    query.check()?;
    let (mut page, is_descending) = (RunPage::of(query), query.is_descending());
    if let Some(range) = query.filter.leading_range() {
        let place = RangePlace::of_run(query.cursor.as_deref())?;
        if let Some(spans) = ShadowSpans::of(&range.0.is, place.as_ref(), is_descending)? {
            let part = Part::of_range(&query.filter, &range, &spans, is_descending);
            page.add(vec![part.page(connection, tenant, page.wanted())?]);
        }
        return Ok(page.page()?);
    }
    for scans in query.scans()? {
        let wanted = page.wanted();
        if wanted > 0 {
            let read = |scan| Part::of(&query.filter, scan, is_descending).page(connection, tenant, wanted);
            page.add(scans.iter().map(read).collect::<Read<_>>()?);
        }
    }
    Ok(page.page()?)
}

/// Counts the runs that match a filter, by status.
pub(crate) fn counts(connection: &Connection, tenant: TenantId, filter: &RunFilter) -> Read<Vec<RunCount>> {
    filter.check()?;
    let mut counts = RunCounts::of(filter);
    if let Some(range) = filter.leading_range() {
        if let Some(spans) = ShadowSpans::of(&range.0.is, None, false)? {
            Part::of_range(filter, &range, &spans, false).count(connection, tenant, &mut counts)?;
        }
        return Ok(counts.counts());
    }
    for (filter, scan) in &filter.count_scans() {
        Part::of(filter, scan, true).count(connection, tenant, &mut counts)?;
    }
    Ok(counts.counts())
}
