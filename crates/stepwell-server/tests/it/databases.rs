//! PostgreSQL databases through the built program: the documented setup, least privilege, and roles that are refused.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::{Value, json};
use stepwell_postgres::cluster::Cluster;
use stepwell_postgres::tokio_postgres::{self, NoTls};

use crate::manual::blocks;
use crate::said;
use crate::serving::{Serving, started, stepwell};

const PAGE: &str = include_str!("../../../../docs/postgres.md");
/// The host in the page's configuration.
const HOST: &str = "db.example.com";

/// Returns the first block of code in a language that contains a text.
fn block(language: &str, part: &str) -> String {
    blocks(PAGE, language).into_iter().find(|block| block.contains(part)).unwrap()
}

/// Returns the SQL that the page passes to `psql`, with passwords.
fn setup() -> String {
    let commands = block("sh", "create role");
    let (_, sql) = commands.split_once("<<'SQL'\n").unwrap();
    sql.split_once("\nSQL").unwrap().0.replace(":'owner'", "'a'").replace(":'engine'", "'b'")
}

/// Starts a server whose database `app` was set up with the SQL of the page, word for word.
fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let cluster = Cluster::own(&[("fsync", "off")]).unwrap();
        execute(&cluster, "postgres", &["create database app"]);
        execute(&cluster, "app", &[&setup()]);
        cluster
    })
}

/// Runs each text as the superuser.
fn execute(cluster: &Cluster, database: &str, texts: &[&str]) {
    ask(cluster, database, async |client| {
        for text in texts {
            client.batch_execute(text).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
        }
    });
}

fn ask<T>(cluster: &Cluster, database: &str, ask: impl AsyncFnOnce(&tokio_postgres::Client) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let config = cluster.admin_config_string(database);
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
        tokio::spawn(connection);
        ask(&client).await
    })
}

/// Returns the number of relations, types, functions and schemas that are not the server's own.
fn objects(database: &str) -> i64 {
    let own = "('pg_catalog', 'information_schema', 'pg_toast')";
    let sql = format!(
        "select (select count(*) from pg_class where relnamespace::regnamespace::text not in {own})
              + (select count(*) from pg_proc where pronamespace::regnamespace::text not in {own})
              + (select count(*) from pg_namespace)"
    );
    ask(cluster(), database, async |client| client.query_one(&sql, &[]).await.unwrap().get(0))
}

/// Returns the URL of a role and a database of the cluster, which listens on a socket only.
fn url(role: &str, database: &str) -> String {
    format!("postgres://{role}@{}/{database}", host())
}

fn host() -> String {
    cluster().socket_dir().display().to_string().replace('/', "%2F")
}

/// Creates a database with the documented roles. Writes a `stepwell.toml` for it, and an API key, into a folder.
pub(crate) fn prepare(folder: &Path, database: &str) {
    execute(cluster(), "postgres", &[&format!("create database {database}")]);
    execute(cluster(), database, &["create schema stepwell authorization stepwell_owner"]);
    let config =
        block("toml", "migrate_url").replace(&format!("{HOST}/app"), &format!("{}/{database}", host()));
    std::fs::write(folder.join("stepwell.toml"), config).unwrap();
    create_key(folder, database, &["view", "read", "manage", "publish"]);
}

/// Writes a `stepwell.toml` for the documented database, and creates an API key with these permissions.
pub(crate) fn configure(folder: &Path, permissions: &[&str]) {
    let _cluster = cluster();
    std::fs::write(folder.join("stepwell.toml"), block("toml", "migrate_url").replace(HOST, &host()))
        .unwrap();
    create_key(folder, "app", permissions);
}

/// Returns all rows of the documented database as text, each with the name of its table.
pub(crate) fn all_rows() -> Vec<(String, Vec<u8>)> {
    ask(cluster(), "app", async |client| {
        let tables = "select relname::text from pg_class
                       where relnamespace = 'stepwell'::regnamespace and relkind = 'r'";
        let mut found = Vec::new();
        for table in client.query(tables, &[]).await.unwrap() {
            let table: String = table.get(0);
            let rows = client.query(&format!("select t::text from stepwell.{table} t"), &[]).await.unwrap();
            found.extend(rows.iter().map(|row| (table.clone(), row.get::<_, String>(0).into_bytes())));
        }
        found
    })
}

/// Starts the server in a folder with a `stepwell.toml`.
pub(crate) fn start(folder: &Path) -> Serving {
    let mut command = stepwell(folder);
    command.args(["server", "start", "--listen", "127.0.0.1:0"]);
    started(command, folder)
}

/// Creates an API key directly on the database of `stepwell.toml`. The servers in this folder use it.
fn create_key(folder: &Path, database: &str, permissions: &[&str]) {
    let mut create = stepwell(folder);
    // Some tests share one database, where the names of keys are unique.
    let name = permissions.join("-");
    create.args(["apikey", "create", &name, "--json", "--database-url"]);
    create.arg(url("stepwell_engine", database));
    for permission in permissions {
        create.args(["--permission", &format!("workflow:{permission}")]);
    }
    let created = create.output().unwrap();
    assert!(created.status.success(), "{created:?}");
    let created: Value = serde_json::from_slice(&created.stdout).unwrap();
    std::fs::create_dir_all(folder.join("stepwell-data")).unwrap();
    std::fs::write(folder.join("stepwell-data/dev.key"), created["secret"].as_str().unwrap()).unwrap();
}

fn completed_run(server: &Serving) -> String {
    let started = server.ask("POST", "/v1/runs", Some(&json!({"workflow": "double", "input": {"n": 21}})));
    let run = started.json()["id"].as_str().unwrap_or_else(|| panic!("{started:?}")).to_owned();
    let ended = server.get(&format!("/v1/runs/{run}?wait=30s")).json();
    assert_eq!((&ended["status"], &ended["result"]), (&json!("completed"), &json!(42)), "{ended}");
    run
}

/// The page's blocks work as written, although the owner may not create schemas. A server on a migrated schema needs no
/// owner, and sends no statement that changes the schema.
#[test]
fn documented_setup_works_and_restarts_with_least_privilege() {
    let folder = tempfile::tempdir().unwrap();
    let _cluster = cluster();
    let config = block("toml", "migrate_url").replace(HOST, &host());
    assert!(config.contains("migrate_url") && config.contains("schema"), "{config}");
    std::fs::write(folder.path().join("stepwell.toml"), &config).unwrap();
    create_key(folder.path(), "app", &["view", "read", "manage", "publish"]);
    let mut server = start(folder.path());
    let text = "steps: [{ id: done, type: control.return, value: { $expr: payload.n * 2 } }]";
    let path = "/v1/workflows/double/versions?activate=true";
    assert_eq!(server.send("POST", path, "application/yaml", text).status, 201);
    let run = completed_run(&server);
    assert_eq!(server.terminate(), Some(0));

    let without_owner: String =
        config.split_inclusive('\n').filter(|line| !line.contains("migrate_url")).collect();
    std::fs::write(folder.path().join("stepwell.toml"), without_owner).unwrap();
    let refuse = "create function public.refuse() returns event_trigger language plpgsql as
                      $$ begin raise exception 'the schema is changed'; end $$";
    let trigger = "create event trigger refuse on ddl_command_start execute function public.refuse()";
    execute(cluster(), "app", &[refuse, trigger]);
    let server = start(folder.path());
    assert_eq!(server.get(&format!("/v1/runs/{run}")).json()["status"], "completed");
    completed_run(&server);
}

fn answer(command: &mut Command) -> (Option<i32>, String) {
    let output: Output = command.output().unwrap();
    let (code, _, err) = said(&output);
    (code, err)
}

/// A past bug: a server with one URL created the tables as that role, and refused to start because of it.
#[test]
fn role_that_would_own_the_tables_is_refused_before_they_exist() {
    let roles = ["create role lone login", "create role member login", "grant lone to member"];
    execute(cluster(), "postgres", &[&roles[..], &["create database lone owner lone"]].concat());
    let before = objects("lone");
    let folder = tempfile::tempdir().unwrap();
    let (lone, member) = (url("lone", "lone"), url("member", "lone"));
    let admin = url("stepwell_admin", "lone");
    for (engine, owner, wanted) in [
        (&lone, None, "`database.migrate_url` is not set"),
        (&admin, None, "role `stepwell_admin` is a superuser"),
        (&lone, Some(&lone), "role `lone` would own the tables"),
        (&member, Some(&lone), "role `member` inherits the rights of the role that would own the tables"),
        (&admin, Some(&lone), "role `stepwell_admin` is a superuser"),
    ] {
        let mut command = stepwell(folder.path());
        command.args(["server", "start", "--listen", "127.0.0.1:0", "--database-url", engine]);
        owner.map(|owner| command.env("STEPWELL_DATABASE__MIGRATE_URL", owner));
        let (code, err) = answer(&mut command);
        assert_eq!(code, Some(6), "{wanted}: {err}");
        assert!(err.contains(wanted) && err.contains("database.migrate_url"), "{wanted}: {err}");
        assert_eq!(objects("lone"), before, "{wanted}: nothing is created");
    }
}

/// A past bug: `stepwell db migrate` with the owner's URL failed after it had created the tables, and granted nothing.
#[test]
fn owner_migrates_beforehand_and_grants_the_servers_role() {
    let database = "create database beforehand";
    let schema = "create schema stepwell authorization stepwell_owner";
    execute(cluster(), "postgres", &[database]);
    execute(cluster(), "beforehand", &[schema]);
    let (owner, engine) = (url("stepwell_owner", "beforehand"), url("stepwell_engine", "beforehand"));
    let folder = tempfile::tempdir().unwrap();
    let before = objects("beforehand");
    let run = |arguments: &[&str]| {
        answer(stepwell(folder.path()).args(arguments).env("STEPWELL_DATABASE__SCHEMA", "stepwell"))
    };
    for (arguments, wanted) in [
        (&["--database-url", &owner][..], "`stepwell db migrate --grant-to ROLE`"),
        (&["--database-url", &owner, "--grant-to", "stepwell_owner"], "would own the tables"),
        (&["--database-url", &owner, "--grant-to", "stranger"], "role \"stranger\" does not exist"),
        (&["--database-url", "sqlite:x", "--grant-to", "stepwell_engine"], "SQLite"),
    ] {
        let (code, err) = run(&[&["db", "migrate"], arguments].concat());
        assert!(code == Some(6) && err.contains(wanted), "{wanted}: {code:?} {err}");
    }
    assert_eq!(objects("beforehand"), before, "nothing is created");

    let documented = block("sh", "db migrate");
    let documented = documented.replace("${PGHOST:-localhost}/app", &format!("{}/beforehand", host()));
    assert!(documented.contains("stepwell db migrate"), "{documented}");
    let documented = documented.replace(" stepwell db", &format!(" {} db", crate::STEPWELL));
    for _ in 0..2 {
        let mut shell = Command::new("sh");
        shell.args(["-c", &documented]).current_dir(folder.path());
        // Without the settings of the current environment.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let (code, err) = answer(shell.env_clear().env("PATH", path));
        assert_eq!(code, Some(0), "{err}");
    }
    for verb in ["migrate", "status"] {
        let (code, err) = run(&["db", verb, "--database-url", &engine]);
        assert_eq!(code, Some(0), "{verb} as the servers' role: {err}");
    }
}
