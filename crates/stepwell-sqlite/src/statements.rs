//! All SQL statements, one file each, and those of the hot path, which the writer keeps prepared.

use std::sync::Arc;

use rusqlite::{Connection, Statement};

use crate::cell_cache::CellCache;
use crate::guard::Guard;

macro_rules! sql {
    ($($name:ident)+) => {
        /// Every statement of this backend with its name, for the tests that check all of them.
        #[cfg(test)]
        pub(crate) const ALL: &[(&str, &str)] = &[$((stringify!($name), $name),)+];
        $(#[allow(non_upper_case_globals)] pub(crate) const $name: &str = include_str!(concat!("sql/", stringify!($name), ".sql"));)+
    };
}

sql! {
    audit_cut audit_insert audit_list audit_of_commit audit_of_run audit_trace
    cell_get cell_put cells_list
    checkpoint_base checkpoint_chain checkpoint_commit checkpoint_insert checkpoint_oldest
    claim_due claim_orphans claim_take
    cleanup_cells cleanup_checkpoints cleanup_documents cleanup_handles cleanup_keys cleanup_runs cleanup_tombstones
    cleanup_workflows
    definition_get definition_put definition_version definitions_all definitions_of_workflow
    document_get document_hide document_insert documents_at documents_now
    due due_orphans tenant_next
    handle_commit handle_delete handle_get handle_put
    handles_all handles_by_boolean handles_by_number handles_by_number_range handles_by_text handles_by_text_range
    handles_of_run handles_of_workflow handles_undelivered
    history
    inbox_delete inbox_get inbox_insert inbox_list
    key_get key_put keys_list
    link_delete link_get link_put links_all links_beginning links_ending links_forward links_reverse
    process_count_alive process_expire process_expired process_forget process_heartbeat process_is_alive process_list
    process_owners
    purge_cells purge_checkpoints purge_documents purge_handles purge_inbox purge_keys purge_run purge_shadows purge_waits
    run_commit run_get run_insert run_mark_failed run_step run_wake run_write
    runs_list
    seal_cut seal_first seal_insert seal_last seals_list
    shadow_begin shadow_clear shadow_put shadows_keep shadows_of_run
    tally_keys tally_links tally_relations tally_runs tally_types
    unsealed_delete unsealed_list unsealed_put
    wait_delete wait_insert waits_all waits_due waits_first waits_of_run waits_of_topic waits_range
}

/// The writer's connection and the statements of the hot path, each prepared once.
pub(crate) struct Session<'c> {
    pub(crate) connection: &'c Connection,
    pub(crate) guard: Arc<Guard>,
    pub(crate) cell_cache: CellCache,
    pub(crate) begin: Statement<'c>,
    pub(crate) commit: Statement<'c>,
    pub(crate) run_step: Statement<'c>,
    pub(crate) run_commit: Statement<'c>,
    pub(crate) run_insert: Statement<'c>,
    pub(crate) checkpoint_insert: Statement<'c>,
    pub(crate) cell_get: Statement<'c>,
    pub(crate) cell_put: Statement<'c>,
    pub(crate) key_put: Statement<'c>,
    pub(crate) audit_insert: Statement<'c>,
    pub(crate) audit_trace: Statement<'c>,
    pub(crate) unsealed_put: Statement<'c>,
}

impl<'c> Session<'c> {
    pub(crate) fn new(connection: &'c Connection, guard: Arc<Guard>) -> rusqlite::Result<Self> {
        Ok(Session {
            connection,
            guard,
            cell_cache: CellCache::default(),
            begin: connection.prepare("begin immediate")?,
            commit: connection.prepare("commit")?,
            run_step: connection.prepare(run_step)?,
            run_commit: connection.prepare(run_commit)?,
            run_insert: connection.prepare(run_insert)?,
            checkpoint_insert: connection.prepare(checkpoint_insert)?,
            cell_get: connection.prepare(cell_get)?,
            cell_put: connection.prepare(cell_put)?,
            key_put: connection.prepare(key_put)?,
            audit_insert: connection.prepare(audit_insert)?,
            audit_trace: connection.prepare(audit_trace)?,
            unsealed_put: connection.prepare(unsealed_put)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;
    use stepwell_core::shadow::ShadowType;

    use super::ALL;
    use crate::listing::Source;

    /// The statements that span tenants: tenants with due work, and the heartbeat of the processes.
    const SHARED: &[&str] = &[
        "due",
        "due_orphans",
        "tenant_next",
        "process_heartbeat",
        "process_expired",
        "process_list",
        "process_is_alive",
        "process_count_alive",
        "process_expire",
        "process_forget",
        "process_owners",
    ];

    fn database() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("../schema.sql")).unwrap();
        connection
    }

    #[test]
    fn every_statement_file_is_listed_documented_and_compiles() {
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
    fn every_statement_on_tenant_data_names_the_tenant() {
        for (name, sql) in ALL {
            let names_tenant = sql.contains("tenant = ?1") || sql.contains("(tenant, ");
            assert_eq!(!names_tenant, SHARED.contains(name), "{name}");
        }
    }

    fn query_plan(connection: &Connection, sql: &str) -> Vec<String> {
        let mut statement = connection.prepare(&format!("explain query plan {sql}")).unwrap();
        let parameters: Vec<_> = vec![rusqlite::types::Null; statement.parameter_count()];
        let plan = statement.query_map(rusqlite::params_from_iter(parameters), |row| row.get(3)).unwrap();
        plan.map(Result::unwrap).collect()
    }

    /// A past bug: the waits of one run were found by reading those of all later runs.
    #[test]
    fn lookups_use_an_index_search() {
        let connection = database();
        for (name, search) in [
            ("checkpoint_base", "(tenant=? AND run=? AND version=?)"),
            ("definitions_of_workflow", "(tenant=? AND workflow=? AND (version,hash)>(?,?))"),
            ("document_get", "(tenant=? AND run=? AND key=? AND visible_from<?)"),
            ("document_hide", "(tenant=? AND run=? AND key=?)"),
            ("documents_now", "(tenant=? AND run=? AND visible_to=? AND (visible_from,ordinal)>(?,?))"),
            ("documents_at", "(tenant=? AND run=? AND visible_to>?)"),
            ("handles_all", "(tenant=? AND (run,handle)>(?,?))"),
            ("handles_of_run", "(tenant=? AND run=? AND handle>?)"),
            ("handles_of_workflow", "(tenant=? AND workflow=? AND (run,handle)>(?,?))"),
            ("handles_by_text", "(tenant=? AND workflow=? AND name=? AND as_text=? AND run>?)"),
            ("handles_by_number", "(tenant=? AND workflow=? AND name=? AND as_number=? AND run>?)"),
            ("handles_by_boolean", "(tenant=? AND workflow=? AND name=? AND as_boolean=? AND run>?)"),
            ("handles_undelivered", "(tenant=? AND deliver_at<?)"),
            ("cleanup_handles", "(tenant=? AND expires_at<?)"),
            (
                "links_all",
                "(tenant=? AND namespace=? AND (from_type,from_id,to_type,to_id,relation)>(?,?,?,?,?))",
            ),
            ("links_beginning", "(tenant=? AND namespace=? AND from_type=? AND from_id=?)"),
            ("links_ending", "(tenant=? AND namespace=? AND to_type=? AND to_id=?)"),
            (
                "links_forward",
                "(tenant=? AND namespace=? AND from_type=? AND from_id=? AND (to_type,to_id,relation)>(?,?,?))",
            ),
            (
                "links_reverse",
                "(tenant=? AND namespace=? AND to_type=? AND to_id=? AND (from_type,from_id,relation)>(?,?,?))",
            ),
            (
                "handles_by_text_range",
                "(tenant=? AND workflow=? AND name=? AND (as_text,run)>(?,?) AND (as_text,run)<(?,?))",
            ),
            (
                "handles_by_number_range",
                "(tenant=? AND workflow=? AND name=? AND (as_number,run)>(?,?) AND (as_number,run)<(?,?))",
            ),
            ("shadows_of_run", "(tenant=? AND run=?)"),
            ("cleanup_checkpoints", "(tenant=? AND run=? AND version<?)"),
            ("cleanup_documents", "(tenant=? AND run=? AND visible_to>? AND visible_to<?)"),
            ("cleanup_tombstones", "(tenant=? AND space=? AND owner=? AND updated_at<?)"),
            ("cleanup_runs", "(tenant=? AND workflow=? AND updated_at<?)"),
            ("cleanup_workflows", "INDEX runs_ended (tenant=? AND workflow>?)"),
            ("audit_of_run", "(tenant=? AND run=? AND (commit_id,ordinal)>(?,?))"),
            ("waits_due", "(tenant=? AND (due,run,activation)>(?,?,?))"),
            ("waits_first", "(tenant=? AND topic>? AND topic<?)"),
            ("waits_range", "(tenant=? AND topic>? AND topic<?)"),
            ("waits_of_run", "(tenant=? AND run=? AND activation>?)"),
            ("waits_of_topic", "(tenant=? AND topic=? AND (run,activation)>(?,?))"),
        ] {
            let (_, sql) = ALL.iter().find(|(of, _)| *of == name).unwrap();
            let plan = query_plan(&connection, sql);
            assert!(plan.iter().any(|line| line.ends_with(search)), "{name}: {plan:#?}");
            // A flow has one handle or a few. They are sorted per run, which is cheap.
            let few = |line: &str| name.starts_with("handles_by_") && line.contains("FOR LAST TERM");
            let sorts = plan.iter().any(|line| line.contains("TEMP B-TREE") && !few(line));
            assert!(!sorts || name == "documents_at", "{name} is not in the index's order: {plan:#?}");
        }
    }

    /// A listing of runs reads its index in order and searches it by the ids, in both orders.
    #[test]
    fn listings_of_runs_search_their_index_in_order() {
        let connection = database();
        for source in Source::ALL {
            let search = match source {
                Source::All => "runs_by_id (tenant=? AND id>? AND id<?)",
                Source::Workflow => "runs_by_workflow (tenant=? AND workflow=? AND id>? AND id<?)",
                Source::Parent => "runs_by_parent (tenant=? AND parent_run=? AND id>? AND id<?)",
                Source::Root => "runs_by_root (tenant=? AND root=? AND id>? AND id<?)",
                Source::Key => "runs_by_id (tenant=? AND id=?)",
                Source::Status => "runs_not_running (tenant=? AND status=? AND id>? AND id<?)",
                Source::Error => "runs_by_error (tenant=? AND error=? AND id>? AND id<?)",
                Source::Unordered => "runs_unordered (tenant=? AND unordered=? AND id>? AND id<?)",
                Source::Equal(ShadowType::String) => {
                    "shadows_by_text (tenant=? AND workflow=? AND name=? AND as_text=? AND run>? AND run<?)"
                }
                Source::Equal(ShadowType::Number) => {
                    "shadows_by_number (tenant=? AND workflow=? AND name=? AND as_number=? AND run>? AND run<?)"
                }
                Source::Equal(ShadowType::Boolean) => {
                    "shadows_by_boolean (tenant=? AND workflow=? AND name=? AND as_boolean=? AND run>? AND run<?)"
                }
                Source::Texts => "name=? AND (as_text,run)>(?,?) AND (as_text,run)<(?,?))",
                Source::Numbers => "name=? AND (as_number,run)>(?,?) AND (as_number,run)<(?,?))",
            };
            for is_descending in [true, false] {
                let plan = query_plan(&connection, source.statement(is_descending));
                assert!(plan[0].ends_with(search), "{source:?}: {plan:#?}");
                let is_ordered =
                    !plan.iter().any(|line| line.contains("FOR ORDER BY") || line.starts_with("SCAN i"));
                assert!(is_ordered, "{source:?}: {plan:#?}");
            }
        }
    }

    #[test]
    fn no_statement_on_the_hot_path_scans_a_table() {
        let connection = database();
        for (name, sql) in ALL {
            let plan = query_plan(&connection, sql);
            let scans = |line: &&String| {
                line.starts_with("SCAN")
                    && !["json_each", "USING", "tenants", "SCAN t", "CONSTANT ROW", "(subquery-"]
                        .iter()
                        .any(|known| line.contains(known))
            };
            let scanning: Vec<_> = plan.iter().filter(scans).collect();
            // These statements read every row of a small table, or count rows.
            let allowed: &[&str] = &[
                "process_expired",
                "process_expire",
                "process_forget",
                "process_count_alive",
                "tally_types",
            ];
            assert!(scanning.is_empty() || allowed.contains(name), "{name}: {plan:#?}");
        }
    }
}
