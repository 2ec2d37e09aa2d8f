//! The clients of the simulated engines. They start, signal, cancel and retry runs, and repeat a request that got no
//! answer.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use serde_json::json;
use stepwell::host::BoxFuture;
use stepwell::{Command, Engine, EngineError, Operator, Signal, Signalled, Start};
use stepwell_core::{Refusal, RunId};
use stepwell_store::{Status, StoreError};
use tokio::sync::oneshot;

use super::plan::{Plan, Wish};
use super::tasks::Owner;
use super::world::World;

/// Spawns the clients of a simulation.
pub(crate) fn send_off(world: &Arc<World>, plans: Vec<Plan>) {
    world.scene().clients_left = plans.len();
    for plan in plans {
        let client = Client { world: world.clone(), plan };
        world.board.spawn(Owner::Outside, Box::pin(client.live()));
    }
}

struct Client {
    world: Arc<World>,
    plan: Plan,
}

/// A signal to a run. It may be sent more than once.
#[derive(Clone)]
struct Told {
    run: RunId,
    name: &'static str,
    sig: String,
    with_id: bool,
    kept_ms: Option<u64>,
}

impl Told {
    fn signal(&self) -> Signal {
        let mut signal = Signal::new(self.name).with(&json!({ "sig": self.sig }));
        if self.with_id {
            signal = signal.id(&self.sig);
        }
        match self.kept_ms {
            Some(ms) => signal.ttl(Duration::from_millis(ms)),
            None => signal,
        }
    }
}

/// The result of a request.
enum Answer<T> {
    Given(T),
    Refused(EngineError),
    /// No answer arrived, so the outcome is unknown.
    Lost,
}

impl Client {
    async fn live(self) {
        self.world.sleep(self.plan.begins_us).await;
        if let Some(after) = self.plan.after_run {
            while !self.world.scene().oracle.runs.contains_key(&after) {
                self.world.sleep(50_000).await;
            }
        }
        if self.plan.starters > 1 {
            let other = Client { world: self.world.clone(), plan: self.plan.clone() };
            self.world.board.spawn(
                Owner::Outside,
                Box::pin(async move {
                    let _ = other.start().await;
                }),
            );
        }
        if let Some(run) = self.start().await {
            for wish in &self.plan.wishes {
                self.grant(run, wish).await;
            }
        }
        self.world.scene().clients_left -= 1;
    }

    /// Starts the run. Without a key the request is sent once, with a key until it is answered.
    async fn start(&self) -> Option<RunId> {
        loop {
            let wanted = self.wanted();
            let number = self.plan.number;
            let what = format!("start plan {number}: {}", self.plan.workflow);
            let call = move |engine: Engine| -> BoxFuture<Result<RunId, EngineError>> {
                Box::pin(async move { Ok(engine.start_once(wanted).await?.run.id()) })
            };
            match self.ask(&what, call).await {
                Answer::Given(run) => {
                    let verdict = self.world.scene().oracle.started(number, run);
                    self.world.judge(verdict);
                    return Some(run);
                }
                Answer::Refused(_) | Answer::Lost if !self.plan.keyed => return None,
                Answer::Refused(_) | Answer::Lost => self.world.sleep(60_000).await,
            }
        }
    }

    fn wanted(&self) -> Start {
        let plan = &self.plan;
        let mut wanted = Start::new(plan.workflow).input(&plan.input);
        if plan.keyed {
            wanted = wanted.key(format!("plan {}", plan.number));
        }
        if let Some(run) = plan.run {
            wanted = wanted.id(run);
        }
        if let Some(ms) = plan.delay_ms {
            wanted = wanted.after(Duration::from_millis(ms));
        }
        if let Some(ms) = plan.deadline_ms {
            wanted = wanted.within(Duration::from_millis(ms));
        }
        wanted
    }

    async fn grant(&self, run: RunId, wish: &Wish) {
        match wish {
            Wish::Pause { us } => self.world.sleep(*us).await,
            Wish::Signal { name, sig, sends, with_id, kept_ms } => {
                let told = Told { run, name, sig: sig.clone(), with_id: *with_id, kept_ms: *kept_ms };
                self.signal(told, *sends).await;
            }
            Wish::StartOrSignal { name, sig } => self.start_or_signal(run, name, sig).await,
            Wish::Patch { number } => {
                let fields = json!({ "patched": number });
                self.operate(run, Command::Patch { fields }).await;
            }
            Wish::Applied { sigs, told_by } => self.wait_for(run, sigs, told_by).await,
            Wish::Cancel => self.operate(run, Command::Cancel).await,
            Wish::Suspend { us } => {
                self.operate(run, Command::Suspend).await;
                self.world.sleep(*us).await;
                self.operate(run, Command::Resume).await;
            }
            Wish::End => self.see_to_its_end(run).await,
        }
    }

    /// Sends a signal `sends` times concurrently.
    async fn signal(&self, told: Told, sends: u64) {
        for _ in 1..sends {
            let again = Client { world: self.world.clone(), plan: self.plan.clone() };
            let told = told.clone();
            self.world.board.spawn(Owner::Outside, Box::pin(async move { again.signal_once(told).await }));
        }
        self.signal_once(told).await;
    }

    async fn signal_once(&self, told: Told) {
        let Told { run, name, sig, with_id, .. } = &told;
        loop {
            let (run, signal) = (*run, told.signal());
            let what = format!("{name} `{sig}` to {}", self.world.scene().oracle.name(run));
            let call = move |engine: Engine| -> BoxFuture<Result<Signalled, EngineError>> {
                Box::pin(async move { engine.signal(run, signal).await })
            };
            match self.ask(&what, call).await {
                Answer::Given(answer) => return self.acknowledged(run, sig, Some(answer)),
                Answer::Refused(EngineError::Refused(Refusal::Terminal)) => return,
                Answer::Refused(_) | Answer::Lost if !with_id => return,
                Answer::Refused(_) | Answer::Lost => self.world.sleep(80_000).await,
            }
        }
    }

    /// Signals the run by its key. The run exists, so the call must not start a new one.
    async fn start_or_signal(&self, run: RunId, name: &'static str, sig: &str) {
        let told = Told { run, name, sig: sig.to_owned(), with_id: true, kept_ms: None };
        loop {
            let (wanted, signal) = (self.wanted(), told.signal());
            let what = format!("start or {name} `{sig}` to {}", self.world.scene().oracle.name(run));
            let call = move |engine: Engine| -> BoxFuture<Result<bool, EngineError>> {
                Box::pin(async move { Ok(engine.start_or_signal(wanted, signal).await?.is_new) })
            };
            match self.ask(&what, call).await {
                Answer::Given(false) => return self.acknowledged(run, sig, None),
                Answer::Given(true) => {
                    return self.world.judge(Err(format!("{what} started a second run under the same key")));
                }
                Answer::Refused(EngineError::Refused(Refusal::Terminal)) => return,
                Answer::Refused(_) | Answer::Lost => self.world.sleep(80_000).await,
            }
        }
    }

    fn acknowledged(&self, run: RunId, sig: &str, answer: Option<Signalled>) {
        let mut scene = self.world.scene();
        scene.tally.signals += 1;
        let verdict = scene.oracle.acknowledged(run, sig, answer);
        scene.judge(verdict);
    }

    /// Waits until a run has applied these signals, and the signals of the runs in `told_by`, or has ended.
    async fn wait_for(&self, run: RunId, sigs: &[String], told_by: &[RunId]) {
        loop {
            self.world.sleep(250_000).await;
            let scene = self.world.scene();
            let oracle = &scene.oracle;
            let Some(shadow) = oracle.runs.get(&run) else { continue };
            let applied = sigs.iter().all(|sig| oracle.has_applied(run, sig));
            let told = told_by.iter().all(|teller| {
                let silent = oracle
                    .runs
                    .get(teller)
                    .is_some_and(|teller| matches!(teller.status, Status::Failed | Status::Cancelled));
                silent || oracle.has_applied(run, &format!("told by {teller}"))
            });
            if (applied && told) || shadow.has_ended() {
                return;
            }
        }
    }

    async fn operate(&self, run: RunId, command: Command) {
        let word = format!("{command:?}");
        loop {
            let (what, command) =
                (format!("{word} {}", self.world.scene().oracle.name(run)), command.clone());
            let call = move |engine: Engine| -> BoxFuture<Result<(), EngineError>> {
                Box::pin(
                    async move { engine.operate(run, command, &Operator::named("client")).await.map(drop) },
                )
            };
            match self.ask(&what, call).await {
                Answer::Given(()) => {
                    let mut scene = self.world.scene();
                    let status = scene.oracle.runs.get(&run).map(|shadow| shadow.status);
                    if word == "Cancel" && status != Some(Status::Cancelled) {
                        scene.judge(Err(format!("{what} was acknowledged, but the run is {status:?}")));
                    }
                    return;
                }
                Answer::Refused(EngineError::WrongStatus { .. }) => return,
                Answer::Refused(_) | Answer::Lost => self.world.sleep(70_000).await,
            }
        }
    }

    /// Waits until the run has ended. Retries it after a scripted failure, and resumes it after a late suspend request.
    async fn see_to_its_end(&self, run: RunId) {
        loop {
            self.world.sleep(200_000).await;
            let (status, is_scripted) = {
                let scene = self.world.scene();
                let shadow = scene.oracle.runs.get(&run);
                let is_scripted = shadow.and_then(|shadow| shadow.stopped()) == Some("scripted");
                (shadow.map(|shadow| shadow.status), is_scripted)
            };
            match status {
                Some(Status::Failed) if is_scripted => self.operate(run, Command::Retry).await,
                Some(Status::Suspended) => self.operate(run, Command::Resume).await,
                Some(Status::Failed | Status::Completed | Status::Cancelled) => return,
                _ => {}
            }
        }
    }

    /// Sends a request to a process that is alive. The process may die meanwhile, or not answer in time.
    async fn ask<T: Send + 'static>(
        &self,
        what: &str,
        call: impl FnOnce(Engine) -> BoxFuture<Result<T, EngineError>>,
    ) -> Answer<T> {
        let (number, engine, patience_us) = loop {
            if let Some(found) = self.choose() {
                break found;
            }
            self.world.sleep(100_000).await;
        };
        self.world.trace(format_args!("client asks p{number}: {what}"));
        let (answers, answer) = oneshot::channel();
        let work = call(engine);
        let task = async move {
            // The client may have stopped waiting.
            let _ = answers.send(work.await);
        };
        self.world.board.spawn(Owner::Process(number), Box::pin(task));
        let mut answer = pin!(answer);
        let mut patience = pin!(self.world.sleep(patience_us));
        let given = poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(given) => Poll::Ready(given.ok()),
            Poll::Pending => patience.as_mut().poll(context).map(|()| None),
        })
        .await;
        match given {
            Some(Ok(given)) => Answer::Given(given),
            Some(Err(error)) => {
                self.world.trace(format_args!("client is refused {what}: {error}"));
                self.world.judge(self.allowed(what, &error));
                Answer::Refused(error)
            }
            None => Answer::Lost,
        }
    }

    fn choose(&self) -> Option<(usize, Engine, u64)> {
        let mut scene = self.world.scene();
        let serving = scene.serving();
        if serving.is_empty() {
            return None;
        }
        let number = scene.clients.pick(&serving);
        let patience_us = if scene.clients.chance(300) { 1_500_000 } else { 60_000_000 };
        let engine = scene.processes.get(number)?.engine.clone()?;
        Some((number, engine, patience_us))
    }

    /// Checks that an engine refused for an allowed reason. A calm simulation allows fewer reasons.
    fn allowed(&self, what: &str, error: &EngineError) -> Result<(), String> {
        let calm = self.world.scene().temper.is_calm();
        let fine = match error {
            EngineError::Refused(Refusal::Terminal) | EngineError::WrongStatus { .. } => true,
            EngineError::Store(StoreError::Unavailable(_)) | EngineError::Unknown { .. } => !calm,
            EngineError::Contended { .. } | EngineError::Stopped => !calm,
            EngineError::Invalid(text) => !calm && text.contains("its commit was lost"),
            _ => false,
        };
        if fine { Ok(()) } else { Err(format!("{what} failed unexpectedly: {error}")) }
    }
}
