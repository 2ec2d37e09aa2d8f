//! Compares the expression dialect with another implementation of JSONata; see `tests/agree.rs`.
