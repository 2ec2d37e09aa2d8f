//! The network to the server: one that drops everything silently, and one that others can read.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use stepwell_postgres::cluster::{Cluster, PORT};
use stepwell_postgres::test_schema::{ENGINE, TestSchema};
use stepwell_postgres::{OpenError, Options, PostgresStore};
use stepwell_store::suite::{ask, make};
use stepwell_store::{Store, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};

use crate::lost::{Movers, own_cluster};
use crate::raw::{client, number, soon};

/// The treatment of bytes by the proxy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goes {
    /// Passes on requests and answers.
    On,
    /// Passes on requests, and drops answers.
    OneWay,
    /// Drops everything, without closing a connection.
    Nowhere,
}

/// A network between a store and its server, which can fall silent: it accepts bytes, like a router's queue, but they
/// never arrive.
struct Network {
    port: u16,
    /// The number of the last silent connection, and whether only its answers are dropped.
    silent: Arc<(AtomicU64, AtomicBool)>,
    count: Arc<AtomicU64>,
}

impl Network {
    async fn before(cluster: &Cluster) -> Network {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket: PathBuf = cluster.socket_dir().join(format!(".s.PGSQL.{PORT}"));
        let (silent, count) =
            (Arc::new((AtomicU64::new(0), AtomicBool::new(false))), Arc::new(AtomicU64::new(0)));
        let (asks, counts) = (silent.clone(), count.clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let number = counts.fetch_add(1, Ordering::SeqCst) + 1;
                let asks = asks.clone();
                let goes =
                    move || match (number <= asks.0.load(Ordering::SeqCst), asks.1.load(Ordering::SeqCst)) {
                        (false, _) => Goes::On,
                        (true, true) => Goes::OneWay,
                        (true, false) => Goes::Nowhere,
                    };
                let far = UnixStream::connect(&socket).await.unwrap();
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                let there = goes.clone();
                tokio::spawn(carry(near_in, far_out, move || there() != Goes::Nowhere));
                tokio::spawn(carry(far_in, near_out, move || goes() == Goes::On));
            }
        });
        Network { port, silent, count }
    }

    /// Makes the existing connections silent, in both directions or for answers only. `also_new` includes new
    /// connections.
    fn fall_silent(&self, goes: Goes, also_new: bool) {
        self.silent.1.store(goes == Goes::OneWay, Ordering::SeqCst);
        let up_to = if also_new { u64::MAX } else { self.count.load(Ordering::SeqCst) };
        self.silent.0.store(up_to, Ordering::SeqCst);
    }

    /// Lets new connections work again. Old ones stay silent.
    fn come_back(&self) {
        self.silent.0.store(self.count.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Opens a store that connects through the network and has a short timeout.
    async fn store(&self, test_schema: &TestSchema, response_timeout: Duration) -> Arc<PostgresStore> {
        let config =
            format!("host=127.0.0.1 port={} user={ENGINE} dbname=postgres connect_timeout=1", self.port);
        let options = Options { response_timeout, ..test_schema.options() };
        Arc::new(PostgresStore::open_with(&config, options).await.unwrap())
    }
}

async fn carry(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    passes: impl Fn() -> bool,
) {
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        if passes() && to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
    if !passes() {
        // The other side is not told that the connection has ended.
        std::future::pending::<()>().await;
    }
}

/// A silent connection must not block a caller without end. A commit whose answer is lost must not be reported as
/// failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_network_never_blocks_or_misreports_a_commit() {
    let (cluster, test_schema) = own_cluster().await;
    let network = Network::before(&cluster).await;
    let store = network.store(&test_schema, Duration::from_millis(500)).await;
    let make = Arc::new(make::Make::new());
    let movers = Movers::start(&store, &make, 8, false).await;
    for round in 0..30_u64 {
        if round >= 6 && movers.have_shown(32) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(400 + round * 37 % 300)).await;
        let goes = if round % 2 == 0 { Goes::OneWay } else { Goes::Nowhere };
        network.fall_silent(goes, round >= 4);
        if round >= 4 {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            network.come_back();
        }
    }
    assert!(movers.have_shown(32), "{} steps made, or no commit was ever in doubt", movers.made());
    movers.finish().await;
    ask::started(&*store, make.create(make::new_run(make::run(1_000)))).await;
}

/// A query on a silent network must get an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_on_a_silent_network_fails_in_time() {
    let (cluster, test_schema) = own_cluster().await;
    let network = Network::before(&cluster).await;
    let store = network.store(&test_schema, Duration::from_millis(300)).await;
    assert_eq!(store.load(make::ME, make::run(1)).await.unwrap(), None);
    network.fall_silent(Goes::Nowhere, true);
    let began = Instant::now();
    // The store drops the connection, and tries for a while to get another one.
    let answer = soon(store.load(make::ME, make::run(1))).await;
    let Err(StoreError::Unavailable(why)) = answer else { panic!("{answer:?}") };
    assert!(why.contains("no connection within 1000 ms"), "{why}");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    network.come_back();
    assert_eq!(soon(store.load(make::ME, make::run(1))).await.unwrap(), None);
}

/// A server that accepts only encrypted connections over the network, and the authority that issued its certificate.
struct Encrypted {
    _cluster: Cluster,
    test_schema: TestSchema,
    address: String,
    authority: rustls::pki_types::CertificateDer<'static>,
}

const NAME: &str = "db.example.com";

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

impl Encrypted {
    async fn start() -> Encrypted {
        // A separate address for each test process, because all use the same port.
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let address = format!("127.{}.{b}.{}", 64 + a % 64, c.max(2));
        let listens = address.clone();
        let cluster =
            tokio::task::spawn_blocking(move || Cluster::own(&[("listen_addresses", &listens)]).unwrap());
        let cluster = cluster.await.unwrap();
        let test_schema = TestSchema::new(&cluster).await.unwrap();
        let issuer = authority();
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec![NAME.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        cluster.serve_tls(&address, &certificate.pem(), &key.serialize_pem(), None).unwrap();
        let authority = issuer.der().clone();
        Encrypted { _cluster: cluster, test_schema, address, authority }
    }

    /// Opens a store that trusts an authority and expects this server name.
    async fn open(
        &self,
        name: &str,
        mode: &str,
        authority: Option<&rustls::pki_types::CertificateDer<'static>>,
    ) -> Result<PostgresStore, OpenError> {
        let mut roots = rustls::RootCertStore::empty();
        if let Some(authority) = authority {
            roots.add(authority.clone()).unwrap();
        }
        let tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let tls = authority.map(|_| Arc::new(tls));
        let options = Options { tls, ..self.test_schema.options() };
        let address = &self.address;
        let config = format!(
            "host={name} hostaddr={address} port={PORT} user={ENGINE} dbname=postgres sslmode={mode}"
        );
        soon(PostgresStore::open_with(&config, options)).await
    }
}

/// A third party must be able neither to read the traffic nor to answer in place of the server.
#[tokio::test]
async fn tls_connects_only_to_the_intended_server() {
    let server = Encrypted::start().await;
    let admin = client(&server.test_schema, server.test_schema.admin()).await;
    let store = server.open(NAME, "require", Some(&server.authority)).await.unwrap();
    let make = make::Make::new();
    let head = ask::started(&store, make.create(make::new_run(make::run(1)))).await;
    store.commit(make::ME, make.step(make::step(&head, "on"))).await.unwrap();
    let plain = format!(
        "select count(*) from pg_stat_activity a join pg_stat_ssl s using (pid) where a.usename = '{ENGINE}' and not s.ssl"
    );
    assert_eq!(number(&admin, &plain).await, 0);
    let encrypted = plain.replace("and not s.ssl", "and s.ssl and s.version >= 'TLSv1.2'");
    assert!(number(&admin, &encrypted).await >= 2, "the pool's and the session's");

    let stranger = authority().der().clone();
    let refused = |opened: Result<PostgresStore, OpenError>| match opened {
        Err(OpenError::Unreachable(why)) => why,
        other => panic!("{other:?}"),
    };
    let why = refused(server.open(NAME, "require", Some(&stranger)).await);
    assert!(why.contains("invalid peer certificate"), "{why}");
    let why = refused(server.open("elsewhere.example.com", "require", Some(&server.authority)).await);
    assert!(why.contains("not valid for name"), "{why}");
    // Without TLS the server refuses the connection.
    let why = refused(server.open(NAME, "disable", None).await);
    assert!(why.contains("no encryption"), "{why}");
}
