//! Building blocks of the Stepwell server, also usable by programs that embed the engine.
//!
//! [`api`] is the HTTP API, and [`serve`] accepts its connections. [`routes`] are routes that a program mounts in its
//! own `axum` router. [`outlets`] deliver the tokens of flows by mail and webhook. [`actions`] let workflows send HTTP
//! requests and mail. [`telemetry`] exports metrics and traces.

pub mod actions;
pub mod api;
mod escape;
pub mod outlets;
pub mod routes;
pub mod serve;
pub mod telemetry;
