//! Flows of workflow documents: the strategy in the document, messages and errors as steps.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use stepwell::catalogue::Publish;
use stepwell::core::{Definition, WorkflowSource};
use stepwell::flow::{FlowError, Flows, FlowsBuilder, Message, OutletError, Resume};
use stepwell::store::Status;
use stepwell::testing::TestEngine;
use stepwell::{CatalogueError, Engine, EngineError, Start};

use super::{begin, begun, go, handles, three};
use crate::kit::{self, audit, ground, soon};

fn workflow(text: &str) -> Definition {
    WorkflowSource::read(text, None).unwrap_or_else(|error| panic!("{error}")).definition().clone()
}

/// An outlet that keeps its messages.
#[derive(Clone, Default)]
struct Post(Arc<Mutex<Vec<Message>>>);

impl Post {
    fn on(&self, flows: FlowsBuilder) -> FlowsBuilder {
        let post = self.0.clone();
        flows.outlet("mail", move |message| {
            post.lock().unwrap().push(message);
            std::future::ready(Ok::<(), OutletError>(()))
        })
    }

    fn sent(&self) -> Vec<Message> {
        self.0.lock().unwrap().clone()
    }
}

fn built(engine: &Engine, default: &str) -> Flows {
    three(engine).default_strategy(default).build().unwrap()
}

const LOGIN: &str = "
name: login
strategy: sealed
steps:
  - id: password
    type: human.task
    form: { type: object, required: [password], properties: { password: { type: string } } }
  - id: check
    type: control.fail
    condition: vars.password.password != 'secret'
    errors: [{ pointer: /password, message: { $expr: \"'`' & vars.password.password & '` is wrong'\" } }]
  - { id: in, type: control.return, value: welcome }
";

/// E9: a step of a document rejects an answer: the errors name the field, and the token stays valid.
#[tokio::test]
async fn a_document_rejects_an_answer_with_field_errors() {
    for strategy in ["sealed", "handle", "durable"] {
        let login = workflow(&LOGIN.replace("strategy: sealed", &format!("strategy: {strategy}")));
        let engine = kit::start(|builder| builder.workflow(login)).await.unwrap();
        let flows = built(&engine, "durable");
        let token = begun(&flows, "login").await;
        assert!(token.starts_with(&format!("{strategy}.")), "{token}");
        for _ in 0..2 {
            let wrong = Resume::new(&token).input(&json!({"password": "guess"}));
            let answer = soon(flows.resume(wrong)).await.unwrap();
            let [error] = &answer.errors[..] else { panic!("{strategy}: {answer:?}") };
            assert_eq!((error.pointer.as_str(), error.message.as_str()), ("/password", "`guess` is wrong"));
            assert_eq!((answer.token.as_ref(), answer.status), (Some(&token), Status::Waiting), "{strategy}");
        }
        let right = Resume::new(&token).input(&json!({"password": "secret"}));
        let ended = soon(flows.resume(right)).await.unwrap();
        assert_eq!((ended.status, ended.result), (Status::Completed, Some(json!("welcome"))), "{strategy}");
    }
}

/// G11: the strategy is the one of the configuration, else the one of the document, else the default.
#[tokio::test]
async fn the_strategy_comes_from_configuration_document_or_default() {
    let plain = LOGIN.replace("strategy: sealed\n", "").replace("name: login", "name: plain");
    let other = LOGIN.replace("name: login", "name: other");
    let build = |builder: stepwell::Builder| {
        builder.workflow(workflow(LOGIN)).workflow(workflow(&plain)).workflow(workflow(&other))
    };
    let engine = kit::start(build).await.unwrap();
    let flows = three(&engine).default_strategy("handle").workflow_strategy("other", "durable");
    let flows = flows.build().unwrap();
    for (workflow, strategy) in [("login", "sealed"), ("plain", "handle"), ("other", "durable")] {
        assert_eq!(begin(&flows, workflow).await.strategy.as_deref(), Some(strategy), "{workflow}");
    }
}

/// G11: a workflow whose state is kept in a token cannot be started as a run.
#[tokio::test]
async fn a_sealed_workflow_is_not_started_as_a_run() {
    let call = "name: call\nsteps: [{ id: call, type: workflow.call, workflow: login }]";
    let build = |builder: stepwell::Builder| builder.workflow(workflow(LOGIN)).workflow(workflow(call));
    for has_flows in [false, true] {
        let engine = kit::start(build).await.unwrap();
        let _flows = has_flows.then(|| built(&engine, "durable"));
        let refused = engine.start(Start::new("login")).await.unwrap_err();
        assert!(
            matches!(&refused, EngineError::NotARun { strategy, .. } if strategy == "sealed"),
            "{refused}"
        );
        let run = engine.start(Start::new("call")).await.unwrap();
        engine.settle().await;
        let stopped = run.view().await.unwrap().ledger.stopped.unwrap().error;
        assert!(stopped.message.contains("POST /v1/flows/login"), "{stopped:?}");
    }
    let engine = kit::start(build).await.unwrap();
    let _flows = three(&engine).default_strategy("durable").workflow_strategy("login", "durable").build();
    assert!(engine.start(Start::new("login")).await.is_ok(), "the configuration makes it a run");
}

/// A1: a flow that pauses inside a loop over a long list keeps the list in its token or row.
#[tokio::test]
async fn a_flow_keeps_the_long_list_of_its_loop() {
    let each = "
name: each
steps:
  - id: each
    type: control.forEach
    items: { $expr: payload.items }
    body: [{ id: ask, type: human.task, title: { $expr: item } }]
  - { id: done, type: control.return, value: done }
";
    let items: Vec<String> = (0..4).map(|number| format!("{number}{}", "x".repeat(1_000))).collect();
    for strategy in ["sealed", "handle", "durable"] {
        let engine = kit::start(|builder| builder.workflow(workflow(each))).await.unwrap();
        let flows = built(&engine, strategy);
        let start = Start::new("each").input(&json!({ "items": items }));
        let mut answer = soon(flows.start(start)).await.unwrap();
        for item in &items {
            assert_eq!(answer.waits[0].prompt, Some(json!({ "title": item })), "{strategy}");
            answer = go(&flows, &answer.token.unwrap()).await.unwrap();
        }
        assert_eq!(answer.result, Some(json!("done")), "{strategy}");
    }
}

const INVITE: &str = "
name: invite
steps:
  - id: send
    type: action.call
    action: flow.sendOut
    input: { outlet: mail, to: { $expr: payload.mail }, ttl: 1h, data: { n: 1 } }
  - { id: accept, type: human.task, answerers: [user:ann] }
  - { id: done, type: control.return, value: { $expr: vars.send.sent } }
";

/// E7: a step of a document sends the token; the caller's own token only shows the flow.
#[tokio::test]
async fn a_step_of_a_document_sends_the_token() {
    for strategy in ["sealed", "handle", "durable"] {
        let engine = kit::start(|builder| builder.workflow(workflow(INVITE))).await.unwrap();
        let post = Post::default();
        let flows = post.on(three(&engine)).default_strategy(strategy).build().unwrap();
        let start = Start::new("invite").input(&json!({"mail": "ann@example.org"}));
        let watching = soon(flows.start(start)).await.unwrap().token.unwrap();
        assert_eq!(go(&flows, &watching).await, Err(FlowError::WatchOnly), "{strategy}");
        engine.settle().await;
        let [message] = &post.sent()[..] else { panic!("{strategy}: one message") };
        assert_eq!((message.to.as_str(), message.place.as_str()), ("ann@example.org", "accept"));
        let ended = go(&flows, &message.token).await.unwrap();
        assert_eq!((ended.status, ended.result), (Status::Completed, Some(json!("mail"))), "{strategy}");
    }
}

/// G2: a pause that names who may answer gives the starter no token that answers.
#[tokio::test]
async fn a_flow_whose_pause_names_answerers_needs_a_message() {
    let ask = "name: ask\nsteps: [{ id: ask, type: human.task, answerers: [role:boss] }]";
    for strategy in ["sealed", "handle"] {
        let engine = kit::start(|builder| builder.workflow(workflow(ask))).await.unwrap();
        let flows = built(&engine, strategy);
        match soon(flows.start(Start::new("ask"))).await {
            Err(FlowError::Failed(failure)) => assert_eq!(failure.code, "answerersNeedMessage"),
            other => panic!("{strategy}: {other:?}"),
        }
        assert_eq!(handles(&flows).await, []);
    }
}

/// G11: an unknown strategy or outlet fails the step for good, and the token stays valid.
#[tokio::test]
async fn an_unknown_outlet_or_strategy_fails_the_step() {
    let step = |action: &str, field: &str| {
        format!(
            "
name: go
steps:
  - {{ id: first, type: human.task }}
  - {{ id: step, type: action.call, action: {action}, input: {{ {field}: {{ $expr: \"'no' & 'where'\" }}, TO }} }}
  - {{ id: second, type: human.task }}
"
        )
    };
    let send = step("flow.sendOut", "outlet").replace("TO", "to: ann");
    let change = step("flow.useStrategy", "strategy").replace(", TO", "");
    for (text, code) in [(send, "unknownOutlet"), (change, "unknownStrategy")] {
        for strategy in ["sealed", "handle", "durable"] {
            let engine = kit::start(|builder| builder.workflow(workflow(&text))).await.unwrap();
            let flows = built(&engine, strategy);
            let token = begun(&flows, "go").await;
            let failure = match go(&flows, &token).await {
                Err(FlowError::Failed(failure)) => failure,
                Ok(answer) => answer.error.unwrap(),
                other => panic!("{other:?}"),
            };
            assert_eq!((failure.code.as_str(), failure.is_final), (code, true), "{strategy}: {failure}");
            assert!(failure.message.contains("`nowhere`"), "{failure}");
        }
    }
}

/// G11: publishing refuses unknown strategies and outlets, and parts that the strategy does not allow.
#[tokio::test]
async fn publishing_checks_strategies_and_outlets() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let post = Post::default();
    let _flows = post.on(three(&engine)).default_strategy("durable").build().unwrap();
    let bad = "
name: bad
strategy: nowhere
steps:
  - { id: change, type: action.call, action: flow.useStrategy, input: { strategy: elsewhere } }
  - { id: send, type: action.call, action: flow.sendOut, input: { outlet: pigeon, to: ann } }
  - { id: ask, type: human.task }
";
    let sleepy = "name: sleepy\nstrategy: handle\nsteps:\n  - { id: nap, type: wait.sleep, for: 1m }\n";
    let silent = "name: silent\nsteps:\n  - { id: send, type: action.call, action: flow.sendOut, input: { outlet: mail, to: ann } }\n";
    let found =
        async |name: &str, text: &str| match engine.catalogue().publish(name, Publish::text(text)).await {
            Err(CatalogueError::Wrong { problems }) => {
                problems.into_iter().map(|one| (one.code, one.at.line)).collect::<Vec<_>>()
            }
            other => panic!("{name}: {other:?}"),
        };
    let expected = [("unknownStrategy", 3), ("unknownStrategy", 5), ("unknownOutlet", 6)];
    assert_eq!(found("bad", bad).await, expected.map(|(code, line)| (code.to_owned(), line)));
    assert_eq!(found("sleepy", sleepy).await, [("needsDurableRun".to_owned(), 4)]);
    assert_eq!(found("silent", silent).await, [("noWait".to_owned(), 3)]);
    let reserved = LOGIN.replace("name: login", "name: resume");
    assert_eq!(found("resume", &reserved).await, [("badName".to_owned(), 2)]);
}

/// E7: a process without the outlet leaves the message to the others, however long that takes.
#[tokio::test]
async fn a_process_without_the_outlet_gives_no_message_up() {
    let (store, clock) = ground().await;
    let build = |builder: stepwell::Builder| builder.workflow(workflow(INVITE));
    let one = TestEngine::start_on(store.clone(), clock.clone(), build).await.unwrap();
    let post = Post::default();
    let ring = super::ring();
    let on = |engine: &Engine| {
        let flows = Flows::builder(engine, ring.clone()).strategy("handle", stepwell::flow::Handle::new());
        flows.default_strategy("handle")
    };
    let flows = post.on(on(&one)).without_delivery().build().unwrap();
    let input = json!({"mail": "ann@example.org"});
    soon(flows.start(Start::new("invite").input(&input))).await.unwrap();
    let two = TestEngine::start_on(store.clone(), clock.clone(), build).await.unwrap();
    let _none = on(&two).build().unwrap();
    two.advance(Duration::from_secs(3_000)).await;
    assert_eq!(
        (post.sent().len(), audit(&two).await.iter().any(|(_, row)| row.operation == "outlet.failed")),
        (0, false)
    );
    let three = TestEngine::start_on(store, clock, build).await.unwrap();
    let _all = post.on(on(&three)).build().unwrap();
    three.advance(Duration::from_secs(400)).await;
    assert_eq!(post.sent().len(), 1);
}

/// B14: a stateless execution cannot send messages or change the strategy.
#[tokio::test]
async fn a_stateless_execution_sends_nothing() {
    let engine = kit::start(|builder| builder.workflow(workflow(INVITE))).await.unwrap();
    let post = Post::default();
    let _flows = post.on(three(&engine)).default_strategy("durable").build().unwrap();
    let start = Start::new("invite").input(&json!({"mail": "ann@example.org"}));
    let result = engine.run_stateless(start).await.unwrap();
    assert_eq!(result.error.map(|error| error.code), Some("stateless".to_owned()));
    assert_eq!(post.sent().len(), 0);
}
