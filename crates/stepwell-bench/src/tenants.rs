//! Ten-step workflows of very many tenants, with single-statement transactions on the same server as baseline.
//! Consecutive commits belong to different tenants, so they cannot be batched.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use stepwell::Start;
use stepwell::store::{TenantId, TenantScope};
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::engines;
use crate::sample::{Slice, gather, median, quantile, round};
use crate::script;
use crate::site::{Place, Site};
use crate::ten_step::{Bench, STEPS, State};

/// Measures ours and the baseline in alternating slices, and the times of each tenant's steps.
pub(crate) fn measure(
    runtime: &Runtime,
    site: &Site,
    tenants: usize,
    in_flight: usize,
    slices: usize,
    slice: Duration,
) -> Result<Value, String> {
    let place = site.place(runtime, "ours")?;
    let Place::Postgres(test_schema) = &place else {
        return Err("--tenants needs PostgreSQL".to_owned());
    };
    let bench = Arc::new(runtime.block_on(Bench::open(&place, in_flight))?);
    let connections = stepwell_postgres::Options::default().committers;
    let single = runtime.block_on(Single::open(test_schema.admin(), connections))?;
    let mut waits = vec![Vec::new(); tenants];
    let (mut ratios, mut ours, mut raw) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..slices {
        let theirs = single.slice(runtime, number, slice)?;
        let (seconds, times) = ours_slice(runtime, &bench, tenants, number, slice)?;
        let per_s = times.len() as f64 / seconds;
        ratios.push(per_s / theirs.per_s());
        ours.push(per_s);
        raw.push(theirs.per_s());
        times.into_iter().for_each(|(tenant, us)| waits[tenant].push(us));
    }
    let bench = Arc::try_unwrap(bench).map_err(|_| "a worker has not finished")?;
    runtime.block_on(engines::close(bench.engine));
    let mut all: Vec<f64> = waits.iter().flatten().copied().collect();
    let p50 = quantile(&mut all, 0.5);
    let served = waits.iter().filter(|waits| !waits.is_empty());
    let means: Vec<f64> = served.map(|waits| waits.iter().sum::<f64>() / waits.len() as f64).collect();
    let slowest = means.iter().copied().fold(0.0, f64::max);
    Ok(json!({
        "workload": "ten-step",
        "in_flight": in_flight,
        "tenants": tenants,
        "tenants_served": means.len(),
        "steps_per_s": median(ours).round(),
        "raw_per_s": median(raw).round(),
        "raw_connections": connections,
        "ratio": round(median(ratios)),
        "p50_us": round(p50),
        "p99_us": round(quantile(&mut all, 0.99)),
        "slowest_tenant_us": round(slowest),
        "slowest_tenant_ratio": round(slowest / p50),
        "slices": slices,
    }))
}

/// The length of a slice in seconds, and for each step its tenant and its time in microseconds.
type Steps = (f64, Vec<(usize, f64)>);

fn ours_slice(
    runtime: &Runtime,
    bench: &Arc<Bench>,
    tenants: usize,
    number: usize,
    length: Duration,
) -> Result<Steps, String> {
    let begin = Instant::now();
    let workers = bench.began.len();
    let tasks = (0..workers).map(|worker| {
        let bench = bench.clone();
        runtime.spawn(async move {
            let mut times = Vec::new();
            let mut count = 0;
            while begin.elapsed() < length {
                let tenant = (worker + count * workers + number * 17) % tenants;
                count += 1;
                let scope = TenantScope::trusted(TenantId::new(Uuid::from_u128(tenant as u128 + 1)));
                let seed = (number as u64) << 40 | (worker as u64) << 20 | count as u64;
                let wanted = Start::new("ten-step").input(&State::new(worker, seed));
                let run =
                    bench.engine.for_tenant(scope).start(wanted).await.map_err(|error| error.to_string())?;
                run.result().await.map_err(|error| error.to_string())?;
                let ended = Instant::now();
                let mut steps =
                    std::mem::take(&mut *bench.began[worker].lock().unwrap_or_else(PoisonError::into_inner));
                steps.push(ended);
                let took = steps.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e6);
                times.extend(took.map(|us| (tenant, us)));
                if steps.len() != STEPS + 1 {
                    return Err(format!("a workflow had {} steps", steps.len() - 1));
                }
            }
            Ok::<_, String>(times)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(runtime.block_on(task).map_err(|error| error.to_string())??);
    }
    Ok((begin.elapsed().as_secs_f64(), all))
}

/// The baseline: connections that insert single rows, each in its own transaction.
struct Single(Vec<Arc<tokio_postgres::Client>>);

impl Single {
    async fn open(connection: &str, connections: usize) -> Result<Single, String> {
        let failed = |error: tokio_postgres::Error| error.to_string();
        let mut clients = Vec::new();
        for number in 0..connections {
            let (client, driver) =
                tokio_postgres::connect(connection, tokio_postgres::NoTls).await.map_err(failed)?;
            tokio::spawn(driver);
            if number == 0 {
                let table = "create table single_rows (run uuid not null, version bigint not null, state bytea not null,
                             primary key (run, version))";
                client.batch_execute(table).await.map_err(failed)?;
            }
            clients.push(Arc::new(client));
        }
        Ok(Single(clients))
    }

    fn slice(&self, runtime: &Runtime, number: usize, length: Duration) -> Result<Slice, String> {
        let tasks = self.0.iter().enumerate().map(|(index, client)| {
            let client = client.clone();
            async move {
                let failed = |error: tokio_postgres::Error| error.to_string();
                let insert = "insert into single_rows (run, version, state) values ($1, $2, $3)";
                let insert = client.prepare(insert).await.map_err(failed)?;
                let run = Uuid::from_u128((number as u128 + 1) << 64 | index as u128);
                let mut state = script::State::new(run.as_u128() as u64);
                let (mut times, begin) = (Vec::new(), Instant::now());
                while begin.elapsed() < length {
                    let bytes: Bytes = state.bytes();
                    let started = Instant::now();
                    client
                        .execute(&insert, &[&run, &(state.version as i64), &&bytes[..]])
                        .await
                        .map_err(failed)?;
                    times.push(started.elapsed().as_secs_f64() * 1e6);
                    state.step();
                }
                Ok(times)
            }
        });
        gather(runtime, tasks)
    }
}
