//! Reads any text as a document: nothing may panic, overflow the stack or run away, and what is read is the same in YAML and JSON.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stepwell_core::document::{self, Document};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(value) = document::to_json(text) {
        let again = document::to_json(&document::yaml(&value)).expect("what was written can be read");
        assert_eq!(again.to_string(), value.to_string());
    }
    if let Ok(read) = Document::read(text, Some("fuzz")) {
        let again = Document::of_value(read.value(), Some("fuzz")).expect("it is the same as JSON");
        assert_eq!(again.definition().hash(), read.definition().hash());
    }
});
