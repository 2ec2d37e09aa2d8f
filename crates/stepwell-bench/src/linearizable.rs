//! The `linearizable` workload: many clients read and write a few keys concurrently, and their observations are checked
//! for one consistent order. Every write has its own revision, and every other operation reports the revision it saw.
//! These revisions define the only order that can explain all observations without contradicting the clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Number, Value, json};
use stepwell_core::Timestamp;
use stepwell_store::{
    Cell, CellError, CellFilter, CellKey, CellOp, CellQuery, CellWrite, Commit, CommitError, CommitId,
    Precondition, Refused, Space, Store, TenantScope, Ttl, ValueType,
};
use uuid::Uuid;

use crate::StoreKind;
use crate::engines;
use crate::script::Random;
use crate::site::Site;

/// Number of concurrent clients.
const CLIENTS: usize = 16;
/// Number of keys used at a time; after about `KEYS * PER_KEY` operations the clients move to new keys.
const KEYS: u64 = 4;
/// Approximate number of operations on each key.
const PER_KEY: u64 = 500;
/// Maximum time to live of a value that expires, in microseconds.
const TTL_US: u64 = 20_000;

/// Options of the `linearizable` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Database to test on.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Number of operations of all clients.
    #[arg(long, default_value_t = 200_000)]
    operations: u64,
    /// Plants a bug. The workload must detect it.
    #[arg(long, value_enum)]
    plant: Option<Plant>,
    /// Uses 8,000 operations only.
    #[arg(long)]
    short: bool,
    /// Prints the JSON result only, no summary on standard error.
    #[arg(long)]
    json: bool,
}

/// A planted bug, used for about one of 50 operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Plant {
    /// An increment is a read followed by a write.
    LostUpdate,
    /// A read returns the result of the client's previous read.
    StaleRead,
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq)]
enum Asked {
    Get,
    Set { value: i64, ttl_us: Option<u64> },
    CompareAndSet { value: i64, revision: u64 },
    Increment { by: i64 },
    Delete,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq)]
enum Answered {
    /// The revision and value of the cell; `None` means that it has no value.
    Saw { revision: u64, value: Option<i64> },
    /// The new revision, `true` if a value existed before, and the sum after an increment.
    Wrote { revision: u64, existed: bool, sum: Option<i64> },
}

/// One operation as its client saw it.
#[derive(Debug, Clone)]
struct Operation {
    key: u64,
    began: Duration,
    ended: Duration,
    /// The time passed to the store, which decides about expiry.
    at: Timestamp,
    asked: Asked,
    answered: Answered,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let operations = if options.short { 8_000 } else { options.operations };
    let runtime = crate::runtime()?;
    let site = Site::new(options.store)?;
    let place = site.place(&runtime, "keys")?;
    let begin = Instant::now();
    let history = runtime.block_on(async {
        let store = engines::open(&place).await?;
        record(store, operations, options.plant).await
    })?;
    let kinds = tally(&history);
    let checked = check(&history);
    let mut line = json!({
        "workload": "linearizable",
        "store": options.store.name(),
        "operations": history.len(),
        "kinds": kinds,
        "keys": history.iter().map(|operation| operation.key).max().unwrap_or_default() + 1,
        "seconds": begin.elapsed().as_secs(),
        "planted": options.plant.and_then(|plant| clap::ValueEnum::to_possible_value(&plant)).map(|p| p.get_name().to_owned()),
    });
    let result = match checked {
        Ok(()) => Ok(()),
        Err(why) => {
            line["contradiction"] = why.clone().into();
            Err(format!("no order explains the observations: {why}"))
        }
    };
    if !options.json {
        eprintln!("{} operations in {} s", history.len(), begin.elapsed().as_secs());
    }
    println!("{line}");
    result
}

fn tally(history: &[Operation]) -> BTreeMap<&'static str, u64> {
    let mut kinds = BTreeMap::new();
    for operation in history {
        let kind = match (&operation.asked, &operation.answered) {
            (Asked::Get, Answered::Saw { value: None, revision: 1.. }) => "get of nothing",
            (Asked::Get, _) => "get",
            (Asked::Set { ttl_us: Some(_), .. }, _) => "set with an end",
            (Asked::Set { .. }, _) => "set",
            (Asked::CompareAndSet { .. }, Answered::Wrote { .. }) => "compare-and-set",
            (Asked::CompareAndSet { .. }, Answered::Saw { .. }) => "compare-and-set, refused",
            (Asked::Increment { .. }, _) => "increment",
            (Asked::Delete, Answered::Wrote { .. }) => "delete",
            (Asked::Delete, Answered::Saw { .. }) => "delete of nothing",
        };
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

async fn record(
    store: Arc<dyn Store>,
    operations: u64,
    plant: Option<Plant>,
) -> Result<Vec<Operation>, String> {
    let begun = Instant::now();
    let count = Arc::new(AtomicU64::new(0));
    let clients = (0..CLIENTS).map(|number| {
        let random = Random::new(number as u64 + 1);
        let client = Client { store: store.clone(), begun, random, plant, seen: BTreeMap::new() };
        tokio::spawn(client.work(count.clone(), operations))
    });
    let clients: Vec<_> = clients.collect();
    let mut history = Vec::new();
    for client in clients {
        history.extend(client.await.map_err(|error| error.to_string())??);
    }
    Ok(history)
}

struct Client {
    store: Arc<dyn Store>,
    begun: Instant,
    random: Random,
    plant: Option<Plant>,
    /// The revision and value of each key at the last read.
    seen: BTreeMap<u64, (u64, Option<i64>)>,
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(since.as_micros() as i64)
}

fn name(key: u64) -> CellKey {
    CellKey { space: Space::Kv, owner: "keys".to_owned(), key: format!("key-{key}") }
}

fn integer(value: Option<&Value>) -> Option<i64> {
    value.and_then(Value::as_i64)
}

impl Client {
    async fn work(mut self, count: Arc<AtomicU64>, operations: u64) -> Result<Vec<Operation>, String> {
        let mut history = Vec::new();
        loop {
            let number = count.fetch_add(1, Ordering::Relaxed);
            if number >= operations {
                return Ok(history);
            }
            let key = number / (PER_KEY * KEYS) * KEYS + self.random.next() % KEYS;
            let asked = self.next();
            history.push(self.ask(key, asked.clone()).await?);
            // A compare-and-set follows a read, for the revision.
            let seen = match history.last().map(|operation| &operation.answered) {
                Some(Answered::Saw { revision, .. }) if asked == Asked::Get => Some(*revision),
                _ => None,
            };
            let then = self.random.next();
            if let Some(revision) = seen.filter(|_| then.is_multiple_of(2)) {
                let value = (then % 1_000) as i64;
                history.push(self.ask(key, Asked::CompareAndSet { value, revision }).await?);
            }
        }
    }

    fn next(&mut self) -> Asked {
        let value = (self.random.next() % 1_000) as i64;
        match self.random.next() % 20 {
            0..=9 => Asked::Get,
            10..=11 => Asked::Set { value, ttl_us: None },
            12..=13 => Asked::Set { value, ttl_us: Some(1 + self.random.next() % TTL_US) },
            14..=17 => Asked::Increment { by: 1 + value % 9 },
            _ => Asked::Delete,
        }
    }

    async fn ask(&mut self, key: u64, asked: Asked) -> Result<Operation, String> {
        let (began, at) = (self.begun.elapsed(), now());
        let is_planted = self.random.next().is_multiple_of(50);
        let answered = match &asked {
            Asked::Get if is_planted && self.plant == Some(Plant::StaleRead) => {
                let (revision, value) = self.seen.get(&key).copied().unwrap_or_default();
                Answered::Saw { revision, value }
            }
            Asked::Get => self.get(key, at).await?,
            Asked::Increment { by } if is_planted && self.plant == Some(Plant::LostUpdate) => {
                let Answered::Saw { value, .. } = self.get(key, at).await? else {
                    return Err("a read".to_owned());
                };
                let sum = value.unwrap_or_default() + by;
                let set = CellOp::Set { value: sum.into(), value_type: ValueType::Number, ttl: Ttl::Keep };
                match self.write(key, at, set, Precondition::Anything).await? {
                    Answered::Wrote { revision, existed, .. } => {
                        Answered::Wrote { revision, existed, sum: Some(sum) }
                    }
                    other => other,
                }
            }
            Asked::Set { value, ttl_us } => {
                let until = ttl_us.map(|us| Ttl::Until(Timestamp::from_micros(at.micros() + us as i64)));
                let ttl = until.unwrap_or(Ttl::Forever);
                let set = CellOp::Set { value: (*value).into(), value_type: ValueType::Number, ttl };
                self.write(key, at, set, Precondition::Anything).await?
            }
            Asked::CompareAndSet { value, revision } => {
                let set =
                    CellOp::Set { value: (*value).into(), value_type: ValueType::Number, ttl: Ttl::Forever };
                self.write(key, at, set, Precondition::Exactly(*revision)).await?
            }
            Asked::Increment { by } => {
                self.write(key, at, CellOp::Increment { by: Number::from(*by) }, Precondition::Anything)
                    .await?
            }
            Asked::Delete => self.write(key, at, CellOp::Delete, Precondition::Anything).await?,
        };
        if let (Asked::Get, Answered::Saw { revision, value }, false) = (&asked, &answered, is_planted) {
            self.seen.insert(key, (*revision, *value));
        }
        Ok(Operation { key, began, ended: self.begun.elapsed(), at, asked, answered })
    }

    async fn get(&self, key: u64, at: Timestamp) -> Result<Answered, String> {
        let CellKey { space, owner, key } = name(key);
        let filter = CellFilter::Key(key);
        let query =
            CellQuery { space, owner, filter, now: at, include_deleted: true, limit: 1, cursor: None };
        let found =
            self.store.cells(TenantScope::single(), query).await.map_err(|error| error.to_string())?;
        let cell: Option<Cell> = found.items.into_iter().next();
        let revision = cell.as_ref().map_or(0, |cell| cell.revision);
        let value = integer(cell.as_ref().and_then(|cell| cell.live(at)));
        Ok(Answered::Saw { revision, value })
    }

    async fn write(
        &mut self,
        key: u64,
        at: Timestamp,
        op: CellOp,
        expect: Precondition,
    ) -> Result<Answered, String> {
        let id = CommitId(Uuid::from_u128(
            (u128::from(self.random.next()) << 64) | u128::from(self.random.next()),
        ));
        let write = CellWrite { key: name(key), op: op.clone(), expect, initial: None, by: None };
        let commit = Commit { cells: vec![write], ..Commit::new(id, at) };
        match self.store.commit(TenantScope::single(), commit).await {
            Ok(committed) => {
                let result = committed.results.into_iter().next().ok_or("a write returned no result")?;
                if op == CellOp::Delete && !result.existed {
                    return Ok(Answered::Saw { revision: result.revision, value: None });
                }
                let sum = integer(result.value.as_ref());
                Ok(Answered::Wrote { revision: result.revision, existed: result.existed, sum })
            }
            Err(CommitError::Refused(Refused::Cell {
                error: CellError::Conflict { revision, live, .. },
                ..
            })) => {
                // A conflict does not report the value, only that one exists.
                let value = live.then_some(i64::MIN);
                Ok(Answered::Saw { revision, value })
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The expected state of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Model {
    value: Option<i64>,
    until: Option<Timestamp>,
}

impl Model {
    fn live(&self, at: Timestamp) -> Option<i64> {
        self.value.filter(|_| self.until.is_none_or(|until| until > at))
    }

    /// Applies a write. Returns the expected answer: `true` if a value existed, and the sum of an increment.
    fn apply(&mut self, at: Timestamp, asked: &Asked) -> (bool, Option<i64>) {
        let before = self.live(at);
        let (next, sum) = match asked {
            Asked::Set { value, ttl_us } => {
                let until = ttl_us.map(|us| Timestamp::from_micros(at.micros() + us as i64));
                (Model { value: Some(*value), until }, None)
            }
            Asked::CompareAndSet { value, .. } => (Model { value: Some(*value), until: None }, None),
            Asked::Increment { by } => {
                let sum = before.unwrap_or_default() + by;
                (Model { value: Some(sum), until: self.until.filter(|_| before.is_some()) }, Some(sum))
            }
            Asked::Delete | Asked::Get => (Model::default(), None),
        };
        *self = next;
        (before.is_some(), sum)
    }
}

/// Returns an error for the first observation that no order explains.
fn check(history: &[Operation]) -> Result<(), String> {
    let mut by_key: BTreeMap<u64, Vec<&Operation>> = BTreeMap::new();
    history.iter().for_each(|operation| by_key.entry(operation.key).or_default().push(operation));
    for (key, operations) in by_key {
        let states = replay(&operations).map_err(|why| format!("key {key}: {why}"))?;
        for operation in &operations {
            explained(operation, &states).map_err(|why| format!("key {key}: {why}"))?;
        }
        in_time(&operations).map_err(|why| format!("key {key}: {why}"))?;
    }
    Ok(())
}

/// Replays the writes in the order of their revisions and returns the state after each. Every revision must occur once,
/// and every answer must match the state before it.
fn replay(operations: &[&Operation]) -> Result<Vec<Model>, String> {
    let mut writes: Vec<_> = operations
        .iter()
        .filter_map(|operation| match operation.answered {
            Answered::Wrote { revision, existed, sum } => Some((revision, existed, sum, *operation)),
            Answered::Saw { .. } => None,
        })
        .collect();
    writes.sort_by_key(|(revision, ..)| *revision);
    let mut states = vec![Model::default()];
    let mut model = Model::default();
    for (index, (revision, existed, sum, operation)) in writes.into_iter().enumerate() {
        if revision != index as u64 + 1 {
            return Err(format!("found revision {revision}, expected {}", index + 1));
        }
        if let Asked::CompareAndSet { revision: expected, .. } = operation.asked
            && expected + 1 != revision
        {
            return Err(format!("revision {revision} was written with expected revision {expected}"));
        }
        let told = model.apply(operation.at, &operation.asked);
        if told != (existed, sum) {
            return Err(format!(
                "{:?} at revision {revision} got {existed} {sum:?}, expected {told:?}",
                operation.asked
            ));
        }
        states.push(model);
    }
    Ok(states)
}

/// Checks that an operation that wrote nothing saw the state left by the write of its revision.
fn explained(operation: &Operation, states: &[Model]) -> Result<(), String> {
    let Answered::Saw { revision, value } = operation.answered else { return Ok(()) };
    let Some(state) = states.get(revision as usize) else {
        return Err(format!("{:?} saw revision {revision}, which no operation wrote", operation.asked));
    };
    let live = state.live(operation.at);
    let agrees = match &operation.asked {
        Asked::CompareAndSet { revision: expected, .. } => {
            *expected != revision && live.is_some() == value.is_some()
        }
        Asked::Delete => live.is_none(),
        _ => live == value,
    };
    if agrees {
        Ok(())
    } else {
        Err(format!("{:?} saw {value:?} at revision {revision}, expected {live:?}", operation.asked))
    }
}

/// Checks that an operation comes after all operations that had ended before it began.
fn in_time(operations: &[&Operation]) -> Result<(), String> {
    // The position of a write is twice its revision; an operation that wrote nothing comes right after the write it
    // saw.
    let place = |operation: &Operation| match operation.answered {
        Answered::Wrote { revision, .. } => 2 * revision,
        Answered::Saw { revision, .. } => 2 * revision + 1,
    };
    let mut by_end = operations.to_vec();
    by_end.sort_by_key(|operation| operation.ended);
    let mut by_begin = operations.to_vec();
    by_begin.sort_by_key(|operation| operation.began);
    let (mut ended, mut latest) = (by_end.into_iter().peekable(), 0);
    for operation in by_begin {
        while let Some(before) = ended.next_if(|before| before.ended < operation.began) {
            latest = latest.max(place(before));
        }
        if place(operation) < latest {
            return Err(format!(
                "{:?} is at position {}, but an operation at {latest} had ended before it",
                operation.asked,
                place(operation)
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(began: u64, ended: u64, asked: Asked, answered: Answered) -> Operation {
        let at = Timestamp::from_micros(began as i64);
        Operation {
            key: 0,
            began: Duration::from_micros(began),
            ended: Duration::from_micros(ended),
            at,
            asked,
            answered,
        }
    }

    fn wrote(revision: u64, existed: bool, sum: Option<i64>) -> Answered {
        Answered::Wrote { revision, existed, sum }
    }

    #[test]
    fn consistent_history_is_accepted() {
        let add = || Asked::Increment { by: 1 };
        let history = [
            operation(0, 9, add(), wrote(2, true, Some(2))),
            operation(1, 5, add(), wrote(1, false, Some(1))),
            operation(2, 8, Asked::Get, Answered::Saw { revision: 1, value: Some(1) }),
            operation(
                10,
                11,
                Asked::CompareAndSet { value: 7, revision: 1 },
                Answered::Saw { revision: 2, value: Some(i64::MIN) },
            ),
            operation(12, 13, Asked::Set { value: 5, ttl_us: Some(10) }, wrote(3, true, None)),
            operation(21, 22, Asked::Get, Answered::Saw { revision: 3, value: Some(5) }),
            operation(22, 23, Asked::Get, Answered::Saw { revision: 3, value: None }),
            operation(24, 25, add(), wrote(4, false, Some(1))),
            operation(26, 27, Asked::Delete, wrote(5, true, None)),
            operation(28, 29, Asked::Delete, Answered::Saw { revision: 5, value: None }),
        ];
        check(&history).unwrap();
    }

    #[test]
    fn contradictory_history_is_refused() {
        let add = || Asked::Increment { by: 1 };
        let first = || operation(0, 5, add(), wrote(1, false, Some(1)));
        let second = || operation(6, 9, add(), wrote(2, true, Some(2)));
        let saw = |began, revision, value| {
            operation(began, began + 1, Asked::Get, Answered::Saw { revision, value })
        };
        let bad = [
            vec![first(), operation(6, 9, add(), wrote(2, true, Some(1)))],
            vec![first(), operation(6, 9, add(), wrote(3, true, Some(2)))],
            vec![first(), operation(6, 9, add(), wrote(1, true, Some(2)))],
            vec![first(), second(), saw(10, 1, Some(1))],
            vec![first(), second(), saw(10, 2, Some(3))],
            vec![first(), second(), saw(10, 3, Some(3))],
            vec![saw(20, 1, Some(1)), operation(30, 31, add(), wrote(1, false, Some(1)))],
            vec![
                first(),
                operation(6, 9, Asked::CompareAndSet { value: 1, revision: 0 }, wrote(2, true, None)),
            ],
        ];
        for history in bad {
            assert!(check(&history).is_err(), "{history:?}");
        }
    }
}
