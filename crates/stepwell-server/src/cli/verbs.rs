//! The verbs that are single API operations.

/// A verb that calls one API operation, with the arguments of that operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verb {
    pub(crate) noun: &'static str,
    pub(crate) verb: &'static str,
    pub(crate) operation: &'static str,
    /// Columns of the table output, the most important first; empty means all fields.
    pub(crate) columns: &'static [&'static str],
    /// Noun for the rows of a list, in the plural.
    pub(crate) rows: &'static str,
    /// Sentence that is printed after an operation without a response. `{name}` stands for that argument.
    pub(crate) done: &'static str,
    /// Asks for confirmation at a terminal.
    pub(crate) needs_confirmation: bool,
    /// Shows a spinner at a terminal, because the operation may take a while.
    pub(crate) is_long: bool,
}

const fn verb(noun: &'static str, verb: &'static str, operation: &'static str) -> Verb {
    Verb {
        noun,
        verb,
        operation,
        columns: &[],
        rows: "rows",
        done: "Done.",
        needs_confirmation: false,
        is_long: false,
    }
}

impl Verb {
    const fn columns(mut self, columns: &'static [&'static str]) -> Self {
        self.columns = columns;
        self
    }

    const fn rows(mut self, rows: &'static str) -> Self {
        self.rows = rows;
        self
    }

    const fn done(mut self, done: &'static str) -> Self {
        self.done = done;
        self
    }

    const fn long(mut self) -> Self {
        self.is_long = true;
        self
    }

    const fn needs_confirmation(mut self) -> Self {
        self.needs_confirmation = true;
        self
    }
}

/// Help text of each noun.
pub(crate) const NOUNS: &[(&str, &str)] = &[
    ("action", "Actions that steps call, in the server or on remote workers"),
    ("apikey", "API keys for programs"),
    ("audit", "Audit trail and its seals"),
    ("bulk", "Commands on many runs, executed in the background"),
    ("event", "Events and event types"),
    ("flow", "Flows, whose state is kept in sealed tokens, handles or durable runs"),
    ("handle", "Handles, which store the state of flows as rows"),
    ("key", "Keys that seal tokens"),
    ("kv", "Key-value store"),
    ("link", "Links between entities"),
    ("run", "Runs of workflows"),
    ("schedule", "Schedules that start workflows"),
    ("signal", "Signals to runs"),
    ("state", "State slots that runs share"),
    ("task", "Tasks for remote workers"),
    ("tenant", "Tenants of the server"),
    ("token", "Tokens of flows, and answer links to open waits"),
    ("trigger", "Triggers of workflows, and the log of their decisions"),
    ("wait", "Open waits of runs"),
];

// A verb does not list its arguments: they are generated from the parameters and body fields of its
// operation. So the command line cannot differ from the API.
pub(crate) const VERBS: &[Verb] = &[
    verb("action", "list", "listActions")
        .rows("actions")
        .columns(&["name", "remote", "version", "group", "about"]),
    verb("action", "show", "showAction"),
    verb("action", "put", "putAction"),
    verb("action", "delete", "deleteAction").done("Action `{name}` is deleted.").needs_confirmation(),
    verb("apikey", "list", "listApiKeys").rows("API keys").columns(&[
        "id",
        "name",
        "permissions",
        "roles",
        "user",
        "expiresAt",
        "createdAt",
    ]),
    verb("apikey", "create", "createApiKey"),
    verb("apikey", "rotate", "rotateApiKey"),
    verb("apikey", "revoke", "revokeApiKey").done("API key {id} is revoked.").needs_confirmation(),
    verb("audit", "list", "listAudit").rows("rows of the audit trail").columns(&[
        "at",
        "operation",
        "subject",
        "actor",
        "run",
    ]),
    verb("audit", "seals", "listAuditSeals").rows("seals"),
    verb("audit", "verify", "verifyAudit").long(),
    verb("bulk", "list", "listBulk").columns(&[
        "id",
        "command",
        "status",
        "total",
        "done",
        "failed",
        "skipped",
        "startedAt",
    ]),
    verb("bulk", "show", "showBulk"),
    verb("bulk", "results", "listBulkResults").columns(&["run", "outcome", "detail"]),
    verb("bulk", "stop", "cancelBulk"),
    verb("event", "show", "showEvent"),
    verb("event", "types", "listEventTypes").rows("event types").columns(&["name", "about", "correlation"]),
    verb("event", "show-type", "showEventType"),
    verb("event", "put-type", "putEventType"),
    verb("event", "delete-type", "deleteEventType")
        .done("Event type `{name}` is deleted.")
        .needs_confirmation(),
    verb("flow", "start", "startFlow"),
    verb("handle", "list", "listHandles").rows("handles"),
    verb("handle", "revoke", "revokeHandles").needs_confirmation(),
    verb("handle", "cleanup", "cleanUpHandles").long(),
    verb("key", "list", "listSealingKeys").rows("keys"),
    verb("kv", "namespaces", "listKeyNamespaces").rows("namespaces"),
    verb("kv", "list", "listKeys").rows("keys").columns(&[
        "key",
        "value",
        "revision",
        "expiresAt",
        "updatedAt",
    ]),
    verb("kv", "get", "getKey"),
    verb("kv", "set", "setKey"),
    verb("kv", "delete", "deleteKey").done("Key `{key}` of `{namespace}` is deleted.").needs_confirmation(),
    verb("kv", "increment", "incrementKey"),
    verb("kv", "change", "changeData"),
    verb("kv", "watch", "watchKey"),
    verb("link", "namespaces", "listLinkNamespaces").rows("namespaces"),
    verb("link", "list", "listLinks").rows("links"),
    verb("link", "put", "putLink"),
    verb("link", "delete", "deleteLinks").needs_confirmation(),
    verb("link", "lookup", "lookUpLinks").rows("links"),
    verb("link", "types", "listLinkTypes").rows("entity types"),
    verb("link", "relations", "listLinkRelations").rows("relations"),
    verb("run", "start", "startRun"),
    verb("run", "list", "listRuns").rows("runs").columns(&[
        "id",
        "workflow",
        "status",
        "version",
        "places",
        "updatedAt",
    ]),
    verb("run", "find", "findRuns").rows("runs").columns(&[
        "id",
        "workflow",
        "status",
        "version",
        "places",
        "updatedAt",
    ]),
    verb("run", "count", "countRuns").columns(&["status", "count", "more"]),
    verb("run", "show", "showRun"),
    verb("run", "history", "listHistory").rows("checkpoints").columns(&[
        "version",
        "at",
        "entry.action",
        "entry.exited",
        "entry.entered",
    ]),
    verb("run", "timeline", "listTimeline")
        .rows("entries")
        .columns(&["at", "type", "version", "action", "actor"]),
    verb("run", "version", "showRunVersion"),
    verb("run", "diff", "diffRun"),
    verb("run", "documents", "listDocuments").rows("documents").columns(&["key", "kind", "tags", "at"]),
    verb("run", "graph", "drawRun"),
    verb("run", "transitions", "listTransitions").rows("transitions").columns(&[
        "transition",
        "from",
        "to",
        "signal",
        "blockedBy",
    ]),
    verb("run", "stateless", "runStateless"),
    verb("run", "export", "exportRun"),
    verb("run", "retry", "retryRun").done("The failed transition of run {run} is retried."),
    verb("run", "dismiss", "dismissRun")
        .done("The failed signal of run {run} is dropped.")
        .needs_confirmation(),
    verb("run", "cancel", "cancelRun").done("Run {run} is cancelled.").needs_confirmation(),
    verb("run", "delete", "deleteRun").done("Run {run} is deleted.").needs_confirmation(),
    verb("run", "suspend", "suspendRun").done("Run {run} is suspended."),
    verb("run", "resume", "resumeRun").done("Run {run} is resumed."),
    verb("run", "patch", "patchRun").done("The data of run {run} is changed."),
    verb("run", "move", "moveRun").done("Run {run} is moved to `{to}`."),
    verb("run", "fork", "forkRun"),
    verb("run", "migrate", "migrateRun"),
    verb("schedule", "list", "listSchedules").rows("schedules"),
    verb("schedule", "show", "showSchedule"),
    verb("schedule", "put", "putSchedule"),
    verb("schedule", "delete", "deleteSchedule")
        .done("Schedule `{name}` is switched off.")
        .needs_confirmation(),
    verb("schedule", "pause", "pauseSchedule"),
    verb("schedule", "resume", "resumeSchedule"),
    verb("schedule", "run", "runSchedule"),
    verb("signal", "send", "signalRun"),
    verb("state", "list", "listWorkflowSlots").rows("slots"),
    verb("state", "list-of-run", "listExecutionSlots").rows("slots"),
    verb("state", "get", "getWorkflowSlot"),
    verb("state", "set", "setWorkflowSlot"),
    verb("state", "delete", "deleteWorkflowSlot")
        .done("Slot `{key}` of workflow `{workflow}` is deleted.")
        .needs_confirmation(),
    verb("state", "increment", "incrementWorkflowSlot"),
    verb("state", "merge", "mergeWorkflowSlot"),
    verb("state", "append", "appendWorkflowSlot"),
    verb("state", "remove-first", "removeFirstWorkflowSlot"),
    verb("state", "remove-last", "removeLastWorkflowSlot"),
    verb("state", "watch", "watchWorkflowSlot"),
    verb("state", "get-of-run", "getExecutionSlot"),
    verb("state", "set-of-run", "setExecutionSlot"),
    verb("state", "delete-of-run", "deleteExecutionSlot")
        .done("Slot `{key}` of run {run} is deleted.")
        .needs_confirmation(),
    verb("state", "increment-of-run", "incrementExecutionSlot"),
    verb("state", "merge-of-run", "mergeExecutionSlot"),
    verb("state", "append-of-run", "appendExecutionSlot"),
    verb("state", "remove-first-of-run", "removeFirstExecutionSlot"),
    verb("state", "remove-last-of-run", "removeLastExecutionSlot"),
    verb("state", "watch-of-run", "watchExecutionSlot"),
    verb("task", "list", "listTasks")
        .rows("tasks")
        .columns(&["id", "action", "state", "place", "since", "worker"]),
    verb("task", "poll", "pollTasks").long(),
    verb("task", "heartbeat", "heartbeatTask"),
    verb("task", "complete", "completeTask"),
    verb("task", "fail", "failTask"),
    verb("task", "release", "releaseTask").done("Task {task} is released."),
    verb("tenant", "list", "listTenants").rows("tenants"),
    verb("tenant", "create", "createTenant"),
    verb("tenant", "show", "showTenant"),
    verb("tenant", "update", "updateTenant"),
    verb("tenant", "delete", "deleteTenant").done("Tenant {tenant} is deleted.").needs_confirmation(),
    verb("tenant", "create-key", "createTenantApiKey"),
    verb("token", "create", "createAnswerLink"),
    verb("trigger", "list", "listTriggers").rows("triggers"),
    verb("trigger", "log", "listTriggerLog").rows("decisions"),
    verb("trigger", "pause", "pauseTrigger"),
    verb("trigger", "resume", "resumeTrigger"),
    verb("trigger", "run", "runTrigger"),
    verb("wait", "list", "listWaits").rows("open waits").columns(&[
        "id",
        "workflow",
        "title",
        "due",
        "answerers",
        "claimedBy",
    ]),
    verb("wait", "show", "showWait"),
    verb("wait", "answer", "answerWait").done("Wait {wait} is answered."),
    verb("wait", "fail", "failWait").done("Wait {wait} has failed."),
    verb("wait", "heartbeat", "heartbeatWait"),
    verb("wait", "claim", "claimWait"),
    verb("wait", "release", "releaseWait").done("Wait {wait} is released."),
    verb("workflow", "list", "listWorkflows").rows("workflows"),
    verb("workflow", "show", "showWorkflow"),
    verb("workflow", "limits", "listLimits")
        .columns(&["kind", "key", "limit", "active", "waiting", "waitingSince"])
        .rows("limits"),
    verb("workflow", "versions", "listVersions").rows("versions"),
    verb("workflow", "version", "showVersion"),
    verb("workflow", "publish", "publishVersion"),
    verb("workflow", "show-draft", "showDraft"),
    verb("workflow", "put-draft", "putDraft"),
    verb("workflow", "delete-draft", "deleteDraft")
        .done("The draft of workflow `{name}` is deleted.")
        .needs_confirmation(),
    verb("workflow", "publish-draft", "publishDraft"),
    verb("workflow", "activate", "activateVersion"),
    verb("workflow", "deactivate", "deactivateWorkflow").needs_confirmation(),
    verb("workflow", "archive", "archiveWorkflow").needs_confirmation(),
    verb("workflow", "restore", "restoreWorkflow"),
    verb("workflow", "changes", "diffVersions").rows("differences"),
    verb("workflow", "view", "drawWorkflow"),
    verb("workflow", "export", "exportWorkflows").long(),
    verb("workflow", "import", "importWorkflows").long(),
];
