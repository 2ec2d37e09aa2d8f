//! The `tamper` workload: tokens with one changed bit, tokens expired by a millisecond and tokens of others must be
//! refused, all with the same answer. The time of a refusal must not reveal its reason.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use stepwell::core::Timestamp;
use stepwell::flow::{Answer, FlowError, Flows, FlowsBuilder, Handle, Resume, Sealed};
use stepwell::{Engine, Host, ManualClock, Start};
use stepwell_store::{MemoryStore, TenantId, TenantScope};

use crate::StoreKind;
use crate::engines;
use crate::flows::{self, WORKFLOW, context};
use crate::script::Random;
use crate::site::Site;

/// Number of concurrent refusals, because each refusal is delayed.
const AT_ONCE: usize = 2_048;
/// Number of concurrent timed refusals.
const TIMED_AT_ONCE: usize = 16;
const TTL_MS: u64 = 60_000;

/// Options of the `tamper` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Database that keeps the handles.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Number of tokens of each kind of which every bit is changed.
    #[arg(long, default_value_t = 100)]
    tokens: usize,
    /// Number of timed refusals.
    #[arg(long, default_value_t = 100_000)]
    timed: usize,
    /// Plants a leak: expired tokens are refused one millisecond later. The workload must detect it.
    #[arg(long)]
    plant: bool,
    /// Uses 3 tokens and 1,500 timed refusals only; the times are not judged.
    #[arg(long)]
    short: bool,
    /// Accepted for uniformity; the output is always JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let (tokens, timed) = if options.short { (3, 1_500) } else { (options.tokens, options.timed) };
    let runtime = crate::runtime()?;
    let site = Site::new(options.store)?;
    let begin = Instant::now();
    let bits = runtime.block_on(bits(tokens))?;
    let bounds = runtime.block_on(bounds())?;
    let place = site.place(&runtime, "timed")?;
    let store = runtime.block_on(engines::open(&place))?;
    let times = runtime.block_on(timed_refusals(store, timed, options.plant))?;
    let welch = times.welch();
    let line = json!({
        "workload": "tamper",
        "store": options.store.name(),
        "tokens": 2 * tokens,
        "changed_bits": bits.tried,
        "taken": bits.taken,
        "told_apart": bits.told_apart,
        "bounds": bounds.tried,
        "wrong_bounds": bounds.wrong,
        "timed": times.count(),
        "welch_unknown_used": welch[0],
        "welch_unknown_expired": welch[1],
        "welch_used_expired": welch[2],
        "refused_p50_us": times.median_us(),
        "planted": options.plant,
        "seconds": begin.elapsed().as_secs(),
    });
    println!("{line}");
    let is_even = options.short || welch.iter().all(|t| t.abs() < 4.5);
    match bits.taken == 0 && bits.told_apart == 0 && bounds.wrong.is_empty() && is_even {
        true => Ok(()),
        false => {
            Err("an invalid token was accepted, or its refusal was distinguishable from others".to_owned())
        }
    }
}

/// Counts of the tokens with one changed bit.
#[derive(Debug, Default)]
struct Bits {
    tried: u64,
    taken: u64,
    told_apart: u64,
}

async fn bits(tokens: usize) -> Result<Bits, String> {
    let host = Host::system();
    let engine = flows::engine(Arc::new(MemoryStore::new()), host, |builder| builder).await?;
    let flows = three(&engine)?.choose_strategy(|_| "plain").build().map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    for number in 0..tokens {
        // Sealed tokens of many lengths, compressed and uncompressed.
        let begun = begun(&flows, 120 + number * 3).await?;
        let snapshot = flows.open(&token(&begun)?).await.map_err(|error| error.to_string())?;
        let strategy = if number % 2 == 0 { "plain" } else { "packed" };
        all.push(flows.seal(strategy, &snapshot).map_err(|error| error.to_string())?);
    }
    let other = flows::engine(Arc::new(MemoryStore::new()), Host::system(), |builder| builder).await?;
    let handles = three(&other)?.choose_strategy(|_| "handle").build().map_err(|error| error.to_string())?;
    let mut found = Bits::default();
    for token in &all {
        change_each(&flows, token, &mut found).await;
    }
    for number in 0..tokens {
        let begun = begun(&handles, 120 + number).await?;
        let token = token(&begun)?;
        change_each(&handles, &token, &mut found).await;
        // The unchanged token must still be valid.
        handles.resume(Resume::new(&token).outcome("GO")).await.map_err(|error| error.to_string())?;
    }
    Ok(found)
}

async fn change_each(flows: &Flows, token: &str, found: &mut Bits) {
    let changed = (0..token.len() * 8).map(|bit| {
        let mut chars: Vec<char> = token.chars().collect();
        chars[bit / 8] = char::from(token.as_bytes()[bit / 8] ^ (1 << (bit % 8)));
        let changed: String = chars.into_iter().collect();
        async move { flows.resume(Resume::new(changed).outcome("GO")).await }
    });
    let mut under_way = FuturesUnordered::new();
    for resume in changed {
        under_way.push(resume);
        if under_way.len() >= AT_ONCE
            && let Some(answer) = under_way.next().await
        {
            judge(&answer, found);
        }
    }
    while let Some(answer) = under_way.next().await {
        judge(&answer, found);
    }
}

fn judge(answer: &Result<Answer, FlowError>, found: &mut Bits) {
    found.tried += 1;
    match answer {
        Ok(_) => found.taken += 1,
        Err(FlowError::Gone) => {}
        Err(_) => found.told_apart += 1,
    }
}

fn three(engine: &Engine) -> Result<FlowsBuilder, String> {
    let ttl = Duration::from_millis(TTL_MS);
    Ok(Flows::builder(engine, flows::ring()?)
        .strategy("plain", Sealed::new().compressed(false).ttl(ttl))
        .strategy("packed", Sealed::new().ttl(ttl))
        .strategy("handle", Handle::new().ttl(ttl)))
}

async fn begun(flows: &Flows, bytes: usize) -> Result<Answer, String> {
    let start = Start::new(WORKFLOW).input(&context(bytes, bytes as u64));
    flows.start(start).await.map_err(|error| error.to_string())
}

fn token(answer: &Answer) -> Result<String, String> {
    answer.token.clone().ok_or_else(|| "a waiting flow returned no token".to_owned())
}

/// Results of valid tokens used in another tenant, another combination or at another time.
#[derive(Debug, Default)]
struct Bounds {
    tried: u64,
    wrong: Vec<String>,
}

impl Bounds {
    fn expect(&mut self, what: &str, is_good: bool, answer: &Result<Answer, FlowError>) {
        self.tried += 1;
        let fits = match answer {
            Ok(_) => is_good,
            Err(FlowError::Gone) => !is_good,
            Err(_) => false,
        };
        if !fits {
            self.wrong.push(format!("{what}: {answer:?}"));
        }
    }
}

async fn bounds() -> Result<Bounds, String> {
    let mut found = Bounds::default();
    for strategy in ["plain", "packed", "handle"] {
        let clock = ManualClock::new(Timestamp::from_millis(1_700_000_000_000));
        let host = Host::system().with_clock(Arc::new(clock.clone()));
        let build = |builder: stepwell::Builder| builder.workflow(other_workflow());
        let engine = flows::engine(Arc::new(MemoryStore::new()), host, build).await?;
        let flows = three(&engine)?.default_strategy(strategy).build().map_err(|error| error.to_string())?;
        for (off, is_good) in [(-1, true), (0, false), (1, false)] {
            let at = begun(&flows, 200).await?;
            let expires = at.expires_at.ok_or("a token has no expiry")?;
            clock.set(Timestamp::from_micros(expires.micros() + off * 1_000));
            let answer = flows.resume(Resume::new(token(&at)?).outcome("GO")).await;
            found.expect(&format!("{strategy} {off} ms after it expired"), is_good, &answer);
        }
        elsewhere(&flows, strategy, &mut found).await?;
    }
    Ok(found)
}

/// Returns another workflow that pauses in the same way.
fn other_workflow() -> stepwell::core::Definition {
    let spec = stepwell::core::Spec::new("other").initial("waiting").step("waiting").end("done").signal("GO");
    spec.on_signal("go", "waiting", "GO", "done").build().expect("a workflow of two places is valid")
}

async fn elsewhere(flows: &Flows, strategy: &str, found: &mut Bounds) -> Result<(), String> {
    let mine = begun(flows, 200).await?;
    let good = token(&mine)?;
    let theirs = flows.for_tenant(TenantScope::trusted(TenantId::new(uuid::Uuid::from_u128(77))));
    let answer = theirs.resume(Resume::new(&good).outcome("GO")).await;
    found.expect(&format!("{strategy} of another tenant"), false, &answer);
    // Tokens with the strategy name or the footer of another token.
    let start = Start::new("other").input(&json!({}));
    let other = token(&flows.start(start).await.map_err(|error| error.to_string())?)?;
    for (mixed, what) in mixed(&good, &other) {
        let answer = flows.resume(Resume::new(mixed).outcome("GO")).await;
        found.expect(&format!("{strategy} with {what}"), false, &answer);
    }
    if strategy == "handle" {
        let next = flows.resume(Resume::new(&good).outcome("GO")).await.map_err(|error| error.to_string())?;
        let answer = flows.resume(Resume::new(&good).outcome("GO")).await;
        found.expect("the handle of an earlier pause", false, &answer);
        let answer = flows.resume(Resume::new(token(&next)?).outcome("GO")).await;
        found.expect("the handle of the current pause", true, &answer);
    } else {
        let answer = flows.resume(Resume::new(&good).outcome("GO")).await;
        found.expect("the sealed token itself", true, &answer);
    }
    Ok(())
}

/// Returns tokens combined from two tokens, and malformed variants of `one`.
fn mixed(one: &str, other: &str) -> Vec<(String, &'static str)> {
    let mut all = Vec::new();
    for name in ["plain", "packed", "handle", "watch", "none", ""] {
        let raw = one.split_once('.').map_or("", |(_, raw)| raw);
        if !one.starts_with(&format!("{name}.")) {
            all.push((format!("{name}.{raw}"), "the name of another strategy"));
        }
    }
    let is_sealed = one.matches('.').count() > 1;
    if let (Some((body, _)), Some((_, footer)), true) =
        (one.rsplit_once('.'), other.rsplit_once('.'), is_sealed)
    {
        all.push((format!("{body}.{footer}"), "the footer of another token"));
    }
    all.push((format!("{one}."), "a dot appended"));
    all.push((format!("{one}A"), "a letter appended"));
    all.push((one[..one.len() - 1].to_owned(), "the last letter removed"));
    all.push((one.to_uppercase(), "all letters in upper case"));
    all.push((String::new(), "an empty text"));
    all
}

/// The times of refusals in microseconds, by reason: unknown, used, expired.
#[derive(Debug, Default)]
struct Times([Vec<f64>; 3]);

impl Times {
    fn count(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    fn median_us(&self) -> f64 {
        crate::sample::round(crate::sample::median(self.0.concat()))
    }

    /// Returns Welch's t for each pair of reasons.
    fn welch(&self) -> [f64; 3] {
        let [unknown, used, expired] = &self.0;
        [welch(unknown, used), welch(unknown, expired), welch(used, expired)].map(crate::sample::round)
    }
}

fn welch(a: &[f64], b: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let spread = |values: &[f64], mean: f64| {
        values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (values.len() as f64 - 1.0)
    };
    let (mean_a, mean_b) = (mean(a), mean(b));
    let error = spread(a, mean_a) / a.len() as f64 + spread(b, mean_b) / b.len() as f64;
    (mean_a - mean_b) / error.sqrt()
}

/// Measures refusals of all three kinds in random order.
async fn timed_refusals(
    store: Arc<dyn stepwell_store::Store>,
    timed: usize,
    plant: bool,
) -> Result<Times, String> {
    let clock = ManualClock::new(Timestamp::from_millis(1_700_000_000_000));
    let host = Host::system().with_clock(Arc::new(clock.clone()));
    let engine = flows::engine(store, host, |builder| builder).await?;
    let flows = three(&engine)?.default_strategy("handle").build().map_err(|error| error.to_string())?;
    let mut tokens: [Vec<String>; 3] = Default::default();
    for number in 0..300 {
        let used = token(&begun(&flows, 1_000).await?)?;
        flows.resume(Resume::new(&used).outcome("STOP")).await.map_err(|error| error.to_string())?;
        let stranger = forged(&used, number);
        tokens[0].push(stranger);
        tokens[1].push(used);
        tokens[2].push(token(&begun(&flows, 1_000).await?)?);
    }
    clock.set(Timestamp::from_millis(1_700_000_000_000 + TTL_MS as i64 + 1));
    // A valid handle is stored next to them.
    begun(&flows, 1_000).await?;
    let tasks = (0..TIMED_AT_ONCE).map(|task| {
        let (flows, tokens) = (flows.clone(), tokens.clone());
        tokio::spawn(time_some(flows, tokens, timed / TIMED_AT_ONCE, task as u64, plant))
    });
    let tasks: Vec<_> = tasks.collect();
    let mut times = Times::default();
    for task in tasks {
        let some = task.await.map_err(|error| error.to_string())??;
        times.0.iter_mut().zip(some.0).for_each(|(all, some)| all.extend(some));
    }
    drop(flows);
    engines::close(engine).await;
    Ok(times)
}

/// Returns the token with its last 40 characters, the secret, replaced.
fn forged(token: &str, number: u64) -> String {
    let mut random = Random::new(number + 99);
    let keep = token.len() - 40;
    let letters = (0..40).map(|_| char::from(b'a' + (random.next() % 26) as u8));
    token[..keep].chars().chain(letters).collect()
}

async fn time_some(
    flows: Flows,
    tokens: [Vec<String>; 3],
    count: usize,
    seed: u64,
    plant: bool,
) -> Result<Times, String> {
    let mut random = Random::new(seed + 1);
    let mut times = Times::default();
    for _ in 0..count {
        let (kind, which) = ((random.next() % 3) as usize, random.next() as usize);
        let token = &tokens[kind][which % tokens[kind].len()];
        let begin = Instant::now();
        let answer = flows.resume(Resume::new(token).outcome("GO")).await;
        if plant && kind == 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        times.0[kind].push(begin.elapsed().as_secs_f64() * 1e6);
        if answer != Err(FlowError::Gone) {
            return Err(format!("an invalid handle got the answer {answer:?}"));
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::welch;

    #[test]
    fn welch_detects_a_shifted_mean() {
        let same: Vec<f64> = (0..1_000).map(|n| f64::from(n % 10)).collect();
        let other: Vec<f64> = same.iter().map(|value| value + 1.0).collect();
        assert!(welch(&same, &same).abs() < 1e-9);
        assert!(welch(&same, &other).abs() > 4.5);
    }
}
