//! The conformance suite: cases and random scripts that every backend must pass.
//!
//! A backend's tests provide a function that creates an empty store. One macro call turns every case into a test:
//!
//! ```
//! use stepwell_store::suite::Fresh;
//!
//! async fn fresh() -> Fresh {
//!     Fresh::new(stepwell_store::MemoryStore::new())
//! }
//!
//! stepwell_store::conformance!(memory, fresh);
//! # fn main() {}
//! ```
//!
//! A case is an async function inside `cases!`, which defines the function and its tests; there is no other list. The
//! store must have the default limits. The suite passes every time explicitly and reads no clock.

#![allow(clippy::unwrap_used, missing_docs)]

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::store::Store;

/// Defines cases, and a macro that turns each into a test.
///
/// The first line names the module of the cases and the macro to export.
macro_rules! cases {
    (
        $module:ident as $export:ident;
        $($(#[$meta:meta])* async fn $name:ident($store:ident: $kind:ty) $body:block)+
    ) => {
        $($(#[$meta])* pub async fn $name($store: $kind) $body)+
        cases!(@export ($) $module $export $($name)+);
    };
    (@export ($dollar:tt) $module:ident $export:ident $($name:ident)+) => {
        #[doc(hidden)]
        #[macro_export]
        macro_rules! $export {
            ($dollar factory:expr) => {
                $(
                    #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $name() {
                        $crate::suite::bounded(async {
                            let fresh = ($dollar factory)().await;
                            $crate::suite::$module::$name(fresh.store()).await;
                        })
                        .await;
                    }
                )+
            };
        }
    };
}

pub mod ask;
pub mod bounded;
pub mod cells;
pub mod claims;
pub mod cleanups;
pub mod documents;
pub mod dump;
pub mod filters;
pub mod handles;
pub mod hinted;
pub mod history;
pub mod inbox;
pub mod keys;
pub mod links;
pub mod listing;
pub mod make;
pub mod odd;
pub mod random;
pub mod records;
pub mod runs;
pub mod script;
pub mod seals;
pub mod shadows;
pub mod tallies;
pub mod tenants;
pub mod whole;

/// Defines a module with one test per case. Takes its name and an async function that creates an empty store.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $factory:expr) => {
        #[allow(unused_imports, clippy::wildcard_imports)]
        mod $name {
            use super::*;
            $crate::conformance! { @modules $factory;
                bounded __suite_bounded;
                cells __suite_cells;
                claims __suite_claims;
                documents __suite_documents;
                filters __suite_filters;
                handles __suite_handles;
                hinted __suite_hinted;
                history __suite_history;
                inbox __suite_inbox;
                keys __suite_keys;
                links __suite_links;
                listing __suite_listing;
                odd __suite_odd;
                records __suite_records;
                runs __suite_runs;
                seals __suite_seals;
                shadows __suite_shadows;
                cleanups __suite_cleanups;
                tallies __suite_tallies;
                tenants __suite_tenants;
                whole __suite_whole;
            }
        }
    };
    (@modules $factory:expr; $($module:ident $cases:ident;)+) => {
        $(
            mod $module {
                use super::*;
                $crate::$cases!($factory);
            }
        )+
    };
}

/// A store that several tasks share.
pub type Shared = Arc<dyn Store>;

/// An empty store, and a guard that must live as long as the store.
pub struct Fresh {
    store: Shared,
    _keep: Box<dyn Any + Send + Sync>,
}

impl Fresh {
    /// Wraps a store that needs no guard.
    pub fn new(store: impl Store + 'static) -> Self {
        Fresh::with_guard(store, ())
    }

    /// Wraps a store and a guard, such as the directory of its file. The guard is dropped last.
    pub fn with_guard(store: impl Store + 'static, keep: impl Any + Send + Sync) -> Self {
        Fresh { store: Arc::new(store), _keep: Box::new(keep) }
    }

    /// Returns the store; clone it to share it.
    pub fn store(&self) -> &Shared {
        &self.store
    }
}

/// Timeout of a case.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a case, and fails it if it exceeds the timeout.
pub async fn bounded(case: impl Future<Output = ()>) {
    tokio::time::timeout(PATIENCE, case).await.expect("the case finishes within its timeout");
}
