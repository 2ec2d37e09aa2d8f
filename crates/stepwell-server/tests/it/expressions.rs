//! Expressions over the API: their values, and the positions of their errors.

use serde_json::{Value, json};

use crate::test_server::TestServer;

const EVALUATE: &str = "/v1/expressions/evaluate";

#[tokio::test]
async fn an_expression_has_a_value_or_is_undefined() {
    let server = TestServer::open().await;
    let of = async |body: Value| server.post(EVALUATE, &body).await.json();
    let input = json!({"order": {"lines": [{"cents": 5}, {"cents": 7}]}});
    let sum = of(json!({"expression": "$sum(order.lines.cents)", "input": input})).await;
    assert_eq!(sum, json!({"result": 12, "undefined": false}));
    let missing = of(json!({"expression": "order.lnes.cents", "input": input})).await;
    assert_eq!((&missing["undefined"], missing.get("result")), (&json!(true), None));
    assert_eq!(
        (&missing["missing"]["suggestion"], &missing["missing"]["start"]),
        (&json!("lines"), &json!(0)),
        "{missing}"
    );
    assert_eq!(of(json!({"expression": "null"})).await["result"], json!(null));
    assert_eq!(
        of(json!({"expression": "$", "input": null})).await,
        json!({"result": null, "undefined": false})
    );
    let list = of(json!({"expression": "order.lines[0].cents", "input": input, "list": true})).await;
    assert_eq!(list["result"], json!([5]));
    assert_eq!(of(json!({"expression": "$x + 1", "bindings": {"x": 2}})).await["result"], 3);
    let now = of(json!({"expression": "$now()", "now": "2030-01-31T12:00:00Z"})).await;
    assert!(now["result"].as_str().unwrap().starts_with("2030-01-31T12:00:00"), "{now}");
}

#[tokio::test]
async fn a_failing_expression_is_reported_with_its_position() {
    let server = TestServer::open().await;
    let wrong = server.post(EVALUATE, &json!({"expression": "1 +\n  )"})).await.is(422, "badExpression");
    assert_eq!((&wrong["params"]["line"], &wrong["params"]["column"]), (&json!(2), &json!(3)), "{wrong}");
    assert_eq!(wrong["errors"][0]["pointer"], "/expression");
    let kind = server.post(EVALUATE, &json!({"expression": "1 + 'a'"})).await.is(422, "badExpression");
    assert_eq!(
        (&kind["params"]["code"], &kind["params"]["refused"]),
        (&json!("T2002"), &json!(false)),
        "{kind}"
    );
    let refused = server.post(EVALUATE, &json!({"expression": "function($x){$x}(1)"})).await;
    assert_eq!(refused.is(422, "badExpression")["params"]["refused"], true);
    let costly = server.post(EVALUATE, &json!({"expression": "$sum([1..1000000])"})).await;
    assert_eq!(costly.is(422, "badExpression")["params"]["code"], "budget");
    let long = server.post(EVALUATE, &json!({"expression": "1 ".repeat(5_000)})).await;
    assert_eq!(long.is(422, "badExpression")["params"]["code"], "tooLong");
    server.post(EVALUATE, &json!({"expr": "1"})).await.is(400, "badBody");
}
