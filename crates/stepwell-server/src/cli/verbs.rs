//! Which verbs there are, and which operation of the API each of them is.

/// A verb that is an operation of the API: its arguments are the operation's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verb {
    pub(crate) noun: &'static str,
    pub(crate) verb: &'static str,
    pub(crate) operation: &'static str,
    /// What of a row is shown in a table; everything if there is nothing here.
    pub(crate) columns: &'static [&'static str],
    /// Somebody at a terminal is asked before it is done.
    pub(crate) asks: bool,
    /// It may take a while: somebody at a terminal is shown that it goes on.
    pub(crate) is_long: bool,
}

const fn verb(noun: &'static str, verb: &'static str, operation: &'static str) -> Verb {
    Verb { noun, verb, operation, columns: &[], asks: false, is_long: false }
}

impl Verb {
    const fn columns(mut self, columns: &'static [&'static str]) -> Self {
        self.columns = columns;
        self
    }

    const fn long(mut self) -> Self {
        self.is_long = true;
        self
    }

    const fn asks(mut self) -> Self {
        self.asks = true;
        self
    }
}

/// What each noun is about.
pub(crate) const NOUNS: &[(&str, &str)] = &[
    ("action", "Actions that steps call, here or at workers elsewhere"),
    ("apikey", "Keys with which programs ask the server"),
    ("audit", "Who did what"),
    ("event", "Events, and what they are called"),
    ("flow", "Flows that rest in tokens, behind handles or as runs"),
    ("handle", "Where flows rest, one row each"),
    ("key", "The keys that seal tokens"),
    ("kv", "The key-value store"),
    ("link", "Links between things"),
    ("run", "Runs of workflows"),
    ("schedule", "Workflows that start by the clock"),
    ("signal", "Signals to runs"),
    ("state", "Slots that runs share"),
    ("task", "What workers elsewhere are to do"),
    ("tenant", "The tenants of the server"),
    ("trigger", "What starts workflows, and why something did not"),
    ("wait", "What runs wait for"),
];

/// The verbs.
pub(crate) const VERBS: &[Verb] = &[
    verb("action", "list", "listActions").columns(&["name", "remote", "version", "group", "about"]),
    verb("action", "show", "showAction"),
    verb("action", "put", "putAction"),
    verb("action", "delete", "deleteAction").asks(),
    verb("apikey", "list", "listApiKeys").columns(&["id", "name", "permissions", "expiresAt", "createdAt"]),
    verb("apikey", "create", "createApiKey"),
    verb("apikey", "rotate", "rotateApiKey"),
    verb("apikey", "revoke", "revokeApiKey").asks(),
    verb("audit", "list", "listAudit").columns(&["at", "operation", "subject", "actor", "run"]),
    verb("audit", "seals", "listAuditSeals"),
    verb("audit", "verify", "verifyAudit").long(),
    verb("event", "show", "showEvent"),
    verb("event", "types", "listEventTypes").columns(&["name", "about", "correlation"]),
    verb("event", "show-type", "showEventType"),
    verb("event", "put-type", "putEventType"),
    verb("event", "delete-type", "deleteEventType").asks(),
    verb("flow", "start", "startFlow"),
    verb("handle", "list", "listHandles"),
    verb("handle", "revoke", "revokeHandles").asks(),
    verb("handle", "cleanup", "cleanUpHandles").long(),
    verb("key", "list", "listSealingKeys"),
    verb("kv", "namespaces", "listKeyNamespaces"),
    verb("kv", "list", "listKeys").columns(&["key", "value", "revision", "expiresAt", "updatedAt"]),
    verb("kv", "get", "getKey"),
    verb("kv", "set", "setKey"),
    verb("kv", "delete", "deleteKey").asks(),
    verb("kv", "increment", "incrementKey"),
    verb("kv", "change", "changeData"),
    verb("kv", "watch", "watchKey"),
    verb("link", "namespaces", "listLinkNamespaces"),
    verb("link", "list", "listLinks"),
    verb("link", "put", "putLink"),
    verb("link", "delete", "deleteLinks").asks(),
    verb("link", "lookup", "lookUpLinks"),
    verb("link", "types", "listLinkTypes"),
    verb("link", "relations", "listLinkRelations"),
    verb("run", "start", "startRun"),
    verb("run", "list", "listRuns").columns(&["id", "workflow", "status", "version", "places", "updatedAt"]),
    verb("run", "show", "showRun"),
    verb("run", "history", "listHistory").columns(&[
        "version",
        "at",
        "entry.action",
        "entry.exited",
        "entry.entered",
    ]),
    verb("run", "version", "showRunVersion"),
    verb("run", "diff", "diffRun"),
    verb("run", "documents", "listDocuments").columns(&["key", "kind", "tags", "at"]),
    verb("run", "graph", "drawRun"),
    verb("run", "export", "exportRun"),
    verb("run", "retry", "retryRun"),
    verb("run", "dismiss", "dismissRun").asks(),
    verb("run", "cancel", "cancelRun").asks(),
    verb("run", "delete", "deleteRun").asks(),
    verb("run", "suspend", "suspendRun"),
    verb("run", "resume", "resumeRun"),
    verb("run", "patch", "patchRun"),
    verb("run", "move", "moveRun"),
    verb("run", "fork", "forkRun"),
    verb("run", "migrate", "migrateRun"),
    verb("schedule", "list", "listSchedules"),
    verb("schedule", "show", "showSchedule"),
    verb("schedule", "put", "putSchedule"),
    verb("schedule", "delete", "deleteSchedule").asks(),
    verb("signal", "send", "signalRun"),
    verb("state", "list", "listWorkflowSlots"),
    verb("state", "list-of-run", "listExecutionSlots"),
    verb("state", "get", "getWorkflowSlot"),
    verb("state", "set", "setWorkflowSlot"),
    verb("state", "delete", "deleteWorkflowSlot").asks(),
    verb("state", "increment", "incrementWorkflowSlot"),
    verb("state", "merge", "mergeWorkflowSlot"),
    verb("state", "append", "appendWorkflowSlot"),
    verb("state", "remove-first", "removeFirstWorkflowSlot"),
    verb("state", "remove-last", "removeLastWorkflowSlot"),
    verb("state", "watch", "watchWorkflowSlot"),
    verb("state", "get-of-run", "getExecutionSlot"),
    verb("state", "set-of-run", "setExecutionSlot"),
    verb("state", "delete-of-run", "deleteExecutionSlot").asks(),
    verb("state", "increment-of-run", "incrementExecutionSlot"),
    verb("state", "merge-of-run", "mergeExecutionSlot"),
    verb("state", "append-of-run", "appendExecutionSlot"),
    verb("state", "remove-first-of-run", "removeFirstExecutionSlot"),
    verb("state", "remove-last-of-run", "removeLastExecutionSlot"),
    verb("state", "watch-of-run", "watchExecutionSlot"),
    verb("task", "list", "listTasks").columns(&["id", "action", "state", "place", "since", "worker"]),
    verb("task", "release", "releaseTask"),
    verb("tenant", "list", "listTenants"),
    verb("tenant", "create", "createTenant"),
    verb("tenant", "show", "showTenant"),
    verb("tenant", "update", "updateTenant"),
    verb("tenant", "delete", "deleteTenant").asks(),
    verb("tenant", "create-key", "createTenantApiKey"),
    verb("trigger", "list", "listTriggers"),
    verb("trigger", "log", "listTriggerLog"),
    verb("wait", "list", "listWaits").columns(&["run", "place", "since", "until", "detail.signals"]),
    verb("workflow", "list", "listWorkflows"),
    verb("workflow", "show", "showWorkflow"),
    verb("workflow", "versions", "listVersions"),
    verb("workflow", "version", "showVersion"),
    verb("workflow", "publish", "publishVersion"),
    verb("workflow", "show-draft", "showDraft"),
    verb("workflow", "put-draft", "putDraft"),
    verb("workflow", "delete-draft", "deleteDraft").asks(),
    verb("workflow", "publish-draft", "publishDraft"),
    verb("workflow", "activate", "activateVersion"),
    verb("workflow", "deactivate", "deactivateWorkflow").asks(),
    verb("workflow", "archive", "archiveWorkflow").asks(),
    verb("workflow", "restore", "restoreWorkflow"),
    verb("workflow", "changes", "diffVersions"),
    verb("workflow", "view", "drawWorkflow"),
    verb("workflow", "export", "exportWorkflows").long(),
    verb("workflow", "import", "importWorkflows").long(),
];
