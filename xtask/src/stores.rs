//! The stores that the engine's tests run on.

use clap::ValueEnum;

/// The target of the engine's integration tests.
pub(crate) const ENGINE: &str = "it-engine";

/// The target of the integration tests of the store on PostgreSQL.
pub(crate) const POSTGRES_STORE: &str = "it-postgres";

/// Tells the tests which store to use.
pub(crate) const WHICH: &str = "STEPWELL_TEST_STORE";

/// Tests of the engine that use no store, and so need only one run.
pub(crate) const WITHOUT_A_STORE: &str = "cron::";

/// The default of the tests; it needs no disk.
pub(crate) const MEMORY: &str = "memory";

/// What to run tests on.
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
