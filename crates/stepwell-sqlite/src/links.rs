//! Links: writes their rows and finds them from either end.

use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension, Row, params};
use stepwell_core::{RunId, Timestamp};
use stepwell_store::link::{
    LinkCursor, Way, edge_cursor, merged, read_edge_cursor, read_place_cursor, rows_each_way,
};
use stepwell_store::{
    Direction, Entity, Link, LinkEdge, LinkEnds, LinkFilter, LinkQuery, Listing, Page, TenantId,
};
use uuid::Uuid;

use crate::reader::ReadError;
use crate::statements as sql;
use crate::{listed, rows};

/// Returns a link without its attributes, for a caller that overwrites them or deletes the link.
pub(crate) fn get(
    connection: &Connection,
    tenant: TenantId,
    edge: &LinkEdge,
) -> rusqlite::Result<Option<Link>> {
    let tenant = tenant.uuid().into_bytes();
    let mut statement = connection.prepare_cached(sql::link_get)?;
    statement.query_row(&named(&tenant, edge)[..], without_attributes).optional()
}

/// Returns the edges that have these ends, at most `most`.
pub(crate) fn edges(
    connection: &Connection,
    tenant: TenantId,
    ends: &LinkEnds,
    most: usize,
) -> rusqlite::Result<Vec<LinkEdge>> {
    let LinkEnds { namespace, from, to, relation } = ends;
    let (tenant, most) = (tenant.uuid().into_bytes(), i64::try_from(most).unwrap_or(i64::MAX));
    match (from, to) {
        (Some(from), to) => {
            let (kind, id) = (to.as_ref().map(Entity::kind), to.as_ref().map(Entity::id));
            let which = params![tenant, namespace, from.kind(), from.id(), kind, id, relation, most];
            connection.prepare_cached(sql::links_beginning)?.query_map(which, edge)?.collect()
        }
        (None, Some(to)) => {
            let which = params![tenant, namespace, to.kind(), to.id(), relation, most];
            connection.prepare_cached(sql::links_ending)?.query_map(which, edge)?.collect()
        }
        (None, None) => Ok(Vec::new()),
    }
}

pub(crate) fn put(connection: &Connection, tenant: TenantId, link: &Link) -> rusqlite::Result<()> {
    let Link { edge, id, attributes, created_at, updated_at, created_by } = link;
    connection.prepare_cached(sql::link_put)?.execute(params![
        tenant.uuid().into_bytes(),
        edge.namespace(),
        edge.from().kind(),
        edge.from().id(),
        edge.to().kind(),
        edge.to().id(),
        edge.relation(),
        id.into_bytes(),
        attributes.to_string(),
        created_at.micros(),
        updated_at.micros(),
        rows::id(created_by.map(RunId::uuid)),
    ])?;
    Ok(())
}

pub(crate) fn delete(connection: &Connection, tenant: TenantId, edge: &LinkEdge) -> rusqlite::Result<()> {
    let tenant = tenant.uuid().into_bytes();
    connection.prepare_cached(sql::link_delete)?.execute(&named(&tenant, edge)[..])?;
    Ok(())
}

pub(crate) fn links(
    connection: &Connection,
    tenant: TenantId,
    query: &LinkQuery,
) -> Result<Page<Link>, ReadError> {
    let LinkQuery { namespace, which, relation, limit, cursor } = query;
    let (id, rows) = (tenant.uuid().into_bytes(), rows_each_way(*limit) as i64);
    match which {
        LinkFilter::All { from, to } => {
            let after = read_edge_cursor(namespace, cursor.as_deref())?;
            let nowhere = || LinkEdge::new(namespace, Entity::new("", ""), Entity::new("", ""), "");
            let after = after.unwrap_or_else(nowhere);
            let mut which = named(&id, &after).to_vec();
            which.extend([from as &dyn ToSql, to, relation, &rows]);
            let within = format!("{namespace} ");
            let of = Listing { table: "links", within: &within, run: None };
            let mut statement = connection.prepare_cached(sql::links_all)?;
            let cursor = |row: &Row<'_>| Ok(edge_cursor(&self::edge(row)?));
            listed::page(&mut statement, &which[..], of, *limit, cursor, link)
        }
        LinkFilter::Of { end, direction, far } => {
            let after = read_place_cursor(cursor.as_deref())?;
            let LinkCursor { kind, id: at, relation: after, way: gone } =
                after.unwrap_or_else(LinkCursor::beginning);
            let gone = gone as i64;
            let (mut found, mut bad) = (Vec::new(), Vec::new());
            for way in direction.ways() {
                let mut which: Vec<&dyn ToSql> = vec![&id, namespace];
                let (near_kind, near_id) = (end.kind(), end.id());
                which.extend([
                    &near_kind as &dyn ToSql,
                    &near_id,
                    &kind,
                    &at,
                    &after,
                    &gone,
                    far,
                    relation,
                    &rows,
                ]);
                let with_own = *direction != Direction::Either;
                let statement = match way {
                    Way::Forward => sql::links_forward,
                    Way::Reverse => {
                        which.push(&with_own);
                        sql::links_reverse
                    }
                };
                let mut statement = connection.prepare_cached(statement)?;
                let cursor = |row: &Row<'_>| Ok(edge(row)?.address());
                let links = listed::all(&mut statement, &which[..], Listing::of("links"), cursor, link)?;
                let links = Page::all(links);
                found.push((*way, links.items));
                bad.extend(links.bad);
            }
            Ok(Page { bad, ..merged(found, *limit) })
        }
    }
}

/// Returns the parameters that name an edge: the tenant, then the columns of the edge.
fn named<'a>(tenant: &'a [u8; 16], edge: &'a LinkEdge) -> [&'a dyn ToSql; 7] {
    let ((namespace, relation), from, to) = (edge.texts(), edge.from().texts(), edge.to().texts());
    [tenant, namespace, from.0, from.1, to.0, to.1, relation]
}

fn edge(row: &Row<'_>) -> rusqlite::Result<LinkEdge> {
    let text = |column: usize| row.get::<_, String>(column);
    let (from, to) = (Entity::new(text(1)?, text(2)?), Entity::new(text(3)?, text(4)?));
    Ok(LinkEdge::new(text(0)?, from, to, text(5)?))
}

fn link(row: &Row<'_>) -> rusqlite::Result<Link> {
    Ok(Link { attributes: rows::json(row, 7)?, ..without_attributes(row)? })
}

fn without_attributes(row: &Row<'_>) -> rusqlite::Result<Link> {
    Ok(Link {
        edge: edge(row)?,
        id: Uuid::from_bytes(row.get(6)?),
        attributes: serde_json::Value::Null,
        created_at: Timestamp::from_micros(row.get(8)?),
        updated_at: Timestamp::from_micros(row.get(9)?),
        created_by: row.get::<_, Option<[u8; 16]>>(10)?.map(|run| RunId::new(Uuid::from_bytes(run))),
    })
}
