//! What the writer is asked to do: something to apply inside its transaction, and an answer to give after it.

use rusqlite::Connection;
use stepwell_store::{CommitError, CommitRef, Committed, HintSender, StoreError, TenantScope};
use tokio::sync::oneshot;

use crate::apply::{self, Prepared};
use crate::statements::Session;

/// One piece of work for the writer. It may be applied again, in a transaction of its own, if its batch fails.
pub(crate) trait Job: Send {
    /// Makes its changes; an error takes them back, and those of everything else in the batch.
    fn apply(&mut self, session: &mut Session<'_>) -> rusqlite::Result<()>;
    /// Its changes are on disk.
    fn done(self: Box<Self>, hints: &HintSender);
    /// Its changes were not made, or nobody knows.
    fn failed(self: Box<Self>, failure: &Failure);
}

/// Why a batch has no result.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// Nothing of it is in the database.
    Store(StoreError),
    /// The commit failed in a way that leaves open what is on disk.
    Unknown(String),
}

impl Failure {
    /// The same as what a commit answers.
    pub(crate) fn of(&self, reference: CommitRef) -> CommitError {
        match self {
            Failure::Store(error) => error.clone().into(),
            Failure::Unknown(why) => CommitError::Unknown { reference, why: why.clone() },
        }
    }
}

/// A commit and who waits for it.
pub(crate) struct CommitJob {
    pub(crate) scope: TenantScope,
    pub(crate) prepared: Prepared,
    pub(crate) reference: CommitRef,
    pub(crate) result: Option<Result<Committed, CommitError>>,
    pub(crate) hints: Vec<stepwell_store::Hint>,
    pub(crate) reply: oneshot::Sender<Answer>,
}

/// The answer, and the commit back: whoever made it takes it down again, which is work the writer need not do.
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
        // A caller that no longer waits has given up its answer, not its commit.
        let _ = self.reply.send((self.result.unwrap_or_else(unanswered), self.prepared));
        self.hints.into_iter().for_each(|hint| hints.send(hint));
    }

    fn failed(self: Box<Self>, failure: &Failure) {
        let _ = self.reply.send((Err(failure.of(self.reference)), self.prepared));
    }
}

/// Any other write, as a function on the connection.
pub(crate) struct CallJob<T, F> {
    pub(crate) call: F,
    pub(crate) result: Option<Result<T, StoreError>>,
    pub(crate) reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnMut(&Connection) -> rusqlite::Result<Result<T, StoreError>> + Send> Job for CallJob<T, F> {
    fn apply(&mut self, session: &mut Session<'_>) -> rusqlite::Result<()> {
        // It sees what is written, and may write itself.
        session.flush()?;
        session.held.clear();
        self.result = Some((self.call)(session.connection)?);
        Ok(())
    }

    fn done(self: Box<Self>, _: &HintSender) {
        let unanswered = || Err(StoreError::Fatal("the writer did not make the call".to_owned()));
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
