//! Where it is measured: a folder, or a database server of our own, and places for stores in it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use stepwell_postgres::cluster::Cluster;
use stepwell_postgres::ground::Ground;
use tokio::runtime::Runtime;

use crate::StoreKind;
use crate::machine;

/// A folder, and a server where one is needed; both are gone when this is dropped.
pub(crate) struct Site {
    // Before the folder, so that it is stopped before.
    cluster: Option<Cluster>,
    folder: tempfile::TempDir,
}

impl Site {
    pub(crate) fn new(kind: StoreKind) -> Result<Site, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let cluster = match kind {
            StoreKind::Sqlite => None,
            StoreKind::Postgres => Some(Cluster::own(SETTINGS)?),
        };
        Ok(Site { cluster, folder })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The server, to be hurt.
    pub(crate) fn cluster(&mut self) -> Option<&mut Cluster> {
        self.cluster.as_mut()
    }

    /// A place for a store of this name.
    pub(crate) fn place(&self, runtime: &Runtime, name: &str) -> Result<Place, String> {
        match &self.cluster {
            None => Ok(Place::Sqlite(self.folder.path().join(name).with_extension("sqlite"))),
            Some(cluster) => Ok(Place::Postgres(runtime.block_on(Ground::new(cluster))?)),
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
