//! Starts and signals as commits that somebody else makes: part of a transaction of their own.
//!
//! A store that shares its transactions says how (`SqliteStore::commit_with`, `PostgresStore::commit_in`). The run
//! belongs to nobody until the transaction is committed; then whoever has room takes it.

use stepwell_core::RunId;
use stepwell_store::Commit;

use crate::actor::Permission;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::lists;
use crate::post::Says;
use crate::registry::refuse_own;
use crate::signal::{Signal, Signalled};
use crate::standing::Along;
use crate::start::Start;

impl Engine {
    /// The commit that begins a run, and the run's id. It begins when somebody makes the commit; if they make it for a
    /// key that was used before, the store refuses it as done.
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
    /// // Here alone; with `commit_in` or `commit_with` it goes with what else is written.
    /// engine.store().commit(engine.scope(), commit).await?;
    /// engine.settle().await;
    /// # assert_eq!(engine.run(run).view().await?.status, stepwell::store::Status::Completed);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start_commit(&self, start: Start) -> Result<(RunId, Commit), EngineError> {
        self.permit(Permission::Manage)?;
        let inner = &self.inner;
        let workflow = inner.workflow_of(self.scope, &start).await?;
        let run = start.id.unwrap_or_else(|| RunId::new(inner.host.ids.next()));
        let fresh = inner.fresh_of(workflow.clone(), &start, run, None, None).await?;
        let mut along = Along { definitions: vec![workflow], ..Along::default() };
        along.keys.extend(start.key_for(run));
        along.documents.extend(lists::kept(fresh.new.run, None, &fresh.standing.snapshot));
        along.create.push(fresh.new);
        Ok((run, inner.commit_of(self.scope(), along, inner.host.now())))
    }

    /// The commit that puts a signal into a run's inbox. Once it is made, the run takes the signal or keeps it, as for
    /// any other. A strict signal cannot be asked for so: nobody knows yet how the run will stand.
    ///
    /// The signal's name and payload are checked if the run is there already.
    pub async fn signal_commit(&self, run: RunId, signal: Signal) -> Result<Commit, EngineError> {
        self.permit(Permission::Manage)?;
        let inner = &self.inner;
        if signal.is_strict() {
            let why = "a strict signal is taken or refused at once, and this one is given to the run later";
            return Err(EngineError::Invalid(why.to_owned()));
        }
        let payload = signal.payload()?;
        match inner.load(self.scope(), run).await {
            Ok(standing) => {
                refuse_own(standing.definition().name(), run)?;
                inner.check_signal(&standing, &signal.name, &payload).await?;
            }
            Err(EngineError::NoRun(_)) => {}
            Err(error) => return Err(error),
        }
        let now = inner.host.now();
        let says = Says::Signal { name: signal.name.clone(), payload: payload.clone() };
        let until = now.plus_ms(inner.kept_ms(&signal));
        let mut along = Along { send: vec![says.kept(run, until)], ..Along::default() };
        along.keys.extend(signal.key(run, &payload, Signalled::Kept));
        Ok(inner.commit_of(self.scope(), along, now))
    }
}
