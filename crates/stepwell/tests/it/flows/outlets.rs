//! Pauses delivered out of band: only the delivered token resumes the flow, and delivery is reliable.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::spec::Transition;
use stepwell::core::{Name, Spec};
use stepwell::doctor::FindingKind;
use stepwell::engine::Builder;
use stepwell::flow::{
    Answer, Durable, FlowError, Flows, FlowsBuilder, Handle, KeyRing, Message, Outgoing, OutletError, Resume,
    Sealed,
};
use stepwell::host::BoxFuture;
use stepwell::store::Status;
use stepwell::{ActionError, Cx, Diagnose, Engine, Start};

use super::{add, begin, begun, go, handles, next, nothing, ring, sum, walk};
use crate::kit::{
    self, LEASE_MS, audit, eventually, ground, history_actions, other_tenant, soon, start_killable,
};
use crate::world::Gate;

/// An outlet that keeps its messages, and fails with the queued errors first.
#[derive(Clone, Default)]
struct Post(Arc<Mutex<(Vec<Message>, Vec<OutletError>)>>);

impl Post {
    fn sent(&self) -> Vec<Message> {
        self.0.lock().unwrap().0.clone()
    }

    fn fail(&self, errors: impl IntoIterator<Item = OutletError>) {
        self.0.lock().unwrap().1.extend(errors);
    }

    fn token(&self) -> String {
        self.sent().last().unwrap().token.clone()
    }

    fn outlet(&self) -> impl Fn(Message) -> BoxFuture<Result<(), OutletError>> + Send + Sync + use<> {
        let post = self.clone();
        move |message| {
            let post = post.clone();
            Box::pin(async move {
                let mut post = post.0.lock().unwrap();
                post.0.push(message);
                if post.1.is_empty() { Ok(()) } else { Err(post.1.remove(0)) }
            })
        }
    }
}

fn on(engine: &Engine, ring: KeyRing, post: &Post) -> FlowsBuilder {
    Flows::builder(engine, ring)
        .strategy("sealed", Sealed::new())
        .strategy("handle", Handle::new())
        .strategy("durable", Durable::new())
        .outlet("mail", post.outlet())
}

fn with_post(engine: &Engine, begin: &str, post: &Post) -> Flows {
    on(engine, ring(), post).default_strategy(begin).build().unwrap()
}

async fn mails(cx: Cx) -> Result<(), ActionError> {
    let mail = Outgoing::new("mail", "ann@example.org").template("confirm").data(json!({"n": 1}));
    cx.send_out(mail)
}

fn office(builder: Builder) -> Builder {
    let builder = builder.action("mails", mails).action("nothing", nothing).action("add", add);
    builder.workflow(walk("confirm", &["mails", "add", "nothing"]).build().unwrap())
}

/// Starts a flow that sends a mail; returns the starter's token and the flow's answer.
async fn mailed(flows: &Flows) -> (String, Answer) {
    let answer = go(flows, &begun(flows, "confirm").await).await.unwrap();
    assert_eq!(answer.sent.as_deref().or(Some("mail")), Some("mail"));
    (answer.token.clone().unwrap(), answer)
}

/// E7: the starter's token shows only that the flow waits. The delivered token resumes it, and is sent exactly once.
#[tokio::test]
async fn only_the_delivered_token_resumes_the_flow() {
    for strategy in ["sealed", "handle", "durable"] {
        let engine = kit::start(office).await.unwrap();
        let post = Post::default();
        let flows = with_post(&engine, strategy, &post);
        let (watching, answer) = mailed(&flows).await;
        assert!(watching.starts_with("watch."), "{strategy}: {watching}");
        assert_eq!(answer.strategy.as_deref(), Some(strategy));
        engine.settle().await;
        let [message] = &post.sent()[..] else { panic!("{strategy}: it is sent once") };
        assert_eq!(
            (message.flow, message.place.as_str(), message.workflow.as_str()),
            (answer.flow, "p1", "confirm")
        );
        assert_eq!((message.to.as_str(), message.template.as_deref()), ("ann@example.org", Some("confirm")));
        assert_eq!((&message.outcomes[..], &message.data), (&[Name::from("GO")][..], &json!({"n": 1})));
        assert_eq!(message.expires_at, answer.expires_at);
        for _ in 0..2 {
            assert_eq!(go(&flows, &watching).await, Err(FlowError::WatchOnly), "{strategy}");
            let seen = flows.show(&watching).await.unwrap();
            assert_eq!(
                (seen.status, seen.flow, seen.token.as_ref()),
                (Status::Waiting, answer.flow, Some(&watching))
            );
            assert_eq!(seen.result, None);
        }
        assert_eq!(sum(&engine).await, Value::Null, "{strategy}: watching resumes nothing");
        assert_eq!(flows.show(&message.token).await.unwrap().waits[0].place, "p1");
        let on = go(&flows, &message.token).await.unwrap();
        assert_eq!((on.waits[0].place.as_str(), sum(&engine).await), ("p2", json!(1)));
        // The caller who answered continues from here with their own token.
        assert_eq!(go(&flows, &on.token.unwrap()).await.unwrap().status, Status::Completed, "{strategy}");
        engine.advance(Duration::from_secs(7_200)).await;
        assert_eq!(post.sent().len(), 1, "{strategy}");
    }
}

/// E7: the starter's token resumes nothing under any other strategy name either.
#[tokio::test]
async fn a_view_only_token_resumes_under_no_strategy_name() {
    for strategy in ["sealed", "handle", "durable"] {
        let engine = kit::start(office).await.unwrap();
        let post = Post::default();
        let flows = with_post(&engine, strategy, &post);
        let (watching, _) = mailed(&flows).await;
        let raw = watching.strip_prefix("watch.").unwrap();
        for name in ["sealed", "handle", "durable"] {
            assert_eq!(go(&flows, &format!("{name}.{raw}")).await, Err(FlowError::Gone));
        }
        engine.settle().await;
        let sent = post.token();
        let raw = sent.split_once('.').unwrap().1;
        assert_eq!(go(&flows, &format!("watch.{raw}")).await, Err(FlowError::Gone));
        assert_eq!(go(&flows.for_tenant(other_tenant()), &sent).await, Err(FlowError::Gone), "{strategy}");
        assert_eq!(
            go(&flows.for_tenant(other_tenant()), &watching).await,
            Err(FlowError::Gone),
            "{strategy}"
        );
        assert_eq!(sum(&engine).await, Value::Null);
    }
}

/// E7: the token from before the pause does not bypass the mailbox: used again, it sends again or is invalid.
#[tokio::test]
async fn an_earlier_token_does_not_bypass_the_mailbox() {
    for strategy in ["sealed", "handle", "durable"] {
        let engine = kit::start(office).await.unwrap();
        let post = Post::default();
        let flows = with_post(&engine, strategy, &post);
        let before = begun(&flows, "confirm").await;
        go(&flows, &before).await.unwrap();
        if let Ok(again) = go(&flows, &before).await {
            assert!(strategy == "sealed" && again.token.unwrap().starts_with("watch."));
        }
        assert_eq!(sum(&engine).await, Value::Null);
    }
}

/// E7: once the flow has continued, the view-only token is invalid, or shows the run.
#[tokio::test]
async fn a_view_only_token_is_invalid_once_the_flow_continued() {
    let engine = kit::start(office).await.unwrap();
    let post = Post::default();
    let flows = with_post(&engine, "handle", &post);
    let (watching, _) = mailed(&flows).await;
    engine.settle().await;
    go(&flows, &post.token()).await.unwrap();
    assert_eq!(flows.show(&watching).await, Err(FlowError::Gone));
}

/// E7: a failing outlet is retried with growing delays while the flow waits.
#[tokio::test]
async fn a_failing_outlet_is_retried_with_growing_delays() {
    for strategy in ["handle", "durable"] {
        let engine = kit::start(office).await.unwrap();
        let post = Post::default();
        post.fail((0..3).map(|number| OutletError::new(format!("failure {number}"))));
        let flows = with_post(&engine, strategy, &post);
        let (watching, _) = mailed(&flows).await;
        engine.settle().await;
        assert_eq!(post.sent().len(), 1);
        engine.advance(Duration::from_secs(9)).await;
        assert_eq!(post.sent().len(), 1, "{strategy}: not before the delay is over");
        engine.advance(Duration::from_secs(6)).await;
        assert_eq!(post.sent().len(), 2, "{strategy}");
        engine.advance(Duration::from_secs(26)).await;
        assert_eq!(post.sent().len(), 3, "{strategy}");
        engine.advance(Duration::from_secs(3_600)).await;
        let sent = post.sent();
        assert_eq!(sent.len(), 4, "{strategy}");
        assert!(sent.iter().all(|message| *message == sent[0]), "it is the same message, with the same id");
        assert_eq!(flows.show(&watching).await.unwrap().status, Status::Waiting);
        let row = &handles(&flows).await[0];
        assert_eq!((row.deliver_at, row.delivery.clone()), (None, None), "nothing is left to send");
        next(&flows, &sent[0].token).await;
        assert!(audit(&engine).await.iter().all(|(_, row)| row.operation != "outlet.failed"));
    }
}

/// E7: an undeliverable message is abandoned at once or after enough attempts, and the audit trail records that.
#[tokio::test]
async fn an_undeliverable_message_is_audited() {
    for (fails, attempts) in [
        (vec![OutletError::new("no such address").non_retryable()], 1),
        (vec![OutletError::new("busy"); 20], 8),
    ] {
        let engine = kit::start(office).await.unwrap();
        let post = Post::default();
        post.fail(fails);
        let flows = with_post(&engine, "handle", &post);
        let (_, answer) = mailed(&flows).await;
        engine.advance(Duration::from_secs(10_000)).await;
        assert_eq!(post.sent().len(), attempts);
        let rows: Vec<_> = audit(&engine).await.into_iter().map(|(_, row)| row).collect();
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((row.operation.as_str(), row.run), ("outlet.failed", Some(answer.flow)));
        let detail: Value = serde_json::from_slice(&row.detail).unwrap();
        assert_eq!((&detail["outlet"], &detail["attempts"]), (&json!("mail"), &json!(attempts)));
        assert!(
            !row.detail.windows(20).any(|part| part == &post.token().as_bytes()[30..50]),
            "the audit row has no token"
        );
        assert_eq!(flows.show(&post.token()).await.unwrap().waits[0].place, "p1", "the flow waits");
    }
}

/// E7: after a crash between commit and delivery, another process delivers under the same keys.
#[tokio::test]
async fn another_process_delivers_messages_after_a_crash() {
    for strategy in ["handle", "durable"] {
        let (store, clock) = ground().await;
        let (gate, keys) = (Gate::new(), ring());
        let (one, tasks) = start_killable(store.clone(), &clock, office).await;
        let hangs = {
            let gate = gate.clone();
            move |_| {
                let gate = gate.clone();
                async move {
                    gate.pass().await;
                    Ok(())
                }
            }
        };
        let here = on(&one, keys.clone(), &Post::default())
            .outlet("mail", hangs)
            .default_strategy(strategy)
            .build()
            .unwrap();
        let (_, answer) = mailed(&here).await;
        eventually(async || gate.inside() == 1).await;
        tasks.kill().await;
        let post = Post::default();
        let (two, _tasks) = start_killable(store, &clock, office).await;
        let there = on(&two, keys, &post).default_strategy(strategy).build().unwrap();
        two.settle().await;
        assert_eq!(post.sent().len(), 0, "{strategy}: the message is still leased");
        two.advance(Duration::from_millis(120_000 + LEASE_MS)).await;
        let [message] = &post.sent()[..] else { panic!("{strategy}: it is sent once") };
        assert_eq!(message.flow, answer.flow);
        next(&there, &message.token).await;
        two.advance(Duration::from_secs(600)).await;
        assert_eq!(post.sent().len(), 1, "{strategy}");
    }
}

/// E7: a process without the key leaves the message to processes that have it.
#[tokio::test]
async fn a_process_without_the_key_leaves_the_message_to_others() {
    let (store, clock) = ground().await;
    let (one, tasks) = start_killable(store.clone(), &clock, office).await;
    let keys = ring();
    let hangs = |_| std::future::pending::<Result<(), OutletError>>();
    let here = on(&one, keys.clone(), &Post::default())
        .outlet("mail", hangs)
        .default_strategy("handle")
        .build()
        .unwrap();
    mailed(&here).await;
    one.settle().await;
    tasks.kill().await;
    let (post, other) = (Post::default(), KeyRing::new(stepwell::flow::Key::generate("other").unwrap()));
    let (two, others) = start_killable(store.clone(), &clock, office).await;
    on(&two, other, &post).default_strategy("handle").build().unwrap();
    two.advance(Duration::from_secs(90)).await;
    assert_eq!(post.sent().len(), 0, "it cannot be opened there");
    others.kill().await;
    let (three, _tasks) = start_killable(store, &clock, office).await;
    let there = on(&three, keys, &post).default_strategy("handle").build().unwrap();
    three.advance(Duration::from_secs(7_200)).await;
    assert_eq!(post.sent().len(), 1, "it was not discarded");
    next(&there, &post.token()).await;
}

/// E6, E7: a message falls due again while its token is being used: the step runs once, and nothing is lost.
#[tokio::test]
async fn a_redelivery_does_not_disturb_a_resume_in_progress() {
    let (gate, post) = (Gate::new(), Post::default());
    let counts = gate.and(|cx: &Cx| cx.kv("test").increment("sum", 1).map(|()| Value::Null));
    let workflow = walk("slow", &["mails", "counts", "nothing"]).build().unwrap();
    let engine =
        kit::start(|builder| office(builder).workflow(workflow).action("counts", counts)).await.unwrap();
    // The message arrives, but the outlet gets no confirmation.
    post.fail([OutletError::new("no answer")]);
    let flows = with_post(&engine, "handle", &post);
    go(&flows, &begun(&flows, "slow").await).await.unwrap();
    engine.settle().await;
    let sent = post.token();
    let user = tokio::spawn({
        let (flows, sent) = (flows.clone(), sent.clone());
        async move { flows.resume(Resume::new(sent)).await }
    });
    eventually(async || gate.inside() == 1).await;
    engine.advance(Duration::from_secs(60)).await;
    gate.open(10);
    let answer = super::as_time_passes(engine.clock(), user).await.unwrap().unwrap();
    assert_eq!((answer.waits[0].place.as_str(), gate.began()), ("p2", 1));
    assert_eq!(sum(&engine).await, json!(1));
    next_or_end(&flows, &answer.token.unwrap()).await;
}

async fn next_or_end(flows: &Flows, token: &str) {
    assert_eq!(go(flows, token).await.unwrap().status, Status::Completed);
}

/// E7: a message that expires before delivery is not sent.
#[tokio::test]
async fn an_expired_message_is_not_sent() {
    let engine = kit::start(office).await.unwrap();
    let post = Post::default();
    post.fail(vec![OutletError::new("busy"); 20]);
    let flows = on(&engine, ring(), &post).strategy("handle", Handle::new().ttl(Duration::from_secs(20)));
    let flows = flows.default_strategy("handle").build().unwrap();
    mailed(&flows).await;
    engine.advance(Duration::from_secs(10_000)).await;
    assert!(post.sent().len() <= 2, "{}", post.sent().len());
}

/// E7: an unknown outlet is reported by name, and the token stays valid.
#[tokio::test]
async fn an_unknown_outlet_is_reported_and_the_token_stays_valid() {
    for strategy in ["sealed", "handle"] {
        let pigeon = |cx: Cx| async move {
            match cx.payload().as_str() {
                Some(outlet) => cx.send_out(Outgoing::new(outlet, "ann")),
                None => Ok(()),
            }
        };
        let workflow = walk("pigeon", &["pigeon", "nothing"]).build().unwrap();
        let engine =
            kit::start(|builder| office(builder).workflow(workflow).action("pigeon", pigeon)).await.unwrap();
        let flows = with_post(&engine, strategy, &Post::default());
        let token = begun(&flows, "pigeon").await;
        let error = soon(flows.resume(Resume::new(&token).input("pigeon"))).await.unwrap_err().to_string();
        assert!(error.contains("`pigeon`") && error.contains("`mail`"), "{error}");
        for wrong in ["", "a b"] {
            let answer = soon(flows.resume(Resume::new(&token).input(wrong))).await;
            assert!(matches!(answer, Err(FlowError::Failed(_))), "{answer:?}");
        }
        next(&flows, &token).await;
    }
}

/// E7: a sealed flow cannot store a message: if delivery fails, the step is undone and the token stays valid.
#[tokio::test]
async fn a_sealed_step_is_undone_if_its_message_cannot_be_sent() {
    let engine = kit::start(office).await.unwrap();
    let post = Post::default();
    let flows = with_post(&engine, "sealed", &post);
    let token = begun(&flows, "confirm").await;
    post.fail(vec![OutletError::new("busy"); 2]);
    go(&flows, &token).await.unwrap();
    assert_eq!(post.sent().len(), 3, "it is retried immediately");
    post.fail(vec![OutletError::new("no such address").non_retryable()]);
    let error = go(&flows, &token).await;
    assert!(matches!(&error, Err(FlowError::NotSent { outlet, .. }) if outlet == "mail"), "{error:?}");
    go(&flows, &token).await.unwrap();
}

/// E7: a sealed step that writes consumes its token, so its message is stored until it is delivered.
#[tokio::test]
async fn a_sealed_step_with_writes_stores_its_message() {
    let both = |cx: Cx| async move {
        cx.use_strategy("sealed")?;
        cx.kv("test").increment("sum", 1)?;
        mails(cx).await
    };
    for strategy in ["sealed", "handle"] {
        let workflow = walk("both", &["both", "nothing"]).build().unwrap();
        let engine =
            kit::start(|builder| office(builder).workflow(workflow).action("both", both)).await.unwrap();
        let post = Post::default();
        let flows = with_post(&engine, strategy, &post);
        let token = begun(&flows, "both").await;
        post.fail(vec![OutletError::new("busy"); 4]);
        let answer = go(&flows, &token).await.unwrap();
        assert_eq!(
            (answer.strategy.as_deref(), sum(&engine).await),
            (Some("sealed"), json!(1)),
            "{strategy}"
        );
        assert_eq!(go(&flows, &token).await, Err(FlowError::Gone), "{strategy}");
        engine.settle().await;
        assert_eq!(post.sent().len(), 1, "{strategy}");
        engine.advance(Duration::from_secs(300)).await;
        let sent = post.sent();
        assert!(
            sent.len() == 5 && sent.iter().all(|message| *message == sent[0]),
            "{strategy}: {}",
            sent.len()
        );
        assert_eq!(flows.show(&answer.token.unwrap()).await.unwrap().status, Status::Waiting);
        assert_eq!(go(&flows, &post.token()).await.unwrap().status, Status::Completed);
    }
}

/// E7, E8: a delivered token is valid for its ttl; a ttl of zero is refused.
#[tokio::test]
async fn a_delivered_token_is_valid_for_its_ttl() {
    let sends = |cx: Cx| async move {
        let ttl = Duration::from_secs(cx.payload().as_u64().unwrap());
        cx.send_out(Outgoing::new("mail", "ann").ttl(ttl))
    };
    for strategy in ["sealed", "handle"] {
        let workflow = walk("short", &["sends", "nothing"]).build().unwrap();
        let engine =
            kit::start(|builder| office(builder).workflow(workflow).action("sends", sends)).await.unwrap();
        let post = Post::default();
        let flows = with_post(&engine, strategy, &post);
        let token = begun(&flows, "short").await;
        let zero = soon(flows.resume(Resume::new(&token).input(&0))).await;
        assert!(matches!(zero, Err(FlowError::Failed(_))), "{zero:?}");
        let answer = soon(flows.resume(Resume::new(&token).input(&5))).await.unwrap();
        assert_eq!(answer.expires_at, Some(engine.now().plus_ms(5_000)), "{strategy}");
        engine.settle().await;
        engine.clock().set(engine.now().plus_ms(5_000));
        assert_eq!(go(&flows, &post.token()).await, Err(FlowError::Gone), "{strategy}");
        assert_eq!(go(&flows, &answer.token.unwrap()).await, Err(FlowError::Gone), "{strategy}");
    }
}

/// E7: an action of a durable run sends a link to the wait that its transition leads to, bound to outcomes.
#[tokio::test]
async fn an_action_of_a_durable_run_sends_a_link() {
    let ask = |cx: Cx| async move { cx.send_out(Outgoing::new("mail", "boss").outcome("YES")) };
    let boss = Spec::new("boss")
        .signal("YES")
        .signal("NO")
        .step("new")
        .step("asked")
        .end("yes")
        .end("no")
        .transition(Transition::new("ask", "new", "asked").action("ask"))
        .on_signal("y", "asked", "YES", "yes")
        .on_signal("n", "asked", "NO", "no")
        .build()
        .unwrap();
    let engine = kit::start(|builder| builder.workflow(boss).action("ask", ask)).await.unwrap();
    let post = Post::default();
    let flows = with_post(&engine, "durable", &post);
    let begun = begin(&flows, "boss").await;
    assert!(begun.token.unwrap().starts_with("watch."));
    engine.settle().await;
    let [message] = &post.sent()[..] else { panic!("it is sent once") };
    assert_eq!((&message.outcomes[..], message.place.as_str()), (&[Name::from("YES")][..], "asked"));
    let no = soon(flows.resume(Resume::new(&message.token).outcome("NO"))).await;
    assert!(matches!(no, Err(FlowError::Outcome { .. })), "{no:?}");
    assert_eq!(go(&flows, &message.token).await.unwrap().status, Status::Completed);
    assert_eq!(history_actions(&engine, begun.flow).await.last().unwrap(), "YES");
    // A run that was not started as a flow does the same.
    let run = engine.start(Start::new("boss")).await.unwrap();
    engine.settle().await;
    assert_eq!(post.sent().len(), 2);
    assert_eq!(go(&flows, &post.token()).await.unwrap().flow, run.id());
}

/// E7: the message of a flow is stored sealed until it is delivered.
#[tokio::test]
async fn an_undelivered_message_is_stored_sealed() {
    let engine = kit::start(office).await.unwrap();
    let post = Post::default();
    post.fail([OutletError::new("busy")]);
    let flows = with_post(&engine, "handle", &post);
    mailed(&flows).await;
    engine.settle().await;
    let kept = handles(&flows).await[0].delivery.clone().unwrap();
    let is_in = |needle: &str| kept.windows(needle.len()).any(|part| part == needle.as_bytes());
    let token = post.token();
    assert!(!is_in(token.split_once('.').unwrap().1) && !is_in("ann@example.org") && !is_in("confirm"));
}

#[tokio::test]
async fn the_doctor_reports_unsent_messages() {
    let (store, clock) = ground().await;
    let (first, tasks) = start_killable(store.clone(), &clock, office).await;
    let post = Post::default();
    let flows = with_post(&first, "handle", &post);
    let token = begun(&flows, "confirm").await;
    // The sending process crashes; the message is committed all the same.
    tasks.kill().await;
    go(&flows, &token).await.unwrap();
    let (second, _tasks) = start_killable(store, &clock, office).await;
    second.advance(Duration::from_secs(180)).await;
    assert_eq!(post.sent().len(), 0);
    let diagnosis = second.diagnose(&Diagnose::default()).await.unwrap();
    let unsent: Vec<_> =
        diagnosis.findings.iter().filter(|finding| finding.kind == FindingKind::MessagesUnsent).collect();
    assert_eq!(unsent.len(), 1, "{diagnosis:#?}");
    assert!(unsent[0].what.contains("`confirm`") && !diagnosis.is_healthy(), "{unsent:?}");
}
