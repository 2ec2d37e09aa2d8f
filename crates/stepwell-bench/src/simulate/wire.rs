//! The connection of a process to the store: calls take time, get lost, and processes die during them.

use std::future::pending;
use std::sync::Arc;

use async_trait::async_trait;
use stepwell::host::BoxFuture;
use stepwell_core::RunId;
use stepwell_store::{
    Cell, CellQuery, Claim, Cleanup, CleanupResult, Commit, CommitError, CommitRef, Committed, Document,
    DocumentQuery, DueTenant, Heartbeat, Hints, HistoryQuery, HistoryRow, Link, LinkQuery, Loaded,
    Membership, Page, ProcessId, Record, RecordQuery, Recorded, RunQuery, RunSummary, SchemaVersion, Store,
    StoreError, TenantId, TenantScope, WaitQuery, WaitRow,
};
use tokio::sync::oneshot;

use super::faults::{Fate, Plant, Trip};
use super::plant;
use super::tasks::Owner;
use super::world::World;

/// Delay of an answer above which it is traced, in microseconds.
const SLOW_US: u64 = 50_000;

/// The store as one process sees it.
pub(crate) struct Wire {
    pub(crate) world: Arc<World>,
    pub(crate) process: usize,
}

fn missed() -> StoreError {
    StoreError::Unavailable("the call never arrived (simulated)".to_owned())
}

fn unanswered() -> StoreError {
    StoreError::Unavailable("the answer was lost (simulated)".to_owned())
}

impl Wire {
    /// Executes a call other than a commit.
    async fn call<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let Some(trip) = self.world.trip(self.process, false) else {
            self.world.sleep(20_000).await;
            return Err(missed());
        };
        let world = self.world.clone();
        self.carry(trip, async move {
            world.sleep(trip.there_us).await;
            let answer = match trip.fate {
                Fate::Missed | Fate::MissedUnanswered => Err(missed()),
                _ => work.await,
            };
            world.sleep(trip.back_us).await;
            if trip.fate == Fate::Unanswered { Err(unanswered()) } else { answer }
        })
        .await
        .unwrap_or_else(|| Err(unanswered()))
    }

    /// Executes a call as part of the calling task, or as an independent task if the trip says so.
    async fn carry<T: Send + 'static>(
        &self,
        trip: Trip,
        way: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        if !trip.by_itself {
            return Some(way.await);
        }
        let (answers, answer) = oneshot::channel();
        let task: BoxFuture<()> = Box::pin(async move {
            // The caller may be dead by now.
            let _ = answers.send(way.await);
        });
        self.world.board.spawn(Owner::Outside, task);
        answer.await.ok()
    }
}

/// Executes a commit with the delays and the outcome of its trip.
async fn commit_way(
    world: Arc<World>,
    process: usize,
    trip: Trip,
    issued: i64,
    scope: TenantScope,
    commit: Commit,
) -> Result<Committed, CommitError> {
    let reference = commit.reference();
    let unknown = || CommitError::Unknown { reference, why: "the answer was lost (simulated)".to_owned() };
    world.sleep(trip.there_us).await;
    // No process dies in quiet times, even if the trip says so.
    let is_quiet = world.scene().quiet_since.is_some();
    let fate = match trip.fate {
        Fate::DeathBefore | Fate::DeathAfter if is_quiet => Fate::Done,
        fate => fate,
    };
    let answer = match fate {
        Fate::Missed => Err(missed().into()),
        Fate::MissedUnanswered => {
            world.sleep(trip.back_us).await;
            world.lost_answer(process, issued);
            return Err(unknown());
        }
        Fate::DeathBefore => {
            world.kill(process, "right before a commit");
            return pending().await;
        }
        Fate::Done | Fate::Unanswered | Fate::DeathAfter => world.apply(process, issued, scope, commit),
    };
    if fate == Fate::DeathAfter {
        world.kill(process, "right after a commit");
        return pending().await;
    }
    world.sleep(trip.back_us).await;
    if trip.back_us > SLOW_US {
        world.trace(format_args!("p{process} gets the answer to the commit issued {issued}"));
    }
    if trip.fate == Fate::Unanswered {
        world.lost_answer(process, issued);
        return Err(unknown());
    }
    answer
}

#[async_trait]
impl Store for Wire {
    async fn commit(&self, scope: TenantScope, commit: Commit) -> Result<Committed, CommitError> {
        let Some(trip) = self.world.trip(self.process, true) else {
            self.world.sleep(20_000).await;
            return Err(missed().into());
        };
        let (world, process, issued) = (self.world.clone(), self.process, self.world.now());
        if world.plant == Some(Plant::AnswerEarly) {
            return Ok(plant::answer_early(&world, process, scope, commit, trip.there_us + 20_000));
        }
        let lost =
            CommitError::Unknown { reference: commit.reference(), why: "no answer (simulated)".to_owned() };
        let way = commit_way(world, process, trip, issued, scope, commit);
        self.carry(trip, way).await.unwrap_or(Err(lost))
    }

    async fn outcome(&self, scope: TenantScope, commit: CommitRef) -> Result<Option<Recorded>, StoreError> {
        let memory = self.world.memory.clone();
        self.call(async move { memory.outcome(scope, commit).await }).await
    }

    async fn load(&self, scope: TenantScope, run: RunId) -> Result<Option<Loaded>, StoreError> {
        let memory = self.world.memory.clone();
        self.call(async move { memory.load(scope, run).await }).await
    }

    async fn claim(&self, scope: TenantScope, claim: Claim) -> Result<Page<Loaded>, StoreError> {
        let (world, process) = (self.world.clone(), self.process);
        self.call(async move {
            let taken = world.memory.claim(scope, claim.clone()).await?;
            if claim.by.is_some() {
                world.claimed(process, &claim, &taken.items);
            }
            Ok(taken)
        })
        .await
    }

    async fn due(&self, expired: Vec<ProcessId>) -> Result<Vec<DueTenant>, StoreError> {
        let memory = self.world.memory.clone();
        self.call(async move { memory.due(expired).await }).await
    }

    async fn tenants(&self, after: Option<TenantId>, limit: u32) -> Result<Vec<TenantId>, StoreError> {
        let memory = self.world.memory.clone();
        self.call(async move { memory.tenants(after, limit).await }).await
    }

    async fn heartbeat(&self, beat: Heartbeat) -> Result<Membership, StoreError> {
        let memory = self.world.memory.clone();
        self.call(async move { memory.heartbeat(beat).await }).await
    }

    fn hints(&self) -> Hints {
        self.world.memory.hints()
    }

    async fn cells(&self, scope: TenantScope, query: CellQuery) -> Result<Page<Cell>, StoreError> {
        let memory = self.world.memory.clone();
        self.call(async move { memory.cells(scope, query).await }).await
    }

    async fn runs(&self, scope: TenantScope, query: RunQuery) -> Result<Page<RunSummary>, StoreError> {
        let memory = self.world.memory.clone();
        self.call(async move { memory.runs(scope, query).await }).await
    }

    async fn links(&self, scope: TenantScope, query: LinkQuery) -> Result<Page<Link>, StoreError> {
        let memory = self.world.memory.clone();
        self.call(async move { memory.links(scope, query).await }).await
    }
    async fn waits(&self, scope: TenantScope, query: WaitQuery) -> Result<Page<WaitRow>, StoreError> {
        let memory = self.world.memory.clone();
        self.call(async move { memory.waits(scope, query).await }).await
    }

    async fn history(&self, scope: TenantScope, query: HistoryQuery) -> Result<Page<HistoryRow>, StoreError> {
        let memory = self.world.memory.clone();
        self.call(async move { memory.history(scope, query).await }).await
    }

    async fn documents(
        &self,
        scope: TenantScope,
        query: DocumentQuery,
    ) -> Result<Page<Document>, StoreError> {
        let memory = self.world.memory.clone();
        self.call(async move { memory.documents(scope, query).await }).await
    }

    async fn records(&self, scope: TenantScope, query: RecordQuery) -> Result<Page<Record>, StoreError> {
        let memory = self.world.memory.clone();
        self.call(async move { memory.records(scope, query).await }).await
    }

    async fn cleanup(&self, scope: TenantScope, cleanup: Cleanup) -> Result<CleanupResult, StoreError> {
        let memory = self.world.memory.clone();
        self.call(async move { memory.cleanup(scope, cleanup).await }).await
    }

    async fn migrate(&self) -> Result<SchemaVersion, StoreError> {
        self.world.memory.migrate().await
    }
}
