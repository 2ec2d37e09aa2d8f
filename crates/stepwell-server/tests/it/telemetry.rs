//! Telemetry of the server: valid and correct metrics, and connected traces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post as on_post;
use serde_json::{Value, json};
use stepwell::core::retry::Retry;
use stepwell::core::spec::{ChildRule, Place, Transition, Wait};
use stepwell::core::{Definition, Spec};
use stepwell::observe::Observer;
use stepwell::store::{MemoryStore, Store};
use stepwell::{ActionError, Cx, Engine, Permission, Start};
use stepwell_server::api::{ApiOptions, Server};
use stepwell_server::telemetry::{Sampler, Telemetry, TraceOptions};
use tokio::net::TcpListener;

use crate::kit::{Reply, get, post, until};
use crate::table::key_of;

/// A workflow that starts a parcel as its child and waits for it.
fn order() -> Definition {
    let rule = Wait { children: Some(ChildRule::All), ..Wait::default() };
    let retry = Retry { attempts: 3, delay_ms: 1, ..Retry::default() };
    Spec::new("order")
        .step("open")
        .place("packing", Place::Wait(rule))
        .end("sent")
        .transition(Transition::new("split", "open", "packing").action("split").retry(retry))
        .auto("send", "packing", "sent")
        .build()
        .unwrap()
}

/// A workflow that waits for the signal `PACKED` and then weighs the parcel.
fn parcel() -> Definition {
    Spec::new("parcel")
        .wait("table", "PACKED")
        .step("packed")
        .end("weighed")
        .signal("PACKED")
        .auto("put", "table", "packed")
        .transition(Transition::new("weigh", "packed", "weighed").action("weigh"))
        .build()
        .unwrap()
}

async fn split(cx: Cx) -> Result<(), ActionError> {
    if cx.attempt() == 1 {
        return Err(ActionError::new("busy", "the table is full"));
    }
    cx.start_child(Start::new("parcel"))?;
    Ok(())
}

async fn weigh(_: Cx) -> Result<u32, ActionError> {
    Ok(7)
}

/// A server with telemetry, and a key of the server's own tenant.
struct Office {
    engine: Engine,
    telemetry: Arc<Telemetry>,
    router: Router,
    key: String,
}

impl Office {
    async fn open(store: Arc<dyn Store>, telemetry: Telemetry, options: ApiOptions) -> Self {
        let telemetry = Arc::new(telemetry);
        let observer: Arc<dyn Observer> = telemetry.clone();
        let engine = Engine::builder(store).observer(observer).workflow(order()).workflow(parcel());
        let engine = engine.action("split", split).action("weigh", weigh).start().await.unwrap();
        let server = Server::new(engine.clone(), options).with_telemetry(telemetry.clone());
        let server = Arc::new(server);
        let key = key_of(&server, 1, &Permission::ALL).await;
        Office { engine, telemetry, router: server.router(), key }
    }

    async fn scraped(&self) -> BTreeMap<String, f64> {
        let reply = get("/metrics").by(&self.key).to(&self.router).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(reply.header("content-type").starts_with("text/plain; version=0.0.4"), "{reply:?}");
        parsed(&reply.body)
    }

    async fn ask(&self, ask: crate::kit::TestRequest) -> Reply {
        ask.by(&self.key).to(&self.router).await
    }

    /// Starts an order and waits until its parcel waits. Returns the ids of both runs.
    async fn ordered(&self, headers: &[(&str, &str)]) -> (String, String) {
        let start = headers.iter().fold(post("/v1/runs"), |ask, (name, value)| ask.header(name, value));
        let started = self.ask(start.json(&json!({"workflow": "order"}))).await;
        assert_eq!(started.status, 201, "{started:?}");
        let order = started.json()["id"].as_str().unwrap().to_owned();
        let parcel = until("the parcel waits", async || {
            let runs = self.ask(get(&format!("/v1/runs?parent={order}&status=waiting"))).await.json();
            runs["items"][0]["id"].as_str().map(str::to_owned)
        })
        .await;
        (order, parcel)
    }

    async fn packed(&self, order: &str, parcel: &str) {
        let sent = self.ask(post(&format!("/v1/runs/{parcel}/signals/PACKED")).json(&json!({}))).await;
        assert_eq!(sent.json(), json!({"outcome": "consumed"}), "{sent:?}");
        let ended = self.ask(get(&format!("/v1/runs/{order}?wait=20s"))).await.json();
        assert_eq!(ended["status"], "completed", "{ended}");
    }
}

/// Parses the Prometheus text format strictly. Every family has its help and its type before its samples, no series
/// appears twice, and the count of a histogram equals its last bucket.
fn parsed(text: &str) -> BTreeMap<String, f64> {
    let mut values = BTreeMap::new();
    let mut families = BTreeMap::new();
    let mut described = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, about) = rest.split_once(' ').unwrap();
            assert!(about.len() > 3, "{line}");
            described = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, described, "the help precedes the type");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(families.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} appears twice");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            let is_ours = name.starts_with("stepwell_") || name.starts_with("process_");
            assert!(is_ours && name.bytes().all(|b| b == b'_' || b.is_ascii_lowercase()), "{name}");
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
            let family =
                family.filter(|family| families.get(*family).is_some_and(|kind| kind == "histogram"));
            assert_eq!(family.unwrap_or(name), described, "{line}");
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(values.insert(series.to_owned(), value).is_none(), "{series} appears twice");
        }
    }
    for (series, count) in values.iter().filter(|(series, _)| series.contains("_count")) {
        let last = match series.split_once('{') {
            Some((name, labels)) => {
                let labels = labels.trim_end_matches('}');
                format!("{}_bucket{{{labels},le=\"+Inf\"}}", name.trim_end_matches("_count"))
            }
            None => format!("{}_bucket{{le=\"+Inf\"}}", series.trim_end_matches("_count")),
        };
        assert_eq!(values.get(&last), Some(count), "{last}");
    }
    values
}

/// Compares the counters before and after a known number of operations.
#[tokio::test]
async fn counters_grow_by_what_happened_between_scrapes() {
    let options = ApiOptions::default();
    let place = Office::open(Arc::new(MemoryStore::new()), Telemetry::new(), options).await;
    let before = place.scraped().await;
    let (order, parcel) = place.ordered(&[]).await;
    place.packed(&order, &parcel).await;
    let unknown = post("/v1/runs/0190f0c0-0000-7000-8000-000000000000/signals/PACKED").json(&json!({}));
    assert_eq!(place.ask(unknown).await.status, 404);
    get("/v1/runs").to(&place.router).await.is(401, "unauthorized");
    get("/nothing").to(&place.router).await.is(404, "notFound");
    let after = place.scraped().await;
    let grown = |series: &str| after.get(series).unwrap_or(&0.0) - before.get(series).unwrap_or(&0.0);
    for (series, by) in [
        ("stepwell_runs_started_total{kind=\"workflow\"}", 2.0),
        ("stepwell_runs_ended_total{status=\"completed\"}", 2.0),
        ("stepwell_runs_ended_total{status=\"failed\"}", 0.0),
        ("stepwell_actions_started_total{action=\"split\"}", 2.0),
        ("stepwell_actions_retried_total{action=\"split\"}", 1.0),
        ("stepwell_actions_ended_total{action=\"split\",outcome=\"failed\"}", 1.0),
        ("stepwell_actions_ended_total{action=\"split\",outcome=\"done\"}", 1.0),
        ("stepwell_actions_ended_total{action=\"weigh\",outcome=\"done\"}", 1.0),
        ("stepwell_action_seconds_count{action=\"split\"}", 2.0),
        ("stepwell_signals_total{outcome=\"consumed\"}", 1.0),
        ("stepwell_signals_total{outcome=\"kept\"}", 0.0),
        ("stepwell_signals_total{outcome=\"refused\"}", 1.0),
        ("stepwell_http_requests_total{route=\"startRun\",status=\"2xx\"}", 1.0),
        ("stepwell_http_requests_total{route=\"signalRun\",status=\"2xx\"}", 1.0),
        ("stepwell_http_requests_total{route=\"signalRun\",status=\"4xx\"}", 1.0),
        ("stepwell_http_requests_total{route=\"metrics\",status=\"2xx\"}", 1.0),
        ("stepwell_http_requests_total{route=\"none\",status=\"4xx\"}", 1.0),
        ("stepwell_http_request_seconds_count{route=\"startRun\"}", 1.0),
        ("stepwell_http_refused_total{reason=\"unauthorized\"}", 1.0),
    ] {
        assert_eq!(grown(series), by, "{series} in {after:#?}");
    }
    let refused = after.keys().filter(|series| series.starts_with("stepwell_commits_refused_total"));
    let refused: f64 = refused.map(|series| grown(series)).sum();
    let committed = grown("stepwell_commit_seconds_count") - refused;
    assert_eq!(committed, grown("stepwell_commit_cycles_total") + 1.0, "all but the start are commit cycles");
    for (series, is) in [
        ("stepwell_http_in_flight", 1.0),
        ("stepwell_http_streams_open", 0.0),
        ("stepwell_http_waits_open", 0.0),
        ("stepwell_runs_owned", 0.0),
        ("stepwell_runs_owned_max", 256.0),
        ("stepwell_store_up", 1.0),
        ("stepwell_oldest_due_run_seconds", 0.0),
        ("stepwell_actions_running{action=\"split\"}", 0.0),
        (concat!("stepwell_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1.0),
    ] {
        assert_eq!(after.get(series), Some(&is), "{series} in {after:#?}");
    }
    assert!(after["process_resident_memory_bytes"] > 1_000_000.0 && after["process_open_fds"] > 2.0);
    assert!(!after.keys().any(|series| series.contains(&order) || series.contains("tenant=")), "{after:#?}");
}

#[tokio::test]
async fn metrics_require_host_view_permission_unless_public() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let engine = Engine::builder(store).start().await.unwrap();
    let server = Arc::new(Server::new(engine.clone(), ApiOptions::default()));
    let router = server.clone().router();
    get("/metrics").to(&router).await.is(401, "unauthorized");
    let elsewhere = key_of(&server, 2, &Permission::ALL).await;
    get("/metrics").by(&elsewhere).to(&router).await.is(403, "denied");
    let blind = key_of(&server, 1, &[Permission::Manage]).await;
    get("/metrics").by(&blind).to(&router).await.is(403, "denied");
    let seeing = key_of(&server, 1, &[Permission::View]).await;
    assert_eq!(get("/metrics").by(&seeing).to(&router).await.status, 200);
    // A second server in the same process has separate metrics.
    let public = ApiOptions { metrics_are_public: true, ..ApiOptions::default() };
    let open = Arc::new(Server::new(engine, public)).router();
    let read = get("/metrics").to(&open).await;
    assert_eq!(read.status, 200, "{read:?}");
    assert!(!parsed(&read.body).keys().any(|series| series.contains("http_requests_total")), "{}", read.body);
    get("/v1/runs").to(&open).await.is(401, "unauthorized");
}

/// An OpenTelemetry collector that stores the requests it gets.
struct Collector {
    url: String,
    got: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    async fn open() -> Self {
        let got: Arc<Mutex<Vec<Value>>> = Arc::default();
        let taken = got.clone();
        let take = async move |headers: axum::http::HeaderMap, body: String| {
            assert_eq!(headers["content-type"], "application/json");
            assert_eq!(headers["x-team"], "a b");
            taken.lock().unwrap().push(serde_json::from_str(&body).unwrap());
            "{}"
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/traces", on_post(take));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Collector { url, got }
    }

    fn options(&self, service: &str) -> TraceOptions {
        let headers = vec![("x-team".to_owned(), "a b".to_owned())];
        TraceOptions { service: service.to_owned(), headers, ..TraceOptions::new(self.url.as_str()) }
    }

    /// Returns every received span with the name of its service.
    fn spans(&self) -> Vec<(String, Value)> {
        let mut spans = Vec::new();
        for body in self.got.lock().unwrap().iter() {
            let part = &body["resourceSpans"][0];
            let service = attribute(&part["resource"], "service.name").unwrap();
            let of = part["scopeSpans"][0]["spans"].as_array().unwrap().iter();
            spans.extend(of.map(|span| (service.clone(), span.clone())));
        }
        spans
    }
}

fn attribute(of: &Value, name: &str) -> Option<String> {
    let found = of["attributes"].as_array()?.iter().find(|attribute| attribute["key"] == name)?;
    let value = found["value"].as_object()?.values().next()?;
    value.as_str().map(str::to_owned)
}

const CALLER: (&str, &str) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");

/// Asserts that the spans form one tree: ids are unique, every parent exists, and there is one root.
fn holds_together(of_run: &[&(String, Value)]) {
    let ids: BTreeSet<_> = of_run.iter().map(|(_, span)| span["spanId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), of_run.len(), "span ids are unique");
    let mut roots = 0;
    for (_, span) in of_run {
        match span["parentSpanId"].as_str() {
            Some(parent) => assert!(ids.contains(parent), "{span}"),
            None => roots += 1,
        }
        let time = |name: &str| span[name].as_str().unwrap().parse::<u128>().unwrap();
        assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"), "{span}");
    }
    assert_eq!(roots, 1, "the start of the order");
}

#[tokio::test]
async fn run_and_child_share_a_trace_across_processes() {
    let collector = Collector::open().await;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let opened = async |service: &str| {
        let telemetry = Telemetry::traced(collector.options(service)).unwrap();
        Office::open(store.clone(), telemetry, ApiOptions::default()).await
    };
    let first = opened("first").await;
    let parent = format!("00-{}-{}-01", CALLER.0, CALLER.1);
    let (order, parcel) = first.ordered(&[("traceparent", &parent)]).await;
    first.engine.stop(Duration::from_secs(5)).await;
    first.telemetry.flush(Duration::from_secs(10)).await;
    let second = opened("second").await;
    second.packed(&order, &parcel).await;
    second.engine.stop(Duration::from_secs(5)).await;
    second.telemetry.flush(Duration::from_secs(10)).await;

    let trace = order.replace('-', "");
    let all = collector.spans();
    let of_run: Vec<_> = all.iter().filter(|(_, span)| span["traceId"] == trace.as_str()).collect();
    holds_together(&of_run);
    let named = |service: &str, name: &str| -> Vec<&Value> {
        let one = of_run.iter().filter(|(of, span)| of == service && span["name"] == name);
        one.map(|(_, span)| span).collect()
    };
    let words = |spans: &[&Value], name: &str| -> Vec<String> {
        spans.iter().map(|span| attribute(span, name).unwrap_or_default()).collect()
    };
    let attempts = named("first", "split");
    assert_eq!(words(&attempts, "stepwell.outcome"), ["failed", "done"]);
    assert_eq!(words(&attempts, "stepwell.attempt"), ["1", "2"]);
    assert_eq!(
        (&attempts[0]["status"], &attempts[1]["status"]),
        (&json!({"code": 2, "message": "busy"}), &json!({}))
    );
    assert_eq!(words(&named("second", "weigh"), "stepwell.run"), [parcel.as_str()]);
    for (service, name) in [
        ("first", "start order"),
        ("first", "start parcel"),
        ("first", "commit"),
        ("second", "commit"),
        ("second", "run parcel"),
        ("second", "run order"),
    ] {
        assert!(!named(service, name).is_empty(), "{name} of {service} in {of_run:#?}");
    }
    let (start, child) = (named("first", "start order")[0], named("first", "start parcel")[0]);
    assert_eq!(child["parentSpanId"], start["spanId"], "the child is below its parent");

    // The request belongs to its caller's trace. Its span and the span of the start link to each other.
    let asked = all.iter().find(|(_, span)| span["name"] == "POST /v1/runs").map(|(_, span)| span).unwrap();
    assert_eq!((&asked["traceId"], &asked["parentSpanId"]), (&json!(CALLER.0), &json!(CALLER.1)));
    assert_eq!(
        (&asked["kind"], attribute(asked, "http.response.status_code")),
        (&json!(2), Some("201".to_owned()))
    );
    let link = |span: &Value| json!([{"traceId": span["traceId"], "spanId": span["spanId"]}]);
    assert_eq!((&asked["links"], &start["links"]), (&link(start), &link(asked)));
    let signal =
        all.iter().find(|(_, span)| attribute(span, "stepwell.route").as_deref() == Some("signalRun"));
    let (_, signal) = signal.unwrap();
    assert!(
        signal["links"].as_array().unwrap().iter().all(|link| link["traceId"] == trace.as_str()),
        "{signal}"
    );
    assert!(!signal["links"].as_array().unwrap().is_empty());
    // Spans contain no data of runs.
    assert!(!all.iter().any(|(_, span)| span.to_string().contains("the table is full")));
}

#[tokio::test]
async fn sampling_follows_the_caller_and_is_reported() {
    let collector = Collector::open().await;
    let telemetry = Telemetry::traced(collector.options("x")).unwrap();
    let place = Office::open(Arc::new(MemoryStore::new()), telemetry, ApiOptions::default()).await;
    let own = get("/livez").to(&place.router).await;
    assert!(own.header("traceparent").ends_with("-01"), "{own:?}");
    let not = get("/livez").header("traceparent", &format!("00-{}-{}-00", CALLER.0, CALLER.1));
    let not = not.to(&place.router).await;
    assert!(not.header("traceparent").starts_with(&format!("00-{}-", CALLER.0)), "{not:?}");
    assert!(not.header("traceparent").ends_with("-00"), "{not:?}");
    place.telemetry.flush(Duration::from_secs(10)).await;
    let traces: Vec<_> = collector.spans().into_iter().map(|(_, span)| span["traceId"].clone()).collect();
    assert_eq!(traces, [json!(own.header("traceparent").split('-').nth(1).unwrap())]);
    let off = Sampler::read("always_off", 1.0).unwrap();
    let telemetry = Telemetry::traced(TraceOptions { sampler: off, ..collector.options("off") }).unwrap();
    let place = Office::open(Arc::new(MemoryStore::new()), telemetry, ApiOptions::default()).await;
    let (order, parcel) = place.ordered(&[]).await;
    place.packed(&order, &parcel).await;
    place.telemetry.flush(Duration::from_secs(10)).await;
    assert!(!collector.spans().iter().any(|(service, _)| service == "off"));
}

/// If the collector is down or does not respond, spans are lost and nothing else.
#[tokio::test]
async fn unavailable_collector_costs_only_spans() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let away = closed.local_addr().unwrap();
    drop(closed);
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for address in [away, silent.local_addr().unwrap()] {
        let options = TraceOptions {
            timeout: Duration::from_millis(100),
            ..TraceOptions::new(format!("http://{address}/v1/traces"))
        };
        let telemetry = Telemetry::traced(options).unwrap();
        let place = Office::open(Arc::new(MemoryStore::new()), telemetry, ApiOptions::default()).await;
        let (order, parcel) = place.ordered(&[]).await;
        place.packed(&order, &parcel).await;
        let began = Instant::now();
        place.telemetry.flush(Duration::from_secs(2)).await;
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        let metrics = place.scraped().await;
        assert!(metrics["stepwell_spans_dropped_total"] > 5.0, "{metrics:?}");
        assert_eq!(metrics["stepwell_spans_sent_total"], 0.0);
    }
    for wrong in ["", "collector.example.com:4318", "ftp://collector.example.com"] {
        let error = Telemetry::traced(TraceOptions::new(wrong)).unwrap_err();
        assert!(error.to_string().contains("cannot send traces"), "{error}");
    }
}

/// The binary also counts the writes of its store and its connections.
#[test]
fn sqlite_server_counts_writes_and_connections() {
    let folder = tempfile::tempdir().unwrap();
    let server = crate::serving::dev(folder.path());
    let scraped = || {
        let answer = server.get("/metrics");
        assert_eq!(answer.status, 200, "{answer:?}");
        parsed(&answer.body)
    };
    let before = scraped();
    let start = json!({"workflow": "tour", "input": {"visitor": "ann"}});
    assert_eq!(server.ask("POST", "/v1/runs", Some(&start)).status, 201);
    let after = scraped();
    let grown = |series: &str| after[series] - before[series];
    assert_eq!(grown("stepwell_runs_started_total{kind=\"workflow\"}"), 1.0);
    assert!(grown("stepwell_store_writes_total") >= 1.0, "{after:#?}");
    assert!(grown("stepwell_store_sync_seconds_count") >= 1.0);
    assert_eq!(after["stepwell_store_batch_writes_sum"], after["stepwell_store_writes_total"]);
    // Writes go to the write-ahead log first, so either part may be small.
    let bytes = ["database", "log"].map(|part| after[&format!("stepwell_store_bytes{{part=\"{part}\"}}")]);
    assert!(bytes.iter().all(|bytes| *bytes > 0.0) && bytes.iter().sum::<f64>() > 10_000.0, "{bytes:?}");
    assert!(after["stepwell_store_sync_seconds_sum"] <= after["stepwell_store_batch_seconds_sum"]);
    assert!(after["stepwell_http_connections_open"] >= 1.0);
    assert!(grown("stepwell_http_connections_total") >= 2.0);
    assert_eq!(after["stepwell_store_up"], 1.0);
}
