//! Starts and signals as commits that the caller applies, as part of a transaction of the caller.
//!
//! Stores with shared transactions offer `SqliteStore::commit_with` and `PostgresStore::commit_in`. The new run has no
//! owner until the transaction is committed. Then any process with a free permit claims it.

use stepwell_core::RunId;
use stepwell_store::Commit;

use crate::actor::Permission;
use crate::answering::signal_audit;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::lists;
use crate::loaded_run::CommitExtras;
use crate::registry::refuse_own;
use crate::signal::{Signal, Signalled};
use crate::start::{Start, refuse_first_answer};

impl Engine {
    /// Returns a new run's id and the commit that starts it. The run starts when the commit is applied. The store
    /// refuses the commit with `Refused::Done` if its idempotency key was used before.
    ///
    /// ```
    /// # use stepwell::core::Spec;
    /// # use stepwell::store::Store;
    /// # use stepwell::testing::TestEngine;
    /// # use stepwell::Start;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let greet = Spec::new("greet").initial("a").step("a").end("b").auto("go", "a", "b").build()?;
    /// # let engine = TestEngine::start(|engine| engine.workflow(greet)).await?;
    /// let (run, commit) = engine.start_commit(Start::new("greet")).await?;
    /// // Applied alone here. `commit_in` or `commit_with` apply it together with other writes of the transaction.
    /// engine.store().commit(engine.scope(), commit).await?;
    /// engine.settle().await;
    /// # assert_eq!(engine.run(run).view().await?.status, stepwell::store::Status::Completed);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start_commit(&self, start: Start) -> Result<(RunId, Commit), EngineError> {
        self.permit(Permission::Manage)?;
        let inner = &self.inner;
        let start = start.by(self.actor_id());
        let workflow = inner.workflow_of(self.scope, &start).await?;
        let run = start.id.unwrap_or_else(|| RunId::new(inner.host.ids.next()));
        let fresh = inner.fresh_of(self.scope, workflow.clone(), &start, run, None, None).await?;
        let mut extras = CommitExtras { definitions: vec![workflow], ..CommitExtras::default() };
        extras.keys.extend(start.key_for(run));
        extras.audit.extend(start.audit(run));
        extras.documents.extend(lists::kept(fresh.new.run, None, &fresh.loaded_run.snapshot));
        extras.send.extend(fresh.joins);
        extras.create.push(fresh.new);
        Ok((run, inner.commit_of(self.scope(), extras, inner.host.now())))
    }

    /// Returns the commit that puts a signal into a run's inbox. Once the commit is applied, the run consumes or
    /// buffers the signal like any other. Strict signals are rejected: the status of the run at the time of the commit
    /// is not known yet.
    ///
    /// The signal's name and payload are checked if the run already exists.
    pub async fn signal_commit(&self, run: RunId, signal: Signal) -> Result<Commit, EngineError> {
        self.permit(Permission::Manage)?;
        let inner = &self.inner;
        if signal.is_strict() {
            let why = "a strict signal must be accepted or refused at once; this one arrives later";
            return Err(EngineError::Invalid(why.to_owned()));
        }
        let (payload, signal) = (signal.payload()?, signal.by(self.shared_actor()));
        let mut audit = None;
        match inner.load(self.scope(), run).await {
            Ok(loaded_run) => {
                refuse_own(loaded_run.definition().name(), run)?;
                inner.check_signal(&loaded_run, &signal.name, &payload).await?;
                refuse_first_answer(&loaded_run, &signal)?;
                audit = signal_audit(&loaded_run, None, &signal.name, signal.sender());
            }
            Err(EngineError::NoRun(_)) => {}
            Err(error) => return Err(error),
        }
        let now = inner.host.now();
        let until = now.plus_ms(inner.ttl_ms(&signal));
        let send = vec![signal.message(&payload).buffered(run, until)];
        let mut extras = CommitExtras { send, ..CommitExtras::default() };
        extras.audit.extend(audit);
        extras.keys.extend(signal.key(run, &payload, Signalled::Buffered));
        Ok(inner.commit_of(self.scope(), extras, now))
    }
}
