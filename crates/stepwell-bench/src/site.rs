//! Where a workload runs: a folder or a PostgreSQL server, and places for stores in it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;

use stepwell_postgres::cluster::Cluster;
use stepwell_postgres::ground::Ground;
use tokio::runtime::Runtime;

use crate::StoreKind;
use crate::machine;

/// The URL of the external server that workloads on PostgreSQL use instead of starting their own.
static EXTERNAL: OnceLock<String> = OnceLock::new();

/// Makes every later [`Site`] on PostgreSQL use an external server.
pub(crate) fn use_external(url: String) {
    // Called once, by `main`.
    let _ = EXTERNAL.set(url);
}

/// A folder, and a server where one is needed; both are gone when this is dropped, but for an external server.
pub(crate) struct Site {
    // Before the folder, so that it is stopped before.
    server: Server,
    folder: tempfile::TempDir,
}

enum Server {
    None,
    Own(Box<Cluster>),
    External(&'static str),
}

impl Site {
    pub(crate) fn new(kind: StoreKind) -> Result<Site, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let server = match (kind, EXTERNAL.get()) {
            (StoreKind::Sqlite, _) => Server::None,
            (StoreKind::Postgres, Some(url)) => Server::External(url),
            (StoreKind::Postgres, None) => Server::Own(Box::new(Cluster::own(SETTINGS)?)),
        };
        Ok(Site { server, folder })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The server if it is this process's own, so that it may be killed.
    pub(crate) fn cluster(&mut self) -> Option<&mut Cluster> {
        match &mut self.server {
            Server::Own(cluster) => Some(cluster),
            Server::None | Server::External(_) => None,
        }
    }

    /// A place for a store of this name.
    pub(crate) fn place(&self, runtime: &Runtime, name: &str) -> Result<Place, String> {
        match &self.server {
            Server::None => Ok(Place::Sqlite(self.folder.path().join(name).with_extension("sqlite"))),
            Server::Own(cluster) => Ok(Place::Postgres(runtime.block_on(Ground::new(cluster))?)),
            Server::External(url) => Ok(Place::Postgres(runtime.block_on(Ground::external(url))?)),
        }
    }
}

/// What a server is usually given, and nothing that makes it forget.
const SETTINGS: &[(&str, &str)] =
    &[("shared_buffers", "256MB"), ("max_wal_size", "4GB"), ("max_connections", "200")];

/// Where a store is; as a text it can be told to another process.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Sqlite(PathBuf),
    Postgres(Ground),
}

impl Place {
    /// Bytes that what is in it takes, when nobody has it open.
    pub(crate) async fn bytes(&self) -> Result<u64, String> {
        match self {
            Place::Sqlite(path) => machine::pages_in_use(path),
            Place::Postgres(ground) => machine::relations(ground.admin(), ground.schema()).await,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Place::Postgres(ground) => write!(f, "postgres:{}", ground.text()),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let unknown = || format!("`{text}` is no place for a store");
        match text.split_once(':').ok_or_else(unknown)? {
            ("sqlite", path) => Ok(Place::Sqlite(path.into())),
            ("postgres", ground) => Ground::from_text(ground).map(Place::Postgres).ok_or_else(unknown),
            _ => Err(unknown()),
        }
    }
}
