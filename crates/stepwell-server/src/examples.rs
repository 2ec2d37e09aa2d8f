//! The example workflows that `stepwell dev` loads.

macro_rules! examples {
    ($($name:literal in $file:literal),* $(,)?) => {
        /// Name and source of each example workflow.
        pub(crate) const EXAMPLES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../examples/workflows/", $file)))),*];
    };
}

examples! {
    "expense-approval" in "approval.yaml",
    "assistant-draft" in "assistant-draft.yaml",
    "collection" in "collection.yaml",
    "cursor-sync" in "cursor-sync.yaml",
    "dunning" in "dunning.yaml",
    "fan-out-report" in "fan-out-report.yaml",
    "incident" in "incident.yaml",
    "invite-team" in "invite-team.yaml",
    "link-setup" in "link-setup.yaml",
    "onboarding" in "onboarding.yaml",
    "order" in "order.yaml",
    "provisioning" in "provisioning.yaml",
    "task-mirror" in "task-mirror.yaml",
    "tour" in "tour.yaml",
}
