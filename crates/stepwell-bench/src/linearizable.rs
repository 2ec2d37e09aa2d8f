//! The `linearizable` workload: many clients read and write a few keys at once, and what each of them saw is put into one
//! order afterwards: every write has its revision, every other look the one it saw. If there is an order that explains
//! all of it and contradicts no clock, it is this one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Number, Value, json};
use stepwell_core::Timestamp;
use stepwell_store::{
    Cell, CellError, CellFilter, CellKey, CellOp, CellQuery, CellWrite, Commit, CommitError, CommitId,
    Expect, Refused, Space, Store, TenantScope, Ttl, ValueType,
};
use uuid::Uuid;

use crate::StoreKind;
use crate::engines;
use crate::script::Random;
use crate::site::Site;

/// Clients at a time.
const CLIENTS: usize = 16;
/// Keys that are written at a time; after a while others are.
const KEYS: u64 = 4;
/// Operations on a key, about.
const PER_KEY: u64 = 500;
/// A value with an end holds for up to so many microseconds.
const TTL_US: u64 = 20_000;

/// How much to do.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Where to work.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Operations.
    #[arg(long, default_value_t = 200_000)]
    operations: u64,
    /// A planted bug. It must be found, or this proves nothing.
    #[arg(long, value_enum)]
    plant: Option<Plant>,
    /// Fewer operations.
    #[arg(long)]
    short: bool,
    /// JSON only.
    #[arg(long)]
    json: bool,
}

/// A bug that is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Plant {
    /// Now and then an increment is a read and a write.
    LostUpdate,
    /// Now and then a read is answered with what the client saw before.
    StaleRead,
}

/// What a client asked for.
#[derive(Debug, Clone, PartialEq)]
enum Asked {
    Get,
    Set { value: i64, ttl_us: Option<u64> },
    CompareAndSet { value: i64, revision: u64 },
    Increment { by: i64 },
    Delete,
}

/// What it was answered.
#[derive(Debug, Clone, PartialEq)]
enum Answered {
    /// The cell is at this revision, with this value; `None` = there is none.
    Saw { revision: u64, value: Option<i64> },
    /// It is written, and at this revision now; there was a value before, and an increment came to this.
    Wrote { revision: u64, existed: bool, sum: Option<i64> },
}

/// One operation as its client saw it.
#[derive(Debug, Clone)]
struct Operation {
    key: u64,
    began: Duration,
    ended: Duration,
    /// The time the operation itself went by.
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
            Err(format!("no order explains what was seen: {why}"))
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
    /// What was last read of each key.
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
            // Whoever compares has read.
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
                match self.write(key, at, set, Expect::Anything).await? {
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
                self.write(key, at, set, Expect::Anything).await?
            }
            Asked::CompareAndSet { value, revision } => {
                let set =
                    CellOp::Set { value: (*value).into(), value_type: ValueType::Number, ttl: Ttl::Forever };
                self.write(key, at, set, Expect::Exactly(*revision)).await?
            }
            Asked::Increment { by } => {
                self.write(key, at, CellOp::Increment { by: Number::from(*by) }, Expect::Anything).await?
            }
            Asked::Delete => self.write(key, at, CellOp::Delete, Expect::Anything).await?,
        };
        if let (Asked::Get, Answered::Saw { revision, value }, false) = (&asked, &answered, is_planted) {
            self.seen.insert(key, (*revision, *value));
        }
        Ok(Operation { key, began, ended: self.begun.elapsed(), at, asked, answered })
    }

    async fn get(&self, key: u64, at: Timestamp) -> Result<Answered, String> {
        let CellKey { space, owner, key } = name(key);
        let filter = CellFilter::Key(key);
        let query = CellQuery { space, owner, filter, now: at, with_dead: true, limit: 1, cursor: None };
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
        expect: Expect,
    ) -> Result<Answered, String> {
        let id = CommitId(Uuid::from_u128(
            (u128::from(self.random.next()) << 64) | u128::from(self.random.next()),
        ));
        let write = CellWrite { key: name(key), op: op.clone(), expect, initial: None, by: None };
        let commit = Commit { cells: vec![write], ..Commit::new(id, at) };
        match self.store.commit(TenantScope::single(), commit).await {
            Ok(committed) => {
                let result = committed.results.into_iter().next().ok_or("a write gave no result")?;
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
                // What it has it does not say, only whether it has something.
                let value = live.then_some(i64::MIN);
                Ok(Answered::Saw { revision, value })
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// A key as the model has it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Model {
    value: Option<i64>,
    until: Option<Timestamp>,
}

impl Model {
    fn live(&self, at: Timestamp) -> Option<i64> {
        self.value.filter(|_| self.until.is_none_or(|until| until > at))
    }

    /// What a write makes of it; gives what the client must have been told.
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

/// Finds what no order explains.
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

/// Writes in the order of their revisions: one each, and each told what the one before had left.
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
            return Err(format!("revision {revision} where {} was to come", index + 1));
        }
        if let Asked::CompareAndSet { revision: expected, .. } = operation.asked
            && expected + 1 != revision
        {
            return Err(format!("revision {revision} was written on {expected}"));
        }
        let told = model.apply(operation.at, &operation.asked);
        if told != (existed, sum) {
            return Err(format!(
                "{:?} at revision {revision} was told {existed} {sum:?}, not {told:?}",
                operation.asked
            ));
        }
        states.push(model);
    }
    Ok(states)
}

/// Whoever only looked saw what the newest write before it had left.
fn explained(operation: &Operation, states: &[Model]) -> Result<(), String> {
    let Answered::Saw { revision, value } = operation.answered else { return Ok(()) };
    let Some(state) = states.get(revision as usize) else {
        return Err(format!("{:?} saw revision {revision}, which nobody wrote", operation.asked));
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
        Err(format!("{:?} saw {value:?} at revision {revision}, not {live:?}", operation.asked))
    }
}

/// Whatever had ended before something began comes before it.
fn in_time(operations: &[&Operation]) -> Result<(), String> {
    // A write is at its revision, a look half a step behind the write it saw.
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
                "{:?} came to {} after something at {latest} had ended",
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
    fn what_can_be_explained_is() {
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
    fn what_cannot_be_explained_is_found() {
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
