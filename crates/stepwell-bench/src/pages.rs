//! The `pages` workload: reads a listing page by page while other clients insert and delete. Every key that exists
//! throughout must be listed once. Also checks that prefixes are literal, whatever characters they contain.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use serde_json::json;
use stepwell::Engine;
use stepwell::data::{Changes, KeyList, Kv};

use crate::StoreKind;
use crate::engines;
use crate::script::Random;
use crate::site::Site;

/// Number of changes per commit while the keys are created.
const AT_ONCE: u64 = 500;
/// Number of clients that insert and delete concurrently.
const OTHERS: u64 = 8;
/// Prefixes with characters that have a special meaning in patterns or SQL.
const ODD: &[&str] = &["100%", "100_", "a'b", "a\"b", "\\", "ü", "日本", "%", "_", "''", "a b", "\u{10FFFF}"];

/// Options of the `pages` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Database to test on.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Number of keys to list.
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Number of times that all keys are listed.
    #[arg(long, default_value_t = 5)]
    passes: u64,
    /// Uses 2,000 keys and one pass only.
    #[arg(long)]
    short: bool,
    /// Prints the JSON result only, no summary on standard error.
    #[arg(long)]
    json: bool,
}

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let (keys, passes) = if options.short { (2_000, 1) } else { (options.keys, options.passes) };
    let runtime = crate::runtime()?;
    let site = Site::new(options.store)?;
    let place = site.place(&runtime, "pages")?;
    let begin = Instant::now();
    let mut line = runtime.block_on(async {
        let store = engines::open(&place).await?;
        let engine =
            Engine::builder(store).with(|options| options.max_runs = 0).start().await.map_err(failed)?;
        let line = measure(&engine, keys, passes).await;
        engines::close(engine).await;
        line
    })?;
    line["workload"] = "pages".into();
    line["store"] = options.store.name().into();
    line["seconds"] = begin.elapsed().as_secs().into();
    if !options.json {
        eprintln!("{passes} passes over {keys} keys");
    }
    println!("{line}");
    let wrong = ["skipped", "repeated", "out_of_order", "wrong_by_prefix"].map(|name| line[name].as_u64());
    if wrong.iter().all(|count| *count == Some(0)) { Ok(()) } else { Err("a listing was wrong".to_owned()) }
}

/// Returns the key of a number. Keys are spread over the whole range, so that changed keys come before, after and
/// between the stable ones.
fn key(number: u64) -> String {
    format!("k{:016x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

async fn measure(engine: &Engine, keys: u64, passes: u64) -> Result<serde_json::Value, String> {
    let namespace = "listed";
    for from in (0..keys).step_by(AT_ONCE as usize) {
        let numbers = from..(from + AT_ONCE).min(keys);
        let changes =
            numbers.fold(Changes::new(), |changes, number| changes.set(namespace, key(number), number));
        engine.write(changes).await.map_err(failed)?;
    }
    let (stop, changed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let others: Vec<_> = (0..OTHERS)
        .map(|other| tokio::spawn(disturb(engine.kv(namespace), other, keys, stop.clone(), changed.clone())))
        .collect();
    let mut found = Found::default();
    for _ in 0..passes {
        found.pass(&engine.kv(namespace), keys).await?;
    }
    stop.store(true, Ordering::Relaxed);
    for other in others {
        other.await.map_err(failed)??;
    }
    let (prefixes, wrong) = odd_prefixes(engine).await?;
    Ok(json!({
        "keys": keys,
        "passes": passes,
        "rows": found.rows,
        "others_changed": changed.load(Ordering::Relaxed),
        "skipped": found.skipped,
        "repeated": found.repeated,
        "out_of_order": found.out_of_order,
        "prefixes": prefixes,
        "wrong_by_prefix": wrong,
    }))
}

/// Returns `true` for the half of the keys that always exist. The others, and new keys, are deleted and written again.
fn stays(number: u64) -> bool {
    number.is_multiple_of(2)
}

async fn disturb(
    kv: Kv,
    other: u64,
    keys: u64,
    stop: Arc<AtomicBool>,
    changed: Arc<AtomicU64>,
) -> Result<(), String> {
    let mut random = Random::new(other + 1);
    while !stop.load(Ordering::Relaxed) {
        // Numbers from `keys` on are new keys.
        let number = random.next() % (2 * keys);
        if number < keys && stays(number) {
            // A stable key is never deleted, but its value may change.
            kv.set(&key(number), random.next()).await.map_err(failed)?;
        } else if random.next().is_multiple_of(2) {
            kv.delete(&key(number)).await.map_err(failed)?;
        } else {
            kv.set(&key(number), number).await.map_err(failed)?;
        }
        changed.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Found {
    rows: u64,
    skipped: u64,
    repeated: u64,
    out_of_order: u64,
}

impl Found {
    async fn pass(&mut self, kv: &Kv, keys: u64) -> Result<(), String> {
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        let (mut cursor, mut last) = (None, String::new());
        loop {
            let list = KeyList { prefix: "k".to_owned(), limit: Some(200), cursor };
            let page = kv.list(list).await.map_err(failed)?;
            for entry in page.items {
                self.rows += 1;
                self.out_of_order += u64::from(entry.key <= last);
                last.clone_from(&entry.key);
                *seen.entry(entry.key).or_default() += 1;
            }
            let Some(next) = page.next else { break };
            cursor = Some(next);
        }
        self.repeated += seen.values().filter(|times| **times > 1).count() as u64;
        let stayed = (0..keys).filter(|number| stays(*number));
        self.skipped += stayed.filter(|number| !seen.contains_key(&key(*number))).count() as u64;
        Ok(())
    }
}

/// Writes keys that start with the odd prefixes, and keys that would match if a prefix were a pattern. Returns the
/// number of prefixes and of wrong listings.
async fn odd_prefixes(engine: &Engine) -> Result<(u64, u64), String> {
    let kv = engine.kv("odd");
    let mut all: Vec<String> = Vec::new();
    for prefix in ODD {
        all.extend([
            (*prefix).to_owned(),
            format!("{prefix}1"),
            format!("{prefix}{prefix}"),
            format!("x{prefix}"),
        ]);
    }
    all.extend(["100x", "100", "aXb", "u", "axb"].map(str::to_owned));
    all.sort();
    all.dedup();
    for key in &all {
        kv.set(key, 1).await.map_err(failed)?;
    }
    let mut wrong = 0;
    for prefix in ODD {
        let expected: Vec<&String> = all.iter().filter(|key| key.starts_with(prefix)).collect();
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let list = KeyList { prefix: (*prefix).to_owned(), limit: Some(2), cursor };
            let page = kv.list(list).await.map_err(failed)?;
            found.extend(page.items.into_iter().map(|entry| entry.key));
            let Some(next) = page.next else { break };
            cursor = Some(next);
        }
        wrong += u64::from(!found.iter().eq(expected));
    }
    Ok((ODD.len() as u64, wrong))
}
