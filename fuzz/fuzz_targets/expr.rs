//! Parses and evaluates any expression on any JSON value. Nothing may panic, overflow the stack or run without bound.
//!
//! The input is an expression, a zero byte and a JSON text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use stepwell_core::Timestamp;
use stepwell_core::expr::{Budget, Data, Expr};

fuzz_target!(|input: &[u8]| {
    let mut parts = input.splitn(2, |byte| *byte == 0);
    let Ok(source) = std::str::from_utf8(parts.next().unwrap_or_default()) else { return };
    let document: Option<Value> = parts.next().and_then(|text| serde_json::from_slice(text).ok());
    let Ok(expr) = Expr::parse(source) else { return };
    let data = document.as_ref().map_or_else(Data::nothing, Data::new);
    let scope = data.with_now(Timestamp::from_millis(1_700_000_000_000));
    let found = expr.eval(&scope, &mut Budget::default());
    let list = expr.eval_list(&scope, &mut Budget::default());
    assert_eq!(found.is_err(), list.is_err(), "{source}");
    if let Err(error) = &found {
        assert!(error.expr.get(error.span.clone()).is_some());
    }
    if let Ok(None) = found {
        expr.missing(&scope, &mut Budget::default());
    }
});
