//! Flows start, resume and end with the same definition under every strategy.

use serde_json::json;
use stepwell::Start;
use stepwell::flow::{FlowError, Resume};
use stepwell::store::Status;

use super::{check, flows, login, verify};
use crate::kit::{self, soon};

/// E1, E2, E9: invalid input leaves the flow where it is and reports errors by field; the token stays valid.
#[tokio::test]
async fn a_login_resumes_from_pause_to_pause() {
    for strategy in ["sealed", "handle"] {
        let build = |builder: stepwell::Builder| {
            builder.workflow(login()).action("check", check).action("verify", verify)
        };
        let engine = kit::start(build).await.unwrap();
        let flows = flows(&engine, strategy);
        let begun = soon(flows.start(Start::new("login").input(&json!({})))).await.unwrap();
        assert_eq!((begun.status, begun.strategy.as_deref()), (Status::Waiting, Some(strategy)));
        assert_eq!(begun.waits[0].place, "password");
        let token = begun.token.unwrap();
        assert!(token.starts_with(&format!("{strategy}.")), "{token}");

        let missing = Resume::new(&token).input(&json!({"user": "ann"}));
        let missing = soon(flows.resume(missing)).await.unwrap();
        assert_eq!(missing.token.as_ref(), Some(&token));
        assert_eq!(missing.errors.len(), 1, "{:?}", missing.errors);

        let wrong = Resume::new(&token).input(&json!({"user": "ann", "password": "guess"}));
        let wrong = soon(flows.resume(wrong)).await.unwrap();
        assert_eq!(wrong.errors[0].pointer, "/password");
        assert_eq!(wrong.waits[0].place, "password");

        let right = Resume::new(&token).input(&json!({"user": "ann", "password": "secret"}));
        let asked = soon(flows.resume(right.clone())).await.unwrap();
        assert_eq!(asked.waits[0].place, "code");
        let second = asked.token.unwrap();
        assert_ne!(second, token);

        let again = soon(flows.resume(right)).await;
        match strategy {
            "sealed" => assert!(again.is_ok(), "a sealed token works until it expires"),
            _ => assert_eq!(again, Err(FlowError::Gone), "a handle is used up"),
        }
        let code = Resume::new(&second).input(&json!({"code": "123456"}));
        let ended = soon(flows.resume(code)).await.unwrap();
        assert_eq!((ended.status, ended.token), (Status::Completed, None));
        assert_eq!(ended.result, Some(json!({"user": "ann"})));
    }
}
