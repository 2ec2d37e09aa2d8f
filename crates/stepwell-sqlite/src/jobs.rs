//! Jobs of the writer. Each is applied inside the writer's transaction and answered after it.

use rusqlite::Connection;
use stepwell_store::{CommitError, CommitRef, Committed, HintSender, StoreError, TenantScope};
use tokio::sync::oneshot;

use crate::apply::{self, Prepared};
use crate::statements::Session;

/// A job of the writer. If its batch fails, it is applied again in its own transaction.
pub(crate) trait Job: Send {
    /// Makes the changes. An error rolls back the whole batch.
    fn apply(&mut self, session: &mut Session<'_>) -> rusqlite::Result<()>;
    /// Reports success: the changes are on disk.
    fn done(self: Box<Self>, hints: &HintSender);
    /// Reports failure: the changes were not made, or their outcome is unknown.
    fn failed(self: Box<Self>, failure: &Failure);
}

/// The reason that a batch has no result.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// Nothing of the batch is stored.
    Store(StoreError),
    /// The commit failed, and it is unknown whether it is on disk.
    Unknown(String),
}

impl Failure {
    /// Returns the failure as the answer to a commit.
    pub(crate) fn of(&self, reference: CommitRef) -> CommitError {
        match self {
            Failure::Store(error) => error.clone().into(),
            Failure::Unknown(why) => CommitError::Unknown { reference, why: why.clone() },
        }
    }
}

/// A commit and the channel to its caller.
pub(crate) struct CommitJob {
    pub(crate) scope: TenantScope,
    pub(crate) prepared: Prepared,
    pub(crate) reference: CommitRef,
    pub(crate) result: Option<Result<Committed, CommitError>>,
    pub(crate) hints: Vec<stepwell_store::Hint>,
    pub(crate) reply: oneshot::Sender<Answer>,
}

/// The answer and the commit itself. The caller drops the commit, which saves the writer that work.
pub(crate) type Answer = (Result<Committed, CommitError>, Prepared);

impl Job for CommitJob {
    fn apply(&mut self, session: &mut Session<'_>) -> rusqlite::Result<()> {
        self.hints.clear();
        let applied = apply::commit(session, self.scope.tenant(), &self.prepared, &mut self.hints)?;
        self.result = Some(applied.map_err(CommitError::Refused));
        Ok(())
    }

    fn done(self: Box<Self>, hints: &HintSender) {
        let unanswered = || Err(StoreError::Fatal("the writer did not apply the commit".to_owned()).into());
        // A caller that no longer waits gives up the answer, not the commit.
        let _ = self.reply.send((self.result.unwrap_or_else(unanswered), self.prepared));
        self.hints.into_iter().for_each(|hint| hints.send(hint));
    }

    fn failed(self: Box<Self>, failure: &Failure) {
        let _ = self.reply.send((Err(failure.of(self.reference)), self.prepared));
    }
}

/// A write other than a commit, as a function on the connection.
pub(crate) struct CallJob<T, F> {
    pub(crate) call: F,
    pub(crate) result: Option<Result<T, StoreError>>,
    pub(crate) reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnMut(&Connection) -> rusqlite::Result<Result<T, StoreError>> + Send> Job for CallJob<T, F> {
    fn apply(&mut self, session: &mut Session<'_>) -> rusqlite::Result<()> {
        // The function must see the cached cells, and may change them in the table.
        session.flush()?;
        session.cell_cache.clear();
        self.result = Some((self.call)(session.connection)?);
        Ok(())
    }

    fn done(self: Box<Self>, _: &HintSender) {
        let unanswered = || Err(StoreError::Fatal("the writer did not run the function".to_owned()));
        let _ = self.reply.send(self.result.unwrap_or_else(unanswered));
    }

    fn failed(self: Box<Self>, failure: &Failure) {
        let error = match failure {
            Failure::Store(error) => error.clone(),
            Failure::Unknown(why) => StoreError::Fatal(why.clone()),
        };
        let _ = self.reply.send(Err(error));
    }
}
