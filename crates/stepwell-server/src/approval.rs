//! The example workflow: an order that two people look at side by side, and a third decides on.

use serde_json::{Value, json};
use stepwell::core::graph::OpenWait;
use stepwell::core::spec::{Place, Quorum, Transition, Wait};
use stepwell::core::{Definition, Problems, Spec};

/// The workflow.
pub(crate) fn definition() -> Result<Definition, Problems> {
    let note = json!({"type": "object", "required": ["by"], "properties": {"by": {"type": "string"}}});
    let verdict = json!({
        "type": "object",
        "required": ["approved", "by"],
        "properties": {"approved": {"type": "boolean"}, "by": {"type": "string"}},
    });
    let decide = Wait {
        signal: Some("DECIDE".into()),
        form: Some(verdict.clone()),
        answerers: vec!["role:manager".to_owned()],
        ..Wait::default()
    };
    Spec::new("approval")
        .step("draft")
        .fork("checks", ["budget", "legal"])
        .step("budget")
        .step("legal")
        .join("checked", Quorum::All, ["budget", "legal"])
        .place("decision", Place::Wait(decide))
        .end_with("approved", json!({"order": {"$expr": "context.order"}, "approved": true}))
        .end_with("rejected", json!({"order": {"$expr": "context.order"}, "approved": false}))
        .signal_with("SUBMIT", note.clone())
        .signal_with("BUDGET_OK", note.clone())
        .signal_with("LEGAL_OK", note)
        .signal_with("DECIDE", verdict)
        .on_signal("submit", "draft", "SUBMIT", "checks")
        .on_signal("budget_ok", "budget", "BUDGET_OK", "checked")
        .on_signal("legal_ok", "legal", "LEGAL_OK", "checked")
        .auto("both_ok", "checked", "decision")
        .transition(Transition::new("approve", "decision", "approved").when("event.approved").action("order"))
        .transition(Transition::new("reject", "decision", "rejected").priority(-1))
        .build()
}

/// What a run begins with.
pub(crate) fn order(number: usize) -> Value {
    json!({"order": format!("PO-{number:04}"), "amount": 1_200 + number})
}

/// What the people in the example answer.
pub(crate) fn answer(wait: &OpenWait) -> Option<(&str, Value)> {
    let signal = wait.signals.first()?.as_str();
    let payload = match signal {
        "SUBMIT" => json!({"by": "ann@example.com"}),
        "BUDGET_OK" => json!({"by": "ben@example.com"}),
        "LEGAL_OK" => json!({"by": "lea@example.com"}),
        _ => json!({"by": "mia@example.com", "approved": true}),
    };
    Some((signal, payload))
}
