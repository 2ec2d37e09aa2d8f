//! Reads any text as a workflow document. Nothing may panic, overflow the stack or run without bound, and YAML and
//! JSON must give the same result.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stepwell_core::document::{self, WorkflowSource};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(value) = document::to_json(text) {
        let again = document::to_json(&document::yaml(&value)).expect("generated YAML can be parsed");
        assert_eq!(again.to_string(), value.to_string());
    }
    if let Ok(read) = WorkflowSource::read(text, Some("fuzz")) {
        let again =
            WorkflowSource::of_value(read.value(), Some("fuzz")).expect("the JSON form is also valid");
        assert_eq!(again.definition().hash(), read.definition().hash());
    }
});
