//! Every statement, one file each, and the hot ones held prepared by the writer.

use rusqlite::{Connection, Statement};

macro_rules! sql {
    ($($name:ident)+) => {
        /// Every statement of this backend by name, for the checks that read them all.
        #[cfg(test)]
        pub(crate) const ALL: &[(&str, &str)] = &[$((stringify!($name), $name),)+];
        $(#[allow(non_upper_case_globals)] pub(crate) const $name: &str = include_str!(concat!("sql/", stringify!($name), ".sql"));)+
    };
}

sql! {
    audit_insert audit_list
    cell_get cell_put cells_list
    checkpoint_chain checkpoint_commit checkpoint_insert
    claim_due claim_orphans claim_take
    definition_get definition_put
    due due_orphans
    history
    inbox_delete inbox_get inbox_insert inbox_list
    key_get key_put
    process_beat process_dead process_forget
    purge_cells purge_checkpoints purge_inbox purge_keys purge_run purge_waits
    run_get run_insert run_step run_turn run_write
    runs_all runs_in_need runs_of_parent runs_of_workflow
    sweep_cells sweep_keys sweep_runs
    wait_delete wait_insert waits_all waits_of_run
}

/// The writer's connection with the statements of the hot path, prepared once.
pub(crate) struct Session<'c> {
    pub(crate) connection: &'c Connection,
    pub(crate) begin: Statement<'c>,
    pub(crate) commit: Statement<'c>,
    pub(crate) run_step: Statement<'c>,
    pub(crate) run_turn: Statement<'c>,
    pub(crate) run_insert: Statement<'c>,
    pub(crate) checkpoint_insert: Statement<'c>,
    pub(crate) cell_get: Statement<'c>,
    pub(crate) cell_put: Statement<'c>,
    pub(crate) key_put: Statement<'c>,
}

impl<'c> Session<'c> {
    pub(crate) fn new(connection: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Session {
            connection,
            begin: connection.prepare("begin immediate")?,
            commit: connection.prepare("commit")?,
            run_step: connection.prepare(run_step)?,
            run_turn: connection.prepare(run_turn)?,
            run_insert: connection.prepare(run_insert)?,
            checkpoint_insert: connection.prepare(checkpoint_insert)?,
            cell_get: connection.prepare(cell_get)?,
            cell_put: connection.prepare(cell_put)?,
            key_put: connection.prepare(key_put)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::ALL;

    /// The statements that look across tenants: who has work due, and the processes' heartbeat.
    const SHARED: &[&str] = &["due", "due_orphans", "process_beat", "process_dead", "process_forget"];

    fn database() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("../schema.sql")).unwrap();
        connection
    }

    #[test]
    fn every_statement_file_is_listed_says_what_it_guarantees_and_compiles() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sql");
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let mut listed: Vec<_> = ALL.iter().map(|(name, _)| format!("{name}.sql")).collect();
        listed.sort();
        assert_eq!(files, listed);
        let connection = database();
        for (name, sql) in ALL {
            assert!(sql.starts_with("-- "), "{name} does not say what it guarantees");
            connection.prepare(sql).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn every_statement_names_the_tenant_but_those_that_show_no_tenants_data() {
        for (name, sql) in ALL {
            let names_tenant = sql.contains("tenant = ?1") || sql.contains("(tenant, ");
            assert_eq!(!names_tenant, SHARED.contains(name), "{name}");
        }
    }

    #[test]
    fn nothing_on_the_hot_path_scans_a_table() {
        let connection = database();
        for (name, sql) in ALL {
            let mut statement = connection.prepare(&format!("explain query plan {sql}")).unwrap();
            let parameters: Vec<_> = vec![rusqlite::types::Null; statement.parameter_count()];
            let plan: Vec<String> = statement
                .query_map(rusqlite::params_from_iter(parameters), |row| row.get(3))
                .unwrap()
                .map(Result::unwrap)
                .collect();
            let scans = |line: &&String| {
                line.starts_with("SCAN")
                    && !["json_each", "USING", "tenants", "SCAN t", "CONSTANT ROW"]
                        .iter()
                        .any(|known| line.contains(known))
            };
            let scanning: Vec<_> = plan.iter().filter(scans).collect();
            let allowed: &[&str] = &["process_dead", "process_forget"];
            assert!(scanning.is_empty() || allowed.contains(name), "{name}: {plan:#?}");
        }
    }
}
