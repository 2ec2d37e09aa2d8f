//! The `one-winner` workload: resumes one handle many times concurrently, of which exactly one resume must run the
//! step. Then it kills processes during resumes, after which no flow may be lost or advanced twice.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, RunId, Spec};
use stepwell::flow::{Answer, Durable, FlowError, Flows, Handle, Key, KeyRing, Resume};
use stepwell::{ActionError, Cx, Engine, Start};
use stepwell_store::Status;

use crate::StoreKind;
use crate::child::{Victim, introduce, say};
use crate::engines;
use crate::script::Random;
use crate::site::{Place, Site};

const WORKFLOW: &str = "offer";
const NAMESPACE: &str = "offers";
/// The key of all processes, so that each can read the answers that another has stored.
const KEY: [u8; 32] = [3; 32];

/// Options of the `one-winner` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Database to test on.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Number of concurrent resumes of one handle.
    #[arg(long, default_value_t = 200)]
    at_once: usize,
    /// Number of handles resumed this way.
    #[arg(long, default_value_t = 500)]
    rounds: usize,
    /// Number of flows whose process is killed during the resume.
    #[arg(long, default_value_t = 60)]
    flows: usize,
    /// Uses 10 handles and 4 flows only.
    #[arg(long)]
    short: bool,
    /// Prints the JSON result only, no progress on standard error.
    #[arg(long)]
    json: bool,
}

/// Arguments of the process that `one-winner` kills.
#[derive(Debug, clap::Args)]
pub(crate) struct Part {
    /// Database to work on.
    #[arg(long)]
    database: Place,
    /// Name that the process prints on its first line, so that the parent kills the right one.
    #[arg(long)]
    name: String,
    /// Token of the flow to resume.
    #[arg(long)]
    token: String,
    /// Idempotency key of the resume.
    #[arg(long)]
    key: String,
}

fn definition() -> Result<Definition, String> {
    let accept = Transition::new("accept", "offered", "accepted").on_signal("ACCEPT").action("accept");
    let thanks = Transition::new("thank", "accepted", "done").on_signal("THANKS");
    let spec = Spec::new(WORKFLOW).initial("offered").step("offered").step("accepted").end("done");
    let spec = spec.signal("ACCEPT").signal("THANKS").transition(accept).transition(thanks);
    spec.build().map_err(|problems| problems.to_string())
}

/// The number of executions of the action, by flow.
type Ran = Arc<Mutex<BTreeMap<RunId, u64>>>;

async fn open(place: &Place, ran: Ran, pause: fn() -> Duration) -> Result<(Engine, Flows), String> {
    let accept = move |cx: Cx| {
        let ran = ran.clone();
        async move {
            *ran.lock().unwrap_or_else(PoisonError::into_inner).entry(cx.run()).or_default() += 1;
            let pause = pause();
            if !pause.is_zero() {
                say("works").map_err(|why| ActionError::new("pipe", why))?;
                tokio::time::sleep(pause).await;
            }
            cx.kv(NAMESPACE).increment(&cx.run().to_string(), 1)
        }
    };
    let builder =
        Engine::builder(engines::open(place).await?).workflow(definition()?).action("accept", accept);
    let engine = builder.start().await.map_err(|error| error.to_string())?;
    let key = Key::new("bench", &KEY).map_err(|error| error.to_string())?;
    let flows = Flows::builder(&engine, KeyRing::new(key))
        .strategy("handle", Handle::new())
        .strategy("durable", Durable::new())
        .default_strategy("handle")
        .build()
        .map_err(|error| error.to_string())?;
    Ok((engine, flows))
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let (rounds, flows) = if options.short { (10, 4) } else { (options.rounds, options.flows) };
    let runtime = crate::runtime()?;
    let site = Site::new(options.store)?;
    let begin = Instant::now();
    let place = site.place(&runtime, "crowd")?;
    let crowd = runtime.block_on(crowd(&place, rounds, options.at_once, options.json))?;
    let place = site.place(&runtime, "kills")?;
    let killed = kills(&runtime, &place, flows, options.json)?;
    let line = json!({
        "workload": "one-winner",
        "store": options.store.name(),
        "rounds": rounds,
        "at_once": options.at_once,
        "resumes": crowd.tried,
        "winners": crowd.won,
        "actions": crowd.ran,
        "busy": crowd.busy,
        "gone": crowd.gone,
        "other": crowd.other,
        "flows": flows,
        "kills": killed.kills,
        "in_the_middle": killed.in_the_middle,
        "replayed": killed.replayed,
        "lost": killed.lost,
        "advanced_twice": killed.twice,
        "seconds": begin.elapsed().as_secs(),
    });
    println!("{line}");
    let right = crowd.won == rounds as u64 && crowd.ran == rounds as u64 && crowd.other == 0;
    match right && killed.lost == 0 && killed.twice == 0 {
        true => Ok(()),
        false => Err(format!("{rounds} handles had {} winners and {} actions", crowd.won, crowd.ran)),
    }
}

/// Counts of the concurrent resumes by result, and of executed actions.
#[derive(Debug, Default)]
struct Crowd {
    tried: u64,
    won: u64,
    busy: u64,
    gone: u64,
    other: u64,
    ran: u64,
}

impl Crowd {
    fn count(&mut self, answer: &Result<Answer, FlowError>) {
        self.tried += 1;
        match answer {
            Ok(_) => self.won += 1,
            Err(FlowError::Busy { .. }) => self.busy += 1,
            Err(FlowError::Gone) => self.gone += 1,
            Err(error) => {
                self.other += 1;
                eprintln!("unexpected result of a resume: {error}");
            }
        }
    }
}

async fn crowd(place: &Place, rounds: usize, at_once: usize, quiet: bool) -> Result<Crowd, String> {
    let ran = Ran::default();
    let (engine, flows) = open(place, ran.clone(), || Duration::ZERO).await?;
    let mut crowd = Crowd::default();
    for round in 0..rounds {
        let begun =
            flows.start(Start::new(WORKFLOW).input(&json!({}))).await.map_err(|error| error.to_string())?;
        let token = begun.token.ok_or("a waiting flow returned no token")?;
        let resumes = (0..at_once).map(|_| {
            let (flows, token) = (flows.clone(), token.clone());
            tokio::spawn(async move { flows.resume(Resume::new(token).outcome("ACCEPT")).await })
        });
        let resumes: Vec<_> = resumes.collect();
        for resume in resumes {
            crowd.count(&resume.await.map_err(|error| error.to_string())?);
        }
        if !quiet && round % 100 == 99 {
            eprintln!("{} rounds", round + 1);
        }
    }
    crowd.ran = ran.lock().unwrap_or_else(PoisonError::into_inner).values().sum();
    drop(flows);
    engines::close(engine).await;
    Ok(crowd)
}

/// Counts of the flows whose process was killed.
#[derive(Debug, Default)]
struct Killed {
    kills: u64,
    /// Kills after the action had started and before the answer was printed.
    in_the_middle: u64,
    replayed: u64,
    lost: u64,
    twice: u64,
}

fn kills(
    runtime: &tokio::runtime::Runtime,
    place: &Place,
    flows: usize,
    quiet: bool,
) -> Result<Killed, String> {
    let mut begun = Vec::new();
    runtime.block_on(async {
        let (engine, all) = open(place, Ran::default(), || Duration::ZERO).await?;
        for _ in 0..flows {
            let start = Start::new(WORKFLOW).input(&json!({}));
            begun.push(all.start(start).await.map_err(|error| error.to_string())?);
        }
        drop(all);
        engines::close(engine).await;
        Ok::<_, String>(())
    })?;
    let (mut found, mut random, mut answers) = (Killed::default(), Random::new(11), Vec::new());
    for (number, begun) in begun.iter().enumerate() {
        let token = begun.token.clone().ok_or("a waiting flow returned no token")?;
        let arguments = ["one-winner-part", "--database", &place.to_string(), "--token", &token, "--key"];
        let mut arguments: Vec<String> = arguments.map(str::to_owned).to_vec();
        arguments.push(format!("request-{number}"));
        let answer = resumed_between_kills(&arguments, number, &mut random, &mut found)?;
        found.replayed += u64::from(answer["isReplayed"] == true);
        answers.push(answer);
        if !quiet && number % 10 == 9 {
            eprintln!("{} flows, {} kills", number + 1, found.kills);
        }
    }
    runtime.block_on(judge(place, &begun, &answers, &mut found))?;
    Ok(found)
}

/// Resumes the flow in one process after the other, of which the first two are killed, until one returns an answer.
fn resumed_between_kills(
    arguments: &[String],
    number: usize,
    random: &mut Random,
    found: &mut Killed,
) -> Result<Value, String> {
    for attempt in 0..2 {
        let mut victim = Victim::start(&format!("victim-{number}-{attempt}"), arguments)?;
        let mut is_working = false;
        while let Some(line) = victim.line()? {
            if line == "works" {
                is_working = true;
                break;
            }
            if line.starts_with('{') {
                return serde_json::from_str(&line).map_err(|error| error.to_string());
            }
        }
        // The action takes 12 ms and the commit some more, so that kills come before, between and after them.
        std::thread::sleep(Duration::from_micros(random.next() % 22_000));
        let said = victim.kill()?;
        found.kills += 1;
        found.in_the_middle += u64::from(is_working && !said.iter().any(|line| line.starts_with('{')));
    }
    let said = Victim::start(&format!("survivor-{number}"), arguments)?.end()?;
    let answer = said.iter().find(|line| line.starts_with('{')).ok_or("the survivor printed no answer")?;
    serde_json::from_str(answer).map_err(|error| error.to_string())
}

/// Checks that every flow has taken its step once and can be resumed with the token of the answer.
async fn judge(place: &Place, begun: &[Answer], answers: &[Value], found: &mut Killed) -> Result<(), String> {
    let (engine, flows) = open(place, Ran::default(), || Duration::ZERO).await?;
    for (begun, answer) in begun.iter().zip(answers) {
        let counted =
            engine.kv(NAMESPACE).get(&begun.flow.to_string()).await.map_err(|error| error.to_string())?;
        let counted = counted.and_then(|entry| entry.value.as_u64()).unwrap_or_default();
        found.twice += u64::from(counted > 1);
        let token = answer["token"].as_str().unwrap_or_default();
        let ended = flows.resume(Resume::new(token).outcome("THANKS")).await;
        let is_there = ended.is_ok_and(|ended| ended.status == Status::Completed);
        found.lost += u64::from(counted == 0 || !is_there);
    }
    drop(flows);
    engines::close(engine).await;
    Ok(())
}

/// Runs the victim: resumes the flow and prints the answer. Retries for up to 60 s while a killed process still has the
/// handle reserved.
pub(crate) fn part(part: &Part) -> Result<(), String> {
    introduce(&part.name)?;
    let runtime = crate::runtime()?;
    runtime.block_on(async {
        let (engine, flows) = open(&part.database, Ran::default(), || Duration::from_millis(12)).await?;
        let until = Instant::now() + Duration::from_secs(60);
        let answer = loop {
            let resume = Resume::new(&part.token).outcome("ACCEPT").key(&part.key);
            match flows.resume(resume).await {
                Err(FlowError::Busy { .. }) if Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                other => break other,
            }
        };
        let answer = answer.map_err(|error| error.to_string())?;
        say(&serde_json::to_string(&answer).map_err(|error| error.to_string())?)?;
        drop(flows);
        engines::close(engine).await;
        Ok(())
    })
}
