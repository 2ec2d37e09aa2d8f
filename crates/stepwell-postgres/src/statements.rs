//! Every statement, one file each.

macro_rules! sql {
    ($($name:ident)+) => {
        /// Every statement of this backend by name, for the checks that read them all.
        #[cfg(test)]
        pub(crate) const ALL: &[(&str, &str)] = &[$((stringify!($name), $name),)+];
        $(#[allow(non_upper_case_globals)] pub(crate) const $name: &str = include_str!(concat!("sql/", stringify!($name), ".sql"));)+
    };
}

sql! {
    backend_busy backend_end database_look database_status database_version search_path settings
    audit_find audit_insert audit_list audit_of_commits audit_trace
    cell_get cells_insert cells_list cells_lock cells_put
    checkpoint_base checkpoint_commit checkpoint_oldest checkpoints_insert
    claim_due claim_orphans find_due find_orphans
    commit commit_spread
    definition_get definitions_all definitions_of_workflow definitions_put
    document_get documents_at documents_hide documents_insert documents_now
    due due_spread tenant_put tenants_after
    handle_commit handle_get handles_all handles_by_boolean handles_by_number handles_by_text handles_delete handles_insert
    handles_lock handles_of_run handles_of_workflow handles_put handles_undelivered
    history history_base
    inbox_delete inbox_find inbox_insert
    key_get keys_insert keys_lock keys_put
    links_all links_delete links_forward links_insert links_lock links_put links_reverse
    loads
    owners process_beat process_forget process_gone process_list process_lives
    purge_cells purge_checkpoints purge_documents purge_handles purge_inbox purge_keys purge_runs purge_shadows
    purge_waits
    runs_all runs_by_boolean runs_by_number runs_by_text runs_get runs_in_need runs_insert runs_lock runs_of_parent
    runs_of_workflow runs_still runs_wake runs_write
    seal_insert seal_last seals_list
    shadows_begin shadows_clear shadows_keep shadows_of_run shadows_put
    sweep_cells sweep_checkpoints sweep_documents sweep_handles sweep_keys sweep_runs sweep_tombstones
    tally_keys tally_links tally_relations tally_runs tally_types
    unsealed_delete unsealed_list
    waits_all waits_close waits_first waits_of_run waits_of_topic waits_open
}

#[cfg(test)]
mod tests {
    use super::ALL;

    /// Who has work due and who is there: the only reads of tenants' tables that span tenants. They show tenant and time.
    const SPANNING: &[&str] = &["due", "due_spread", "tenants_after"];
    /// The processes' heartbeat, and what the server itself is and does: nobody's rows.
    const NOBODYS: &[&str] = &[
        "process_beat",
        "process_forget",
        "process_gone",
        "process_list",
        "process_lives",
        "backend_busy",
        "backend_end",
        "database_look",
        "database_status",
        "database_version",
        "search_path",
        "settings",
    ];
    /// Every table that begins with the tenant.
    const TABLES: &[&str] = &[
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
    ];

    /// The words of a statement, without its comments.
    fn words(sql: &str) -> Vec<&str> {
        let code = sql.lines().filter(|line| !line.starts_with("--"));
        code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
            .filter(|w| !w.is_empty())
            .collect()
    }

    /// How often a statement reads from or writes to a table.
    fn uses(sql: &str) -> usize {
        let words = words(sql);
        words
            .windows(2)
            .filter(|pair| ["from", "into", "update", "join"].contains(&pair[0]) && TABLES.contains(&pair[1]))
            .count()
    }

    #[test]
    fn every_statement_file_is_listed_and_says_what_it_guarantees() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sql");
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let mut listed: Vec<_> = ALL.iter().map(|(name, _)| format!("{name}.sql")).collect();
        listed.sort();
        assert_eq!(files, listed);
        for (name, sql) in ALL {
            assert!(sql.starts_with("-- "), "{name} does not say what it guarantees");
        }
    }

    /// Each time a statement names a table it names the tenant as well: the one it is given.
    #[test]
    fn every_statement_names_the_tenant_but_those_that_show_no_tenants_data() {
        for (name, sql) in ALL {
            let used = uses(sql);
            if NOBODYS.contains(name) {
                assert_eq!(used, 0, "{name}");
            } else if SPANNING.contains(name) {
                assert!(used > 0, "{name}");
            } else if *name == "commit" {
                // Its tables are named in the schema, by the same rules as in `commit_spread`.
                assert!(sql.contains("commit_runs($1, "), "{name}");
            } else {
                let given = sql.matches("tenant = $1").count()
                    + sql.matches("select $1, ").count()
                    + sql.matches("values ($1").count();
                assert!(used > 0 && given >= used, "{name}: {used} tables, {given} tenants");
            }
        }
    }

    #[test]
    fn a_read_that_spans_tenants_shows_tenant_and_time_only() {
        for (name, sql) in ALL.iter().filter(|(name, _)| SPANNING.contains(name)) {
            let code: Vec<_> = sql.lines().filter(|line| !line.starts_with("--")).collect();
            let code = code.join(" ");
            let (shown, _) = code.split_once(if *name == "due" { "from tenants" } else { " from " }).unwrap();
            let outer: Vec<_> = words(shown);
            assert_eq!(
                &outer[..2],
                if *name == "due" { &["select", "t"] } else { &["select", "tenant"] },
                "{name}"
            );
            for column in ["id", "workflow", "definition", "status", "places", "body", "value", "key"] {
                assert!(!outer.contains(&column), "{name} shows {column}");
            }
        }
    }
}
