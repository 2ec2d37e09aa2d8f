//! All SQL statements, one file each.

macro_rules! sql {
    ($($name:ident)+) => {
        /// Every statement of this backend with its name, for the tests that check all of them.
        #[cfg(test)]
        pub(crate) const ALL: &[(&str, &str)] = &[$((stringify!($name), $name),)+];
        $(#[allow(non_upper_case_globals)] pub(crate) const $name: &str = include_str!(concat!("sql/", stringify!($name), ".sql"));)+
    };
}

sql! {
    backend_busy backend_end database_info database_status database_version role_info search_path settings
    audit_cut audit_find audit_insert audit_list audit_of_commits audit_of_run audit_trace
    cell_get cells_insert cells_list cells_lock cells_put
    checkpoint_base checkpoint_commit checkpoint_oldest checkpoints_insert
    claim_due claim_orphans find_due find_orphans
    commit commit_spread
    cleanup_cells cleanup_checkpoints cleanup_documents cleanup_handles cleanup_keys cleanup_runs cleanup_tombstones
    cleanup_workflows
    definition_get definitions_all definitions_of_workflow definitions_put
    document_get documents_at documents_hide documents_insert documents_now
    due due_spread tenant_check tenant_get tenant_put tenants_after
    handle_commit handle_get handles_all handles_by_boolean handles_by_number handles_by_number_range handles_by_text
    handles_by_text_range handles_delete handles_insert handles_lock handles_of_run handles_of_workflow handles_put handles_undelivered
    history history_base
    inbox_delete inbox_find inbox_insert
    key_get keys_insert keys_list keys_lock keys_put
    links_all links_delete links_forward links_insert links_lock links_put links_reverse
    loads
    owners process_disconnected process_forget process_heartbeat process_is_alive process_list
    purge_cells purge_checkpoints purge_documents purge_handles purge_inbox purge_keys purge_runs purge_shadows
    purge_waits
    runs_active runs_get runs_insert runs_list runs_lock runs_mark_failed
    runs_wake runs_write
    seal_insert seal_last seals_list
    shadows_begin shadows_clear shadows_keep shadows_of_run shadows_of_runs shadows_put
    tally_keys tally_links tally_relations tally_runs tally_types
    unsealed_delete unsealed_list
    waits_all waits_close waits_due waits_first waits_of_run waits_of_topic waits_open
    waits_range
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::ALL;
    use crate::citus_rules::{TABLES, refused};
    use crate::listing::Source;

    /// The only reads of tenant tables that span tenants. They return tenants and due times.
    const SPANNING: &[&str] = &["due", "due_spread", "tenants_after"];
    /// Statements about processes, roles and the server itself. They use no tenant tables.
    const NO_TENANT: &[&str] = &[
        "process_heartbeat",
        "process_forget",
        "process_disconnected",
        "process_list",
        "process_is_alive",
        "backend_busy",
        "backend_end",
        "database_info",
        "database_status",
        "database_version",
        "role_info",
        "search_path",
        "settings",
    ];
    /// The schema, with the function `commit_runs`.
    const SCHEMA: &str = include_str!("../schema.sql");

    /// Returns the words of a statement without its comments.
    fn words(sql: &str) -> Vec<&str> {
        let code = sql.lines().filter(|line| !line.starts_with("--"));
        code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
            .filter(|w| !w.is_empty())
            .collect()
    }

    /// Counts how often a statement names a tenant table.
    fn uses(sql: &str) -> usize {
        words(sql).iter().filter(|word| TABLES.contains(word)).count()
    }

    /// Returns the statement in the function `commit_runs`.
    fn commit_runs() -> String {
        let (_, function) = SCHEMA.split_once("create function commit_runs(").unwrap();
        let (_, body) =
            function.split_once("said := set_config('app.current_tenant', $1::text, true);").unwrap();
        let (body, _) = body.split_once(';').unwrap();
        body.replace(" into done ", " ")
    }

    #[test]
    fn every_statement_file_is_listed_and_documented() {
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

    /// The rule about `tenant = $1` covers each statement that names a tenant table, so such a statement must be
    /// expected to name one.
    #[test]
    fn every_statement_on_tenant_data_names_the_tenant() {
        for (name, sql) in ALL {
            match *name {
                name if NO_TENANT.contains(&name) => {
                    let named = words(sql).windows(2).any(|pair| {
                        ["from", "into", "update", "join"].contains(&pair[0]) && TABLES.contains(&pair[1])
                    });
                    assert!(!named, "{name}");
                }
                "commit" => assert!(sql.contains("commit_runs($1, "), "{name}"),
                "audit_cut" => assert!(sql.contains("cut_audit($1, "), "{name}"),
                name => {
                    assert!(uses(sql) > 0, "{name}");
                    assert_eq!(refused(sql, SPANNING.contains(&name)), None, "{name}: {sql}");
                }
            }
        }
    }

    #[test]
    fn no_statement_is_of_a_kind_that_citus_refuses() {
        // The search path decides which tables the coordinator finds. The workers get qualified names.
        for (name, sql) in ALL.iter().filter(|(name, _)| *name != "search_path") {
            assert_eq!(refused(sql, SPANNING.contains(name)), None, "{name}: {sql}");
        }
        let commit = commit_runs();
        assert!(commit.trim_start().starts_with("with moved as (") && uses(&commit) > 3, "{commit}");
        assert_eq!(refused(&commit, false), None, "{commit}");
    }

    /// The statements that list and count runs are made of one file.
    #[test]
    fn listings_of_runs_are_accepted_by_citus() {
        for source in Source::ALL {
            for (is_descending, counts) in [(true, false), (false, false), (true, true), (false, true)] {
                let sql = source.statement(is_descending, counts);
                assert_eq!(refused(sql, false), None, "{source:?}: {sql}");
                assert_eq!(sql.contains("group by 1"), counts, "{sql}");
                let is_replaced =
                    source == Source::All || !sql.contains("i.tenant = $1 and i.id >= $5 and i.id <= $6\n");
                assert!(is_replaced, "{source:?}: {sql}");
                assert_eq!(sql.contains(" desc"), is_descending, "{source:?}: {sql}");
            }
        }
    }

    /// Returns the string literals of a source file outside of its tests and comments.
    fn literals(source: &str) -> Vec<String> {
        let source = source.split("#[cfg(test)]").next().unwrap_or_default();
        let code = source.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
        let code = code.collect::<Vec<_>>().join("\n").replace("'\"'", "' '").replace("\\\"", "'");
        code.split('"').skip(1).step_by(2).map(|text| text.replace("\\\n", "")).collect()
    }

    /// Statements in the code, and not in a file, must obey the same rules.
    #[test]
    fn no_statement_in_the_code_is_of_a_kind_that_citus_refuses() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let verbs = [
            "select",
            "insert",
            "update",
            "delete",
            "with",
            "set",
            "begin",
            "create",
            "alter",
            "grant",
            "listen",
            "discard",
            "savepoint",
            "show",
        ];
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            // Servers and schemas of tests.
            if !name.ends_with(".rs")
                || ["cluster.rs", "test_schema.rs", "citus_rules.rs"].contains(&name.as_str())
            {
                continue;
            }
            let all = literals(&std::fs::read_to_string(&path).unwrap());
            let is_sql =
                |text: &String| text.split_whitespace().next().is_some_and(|verb| verbs.contains(&verb));
            found.extend(all.into_iter().filter(is_sql).map(|sql| (name.clone(), sql)));
        }
        for wanted in
            ["select pg_notify(", "set local app.current_tenant", "create table stepwell_migrations"]
        {
            assert!(found.iter().any(|(_, sql)| sql.starts_with(wanted)), "{wanted}: {found:#?}");
        }
        for (file, sql) in found {
            assert_eq!(refused(&sql, false), None, "{file}: {sql}");
        }
    }

    #[test]
    fn each_rule_refuses_a_planted_statement() {
        for (sql, why) in [
            ("select id from runs", "a table of a query level"),
            (
                "select 1 from runs r where r.tenant = $1 and exists (select 1 from inbox i where i.run = r.id)",
                "a table of a query level",
            ),
            (
                "select 1 from runs r, inbox i where r.tenant = $1 and i.run = r.id",
                "a table of a query level",
            ),
            ("select 1 from unnest($2) u, runs r where r.id = u.id", "a table of a query level"),
            (
                "select 1 from runs r join inbox i on i.run = r.id where r.tenant = $1",
                "a table of a query level",
            ),
            ("select 1 from runs r, inbox i where tenant = $1 and i.run = r.id", "a table of a query level"),
            (
                "delete from cells c using links l where c.tenant = $1 and c.key = l.from_id",
                "a table of a query level",
            ),
            (
                "select id from runs where tenant = $1 union all select run from inbox",
                "a table of a query level",
            ),
            ("select id from runs where id = $2 or tenant = $1", "a table of a query level"),
            ("select id from runs where tenant = $1 or id = $2", "a table of a query level"),
            ("select id from runs where tenant = any ($1) for update skip locked", "rows of several"),
            ("insert into cells as x (tenant, key) select $1, u.* from unnest($2) as u", "an insert"),
            (
                "insert into cells as x (tenant, key) select u.tenant, u.key from tenants t, unnest($2) as u where t.tenant = $1",
                "an insert",
            ),
            ("delete from cells where tenant = $1 returning key", "a returned column"),
            (
                "with k as (delete from cells c where c.tenant = $1 returning c.key) delete from links l where l.tenant = $1",
                "a statement that writes",
            ),
            (
                "update links l set id = $2 from tenants t where l.tenant = t.tenant and t.tenant = $1",
                "the tenant is reached",
            ),
            (
                "update links l set id = $2 from tenants o where l.tenant = o.tenant and o.tenant = $1",
                "the tenant is reached",
            ),
            ("select 1 from runs r join inbox i using (tenant) where r.tenant = $1", "the tenant is reached"),
            (
                "insert into cells as x (tenant, value) values ($1, $2) on conflict (tenant) do update set value = to_jsonb(excluded.value)",
                "an upsert calls",
            ),
            (
                "insert into cells as x (tenant, value) values ($1, $2) on conflict (tenant) do update set value = now()",
                "an upsert calls",
            ),
            ("select set_config('app.current_tenant', $1, true)", "`set_config`"),
            ("alter table runs force row level security", "forced row-level security"),
            ("create trigger changed after update on runs execute function f()", "triggers"),
            ("begin; set local app.current_tenant = '1'", "the workers repeat"),
        ] {
            let found = refused(sql, false);
            assert!(found.is_some_and(|found| found.starts_with(why)), "{sql}: {found:?}");
        }
        let spanning = "select t.tenant from tenants t, runs r where r.tenant = t.tenant";
        assert_eq!(refused(spanning, true), None);
        assert!(refused(spanning, false).is_some());
    }

    #[test]
    fn policies_and_keys_are_accepted_by_citus() {
        assert!(SCHEMA.contains("case when spread then '(%s)'"), "no sub-select where Citus is");
        let (before, force) = SCHEMA.split_once("force row level security").unwrap();
        assert!(
            before.trim_end().ends_with("if not spread then\n            execute format('alter table %I")
        );
        assert!(!force.contains("force row level security") && !SCHEMA.contains("create trigger"));
        for table in TABLES {
            let begin = SCHEMA.find(&format!("create table {table} (")).unwrap_or_else(|| panic!("{table}"));
            let text = &SCHEMA[begin..begin + SCHEMA[begin..].find("\n);").unwrap()];
            for unique in text.split("primary key (").skip(1).chain(text.split("unique (").skip(1)) {
                assert!(unique.starts_with("tenant"), "{table}: {unique}");
            }
        }
        for unique in SCHEMA.split("create unique index").skip(1) {
            let columns = unique.split_once('(').unwrap().1;
            assert!(columns.starts_with("tenant"), "{columns}");
        }
    }

    #[test]
    fn reads_across_tenants_return_only_tenant_and_time() {
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
