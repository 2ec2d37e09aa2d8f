//! The engine, promise by promise, on the store that `STEPWELL_TEST_STORE` names: `memory`, `sqlite` or `postgres`.
//! `cargo xtask test` runs them on all three.
#![allow(clippy::unwrap_used)]

mod beside;
mod capacity;
mod catalogue;
mod children;
mod cron;
mod crowd;
mod data;
mod doctor;
mod documents;
mod events;
mod failures;
mod flows;
mod isolation;
mod kit;
mod migrating;
mod observing;
mod operators;
mod ownership;
mod remote;
mod retention;
mod schedules;
mod shadows;
mod signals;
mod simulate;
mod smoke;
mod starting;
mod stateless;
mod steps;
mod timeouts;
mod timers;
mod workflows;
mod world;
mod written;
