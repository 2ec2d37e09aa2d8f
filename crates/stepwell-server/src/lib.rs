//! What a server of flows is made of: [routes] that programs mount in their own `axum` router, and [outlets] that reach
//! people and programs.

mod escape;
pub mod outlets;
pub mod routes;
