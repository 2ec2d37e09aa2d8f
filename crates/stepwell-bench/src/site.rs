//! The databases of a workload: files in a folder, or schemas on a PostgreSQL server.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;

use stepwell_postgres::cluster::Cluster;
use stepwell_postgres::test_schema::TestSchema;
use tokio::runtime::Runtime;

use crate::StoreKind;
use crate::machine;

/// URL of the external server that PostgreSQL workloads use instead of starting their own.
static EXTERNAL: OnceLock<String> = OnceLock::new();

/// Makes every later [`Site`] on PostgreSQL use an external server.
pub(crate) fn use_external(url: String) {
    // Called once, by `main`.
    let _ = EXTERNAL.set(url);
}

/// A temporary folder and, if needed, a server. Dropping it removes both, except an external server.
pub(crate) struct Site {
    // Declared before the folder, so that the server stops before the folder is removed.
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

    /// Returns the server if this process has started it, so that it may be killed.
    pub(crate) fn cluster(&mut self) -> Option<&mut Cluster> {
        match &mut self.server {
            Server::Own(cluster) => Some(cluster),
            Server::None | Server::External(_) => None,
        }
    }

    /// Creates a place for a store of this name.
    pub(crate) fn place(&self, runtime: &Runtime, name: &str) -> Result<Place, String> {
        match &self.server {
            Server::None => Ok(Place::Sqlite(self.folder.path().join(name).with_extension("sqlite"))),
            Server::Own(cluster) => Ok(Place::Postgres(runtime.block_on(TestSchema::new(cluster))?)),
            Server::External(url) => Ok(Place::Postgres(runtime.block_on(TestSchema::external(url))?)),
        }
    }
}

/// Common server settings; none of them weakens durability.
const SETTINGS: &[(&str, &str)] =
    &[("shared_buffers", "256MB"), ("max_wal_size", "4GB"), ("max_connections", "200")];

/// The location of a store. Its text form can be passed to another process.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Sqlite(PathBuf),
    Postgres(TestSchema),
}

impl Place {
    /// Returns the size of the stored data in bytes. No process may have the store open.
    pub(crate) async fn bytes(&self) -> Result<u64, String> {
        match self {
            Place::Sqlite(path) => machine::pages_in_use(path),
            Place::Postgres(test_schema) => {
                machine::relations(test_schema.admin(), test_schema.schema()).await
            }
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Place::Postgres(test_schema) => write!(f, "postgres:{}", test_schema.text()),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let unknown = || format!("`{text}` is not a store: use `sqlite:PATH` or `postgres:…`");
        match text.split_once(':').ok_or_else(unknown)? {
            ("sqlite", path) => Ok(Place::Sqlite(path.into())),
            ("postgres", test_schema) => {
                TestSchema::from_text(test_schema).map(Place::Postgres).ok_or_else(unknown)
            }
            _ => Err(unknown()),
        }
    }
}
