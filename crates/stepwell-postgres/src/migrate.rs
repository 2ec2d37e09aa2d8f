//! Brings a database's schema up to date: numbered migrations, forward only, each applied once and never changed.
//!
//! The owner of the tables migrates; the engine's role only checks the version. Processes that migrate at the same time
//! wait for each other. With Citus, the new tables are distributed over its nodes by tenant.

use sha2::{Digest, Sha256};
use stepwell_store::{SchemaVersion, StoreError};
use tokio_postgres::{Client, Transaction};

use crate::connection::Param;
use crate::error::{OpenError, described};
use crate::statements as sql;

/// A step from one schema to the next.
struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
    /// The tables it creates whose first column is the tenant.
    tables: &'static [&'static str],
}

const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "foundation",
    sql: include_str!("../migrations/0001_foundation.sql"),
    tables: &[
        "runs",
        "checkpoints",
        "documents",
        "inbox",
        "waits",
        "shadows",
        "handles",
        "cells",
        "links",
        "idempotency",
        "definitions",
        "audit",
        "unsealed",
        "seals",
        "tenants",
    ],
}];

/// Returns the text of all migrations, which changes when the tables change.
#[cfg(feature = "cluster")]
pub(crate) fn text() -> String {
    MIGRATIONS.iter().map(|migration| migration.sql).collect()
}

const LEDGER: &str = "create table stepwell_migrations (
    version integer not null primary key, name text not null, checksum bytea not null)";

/// The rights of the engine's role on each table: only those that it uses. Append-only tables cannot be updated.
const RIGHTS: &[(&str, &str)] = &[
    (
        "select, insert, update, delete",
        "runs, documents, inbox, waits, shadows, handles, cells, links, idempotency, processes",
    ),
    ("select, insert, delete", "checkpoints, unsealed"),
    ("select, insert", "definitions, audit, seals, tenants"),
    ("select", "stepwell_migrations"),
];

/// The reason to refuse a role that bypasses row-level security on every table.
pub(crate) const BYPASSES: &str = "is a superuser or bypasses row-level security";

/// The advisory lock that lets only one process migrate at a time.
const LOCK: i64 = 0x5354_4550_5745_4c4c;

/// Applies the missing migrations in one transaction, and grants the engine's role its rights. Changes nothing if
/// row-level security would not apply to that role.
pub(crate) async fn migrate(
    client: &mut Client,
    schema: Option<&str>,
    role: &str,
) -> Result<SchemaVersion, OpenError> {
    let found = client.query_opt(sql::role_info, &[&role]).await.map_err(failed)?;
    let missing =
        || StoreError::Schema(format!("role \"{role}\" does not exist: create it, then migrate again"));
    let found = found.ok_or_else(missing)?;
    let whys =
        ["would own the tables", BYPASSES, "inherits the rights of the role that would own the tables"];
    if let Some(why) = (0..).zip(whys).find(|(column, _)| found.get(*column)).map(|(_, why)| why) {
        return Err(OpenError::SeesAll { role: role.to_owned(), why });
    }
    Ok(apply(client, MIGRATIONS, schema, Some(role)).await?)
}

async fn apply(
    client: &mut Client,
    migrations: &[Migration],
    schema: Option<&str>,
    role: Option<&str>,
) -> Result<SchemaVersion, StoreError> {
    let transaction = client.transaction().await.map_err(failed)?;
    transaction.execute("select pg_advisory_xact_lock($1)", &[&LOCK]).await.map_err(failed)?;
    // `if not exists` would not do: it needs the right to create, and Citus repeats it on its workers, even if there is
    // nothing to create.
    if let Some(schema) = schema
        && is_missing(&transaction, "select from pg_namespace where nspname = $1", &[&schema]).await?
    {
        let create = format!("create schema {}", quoted(schema));
        transaction.batch_execute(&create).await.map_err(failed)?;
    }
    let ledger = "select from pg_class where oid = to_regclass('stepwell_migrations')";
    if is_missing(&transaction, ledger, &[]).await? {
        transaction.batch_execute(LEDGER).await.map_err(failed)?;
    }
    let applied = applied(&transaction).await?;
    check_known(&applied, migrations)?;
    let citus = "select from pg_extension where extname = 'citus'";
    let has_citus = !is_missing(&transaction, citus, &[]).await?;
    for migration in &migrations[applied.len()..] {
        one(&transaction, migration, has_citus).await?;
    }
    if let Some(role) = role {
        grant(&transaction, schema, role).await?;
    }
    transaction.commit().await.map_err(failed)?;
    Ok(newest(migrations))
}

/// Returns true if a query finds nothing.
async fn is_missing(
    transaction: &Transaction<'_>,
    query: &str,
    params: &[Param<'_>],
) -> Result<bool, StoreError> {
    Ok(transaction.query(query, params).await.map_err(failed)?.is_empty())
}

async fn one(
    transaction: &Transaction<'_>,
    migration: &Migration,
    has_citus: bool,
) -> Result<(), StoreError> {
    let Migration { version, name, sql, tables } = migration;
    let wrong = |error: tokio_postgres::Error| {
        StoreError::Schema(format!("migration {version} ({name}) failed: {}", described(&error)))
    };
    transaction.batch_execute(sql).await.map_err(wrong)?;
    if has_citus {
        for table in *tables {
            // Colocated with the runs, so that all rows of a tenant are on one node.
            let with = if *table == "runs" { "none" } else { "runs" };
            let spread =
                format!("select create_distributed_table('{table}', 'tenant', colocate_with => '{with}')");
            transaction.batch_execute(&spread).await.map_err(wrong)?;
        }
    }
    let row = "insert into stepwell_migrations (version, name, checksum) values ($1, $2, $3)";
    transaction.execute(row, &[version, name, &checksum(sql)]).await.map_err(wrong)?;
    Ok(())
}

async fn grant(transaction: &Transaction<'_>, schema: Option<&str>, role: &str) -> Result<(), StoreError> {
    let role = quoted(role);
    let mut grants = String::new();
    if let Some(schema) = schema {
        grants.push_str(&format!("grant usage on schema {} to {role};", quoted(schema)));
    }
    for (rights, tables) in RIGHTS {
        grants.push_str(&format!("grant {rights} on {tables} to {role};"));
    }
    grants.push_str(&format!(
        "grant execute on function commit_runs(uuid, run_record[], checkpoint_record[]) to {role};
         revoke execute on function cut_audit(uuid, bigint, bigint) from public;
         grant execute on function cut_audit(uuid, bigint, bigint) to {role};"
    ));
    transaction.batch_execute(&grants).await.map_err(failed)
}

/// Returns the schema version, for a role that may not change the schema. Fails if it is missing or out of date.
pub(crate) async fn check(client: &Client) -> Result<SchemaVersion, StoreError> {
    let there = client.query_one("select to_regclass('stepwell_migrations') is not null", &[]);
    if !there.await.map_err(failed)?.get::<_, bool>(0) {
        return Err(StoreError::Schema(
            "the database has no Stepwell schema in the search path of this role: migrate it as the owner of its \
             tables, or correct the schema or the search_path"
                .to_owned(),
        ));
    }
    let ledger = "select version, checksum from stepwell_migrations order by version";
    let rows = client.query(ledger, &[]).await.map_err(failed)?;
    let applied: Vec<_> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    check_known(&applied, MIGRATIONS)?;
    let (found, newest) = (applied.len() as u32, newest(MIGRATIONS));
    if found < newest.0 {
        return Err(StoreError::Schema(format!(
            "the database has schema version {found}, but this program needs {}: migrate it as the owner of its tables",
            newest.0
        )));
    }
    Ok(newest)
}

/// Returns every table that the engine writes to.
pub(crate) fn tables() -> impl Iterator<Item = &'static str> {
    RIGHTS.iter().filter(|(rights, _)| *rights != "select").flat_map(|(_, tables)| tables.split(", "))
}

fn newest(migrations: &[Migration]) -> SchemaVersion {
    SchemaVersion(migrations.last().map_or(0, |migration| migration.version as u32))
}

async fn applied(transaction: &Transaction<'_>) -> Result<Vec<(i32, Vec<u8>)>, StoreError> {
    let ledger = "select version, checksum from stepwell_migrations order by version";
    let rows = transaction.query(ledger, &[]).await.map_err(failed)?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Checks that the applied migrations are those of this program, in the same order and with the same content.
fn check_known(applied: &[(i32, Vec<u8>)], migrations: &[Migration]) -> Result<(), StoreError> {
    for (index, (version, sum)) in applied.iter().enumerate() {
        let Some(known) = migrations.get(index).filter(|known| known.version == *version) else {
            let newest = newest(migrations).0;
            return Err(StoreError::Schema(format!(
                "the database has schema version {version}, but this program knows only up to {newest}: use a newer Stepwell"
            )));
        };
        if checksum(known.sql) != *sum {
            return Err(StoreError::Schema(format!(
                "migration {version} ({}) differs from the one the database was created with: use the Stepwell that created it, or an empty database",
                known.name
            )));
        }
    }
    Ok(())
}

fn checksum(sql: &str) -> Vec<u8> {
    Sha256::digest(sql.as_bytes()).to_vec()
}

/// Quotes an identifier for SQL.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

// By value, for `map_err`.
#[allow(clippy::needless_pass_by_value)]
fn failed(error: tokio_postgres::Error) -> StoreError {
    crate::error::Failure::from(error).into()
}
