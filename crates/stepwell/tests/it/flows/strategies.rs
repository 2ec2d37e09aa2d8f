//! Strategies by name, allowed workflows, and read-only views.

use std::time::Duration;

use serde_json::json;
use stepwell::core::Name;
use stepwell::engine::Builder;
use stepwell::flow::{Durable, FlowError, Flows, FlowsBuilder, Handle, Outgoing, Resume, Sealed};
use stepwell::store::Status;
use stepwell::testing::TestEngine;
use stepwell::{Cx, Start};

use super::{begin, begun, flows, go, handles, login, next, nothing, ring, three, walk};
use crate::kit::{self, Watched, ground, soon};

fn office(builder: Builder) -> Builder {
    let builder =
        builder.action("nothing", nothing).workflow(walk("quiet", &["nothing"; 2]).build().unwrap());
    builder.workflow(walk("other", &["nothing"; 2]).build().unwrap())
}

fn bare(engine: &TestEngine) -> FlowsBuilder {
    Flows::builder(engine, ring())
}

/// E3: a single strategy of any kind is called `default`.
#[tokio::test]
async fn a_single_strategy_is_called_default() {
    for which in 0..3 {
        let engine = kit::start(office).await.unwrap();
        let flows = match which {
            0 => bare(&engine).only(Sealed::new()),
            1 => bare(&engine).only(Handle::new()),
            _ => bare(&engine).only(Durable::new()),
        };
        let flows = flows.build().unwrap();
        let answer = begin(&flows, "quiet").await;
        assert_eq!(answer.strategy.as_deref(), Some("default"));
        let token = answer.token.unwrap();
        assert!(token.starts_with("default."), "{token}");
        assert_eq!(go(&flows, &next(&flows, &token).await).await.unwrap().status, Status::Completed);
    }
}

/// E3: the start chooses a strategy by name or by a function of the workflow; resume uses the token alone.
#[tokio::test]
async fn the_first_strategy_is_chosen_by_name_or_function() {
    let engine = kit::start(office).await.unwrap();
    let pick = |workflow: &Name| if workflow == "quiet" { "sealed" } else { "handle" };
    let flows = three(&engine).choose_strategy(pick).build().unwrap();
    for (workflow, strategy) in [("quiet", "sealed"), ("other", "handle")] {
        let token = begun(&flows, workflow).await;
        assert!(token.starts_with(&format!("{strategy}.")), "{token}");
        let token = next(&flows, &token).await;
        assert!(token.starts_with(&format!("{strategy}.")), "{token}");
    }
    let other = kit::start(office).await.unwrap();
    let flows = three(&other).default_strategy("durable").build().unwrap();
    assert!(begun(&flows, "quiet").await.starts_with("durable."));
}

/// E3: invalid names and times are refused when flows are built.
#[tokio::test]
async fn invalid_names_and_ttls_are_refused() {
    let engine = kit::start(office).await.unwrap();
    let long = "x".repeat(65);
    for name in ["", "a.b", "a b", "ä", "a/b", "watch", long.as_str()] {
        let error = bare(&engine).strategy(name, Sealed::new()).build().unwrap_err().to_string();
        assert!(error.contains(&format!("`{name}`")), "{error}");
    }
    let zero = Duration::ZERO;
    let none: [FlowsBuilder; 4] = [
        bare(&engine).only(Sealed::new().ttl(zero)),
        bare(&engine).only(Handle::new().ttl(zero)),
        bare(&engine).only(Durable::new().ttl(zero)),
        bare(&engine).only(Sealed::new().ttl(Duration::from_micros(999))),
    ];
    for builder in none {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains("TTL") && error.contains("`default`"), "{error}");
    }
    let error = bare(&engine).build().unwrap_err().to_string();
    assert!(error.contains("strateg"), "{error}");
    let error = three(&engine).build().unwrap_err().to_string();
    assert!(error.contains("default_strategy"), "{error}");
    let error = three(&engine).default_strategy("nowhere").build().unwrap_err().to_string();
    assert!(error.contains("`nowhere`") && error.contains("`sealed`"), "{error}");
    let send = |_| async { Ok(()) };
    let error =
        three(&engine).default_strategy("sealed").outlet("a b", send).build().unwrap_err().to_string();
    assert!(error.contains("`a b`"), "{error}");
    // None of the refused builds counts as the engine's one set of flows.
    flows(&engine, "sealed");
    assert!(three(&engine).default_strategy("sealed").build().is_err(), "an engine has one set of flows");
}

/// E3, E8: a token of an unknown strategy is invalid, like any malformed token.
#[tokio::test]
async fn a_token_of_an_unknown_strategy_is_invalid() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "quiet").await;
    let raw = token.split_once('.').unwrap().1;
    for wrong in [
        format!("nowhere.{raw}"),
        raw.to_owned(),
        String::new(),
        ".".to_owned(),
        "handle.".to_owned(),
        "watch.x".to_owned(),
        "sealed.v4.local.AAAA".to_owned(),
        "\u{0}.\u{0}".to_owned(),
        "handle.ä".to_owned(),
    ] {
        assert_eq!(go(&flows, &wrong).await, Err(FlowError::Gone), "{wrong}");
        assert_eq!(flows.show(&wrong).await, Err(FlowError::Gone), "{wrong}");
    }
}

/// E8: viewing changes nothing: the handle's row stays the same, and nothing is committed.
#[tokio::test]
async fn viewing_changes_nothing() {
    for strategy in ["sealed", "handle", "durable"] {
        let (store, clock) = ground().await;
        let watched = Watched::new(store);
        let build = |builder: Builder| {
            office(builder).workflow(login()).action("check", nothing).action("verify", nothing)
        };
        let engine = TestEngine::start_on(watched.clone(), clock, build).await.unwrap();
        let flows = flows(&engine, strategy);
        let begun = begin(&flows, "login").await;
        let token = begun.token.clone().unwrap();
        let before = handles(&flows).await;
        watched.commits();
        for _ in 0..3 {
            let shown = flows.show(&token).await.unwrap();
            assert_eq!(shown.waits, begun.waits);
            assert_eq!((shown.token.as_ref(), shown.expires_at), (Some(&token), begun.expires_at));
            assert_eq!(
                (shown.flow, shown.strategy, shown.status),
                (begun.flow, begun.strategy.clone(), Status::Waiting)
            );
            assert_eq!(shown.waits[0].form.as_ref().unwrap()["required"], json!(["user", "password"]));
        }
        engine.settle().await;
        assert_eq!((watched.commits(), handles(&flows).await), (vec![], before));
    }
}

/// E8: used, expired and unknown tokens give the same answer to resume and to view.
#[tokio::test]
async fn used_expired_and_unknown_tokens_get_the_same_answer() {
    for strategy in ["handle", "durable"] {
        let engine = kit::start(office).await.unwrap();
        let flows = bare(&engine)
            .strategy("handle", Handle::new().ttl(Duration::from_secs(60)))
            .strategy("durable", Durable::new().ttl(Duration::from_secs(60)))
            .default_strategy(strategy);
        let flows = flows.build().unwrap();
        let used = begun(&flows, "quiet").await;
        next(&flows, &used).await;
        let over = begun(&flows, "quiet").await;
        let unknown = format!("{strategy}.{}", "A".repeat(64));
        engine.clock().set(engine.now().plus_ms(60_000));
        let mut said = Vec::new();
        for token in [&used, &over, &unknown] {
            said.push(go(&flows, token).await.unwrap_err().to_string());
            said.push(flows.show(token).await.unwrap_err().to_string());
        }
        said.dedup();
        assert_eq!(said, ["the link or token is no longer valid"]);
    }
}

/// E8: the last token of an ended flow is invalid too.
#[tokio::test]
async fn the_last_token_of_an_ended_flow_is_invalid() {
    for strategy in ["handle", "durable"] {
        let engine = kit::start(office).await.unwrap();
        let flows = flows(&engine, strategy);
        let last = next(&flows, &begun(&flows, "quiet").await).await;
        assert_eq!(go(&flows, &last).await.unwrap().status, Status::Completed);
        assert_eq!(go(&flows, &last).await, Err(FlowError::Gone));
        assert_eq!(flows.show(&last).await, Err(FlowError::Gone));
        assert_eq!(handles(&flows).await, []);
    }
}

/// E10: workflows that are not allowed, or are denied, cannot be started, resumed or shown.
#[tokio::test]
async fn only_allowed_workflows_are_started_resumed_and_shown() {
    for strategy in ["sealed", "handle", "durable"] {
        for allows in [true, false] {
            let (store, clock) = ground().await;
            let free = TestEngine::start_on(store.clone(), clock.clone(), office).await.unwrap();
            let strict = TestEngine::start_on(store, clock, office).await.unwrap();
            let open = flows(&free, strategy);
            let listed = Flows::builder(&strict, open.keys().clone())
                .strategy("sealed", Sealed::new())
                .strategy("handle", Handle::new())
                .strategy("durable", Durable::new())
                .default_strategy(strategy);
            let listed = if allows { listed.allow(["other"]) } else { listed.block(["quiet"]) };
            let listed = listed.build().unwrap();
            let refused = soon(listed.start(Start::new("quiet"))).await;
            assert_eq!(refused, Err(FlowError::NotAllowed("quiet".into())));
            let token = begun(&open, "quiet").await;
            assert_eq!(listed.show(&token).await, Err(FlowError::Gone));
            assert_eq!(go(&listed, &token).await, Err(FlowError::Gone));
            next(&open, &token).await;
            let token = begun(&listed, "other").await;
            listed.show(&token).await.unwrap();
            next(&listed, &token).await;
        }
    }
}

/// E10: view-only tokens follow the lists too.
#[tokio::test]
async fn view_only_tokens_follow_the_list_of_allowed_workflows() {
    let (store, clock) = ground().await;
    let send = |cx: Cx| async move { cx.send_out(Outgoing::new("mail", "ann")) };
    let build = |builder: Builder| {
        office(builder).workflow(walk("sent", &["send", "nothing"]).build().unwrap()).action("send", send)
    };
    let free = TestEngine::start_on(store.clone(), clock.clone(), build).await.unwrap();
    let strict = TestEngine::start_on(store, clock, build).await.unwrap();
    let outlet = |_| async { Ok(()) };
    let open = three(&free).default_strategy("handle").outlet("mail", outlet).build().unwrap();
    let listed =
        Flows::builder(&strict, open.keys().clone()).only(Handle::new()).block(["sent"]).build().unwrap();
    let token = begun(&open, "sent").await;
    let watching = next(&open, &token).await;
    assert_eq!(open.show(&watching).await.unwrap().status, Status::Waiting);
    assert_eq!(listed.show(&watching).await, Err(FlowError::Gone));
    assert_eq!(go(&listed, &watching).await, Err(FlowError::Gone));
}

/// E3: an unknown workflow is a separate error, whatever the lists contain.
#[tokio::test]
async fn an_unknown_workflow_is_named() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "sealed");
    let error = soon(flows.start(Start::new("quite"))).await.unwrap_err().to_string();
    assert!(error.contains("`quite`"), "{error}");
}

/// E3: invalid input is refused at the start, and an unknown outcome lists the valid ones.
#[tokio::test]
async fn an_unknown_outcome_lists_the_valid_ones() {
    for strategy in ["sealed", "handle", "durable"] {
        let engine = kit::start(office).await.unwrap();
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "quiet").await;
        let stop = soon(flows.resume(Resume::new(&token).outcome("STOP"))).await;
        let expected = FlowError::Outcome { given: Some("STOP".to_owned()), outcomes: vec!["GO".into()] };
        assert_eq!(stop, Err(expected));
        let went = soon(flows.resume(Resume::new(&token).outcome("GO"))).await.unwrap();
        assert_eq!(went.waits[0].place, "p1");
    }
}

/// E8: all refusals take equally long, so that timing reveals nothing.
#[tokio::test]
async fn every_refusal_takes_a_minimum_time() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "handle");
    let used = begun(&flows, "quiet").await;
    next(&flows, &used).await;
    let sealed = format!("sealed.{}", &used["handle.".len()..]);
    for token in [used.as_str(), "handle.unknown", &sealed, "none.such", "watch.nothing", ""] {
        for is_look in [false, true] {
            let began = std::time::Instant::now();
            let answer = if is_look { flows.show(token).await } else { go(&flows, token).await };
            assert_eq!(answer, Err(FlowError::Gone), "{token}");
            assert!(began.elapsed().as_millis() >= 24, "{token}: {:?}", began.elapsed());
        }
    }
}
