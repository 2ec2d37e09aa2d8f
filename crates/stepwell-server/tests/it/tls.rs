//! Encrypted connections to PostgreSQL through the built program, as `sslmode` and `sslrootcert` of the URLs say.

use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};
use stepwell_postgres::cluster::{Cluster, PORT};
use stepwell_postgres::tokio_postgres::{self, NoTls};

use crate::said;
use crate::serving::{started, stepwell};

/// The name in the server's certificate.
const NAME: &str = "db.example.com";
const SETUP: &str = "create role stepwell_owner login; create role stepwell_engine login; \
                     create schema stepwell authorization stepwell_owner";

/// A PostgreSQL server on an address of its own.
struct Database {
    cluster: Cluster,
    address: String,
}

impl Database {
    fn start() -> Database {
        // A separate address for each server, because all use the same port.
        static STARTED: AtomicU8 = AtomicU8::new(0);
        let [_, _, b, c] = std::process::id().to_be_bytes();
        let address = format!("127.{}.{b}.{}", 128 + STARTED.fetch_add(1, Ordering::Relaxed), c.max(2));
        let cluster = Cluster::own(&[("fsync", "off"), ("listen_addresses", &address)]).unwrap();
        let database = Database { cluster, address };
        database.ask("create database app", "postgres");
        database.ask(SETUP, "app");
        database
    }

    /// Runs a statement as the superuser, on the socket. Returns the first number of its result.
    fn ask(&self, sql: &str, database: &str) -> i64 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let config = self.cluster.admin_config_string(database);
            let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
            tokio::spawn(connection);
            if !sql.starts_with("select") {
                client.batch_execute(sql).await.unwrap();
                return 0;
            }
            client.query_one(sql, &[]).await.unwrap().get(0)
        })
    }

    fn url(&self, role: &str, host: &str, ssl: &str) -> String {
        format!("postgres://{role}@{host}:{PORT}/app?hostaddr={}{ssl}", self.address)
    }

    /// Runs `stepwell db status` as the servers' role. Returns its exit code and its error.
    fn status(&self, folder: &Path, host: &str, ssl: &str) -> (Option<i32>, String) {
        let mut status = stepwell(folder);
        status.args(["db", "status", "--database-url", &self.url("stepwell_engine", host, ssl)]);
        let (code, _, err) = said(&status.env("STEPWELL_DATABASE__SCHEMA", "stepwell").output().unwrap());
        (code, err)
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

#[test]
fn server_connects_to_postgres_as_sslmode_says() {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::start();
    let plain = database.status(folder.path(), NAME, "&sslmode=require");
    assert!(plain.0 == Some(9) && plain.1.contains("server does not support TLS"), "{plain:?}");
    assert!(plain.1.contains("`sslmode`"), "{plain:?}");

    let issuer = authority();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let (pem, key) = (certificate.pem(), key.serialize_pem());
    database.cluster.serve_tls(&database.address, &pem, &key, None).unwrap();
    std::fs::write(folder.path().join("ca.crt"), issuer.pem()).unwrap();
    std::fs::write(folder.path().join("other.crt"), authority().pem()).unwrap();

    // The owner migrates and the server runs over checked connections only.
    let full = "&sslmode=verify-full&sslrootcert=ca.crt";
    let mut server = stepwell(folder.path());
    server.args(["server", "start", "--listen", "127.0.0.1:0", "--create-api-key", "admin.key"]);
    server.env("STEPWELL_DATABASE__URL", database.url("stepwell_engine", NAME, full));
    server.env("STEPWELL_DATABASE__MIGRATE_URL", database.url("stepwell_owner", NAME, full));
    server.env("STEPWELL_DATABASE__SCHEMA", "stepwell");
    let mut server = started(server, folder.path());
    server.key = std::fs::read_to_string(folder.path().join("admin.key")).unwrap().trim().to_owned();
    let text = "name: one\nsteps: [{ id: done, type: control.return, value: 42 }]";
    server.send("POST", "/v1/workflows/one/versions?activate=true", "application/yaml", text);
    let run = server.ask("POST", "/v1/runs?wait=30s", Some(&json!({"workflow": "one"}))).json();
    assert_eq!(run["run"]["result"], Value::from(42), "{run}");
    let connections = "select count(*) from pg_stat_activity a join pg_stat_ssl s using (pid)
                       where a.usename like 'stepwell\\_%' and a.usename <> 'stepwell_admin'";
    assert_eq!(database.ask(&format!("{connections} and not s.ssl"), "app"), 0);
    assert!(database.ask(connections, "app") >= 3, "the pool, the heartbeats and the session");
    let session = "select count(*) from pg_locks l join pg_stat_ssl s using (pid)
                   where l.locktype = 'advisory' and s.ssl";
    assert!(database.ask(session, "app") >= 1, "the session that listens for notifications");

    let status = |host: &str, ssl: &str| database.status(folder.path(), host, ssl);
    for (host, ssl) in [
        (NAME, full),
        ("other.example.com", "&sslmode=verify-ca&sslrootcert=ca.crt"),
        ("other.example.com", "&sslmode=require"),
        ("other.example.com", ""),
    ] {
        assert_eq!(status(host, ssl), (Some(0), String::new()), "{host} {ssl}");
    }
    for (host, ssl, code, wanted) in [
        (NAME, "&sslmode=verify-full&sslrootcert=other.crt", 9, "set `sslrootcert`"),
        (NAME, "&sslmode=verify-ca&sslrootcert=other.crt", 9, "invalid peer certificate"),
        (NAME, "&sslmode=require&sslrootcert=other.crt", 9, "invalid peer certificate"),
        ("other.example.com", full, 9, "must be a name in the server's certificate"),
        (NAME, "&sslmode=disable", 9, "no encryption"),
        (NAME, "&sslmode=verify-full&sslrootcert=none.crt", 6, "`sslrootcert` none.crt"),
        (NAME, "&sslmode=verify", 6, "`sslmode` is `verify`"),
        (NAME, "&sslrootcert=ca.crt", 6, "`sslrootcert` has no effect"),
    ] {
        let (found, err) = status(host, ssl);
        assert!(found == Some(code) && err.contains(wanted), "{host} {ssl}: {found:?} {err}");
    }
    assert_eq!(server.terminate(), Some(0));
}

/// The certificate that PostgreSQL's own documentation makes is signed by itself, as that of an authority. Clients need a
/// certificate of their own here.
#[test]
fn certificate_signed_by_itself_is_trusted_if_it_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::start();
    let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let clients = authority();
    let (pem, key) = (certificate.pem(), key.serialize_pem());
    database.cluster.serve_tls(&database.address, &pem, &key, Some(&clients.pem())).unwrap();
    let own = KeyPair::generate().unwrap();
    let signed = |issuer: &CertifiedIssuer<'static, KeyPair>| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Another name than that of the authority.
        params.distinguished_name.push(DnType::CommonName, "stepwell");
        params.signed_by(&own, issuer).unwrap().pem()
    };
    for (name, text) in [
        ("server.crt", pem),
        ("other.crt", authority().pem()),
        ("client.crt", signed(&clients)),
        ("stranger.crt", signed(&authority())),
        ("client.key", own.serialize_pem()),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let client = "&sslcert=client.crt&sslkey=client.key";
    let full = "&sslmode=verify-full&sslrootcert=server.crt";
    let mut migrate = stepwell(folder.path());
    let owner = database.url("stepwell_owner", NAME, &format!("{full}{client}"));
    migrate.args(["db", "migrate", "--grant-to", "stepwell_engine", "--database-url", &owner]);
    let migrated = migrate.env("STEPWELL_DATABASE__SCHEMA", "stepwell").output().unwrap();
    assert!(migrated.status.success(), "{migrated:?}");
    let status = |host: &str, ssl: &str| database.status(folder.path(), host, ssl);
    assert_eq!(status(NAME, &format!("{full}{client}")).0, Some(0));
    for (host, ssl, code, wanted) in [
        ("other.example.com", format!("{full}{client}"), 9, "a name in the server's certificate"),
        (NAME, format!("&sslmode=verify-ca&sslrootcert=other.crt{client}"), 9, "sslrootcert"),
        (NAME, full.to_owned(), 9, "client certificate"),
        (NAME, format!("{full}&sslcert=stranger.crt&sslkey=client.key"), 9, "check `sslcert`"),
        (NAME, format!("{full}&sslcert=client.crt&sslkey=client.crt"), 6, "`sslkey` client.crt"),
        (NAME, format!("{full}&sslcert=client.crt"), 6, "both `sslcert` and `sslkey`"),
    ] {
        let (found, err) = status(host, &ssl);
        assert!(found == Some(code) && err.contains(wanted), "{host} {ssl}: {found:?} {err}");
    }
}
