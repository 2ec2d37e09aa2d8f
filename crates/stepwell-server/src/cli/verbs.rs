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
}

const fn verb(noun: &'static str, verb: &'static str, operation: &'static str) -> Verb {
    Verb { noun, verb, operation, columns: &[], asks: false }
}

impl Verb {
    const fn columns(mut self, columns: &'static [&'static str]) -> Self {
        self.columns = columns;
        self
    }

    const fn asks(mut self) -> Self {
        self.asks = true;
        self
    }
}

/// What each noun is about.
pub(crate) const NOUNS: &[(&str, &str)] = &[
    ("apikey", "Keys with which programs ask the server."),
    ("kv", "The key-value store."),
    ("run", "Runs of workflows."),
    ("signal", "Signals to runs."),
    ("wait", "What runs wait for."),
];

/// The verbs.
pub(crate) const VERBS: &[Verb] = &[
    verb("apikey", "list", "listApiKeys").columns(&["id", "name", "permissions", "expiresAt", "createdAt"]),
    verb("apikey", "create", "createApiKey"),
    verb("apikey", "rotate", "rotateApiKey"),
    verb("apikey", "revoke", "revokeApiKey").asks(),
    verb("kv", "namespaces", "listKeyNamespaces"),
    verb("kv", "list", "listKeys").columns(&["key", "value", "revision", "expiresAt", "updatedAt"]),
    verb("kv", "get", "getKey"),
    verb("kv", "set", "setKey"),
    verb("kv", "delete", "deleteKey").asks(),
    verb("kv", "increment", "incrementKey"),
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
    verb("run", "retry", "retryRun"),
    verb("run", "dismiss", "dismissRun").asks(),
    verb("run", "cancel", "cancelRun").asks(),
    verb("run", "suspend", "suspendRun"),
    verb("run", "resume", "resumeRun"),
    verb("run", "patch", "patchRun"),
    verb("run", "move", "moveRun"),
    verb("run", "fork", "forkRun"),
    verb("run", "migrate", "migrateRun"),
    verb("signal", "send", "signalRun"),
    verb("wait", "list", "listWaits").columns(&["run", "place", "since", "until", "detail.signals"]),
];
