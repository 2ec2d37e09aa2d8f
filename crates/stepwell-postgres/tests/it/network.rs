//! The way to the server: a network on which nothing arrives any more, and one on which others listen.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use stepwell_postgres::cluster::{Cluster, PORT};
use stepwell_postgres::ground::{ENGINE, Ground};
use stepwell_postgres::{OpenError, Options, PostgresStore};
use stepwell_store::suite::{ask, make};
use stepwell_store::{Store, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};

use crate::lost::{Movers, own_cluster};
use crate::raw::{client, number, soon};

/// What a proxy does with what it reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goes {
    /// It passes it on.
    On,
    /// It passes on what is asked, and keeps the answers.
    OneWay,
    /// It keeps everything. Nobody is told, and no connection is closed.
    Nowhere,
}

/// A network between a store and its server, which may fall silent without a word: the bytes are taken from whoever sends
/// them, as a router's queue does, and arrive nowhere.
struct Network {
    port: u16,
    /// Connections up to this one are silent, and in what way.
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

    /// From here on nothing arrives on the connections there are, or no answers do; new ones are good, if any are to be.
    fn fall_silent(&self, goes: Goes, also_new: bool) {
        self.silent.1.store(goes == Goes::OneWay, Ordering::SeqCst);
        let up_to = if also_new { u64::MAX } else { self.count.load(Ordering::SeqCst) };
        self.silent.0.store(up_to, Ordering::SeqCst);
    }

    /// New connections are good again. Old ones stay silent for ever.
    fn come_back(&self) {
        self.silent.0.store(self.count.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// A store on this side of it, that does not wait for long.
    async fn store(&self, ground: &Ground, patience: Duration) -> Arc<PostgresStore> {
        let config =
            format!("host=127.0.0.1 port={} user={ENGINE} dbname=postgres connect_timeout=1", self.port);
        let options = Options { patience, ..ground.options() };
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
        // Nobody on the other side hears of the end.
        std::future::pending::<()>().await;
    }
}

/// The accident: a connection on which nothing arrives any more holds up whoever asked on it for ever, and a commit whose answer
/// was on its way is told to have failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_network_falls_silent_nobody_waits_for_ever_and_is_told_what_is_so() {
    let (cluster, ground) = own_cluster().await;
    let network = Network::before(&cluster).await;
    let store = network.store(&ground, Duration::from_millis(500)).await;
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
    movers.rest().await;
    ask::started(&*store, make.create(make::new_run(make::run(1_000)))).await;
}

/// The accident: who asks while nothing arrives is left without an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_on_a_silent_network_is_told_so_in_time() {
    let (cluster, ground) = own_cluster().await;
    let network = Network::before(&cluster).await;
    let store = network.store(&ground, Duration::from_millis(300)).await;
    assert_eq!(store.load(make::ME, make::run(1)).await.unwrap(), None);
    network.fall_silent(Goes::Nowhere, true);
    let began = Instant::now();
    // It gives the connection up, and tries for a while to get another one.
    let answer = soon(store.load(make::ME, make::run(1))).await;
    let Err(StoreError::Unavailable(why)) = answer else { panic!("{answer:?}") };
    assert!(why.contains("nobody answered for 1000 ms"), "{why}");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    network.come_back();
    assert_eq!(soon(store.load(make::ME, make::run(1))).await.unwrap(), None);
}

/// A server that is reached over the network and only with encryption, under a name, and the authority its certificate is
/// from.
struct Encrypted {
    _cluster: Cluster,
    ground: Ground,
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
        // Its own address: the port is everybody's.
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let address = format!("127.{}.{b}.{}", 64 + a % 64, c.max(2));
        let listens = address.clone();
        let cluster =
            tokio::task::spawn_blocking(move || Cluster::own(&[("listen_addresses", &listens)]).unwrap());
        let cluster = cluster.await.unwrap();
        let ground = Ground::new(&cluster).await.unwrap();
        let issuer = authority();
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec![NAME.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        let data = cluster.socket_dir().join("data");
        let owner = std::fs::metadata(&data).unwrap();
        let hosts = "local all all trust\nhostssl all all 127.0.0.0/8 trust\n".to_owned();
        let files =
            [("server.crt", certificate.pem()), ("server.key", key.serialize_pem()), ("pg_hba.conf", hosts)];
        for (name, text) in files {
            let path = data.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
        }
        let admin = client(&ground, ground.admin()).await;
        admin.batch_execute("alter system set ssl = on").await.unwrap();
        admin.batch_execute("select pg_reload_conf()").await.unwrap();
        let authority = issuer.der().clone();
        let encrypted = Encrypted { _cluster: cluster, ground, address, authority };
        soon(async {
            while number(&admin, "select (current_setting('ssl') = 'on')::int::bigint").await == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        encrypted
    }

    /// Opens a store that trusts an authority and knows the server by a name.
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
        let options = Options { tls, ..self.ground.options() };
        let address = &self.address;
        let config = format!(
            "host={name} hostaddr={address} port={PORT} user={ENGINE} dbname=postgres sslmode={mode}"
        );
        soon(PostgresStore::open_with(&config, options)).await
    }
}

/// The accident: somebody who listens reads it all, or answers in the server's place.
#[tokio::test]
async fn over_tls_the_store_works_and_only_with_the_server_it_was_meant_to_reach() {
    let server = Encrypted::start().await;
    let admin = client(&server.ground, server.ground.admin()).await;
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
    // Whoever comes without it is sent away by the server, and whoever insists on it goes away by itself.
    let why = refused(server.open(NAME, "disable", None).await);
    assert!(why.contains("no encryption"), "{why}");
    let why = refused(server.open(NAME, "require", None).await);
    assert!(why.contains("TLS"), "{why}");
}
