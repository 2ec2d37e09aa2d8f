//! Tests of the guarantees of stepwell-core, one module per topic.

mod bad_definition;
mod branching;
mod definition;
mod dispatch;
mod driver;
mod expr;
mod forks;
mod formats;
mod graph;
mod history;
mod migrate;
mod moved;
mod properties;
mod random;
mod restore;
mod retried;
mod schema;
mod shadows;
mod steps;
mod template;
