//! The stores that the engine's tests run on.

use clap::ValueEnum;

/// Target of the engine's integration tests.
pub(crate) const ENGINE: &str = "it-engine";

/// Target of the PostgreSQL store's integration tests.
pub(crate) const POSTGRES_STORE: &str = "it-postgres";

/// Environment variable that selects the store of the tests.
pub(crate) const WHICH: &str = "STEPWELL_TEST_STORE";

/// Prefix of the engine's tests that use no store and so need only one run.
pub(crate) const WITHOUT_A_STORE: &str = "cron::";

/// The default store of the tests, which needs no disk.
pub(crate) const MEMORY: &str = "memory";

/// The choice of stores for a test run.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum Choice {
    Memory,
    Sqlite,
    Postgres,
    All,
}

impl Choice {
    pub(crate) fn names(self) -> Vec<&'static str> {
        match self {
            Choice::Memory => vec![MEMORY],
            Choice::Sqlite => vec!["sqlite"],
            Choice::Postgres => vec!["postgres"],
            Choice::All => vec![MEMORY, "sqlite", "postgres"],
        }
    }
}
