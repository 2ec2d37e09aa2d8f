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
    key_get keys_insert keys_list keys_lock keys_put
    links_all links_delete links_forward links_insert links_lock links_put links_reverse
    loads
    owners process_beat process_forget process_gone process_list process_lives
    purge_cells purge_checkpoints purge_documents purge_handles purge_inbox purge_keys purge_runs purge_shadows
    purge_waits
    runs_all runs_aside runs_by_boolean runs_by_number runs_by_text runs_get runs_in_need runs_insert runs_lock runs_of_parent
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
                    + sql.matches("select t.tenant, ").count()
                    + sql.matches("values ($1").count();
                assert!(used > 0 && given >= used, "{name}: {used} tables, {given} tenants");
            }
        }
    }

    /// A statement without its comments, in one line.
    fn code(sql: &str) -> String {
        let lines = sql.lines().filter(|line| !line.starts_with("--"));
        lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
    }

    /// The text of every query level: what stands between parentheses is a level of its own if it is a query.
    fn levels(code: &str) -> Vec<String> {
        let (mut open, mut done) = (vec![String::new()], Vec::new());
        for c in code.chars() {
            match c {
                '(' => open.push(String::new()),
                ')' => {
                    let inner = open.pop().unwrap_or_default();
                    let is_query = ["select ", "insert ", "update ", "delete ", "with "]
                        .iter()
                        .any(|verb| inner.trim_start().starts_with(verb));
                    match open.last_mut() {
                        Some(around) if !is_query => *around += &format!("({inner})"),
                        Some(around) => {
                            around.push_str("(…)");
                            done.push(inner);
                        }
                        None => {}
                    }
                }
                c => {
                    if let Some(level) = open.last_mut() {
                        level.push(c);
                    }
                }
            }
        }
        done.extend(open);
        done
    }

    fn names_a_table(level: &str) -> bool {
        let words: Vec<_> =
            level.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
        words
            .windows(2)
            .any(|pair| ["from", "into", "update", "join"].contains(&pair[0]) && TABLES.contains(&pair[1]))
    }

    /// What a cluster of Citus refused of a statement, as far as its text shows it. There is none in the tests.
    fn refused(name: &str, sql: &str) -> Option<&'static str> {
        let code = code(sql);
        let is_one_row = code.contains(" values ($1");
        let has_cte_that_writes = code.starts_with("with ")
            && ["as ( insert", "as (insert", "as ( update", "as (update", "as ( delete", "as (delete"]
                .iter()
                .any(|begins| code.contains(begins));
        let last = levels(&code).pop().unwrap_or_default();
        for level in levels(&code) {
            let says = level.contains("tenant = $1") || is_one_row;
            if names_a_table(&level) && !says && !SPANNING.contains(&name) {
                return Some("a query level names a table and not `tenant = $1`");
            }
            if level.contains("insert into") && !is_one_row && !NOBODYS.contains(&name) {
                let takes = level.contains("select t.tenant, ") && level.contains("from tenants t,");
                if !takes {
                    return Some("an insert does not take the tenant from a row of `tenants`");
                }
            }
            if let Some((_, returned)) = level.split_once("returning ")
                && !returned.split(", ").all(|column| column.contains('.'))
            {
                return Some("what is returned is not qualified by the target's alias");
            }
            if level.contains("for update") && level.contains("tenant = any") {
                return Some("rows of several tenants are locked");
            }
        }
        if has_cte_that_writes && !last.rsplit("(…)").next().unwrap_or_default().trim().starts_with("select ")
        {
            return Some("a statement that writes in a CTE does not end with a plain `select`");
        }
        if code.contains("tenant = t.tenant") && !SPANNING.contains(&name) {
            return Some("the tenant is reached through a join");
        }
        None
    }

    #[test]
    fn no_statement_is_one_that_a_cluster_refuses() {
        for (name, sql) in ALL.iter().filter(|(name, _)| *name != "commit" && !NOBODYS.contains(name)) {
            assert_eq!(refused(name, sql), None, "{name}: {}", code(sql));
        }
        for (sql, why) in [
            ("select id from runs", "a query level names a table"),
            (
                "select 1 from runs r where r.tenant = $1 and exists (select 1 from inbox i where i.run = r.id)",
                "a query level",
            ),
            (
                "insert into cells (tenant, key) select $1, u.* from unnest($2) as u where tenant = $1",
                "an insert",
            ),
            ("delete from cells where tenant = $1 returning key", "what is returned"),
            (
                "with k as (delete from cells c where c.tenant = $1 returning c.key) delete from links l where l.tenant = $1",
                "a statement that writes",
            ),
            (
                "update links l set id = $2 from tenants t where l.tenant = t.tenant and t.tenant = $1",
                "the tenant is reached",
            ),
        ] {
            let found = refused("planted", sql);
            assert!(found.is_some_and(|found| found.starts_with(why)), "{sql}: {found:?}");
        }
    }

    #[test]
    fn policies_and_keys_are_those_that_a_cluster_takes() {
        let schema = include_str!("../schema.sql");
        assert!(schema.contains("case when spread then '(%s)'"), "no sub-select where Citus is");
        assert!(!schema.contains("create trigger"));
        for table in TABLES {
            let begin = schema.find(&format!("create table {table} (")).unwrap_or_else(|| panic!("{table}"));
            let text = &schema[begin..begin + schema[begin..].find("\n);").unwrap()];
            for unique in text.split("primary key (").skip(1).chain(text.split("unique (").skip(1)) {
                assert!(unique.starts_with("tenant"), "{table}: {unique}");
            }
        }
        for unique in schema.split("create unique index").skip(1) {
            let columns = unique.split_once('(').unwrap().1;
            assert!(columns.starts_with("tenant"), "{columns}");
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
