//! Actions over the API: what steps can call.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use stepwell::{ActionError, Cx};

use crate::desk::Desk;

#[derive(Deserialize, Serialize, JsonSchema)]
struct Order {
    /// How many.
    count: u32,
}

#[tokio::test]
async fn actions_are_listed_with_the_schemas_of_what_they_take_and_give() {
    let order = |_: Cx, order: Order| async move { Ok::<_, ActionError>(order) };
    let desk = Desk::with(|engine| engine.described("shop.order", "Orders something.", order)).await;
    let listed = desk.get("/v1/actions").await.json();
    let items = listed["items"].as_array().unwrap();
    let found = items.iter().find(|item| item["name"] == "shop.order").unwrap();
    assert_eq!((&found["about"], &found["group"]), (&json!("Orders something."), &json!("shop")));
    assert_eq!(found["input"]["properties"]["count"]["description"], "How many.");
    assert_eq!(found["output"]["required"], json!(["count"]));
    assert_eq!(found["permission"], json!(null));
    let own = items.iter().find(|item| item["name"] == "store.set").unwrap();
    assert_eq!(own["hasSideEffects"], true, "{own}");
}
