//! `stepwell dev`: the example workflow on an SQLite file, checkpoint by checkpoint; killed, it goes on where it was.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stepwell::core::graph::open_waits;
use stepwell::core::{Definition, Event, Name, Refusal, Rejected, RunId};
use stepwell::store::{RunQuery, Status, Store, TenantScope};
use stepwell::{Desk, TurnError, Turned};
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
    let story = Story { definition, options, store: Arc::new(store) };
    runtime.block_on(story.tell())
}

struct Story<'a> {
    definition: Definition,
    options: &'a Options,
    store: Arc<dyn Store>,
}

impl Story<'_> {
    async fn tell(&self) -> Result<(), Failure> {
        let desk = Desk::new(self.store.clone(), TenantScope::single());
        let run = match self.unfinished().await? {
            Some(run) => {
                let snapshot = desk.snapshot(&self.definition, run).await?;
                let (version, places) = (snapshot.version(), listed(&snapshot.current_places()));
                talk(&format!("run {run} is at version {version}, in {places}: it goes on from there"));
                run
            }
            None => self.begin(&desk).await?,
        };
        loop {
            tokio::time::sleep(Duration::from_millis(self.options.pause_ms)).await;
            let Some(turned) = self.step(&desk, run).await? else { break };
            self.show(run, &turned)?;
            if turned.status.is_final() {
                break;
            }
        }
        talk(
            "done. Start it again for another order; kill it in the middle (Ctrl-C, kill -9), and it goes on.",
        );
        Ok(())
    }

    /// A run of an earlier start that did not come to its end.
    async fn unfinished(&self) -> Result<Option<RunId>, TurnError> {
        for status in [Status::Running, Status::Waiting] {
            let query = RunQuery { status: Some(status), limit: 1, ..RunQuery::default() };
            let page = self.store.runs(TenantScope::single(), query).await?;
            if let Some(summary) = page.items.first().filter(|run| run.definition == self.definition.hash()) {
                return Ok(Some(summary.run));
            }
        }
        Ok(None)
    }

    async fn begin(&self, desk: &Desk) -> Result<RunId, Failure> {
        let query = RunQuery { limit: 200, ..RunQuery::default() };
        let known = self.store.runs(TenantScope::single(), query).await?.items.len();
        let run = stepwell::new_run_id();
        let started = desk.start(&self.definition, run, approval::order(known + 1)).await?;
        talk(&format!("run {run} begins; its state is in {}", self.options.data.display()));
        self.show(run, &started)?;
        Ok(run)
    }

    /// The next thing that happens: by itself if it can, else somebody answers.
    async fn step(&self, desk: &Desk, run: RunId) -> Result<Option<Turned>, TurnError> {
        match desk.turn(&self.definition, run, &Event::advance()).await {
            Err(TurnError::Rejected(Rejected::Refused(Refusal::AtRest | Refusal::GuardSaidNo { .. }))) => {}
            other => return other.map(Some),
        }
        let snapshot = desk.snapshot(&self.definition, run).await?;
        let waits = open_waits(&self.definition, &snapshot);
        let Some((signal, payload)) = waits.first().and_then(approval::answer) else { return Ok(None) };
        desk.turn(&self.definition, run, &Event::signal(signal, payload)).await.map(Some)
    }

    fn show(&self, run: RunId, turned: &Turned) -> Result<(), Failure> {
        let (entry, status) = (&turned.change.entry, turned.status);
        if self.options.json {
            return output::line(&json!({"run": run, "status": status, "checkpoint": entry}).to_string());
        }
        let by = entry.payload.as_ref().and_then(|payload| payload["by"].as_str());
        let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
        let now = listed(&turned.change.snapshot.current_places());
        let now = if now.is_empty() { String::new() } else { format!(", now in {now}") };
        output::line(&format!("  version {:<2} {:<24} {status}{now}{by}", entry.version, entry.action))
    }
}

fn listed(names: &[Name]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
