//! Lists and counts runs: one statement per part of an index, which reads a limited number of rows.

use std::collections::HashMap;
use std::sync::LazyLock;

use stepwell_core::shadow::{ShadowType, ShadowValue};
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};
use stepwell_store::shadow::{RangePlace, ShadowSpans, range_cursor, split};
use stepwell_store::{
    Listing, MAX_ROWS_READ, Page, RunCount, RunCounts, RunFilter, RunIndex, RunPage, RunQuery, RunRow,
    RunScan, RunSummary, ScannedPart, ShadowCondition, ShadowFilter, Status, TenantId,
};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::connection::{Connections, Param};
use crate::listed::read_listed;
use crate::query::{read, run_cursor};
use crate::rows::{self, Read};
use crate::shadows::{ShadowFilters, SpanParams, value_at};
use crate::statements as sql;

/// The columns of the statement after those of the run.
const VERSION: usize = 22;
const MATCHES: usize = 23;
const PLACE: usize = 24;
const ORDERED_BY: usize = 25;

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

    /// Returns the condition that selects a part of the index of runs.
    ///
    /// The ends of the part are compared as rows, so that no other index with the ids fits, even without statistics.
    fn part_of_runs(self) -> Option<String> {
        let part = |column: &str, value: &str| {
            format!(
                "i.{column} = {value} and (i.{column}, i.id) >= ({value}, $5) and (i.{column}, i.id) <= ({value}, $6)"
            )
        };
        Some(match self {
            Source::All => "i.id >= $5 and i.id <= $6".to_owned(),
            Source::Workflow => part("workflow", "$2"),
            Source::Parent => format!("i.parent_run is not null and {}", part("parent_run", "$9")),
            Source::Root => format!("i.parent_run is not null and i.id <> $10 and {}", part("root", "$10")),
            Source::Key => "i.id >= $5 and i.id <= $6 and i.id = (select k.run from idempotency k
                where k.tenant = $1 and k.operation = 'start' and k.key = $25 and k.run is not null)"
                .to_owned(),
            Source::Status => format!(
                "(i.status = 'pending' or i.status = 'suspended' or i.status = 'failed') and {}",
                part("status", "$25")
            ),
            Source::Error => format!("i.error is not null and {}", part("error", "$13")),
            Source::Unordered => part("unordered", "1"),
            Source::Equal(_) | Source::Texts | Source::Numbers => return None,
        })
    }

    /// Returns the column of `shadows` that is searched, with its type.
    fn column(self) -> (&'static str, &'static str) {
        match self {
            Source::Equal(ShadowType::Number) | Source::Numbers => ("as_number", "double precision"),
            Source::Equal(ShadowType::Boolean) => ("as_boolean", "boolean"),
            _ => ("as_text", "text"),
        }
    }

    /// Returns the statement that reads this index.
    fn text(self, is_descending: bool) -> String {
        let order = if is_descending { " desc" } else { "" };
        let (from, part) = ("from runs i\n", "i.tenant = $1 and i.id >= $5 and i.id <= $6");
        if let Some(condition) = self.part_of_runs() {
            return sql::runs_list
                .replace(part, &format!("i.tenant = $1 and {condition}"))
                .replace("i.id desc", &format!("i.id{order}"))
                .replace("r.id desc", &format!("r.id{order}"));
        }
        let (column, kind) = self.column();
        let joined = "from shadows s cross join lateral (select * from runs o where o.tenant = $1 and o.id = s.run offset 0) i\n";
        let text = sql::runs_list.replace(from, joined);
        if matches!(self, Source::Equal(_)) {
            let search = format!(
                "s.tenant = $1 and s.workflow = $2 and s.name = $25 and s.{column} = $26::{kind} \
                 and (s.{column}, s.run) >= ($26, $5) and (s.{column}, s.run) <= ($26, $6)"
            );
            return text
                .replace(part, &search)
                .replace("i.id desc", &format!("s.run{order}"))
                .replace("r.id desc", &format!("r.id{order}"));
        }
        let search = format!(
            "s.tenant = $1 and s.workflow = $2 and s.name = $25 and s.{column} is not null \
             and (s.{column}, s.run) > ($26::{kind}, $27::uuid) and (s.{column}, s.run) < ($28::{kind}, $29::uuid) \
             and i.id >= $5 and i.id <= $6"
        );
        text.replace(part, &search)
            .replace("null::text as ordered_by", &format!("s.{column} as ordered_by"))
            .replace("i.id desc", &format!("s.{column}{order}, s.run{order}"))
            .replace("r.id desc", &format!("r.ordered_by{order}, r.id{order}"))
    }

    /// Returns the statement that lists runs of this index, or the one that counts them by status.
    pub(crate) fn statement(self, is_descending: bool, counts: bool) -> &'static str {
        static TEXTS: LazyLock<HashMap<(Source, bool, bool), String>> = LazyLock::new(|| {
            let all = |source: Source| {
                [true, false].into_iter().flat_map(move |order| {
                    let text = source.text(order);
                    [((source, order, true), counted(&text)), ((source, order, false), text)]
                })
            };
            Source::ALL.into_iter().flat_map(all).collect()
        });
        TEXTS.get(&(self, is_descending, counts)).map_or(sql::runs_list, String::as_str)
    }
}

/// Returns a statement that counts what another one lists: the runs by status, and the number of rows read.
fn counted(text: &str) -> String {
    let inner = text.find("  from (select i.id").map_or(text, |at| &text[at..]);
    let inner = inner.find(" where r.matches").map_or(inner, |at| &inner[..at]);
    format!(
        "-- Counts runs by status. Rows that do not match are counted without a status.\n\
         select case when r.matches then r.status end, count(*), max(r.place)\n{inner} group by 1\n limit $4\n"
    )
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

    /// Reads at most so many rows of the result.
    async fn rows(&self, on: &Connections, tenant: TenantId, counts: bool, limit: i64) -> Read<Vec<Row>> {
        let RunFilter { workflow, status, parent, root, version, definition, .. } = self.filter;
        let workflow = workflow.as_ref().map(Name::as_str);
        let (id, most) = (tenant.uuid(), i64::from(self.most));
        let statuses: Vec<&str> = status.iter().copied().map(Status::as_str).collect();
        let statuses = (!statuses.is_empty()).then_some(statuses);
        let (parent, root) = (parent.map(RunId::uuid), root.map(RunId::uuid));
        let (definition, version) =
            (definition.as_ref().map(DefinitionHash::as_bytes), version.map(i64::from));
        let definition = definition.map(|hash| &hash[..]);
        let (error_from, error_to, error_before) = self.filter.error_bounds();
        let RunFilter { created_after, created_before, updated_after, updated_before, .. } = self.filter;
        let times = [created_after, created_before, updated_after, updated_before]
            .map(|at| at.map(Timestamp::micros));
        let [created_after, created_before, updated_after, updated_before] = &times;
        let ShadowFilters { names, texts, numbers, booleans, operators } = &ShadowFilters::of(&self.columns);
        let excluded_prefix = self.filter.excluded_prefix();
        let mut which: Vec<Param<'_>> = vec![
            &id,
            &workflow,
            &most,
            &limit,
            &self.ids.0,
            &self.ids.1,
            &excluded_prefix,
            &statuses,
            &parent,
            &root,
            &definition,
            &version,
            &error_from,
            &error_to,
            &error_before,
            created_after,
            created_before,
            updated_after,
            updated_before,
            names,
            texts,
            numbers,
            booleans,
            operators,
        ];
        if self.name.is_some() {
            which.push(&self.name);
        }
        let held = self.value.map(split);
        match (self.value.map(ShadowValue::kind), &held) {
            (Some(ShadowType::String), Some((text, ..))) => which.push(text),
            (Some(ShadowType::Number), Some((_, number, _))) => which.push(number),
            (Some(ShadowType::Boolean), Some((.., boolean))) => which.push(boolean),
            _ => {}
        }
        if let Some(spans) = self.spans {
            let SpanParams { from, after, to, before } = SpanParams::of(spans);
            which.extend([from, after, to, before]);
        }
        read(on, tenant, self.source.statement(self.is_descending, counts), &which).await
    }

    /// Reads the rows of a page.
    async fn page(&self, on: &Connections, tenant: TenantId, wanted: usize) -> Read<ScannedPart> {
        let limit = i64::try_from(wanted).unwrap_or(i64::MAX);
        let found = self.rows(on, tenant, false, limit).await?;
        let cursor = |row: &Row| match self.spans {
            Some(spans) => Ok(range_cursor(rows::run_id(row, 0)?, &value_at(row, ORDERED_BY, spans)?)),
            None => run_cursor(row),
        };
        let summary = |row: &Row| {
            let version: Option<i64> = rows::get(row, VERSION)?;
            let definition_version = version.and_then(|version| u32::try_from(version).ok());
            Ok(RunSummary { definition_version, ..rows::run(row).map(RunRow::summary)? })
        };
        let mut part = ScannedPart::default();
        for row in &found {
            if rows::get(row, MATCHES)? {
                part.rows.push(read_listed(Listing::of("runs"), cursor(row).ok(), summary(row))?);
            }
            if part.rows.len() < wanted && rows::get::<i64>(row, PLACE)? == i64::from(self.most) {
                part.end = Some(cursor(row)?);
            }
        }
        Ok(part)
    }

    /// Adds the runs to counts by status.
    async fn count(&self, on: &Connections, tenant: TenantId, counts: &mut RunCounts) -> Read<()> {
        for row in self.rows(on, tenant, true, i64::MAX).await? {
            let status: Option<&str> = rows::get(&row, 0)?;
            // A row with an unknown status is not counted.
            if let Some(status) = status.and_then(|status| status.parse::<Status>().ok()) {
                counts.add(status, u32::try_from(rows::get::<i64>(&row, 1)?).unwrap_or(u32::MAX));
            }
            if rows::get::<i64>(&row, 2)? == i64::from(self.most) {
                counts.may_have_more(&self.filter.statuses());
            }
        }
        Ok(())
    }
}

/// Lists the runs that match a query, one page.
pub(crate) async fn runs(on: &Connections, tenant: TenantId, query: &RunQuery) -> Read<Page<RunSummary>> {
    query.check()?;
    let (mut page, is_descending) = (RunPage::of(query), query.is_descending());
    let is_unstorable = query.filter.is_unstorable();
    if let Some(range) = query.filter.leading_range() {
        let place = RangePlace::of_run(query.cursor.as_deref())?;
        let spans = ShadowSpans::of(&range.0.is, place.as_ref(), is_descending)?.filter(|_| !is_unstorable);
        if let Some(spans) = spans {
            let part = Part::of_range(&query.filter, &range, &spans, is_descending);
            page.add(vec![part.page(on, tenant, page.wanted()).await?]);
        }
        return Ok(page.page()?);
    }
    for scans in query.scans()? {
        let wanted = page.wanted();
        if wanted > 0 && !is_unstorable {
            let mut parts = Vec::with_capacity(scans.len());
            for scan in &scans {
                parts.push(Part::of(&query.filter, scan, is_descending).page(on, tenant, wanted).await?);
            }
            page.add(parts);
        }
    }
    Ok(page.page()?)
}

/// Counts the runs that match a filter, by status.
pub(crate) async fn counts(on: &Connections, tenant: TenantId, filter: &RunFilter) -> Read<Vec<RunCount>> {
    filter.check()?;
    let mut counts = RunCounts::of(filter);
    if filter.is_unstorable() {
        return Ok(counts.counts());
    }
    if let Some(range) = filter.leading_range() {
        if let Some(spans) = ShadowSpans::of(&range.0.is, None, false)? {
            Part::of_range(filter, &range, &spans, false).count(on, tenant, &mut counts).await?;
        }
        return Ok(counts.counts());
    }
    for (filter, scan) in &filter.count_scans() {
        Part::of(filter, scan, true).count(on, tenant, &mut counts).await?;
    }
    Ok(counts.counts())
}
