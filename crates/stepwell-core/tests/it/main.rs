//! What stepwell-core promises, promise by promise.

mod bad_definition;
mod definition;
mod dispatch;
mod driver;
mod expr;
mod forks;
mod graph;
mod history;
mod properties;
mod random;
mod restore;
mod schema;
mod template;
