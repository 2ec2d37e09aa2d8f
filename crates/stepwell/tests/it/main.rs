//! Integration tests of the engine, on the store that `STEPWELL_TEST_STORE` names: `memory`, `sqlite` or `postgres`.
//! `cargo xtask test` runs them on all three. Tests of cron patterns use no store and run once.
#![allow(clippy::unwrap_used)]

mod bulk;
mod capacity;
mod catalogue;
mod children;
mod commit_in;
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
mod outage;
mod ownership;
mod people;
mod policies;
mod previews;
mod remote;
mod retention;
mod run_ids;
mod run_limits;
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
mod unreadable;
mod workflows;
mod world;
mod written;
