//! Restricts a caller's own function on the writer's connection: it may read, and write to the caller's own tables.
//!
//! SQLite calls one hook before it prepares a statement and one before it commits. Both hooks are installed at the
//! start, because they cannot be set while prepared statements exist. They allow everything unless a caller's function
//! is running.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

/// Stepwell's tables, which a caller's function must not change.
pub(crate) const TABLES: &[&str] = &[
    "audit",
    "cells",
    "checkpoints",
    "definitions",
    "documents",
    "handles",
    "idempotency",
    "inbox",
    "links",
    "processes",
    "runs",
    "seals",
    "shadows",
    "stepwell_migrations",
    "unsealed",
    "waits",
];

/// Pragmas that full-text tables and `alter table` run internally. They change nothing.
const HARMLESS_PRAGMAS: &[&str] = &["data_version", "quick_check"];

/// Watches a caller's function while it runs. The hooks and the writer run on the same thread.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    watching: AtomicBool,
    forbidden: Mutex<Option<String>>,
}

impl Guard {
    /// Installs the hooks on a connection.
    pub(crate) fn install(connection: &mut Connection) -> rusqlite::Result<Arc<Guard>> {
        let guard = Arc::new(Guard::default());
        let asked = guard.clone();
        connection.authorizer(Some(move |context: AuthContext<'_>| asked.authorize(&context)))?;
        let asked = guard.clone();
        // If a statement of the function rolls the transaction back, SQLite would commit each further statement by
        // itself.
        connection.commit_hook(Some(move || asked.is_watching()))?;
        Ok(guard)
    }

    /// Runs a caller's function. Returns its result or its panic, and the first forbidden thing that it tried.
    pub(crate) fn watch<T>(&self, call: impl FnOnce() -> T) -> (std::thread::Result<T>, Option<String>) {
        self.watching.store(true, Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(call));
        self.watching.store(false, Ordering::Relaxed);
        (result, self.forbidden.lock().unwrap_or_else(PoisonError::into_inner).take())
    }

    fn is_watching(&self) -> bool {
        self.watching.load(Ordering::Relaxed)
    }

    fn authorize(&self, context: &AuthContext<'_>) -> Authorization {
        if !self.is_watching() {
            return Authorization::Allow;
        }
        let Some(what) = forbidden(context) else { return Authorization::Allow };
        self.forbidden.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
        Authorization::Deny
    }
}

/// Returns a phrase that follows "tried to" if a caller's function must not do this.
fn forbidden(context: &AuthContext<'_>) -> Option<String> {
    match context.action {
        AuthAction::Select
        | AuthAction::Read { .. }
        | AuthAction::Function { .. }
        | AuthAction::Recursive
        | AuthAction::CreateTable { .. }
        | AuthAction::CreateView { .. }
        | AuthAction::DropView { .. }
        // Creating an index requests this as well.
        | AuthAction::Reindex { .. } => None,
        AuthAction::Insert { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Delete { table_name }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::DropTable { table_name }
        | AuthAction::CreateIndex { table_name, .. }
        | AuthAction::DropIndex { table_name, .. }
        | AuthAction::CreateTrigger { table_name, .. }
        | AuthAction::DropTrigger { table_name, .. } => {
            TABLES.contains(&table_name).then(|| format!("change Stepwell's table `{table_name}`"))
        }
        AuthAction::CreateVtable { .. } | AuthAction::DropVtable { .. }
            if context.database_name != Some("temp") =>
        {
            None
        }
        AuthAction::Pragma { pragma_name, .. } if HARMLESS_PRAGMAS.contains(&pragma_name) => None,
        AuthAction::Pragma { pragma_name, .. } => {
            Some(format!("use `pragma {pragma_name}`, which affects the whole connection"))
        }
        AuthAction::Transaction { .. } | AuthAction::Savepoint { .. } => {
            Some("begin or end a transaction, which the writer controls".to_owned())
        }
        AuthAction::Attach { .. } | AuthAction::Detach { .. } => {
            Some("attach or detach a database, which is outside the transaction".to_owned())
        }
        AuthAction::Analyze { .. } => Some("analyze a table, which changes Stepwell's query plans".to_owned()),
        // A temporary table would hide a table of Stepwell with the same name, and would outlive the function.
        other => Some(format!("create a temporary object or run an unknown action ({other:?})")),
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::{Guard, TABLES};

    #[test]
    fn every_table_of_the_schema_is_guarded() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("../schema.sql")).unwrap();
        let mut statement =
            connection.prepare("select name from sqlite_schema where type = 'table'").unwrap();
        let tables = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        let mut tables: Vec<_> = tables.map(Result::unwrap).collect();
        tables.push("stepwell_migrations".to_owned());
        tables.sort();
        assert_eq!(tables, TABLES);
    }

    fn guarded() -> (Connection, std::sync::Arc<Guard>) {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("../schema.sql")).unwrap();
        let guard = Guard::install(&mut connection).unwrap();
        connection
            .execute_batch("create table mine (x integer primary key); create table other (x integer);")
            .unwrap();
        (connection, guard)
    }

    #[test]
    fn statements_beyond_own_tables_are_denied() {
        let (connection, guard) = guarded();
        connection.execute_batch("begin").unwrap();
        for sql in [
            "commit",
            "end",
            "rollback",
            "begin",
            "savepoint a",
            "release a",
            "rollback to a",
            "attach ':memory:' as other",
            "detach other",
            "pragma synchronous = 0",
            "pragma wal_checkpoint",
            "pragma defer_foreign_keys = 1",
            "select * from pragma_user_version",
            "insert into processes values (x'00', 0)",
            "replace into processes values (x'00', 0)",
            "update runs set fence = 0",
            "update Runs set fence = 0",
            "delete from main.runs",
            "with a as (select 1) delete from cells",
            "drop table audit",
            "alter table waits add column x",
            "alter table waits rename to mine_too",
            "create index mine_runs on runs (fence)",
            "drop index runs_by_id",
            "create trigger spy after insert on runs begin insert into mine values (1); end",
            "create trigger sly after insert on mine begin delete from runs; end; insert into mine values (9)",
            "create temp table runs (x)",
            "create temp view runs as select 1",
            "create temp trigger spy after insert on runs begin select 1; end",
            "create virtual table temp.runs using fts5 (x)",
            "analyze",
            "vacuum",
        ] {
            let (result, forbidden) = guard.watch(|| connection.execute_batch(sql));
            assert!(result.unwrap().is_err(), "{sql}");
            assert!(forbidden.is_some() || sql == "vacuum", "{sql}");
            assert!(!connection.is_autocommit(), "{sql}");
        }
    }

    #[test]
    fn statements_on_own_tables_are_allowed() {
        let (connection, guard) = guarded();
        connection.execute_batch("begin").unwrap();
        for sql in [
            "insert into mine values (1) on conflict do update set x = x + 1",
            "create table if not exists lines (id integer primary key autoincrement, text text) strict",
            "insert into lines (text) values ('a'), ('b')",
            "create unique index lines_by_text on lines (text)",
            "create trigger copy after insert on lines begin insert into other values (new.id); end",
            "insert into lines (text) with recursive n(i) as (select 1 union all select i + 1 from n where i < 9)
             select upper('c' || i) from n",
            "update lines set text = text || 'x' where id in (select x from other)",
            "alter table lines add column more text not null default ''",
            "alter table lines rename column more to less",
            "alter table lines rename to rows",
            "create view looks as select count(*) as runs from runs",
            "create virtual table words using fts5 (word)",
            "insert into words values ('well')",
            "delete from words where word match 'well'",
            "drop table words",
            "drop view looks",
            "drop table rows",
        ] {
            let (result, forbidden) = guard.watch(|| connection.execute_batch(sql));
            assert_eq!((result.unwrap(), forbidden), (Ok(()), None), "{sql}");
        }
        connection.execute_batch("commit").unwrap();
    }

    /// `or rollback` ends the transaction without calling a hook. Each statement after it would be its own transaction.
    #[test]
    fn no_commit_while_a_function_runs() {
        let (connection, guard) = guarded();
        connection.execute_batch("begin; insert into mine values (1)").unwrap();
        let (result, forbidden) = guard.watch(|| {
            let mut prepared = connection.prepare("insert into other values (2)").unwrap();
            assert!(connection.execute("insert or rollback into mine values (1)", []).is_err());
            assert!(connection.is_autocommit());
            prepared.execute([]).is_err() && connection.execute("insert into other values (3)", []).is_err()
        });
        assert_eq!((result.ok(), forbidden), (Some(true), None));
        let count = |table| {
            let sql = format!("select count(*) from {table}");
            connection.query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap()
        };
        assert_eq!((count("mine"), count("other")), (0, 0));
    }
}
