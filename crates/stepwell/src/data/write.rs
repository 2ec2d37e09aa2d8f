//! Writes outside of runs: one commit. If its acknowledgement is lost, the outcome is looked up.

use stepwell_store::{
    Commit, CommitError, CommitId, CommitRef, LinkWrite, OpResult, Record, RecordQuery, Recorded, Refused,
    StoreError, TenantScope,
};

use crate::actor::Permission;
use crate::data::changes::{Changes, Kind, WRITE};
use crate::data::error::DataError;
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::idempotent::Idempotent;

/// Maximum number of attempts at a commit that is known not to have been applied.
const TRIES: u32 = 5;

impl Engine {
    /// Commits changes to data, all of them or none, and returns their results in the order in which they were added.
    ///
    /// ```
    /// # use stepwell::data::{Changes, Increment, NewLink};
    /// # use stepwell::store::Entity;
    /// # use stepwell::testing::TestEngine;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = TestEngine::start(|engine| engine).await?;
    /// let task = |id: &str| Entity::new("task", id);
    /// let changes = Changes::new()
    ///     .check("stock", "bolts", 0)
    ///     .set("stock", "bolts", 500)
    ///     .increment("stock", "kinds", Increment::by(1))
    ///     .link("mirror", NewLink::new(task("a-1"), task("b-7")).relation("mirrors"))
    ///     .once("import-2031");
    /// let results = engine.write(changes.clone()).await?;
    /// assert_eq!(results[2].value, Some(1.into()));
    /// // The same changes with the same idempotency key return the same results.
    /// assert_eq!(engine.write(changes).await?, results);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn write(&self, changes: Changes) -> Result<Vec<OpResult>, DataError> {
        Ok(self.write_once(changes).await?.value)
    }

    /// Commits changes to data. The result tells whether they are new or replayed from their idempotency key.
    pub async fn write_once(&self, changes: Changes) -> Result<Idempotent<Vec<OpResult>>, DataError> {
        self.permit(Permission::Manage)?;
        let actor = self.actor().map(|actor| actor.id.clone());
        self.inner.write(self.scope, changes, actor).await
    }
}

impl Inner {
    pub(crate) async fn write(
        &self,
        scope: TenantScope,
        changes: Changes,
        actor: Option<String>,
    ) -> Result<Idempotent<Vec<OpResult>>, DataError> {
        changes.check_all(&self.options.limits)?;
        if changes.is_empty() {
            return Ok(Idempotent::now(Vec::new()));
        }
        let now = self.host.now();
        let mut commit = Commit::new(CommitId(self.host.ids.next()), now);
        commit.keys.extend(changes.key(now.plus_ms(self.options.idempotency_key_ttl_ms)));
        commit.actor = actor;
        let order = changes.order;
        commit.cells = changes.cells;
        commit.links = changes.links;
        self.name_links(&mut commit.links);
        self.made(scope, commit, &order).await
    }

    /// Assigns ids to links. The id of an existing link does not change.
    pub(crate) fn name_links(&self, links: &mut [LinkWrite]) {
        for link in links {
            if let LinkWrite::Upsert { id, .. } = link {
                *id = self.host.ids.next();
            }
        }
    }

    /// Commits changes. Changes that were already made under their idempotency key return the results of that time.
    async fn made(
        &self,
        scope: TenantScope,
        commit: Commit,
        order: &[Kind],
    ) -> Result<Idempotent<Vec<OpResult>>, DataError> {
        match self.write_down(scope, &commit).await {
            Ok(results) => Ok(Idempotent::now(in_order(order, results))),
            Err(CommitError::Refused(Refused::Done { operation, key, .. })) => {
                self.done_before(scope, &commit, operation, key, order).await
            }
            Err(CommitError::Refused(refused)) => Err(refused.into()),
            Err(CommitError::Store(error)) => Err(error.into()),
            Err(error @ CommitError::Unknown { .. }) => Err(EngineError::from(error).into()),
        }
    }

    /// Commits operations. If the acknowledgement is lost, looks up the outcome and commits again if it was not
    /// applied.
    pub(crate) async fn write_down(
        &self,
        scope: TenantScope,
        commit: &Commit,
    ) -> Result<Vec<OpResult>, CommitError> {
        let mut attempts = 1;
        loop {
            let (reference, why) = match self.store.commit(scope, commit.clone()).await {
                Err(CommitError::Unknown { reference, why }) => (reference, why),
                answered => return answered.map(|committed| committed.results),
            };
            match self.resolved(scope, &reference).await {
                Ok(Some(recorded)) => return Ok(recorded.results),
                Ok(None) if attempts < TRIES => attempts += 1,
                Ok(None) => return Err(StoreError::Unavailable(why).into()),
                Err(_) => return Err(CommitError::Unknown { reference, why }),
            }
        }
    }

    /// Returns the results of an earlier commit with the same idempotency key or the same commit id.
    async fn done_before(
        &self,
        scope: TenantScope,
        commit: &Commit,
        operation: String,
        key: String,
        order: &[Kind],
    ) -> Result<Idempotent<Vec<OpResult>>, DataError> {
        let gone = || {
            StoreError::Unavailable(
                "the record of the earlier write has expired: retry the request".to_owned(),
            )
        };
        if operation != WRITE {
            let recorded = self.resolved(scope, &commit.reference()).await.map_err(DataError::from)?;
            return Ok(Idempotent::now(in_order(order, recorded.ok_or_else(gone)?.results)));
        }
        let query = RecordQuery::Key { operation, key, now: commit.at };
        match self.store.records(scope, query).await?.items.pop() {
            Some(Record::Key(record)) => Ok(Idempotent::before(under_key(order, record))),
            _ => Err(gone().into()),
        }
    }

    /// Looks up a commit whose acknowledgement was lost. `None`: it was not applied.
    pub(crate) async fn resolved(
        &self,
        scope: TenantScope,
        reference: &CommitRef,
    ) -> Result<Option<Recorded>, StoreError> {
        let mut pause_ms = 10;
        let mut last = StoreError::Unavailable(String::new());
        for _ in 0..10 {
            match self.store.outcome(scope, reference.clone()).await {
                Err(error @ StoreError::Unavailable(_)) => {
                    last = error;
                    self.host.clock.sleep_until(self.host.now().plus_ms(pause_ms)).await;
                    pause_ms *= 2;
                }
                other => return other,
            }
        }
        Err(last)
    }
}

/// Returns the results of changes that were made under an idempotency key. The commit of a run may have other changes
/// too; then its record lists the positions of these.
pub(crate) fn under_key(order: &[Kind], record: Recorded) -> Vec<OpResult> {
    let Recorded { results, answer, .. } = record;
    let numbers = answer.and_then(|answer| serde_json::from_slice::<Vec<usize>>(&answer).ok());
    match numbers {
        Some(numbers) => numbers.iter().filter_map(|number| results.get(*number).cloned()).collect(),
        None => in_order(order, results),
    }
}

/// Restores the order in which the changes were added. The store returns the results of cells first, then those of
/// links.
pub(crate) fn in_order(order: &[Kind], results: Vec<OpResult>) -> Vec<OpResult> {
    let cells = order.iter().filter(|kind| **kind == Kind::Cell).count();
    let mut cells_first = results;
    let mut links = cells_first.split_off(cells.min(cells_first.len())).into_iter();
    let mut cells = cells_first.into_iter();
    let each = order.iter().filter_map(|kind| match kind {
        Kind::Cell => cells.next(),
        Kind::Link => links.next(),
    });
    each.collect()
}
