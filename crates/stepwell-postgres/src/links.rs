//! Links: locks those that commits name, and finds links from either end.

use std::collections::{BTreeMap, BTreeSet};

use stepwell_core::{Limits, RunId};
use stepwell_store::link::{
    LinkCursor, Way, edge_cursor, merged, read_edge_cursor, read_place_cursor, rows_each_way,
};
use stepwell_store::{
    Commit, Direction, Entity, Link, LinkEdge, LinkEnds, LinkFilter, LinkQuery, LinkWrite, Listing, Page,
    TenantId,
};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::columns::BoundStatement;
use crate::connection::{Connections, Mode, Param, Visibility};
use crate::listed::{all, page};
use crate::rows::{self, Read};
use crate::statements as sql;

/// The links that commits name, stored by column.
#[derive(Default)]
pub(crate) struct LinkNames {
    edges: [Vec<String>; 6],
    beginning: [Vec<Option<String>>; 6],
    ending: [Vec<Option<String>>; 4],
    most: i64,
}

impl LinkNames {
    pub(crate) fn of(commits: &[&Commit], limits: &Limits) -> Self {
        let mut edges: BTreeSet<&LinkEdge> = BTreeSet::new();
        let mut ends: BTreeSet<&LinkEnds> = BTreeSet::new();
        for write in commits.iter().flat_map(|commit| &commit.links) {
            match write {
                LinkWrite::Upsert { edge, .. } => drop(edges.insert(edge)),
                LinkWrite::Delete { ends: named, .. } => drop(ends.insert(named)),
            }
        }
        let most = i64::try_from(limits.commit_rows).unwrap_or(i64::MAX).saturating_add(1);
        let mut names = LinkNames { most, ..LinkNames::default() };
        for edge in edges {
            let (from, to) = (edge.from(), edge.to());
            let texts = [edge.namespace(), from.kind(), from.id(), to.kind(), to.id(), edge.relation()];
            names.edges.iter_mut().zip(texts).for_each(|(column, text)| column.push(text.to_owned()));
        }
        for LinkEnds { namespace, from, to, relation } in ends {
            let end = |end: &Option<Entity>| {
                let end = end.as_ref();
                [end.map(|end| end.kind().to_owned()), end.map(|end| end.id().to_owned())]
            };
            let ([from_kind, from_id], [to_kind, to_id]) = (end(from), end(to));
            let (namespace, relation) = (Some(namespace.clone()), relation.clone());
            if from.is_some() {
                let texts = [namespace, from_kind, from_id, to_kind, to_id, relation];
                names.beginning.iter_mut().zip(texts).for_each(|(column, text)| column.push(text));
            } else if to.is_some() {
                let texts = [namespace, to_kind, to_id, relation];
                names.ending.iter_mut().zip(texts).for_each(|(column, text)| column.push(text));
            }
        }
        names
    }

    /// Returns the statement that locks and reads the links, if there are any. [`LinkRows::read`] reads its rows.
    pub(crate) fn bound<'s>(&'s self, tenant: &'s Uuid) -> Option<BoundStatement<'s>> {
        let (edges, beginning, ending) = (&self.edges, &self.beginning, &self.ending);
        if edges[0].is_empty() && beginning[0].is_empty() && ending[0].is_empty() {
            return None;
        }
        let mut params: Vec<Param<'s>> = vec![tenant];
        params.extend(edges.iter().map(|column| column as Param<'s>));
        params.extend(beginning.iter().map(|column| column as Param<'s>));
        params.extend(ending.iter().map(|column| column as Param<'s>));
        params.push(&self.most);
        Some(BoundStatement { sql: sql::links_lock, params })
    }
}

/// The locked links, with the changes of the plans made so far. `None` marks a deleted link.
#[derive(Default)]
pub(crate) struct LinkRows {
    rows: BTreeMap<LinkEdge, Option<Link>>,
    /// Edges that existed when they were read.
    old: BTreeSet<LinkEdge>,
    /// Edges that the plans have changed.
    dirty: BTreeSet<LinkEdge>,
}

impl LinkRows {
    pub(crate) fn read(&mut self, row: &Row) -> Read<()> {
        let link = without_attributes(row)?;
        self.old.insert(link.edge.clone());
        self.rows.insert(link.edge.clone(), Some(link));
        Ok(())
    }

    pub(crate) fn get(&self, edge: &LinkEdge) -> Option<Link> {
        self.rows.get(edge).cloned().flatten()
    }

    pub(crate) fn edges(&self, ends: &LinkEnds, most: usize) -> Vec<LinkEdge> {
        let there = self.rows.iter().filter(|(edge, link)| link.is_some() && ends.has(edge));
        there.take(most).map(|(edge, _)| edge.clone()).collect()
    }

    /// Applies the changes of a plan.
    pub(crate) fn follow(&mut self, links: &[Link], unlink: &[LinkEdge]) {
        for link in links {
            self.rows.insert(link.edge.clone(), Some(link.clone()));
            self.dirty.insert(link.edge.clone());
        }
        for edge in unlink {
            self.rows.insert(edge.clone(), None);
            self.dirty.insert(edge.clone());
        }
    }

    /// Returns the links to insert, to update and to delete.
    pub(crate) fn written(&self) -> (Vec<&Link>, Vec<&Link>, Vec<&LinkEdge>) {
        let (mut insert, mut update, mut delete) = (Vec::new(), Vec::new(), Vec::new());
        for (edge, row) in self.rows.iter().filter(|(edge, _)| self.dirty.contains(edge)) {
            match (row, self.old.contains(edge)) {
                (Some(link), false) => insert.push(link),
                (Some(link), true) => update.push(link),
                (None, true) => delete.push(edge),
                (None, false) => {}
            }
        }
        (insert, update, delete)
    }
}

fn edge(row: &Row) -> Read<LinkEdge> {
    let text = |column| rows::get::<String>(row, column);
    let (from, to) = (Entity::new(text(1)?, text(2)?), Entity::new(text(3)?, text(4)?));
    Ok(LinkEdge::new(text(0)?, from, to, text(5)?))
}

fn link(row: &Row) -> Read<Link> {
    Ok(Link { attributes: rows::json(row, 7)?, ..without_attributes(row)? })
}

/// Reads a link without its attributes, for a caller that overwrites them or deletes the link.
fn without_attributes(row: &Row) -> Read<Link> {
    Ok(Link {
        edge: edge(row)?,
        id: rows::get(row, 6)?,
        attributes: serde_json::Value::Null,
        created_at: rows::at(row, 8)?,
        updated_at: rows::at(row, 9)?,
        created_by: rows::get::<Option<Uuid>>(row, 10)?.map(RunId::new),
    })
}

pub(crate) async fn links(on: &Connections, tenant: TenantId, query: &LinkQuery) -> Read<Page<Link>> {
    let LinkQuery { namespace, which, relation, limit, cursor } = query;
    let (id, rows) = (tenant.uuid(), rows_each_way(*limit) as i64);
    let visibility = Visibility::Tenant(tenant);
    match which {
        LinkFilter::All { from, to } => {
            let after = read_edge_cursor(namespace, cursor.as_deref())?;
            let nowhere = || LinkEdge::new(namespace, Entity::new("", ""), Entity::new("", ""), "");
            let after = after.unwrap_or_else(nowhere);
            let ((_, past), begin, end) = (after.texts(), after.from().texts(), after.to().texts());
            let which: [Param<'_>; 11] =
                [&id, namespace, begin.0, begin.1, end.0, end.1, past, from, to, relation, &rows];
            let found = on.one(visibility, Mode::Reads, sql::links_all, &which).await?;
            let within = format!("{namespace} ");
            let of = Listing { table: "links", within: &within, run: None };
            page(&found, of, *limit, |row| Ok(edge_cursor(&edge(row)?)), link)
        }
        LinkFilter::Of { end, direction, far } => {
            let after = read_place_cursor(cursor.as_deref())?;
            let LinkCursor { kind, id: at, relation: past, way } =
                after.unwrap_or_else(LinkCursor::beginning);
            let (gone, with_own) = (way as i64, *direction != Direction::Either);
            let (mut found, mut bad) = (Vec::new(), Vec::new());
            for way in direction.ways() {
                let near = end.texts();
                let which: [Param<'_>; 12] = [
                    &id, namespace, near.0, near.1, &kind, &at, &past, &gone, far, relation, &rows, &with_own,
                ];
                let rows = match way {
                    Way::Forward => on.one(visibility, Mode::Reads, sql::links_forward, &which[..11]).await?,
                    Way::Reverse => on.one(visibility, Mode::Reads, sql::links_reverse, &which).await?,
                };
                let links = all(&rows, Listing::of("links"), |row| Ok(edge(row)?.address()), link)?;
                let links = Page::all(links);
                found.push((*way, links.items));
                bad.extend(links.bad);
            }
            Ok(Page { bad, ..merged(found, *limit) })
        }
    }
}
