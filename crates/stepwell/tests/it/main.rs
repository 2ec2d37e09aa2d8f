//! The engine, promise by promise, on the memory store and on SQLite.
#![allow(clippy::unwrap_used)]

mod smoke;
mod children;
mod kit;
mod timers;
mod documents;
mod operators;
mod migrating;
mod starting;
mod retention;
mod stateless;
mod cron;
mod capacity;
mod crowd;
mod failures;
mod ownership;
mod signals;
mod steps;
mod timeouts;
mod world;
