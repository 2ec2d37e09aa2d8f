//! `stepwell dev`: the example workflow on an SQLite file, checkpoint by checkpoint; killed, it goes on where it was.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stepwell::core::graph::open_waits;
use stepwell::core::{Definition, Entry, Name, RunId};
use stepwell::store::{HistoryQuery, RunQuery, Status, TenantScope};
use stepwell::{ActionError, Cx, Engine, Run, Signal, Start};
use stepwell_sqlite::{OpenError, SqliteStore};

use crate::approval;
use crate::exit::{Code, Failure};
use crate::output::{self, talk};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The folder the database is in; created if it is not there.
    #[arg(long, default_value = "stepwell-data")]
    data: PathBuf,
    /// The pause before each step, so that one can watch it, or kill it.
    #[arg(long, default_value_t = 700)]
    pause_ms: u64,
    /// Prints each checkpoint as a JSON line.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let definition = approval::definition().map_err(Failure::unexpected)?;
    std::fs::create_dir_all(&options.data)
        .map_err(|error| Failure::unexpected(format!("{}: {error}", options.data.display())))?;
    let path = options.data.join("stepwell.sqlite");
    let store = SqliteStore::open(&path).map_err(|error| match &error {
        OpenError::InUse { .. } => Failure::new(Code::Conflict, error.to_string()),
        _ => Failure::unexpected(error),
    })?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_time().build().map_err(Failure::unexpected)?;
    runtime.block_on(async {
        let pause = Duration::from_millis(options.pause_ms);
        let order = move |cx: Cx| order(cx, pause);
        let engine = Engine::builder(Arc::new(store))
            .workflow(definition.clone())
            .action("order", order)
            .start()
            .await?;
        let told = Story { definition, options, engine: engine.clone(), shown: None }.tell().await;
        engine.stop(Duration::from_secs(5)).await;
        told
    })
}

/// What happens when an order is approved: a call to the outside, which a crash may repeat, with the same key.
async fn order(cx: Cx, pause: Duration) -> Result<String, ActionError> {
    tokio::time::sleep(pause).await;
    talk(&format!("  ordering, key {} (try {})", cx.idempotency_key(), cx.attempt()));
    Ok(cx.idempotency_key())
}

struct Story<'a> {
    definition: Definition,
    options: &'a Options,
    engine: Engine,
    /// The newest version that was shown.
    shown: Option<u64>,
}

impl Story<'_> {
    async fn tell(mut self) -> Result<(), Failure> {
        let run = match self.unfinished().await? {
            Some(run) => {
                let run = self.engine.run(run);
                let snapshot = run.view().await?.snapshot;
                let (version, places) = (snapshot.version(), listed(&snapshot.current_places()));
                talk(&format!(
                    "run {} is at version {version}, in {places}: it goes on from there",
                    run.id()
                ));
                self.shown = Some(version);
                run
            }
            None => self.begin().await?,
        };
        while !self.catch_up(&run).await?.is_final() {
            tokio::time::sleep(Duration::from_millis(self.options.pause_ms)).await;
            let snapshot = run.view().await?.snapshot;
            let waits = open_waits(&self.definition, &snapshot);
            if let Some((signal, payload)) = waits.first().and_then(approval::answer) {
                run.signal(Signal::new(signal).with(&payload)).await?;
            }
        }
        talk(
            "done. Start it again for another order; kill it in the middle (Ctrl-C, kill -9), and it goes on.",
        );
        Ok(())
    }

    /// A run of an earlier start that did not come to its end.
    async fn unfinished(&self) -> Result<Option<RunId>, Failure> {
        for status in [Status::Running, Status::Waiting] {
            let query = RunQuery { status: Some(status), limit: 1, ..RunQuery::default() };
            let page = self.engine.store().runs(TenantScope::single(), query).await?;
            if let Some(summary) = page.items.first().filter(|run| run.definition == self.definition.hash()) {
                return Ok(Some(summary.run));
            }
        }
        Ok(None)
    }

    async fn begin(&self) -> Result<Run, Failure> {
        let query = RunQuery { limit: 200, ..RunQuery::default() };
        let known = self.engine.store().runs(TenantScope::single(), query).await?.items.len();
        let run = self.engine.start(Start::new("approval").input(&approval::order(known + 1))).await?;
        talk(&format!("run {} begins; its state is in {}", run.id(), self.options.data.display()));
        Ok(run)
    }

    /// Shows what has been committed, until the run waits for somebody or has ended.
    async fn catch_up(&mut self, run: &Run) -> Result<Status, Failure> {
        loop {
            let view = run.view().await?;
            let from = self.shown.map_or(0, |version| version + 1);
            let query = HistoryQuery { run: run.id(), from, with_state: false, limit: 100 };
            for row in self.engine.store().history(TenantScope::single(), query).await?.items {
                let entry = serde_json::from_slice(&row.entry).map_err(Failure::unexpected)?;
                self.show(run.id(), &entry, view.status)?;
                self.shown = Some(row.version);
            }
            let newest = self.shown == Some(view.snapshot.version());
            if newest && matches!(view.status, Status::Failed) {
                let why = view.ledger.stopped.map(|stopped| stopped.error.to_string()).unwrap_or_default();
                return Err(Failure::unexpected(format!("run {} has failed: {why}", run.id())));
            }
            if newest && (view.status == Status::Waiting || view.status.is_final()) {
                return Ok(view.status);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn show(&self, run: RunId, entry: &Entry, status: Status) -> Result<(), Failure> {
        if self.options.json {
            return output::line(&json!({"run": run, "status": status, "checkpoint": entry}).to_string());
        }
        let by = entry.payload.as_ref().and_then(|payload| payload["by"].as_str());
        let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
        let to = listed(&entry.entered);
        let to = if to.is_empty() { String::new() } else { format!(" into {to}") };
        output::line(&format!("  version {:<2} {:<24}{to}{by}", entry.version, entry.action))
    }
}

fn listed(names: &[Name]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
