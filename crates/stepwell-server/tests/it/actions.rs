//! The actions that steps can call, listed over the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use stepwell::{ActionError, Cx};

use crate::test_server::TestServer;

#[derive(Deserialize, Serialize, JsonSchema)]
struct Order {
    /// Number of items to order.
    count: u32,
}

#[tokio::test]
async fn actions_are_listed_with_their_schemas() {
    let order = |_: Cx, order: Order| async move { Ok::<_, ActionError>(order) };
    let server = TestServer::with(|engine| engine.described("shop.order", "Orders something.", order)).await;
    let listed = server.get("/v1/actions").await.json();
    let items = listed["items"].as_array().unwrap();
    let found = items.iter().find(|item| item["name"] == "shop.order").unwrap();
    assert_eq!((&found["about"], &found["group"]), (&json!("Orders something."), &json!("shop")));
    assert_eq!(found["input"]["properties"]["count"]["description"], "Number of items to order.");
    assert_eq!(found["output"]["required"], json!(["count"]));
    assert_eq!(found["permission"], json!(null));
    let own = items.iter().find(|item| item["name"] == "store.set").unwrap();
    assert_eq!(own["hasSideEffects"], true, "{own}");
}
