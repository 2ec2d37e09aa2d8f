//! Applies a commit and the caller's own writes in one transaction.
//!
//! Both are made inside a savepoint, so that a failing function rolls back its commit and nothing else of the batch.

use std::any::Any;

use rusqlite::{Connection, ffi};
use stepwell_store::{CommitError, CommitRef, Committed, Hint, HintSender, StoreError, TenantScope};
use tokio::sync::oneshot;

use crate::apply::{self, Prepared};
use crate::error::{WithError, store_error};
use crate::jobs::{Failure, Job};
use crate::statements::Session;

/// A commit, the caller's function that runs after it, and the channel to the caller.
pub(crate) struct OwnJob<T, F> {
    pub(crate) scope: TenantScope,
    pub(crate) prepared: Prepared,
    pub(crate) reference: CommitRef,
    pub(crate) own: F,
    pub(crate) result: Option<Result<(Committed, T), WithError>>,
    pub(crate) hints: Vec<Hint>,
    pub(crate) reply: oneshot::Sender<OwnAnswer<T>>,
}

/// The answer and the commit itself, which the caller drops.
pub(crate) type OwnAnswer<T> = (Result<(Committed, T), WithError>, Prepared);

impl<T, F: FnMut(&Connection, &Committed) -> rusqlite::Result<T>> OwnJob<T, F> {
    fn call(
        &mut self,
        session: &Session<'_>,
        committed: Committed,
    ) -> rusqlite::Result<Result<(Committed, T), WithError>> {
        let connection = session.connection;
        Ok(match session.guard.watch(|| (self.own)(connection, &committed)) {
            (Err(panic), _) => Err(WithError::Panicked(panic_message(&*panic))),
            (Ok(_), Some(what)) => Err(WithError::Forbidden { what }),
            // A disk that cannot be trusted fails the whole batch.
            (Ok(Err(error)), None) if matches!(store_error(&error), StoreError::Fatal(_)) => {
                return Err(error);
            }
            (Ok(Err(error)), None) => Err(WithError::Own(error)),
            (Ok(Ok(_)), None) if connection.is_autocommit() => Err(WithError::Ended),
            (Ok(Ok(value)), None) => Ok((committed, value)),
        })
    }
}

impl<T: Send, F: FnMut(&Connection, &Committed) -> rusqlite::Result<T> + Send> Job for OwnJob<T, F> {
    fn apply(&mut self, session: &mut Session<'_>) -> rusqlite::Result<()> {
        self.hints.clear();
        // A function that panicked may have left its own state broken: do not call it again.
        if matches!(self.result, Some(Err(WithError::Panicked(_)))) {
            return Ok(());
        }
        self.result = None;
        let connection = session.connection;
        // Write the cached cells: the savepoint cannot roll back the cache, and the function sees only the tables.
        session.flush()?;
        connection.execute_batch("savepoint stepwell_own")?;
        let applied = apply::commit(session, self.scope.tenant(), &self.prepared, &mut self.hints)?;
        session.flush()?;
        session.cell_cache.clear();
        let result = match applied {
            Ok(committed) => self.call(session, committed)?,
            Err(refused) => Err(CommitError::Refused(refused).into()),
        };
        let refused = result.is_err();
        self.result = Some(result);
        if connection.is_autocommit() {
            // The guard allows no commit, so the function rolled the transaction back, with the whole batch so far.
            return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_ABORT_ROLLBACK), None));
        }
        if refused {
            self.hints.clear();
            connection.execute_batch("rollback to stepwell_own")?;
        }
        connection.execute_batch("release stepwell_own")
    }

    fn done(self: Box<Self>, hints: &HintSender) {
        let unanswered = || {
            let error = StoreError::Fatal("the writer did not apply the commit".to_owned());
            Err(CommitError::from(error).into())
        };
        let _ = self.reply.send((self.result.unwrap_or_else(unanswered), self.prepared));
        self.hints.into_iter().for_each(|hint| hints.send(hint));
    }

    fn failed(self: Box<Self>, failure: &Failure) {
        let error = match self.result {
            // The function itself failed; report that instead of the failure of the batch.
            Some(Err(own)) if !matches!(own, WithError::Commit(_)) => own,
            _ => failure.of(self.reference).into(),
        };
        let _ = self.reply.send((Err(error), self.prepared));
    }
}

/// Returns the message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
