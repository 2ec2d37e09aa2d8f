//! Strategies: where the state of a flow is kept between two steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stepwell_core::{Definition, Name};

use super::keys::is_id;
use crate::error::EngineError;

/// Name of the strategy if only one is registered.
pub const ONLY: &str = "default";
/// Name of the durable strategy that a server always has.
pub(crate) const DURABLE: &str = "durable";
/// Workflow names that the routes of flows use for other operations.
pub(crate) const ROUTES: [&str; 2] = ["resume", "show"];
/// Name in tokens that only show that a flow waits.
pub(crate) const WATCH: &str = "watch";

/// Keeps the state in the token itself, encrypted and authenticated. Nothing is stored.
#[derive(Debug, Clone)]
pub struct Sealed {
    pub(crate) ttl_ms: u64,
    pub(crate) compresses: bool,
    pub(crate) is_once: bool,
}

impl Default for Sealed {
    fn default() -> Self {
        Sealed { ttl_ms: 15 * 60_000, compresses: true, is_once: false }
    }
}

impl Sealed {
    /// Creates a strategy whose tokens are valid for 15 minutes and can be used repeatedly. The state is compressed if
    /// that makes the token shorter.
    pub fn new() -> Self {
        Sealed::default()
    }

    /// Sets the lifetime of tokens.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl_ms = ms(ttl);
        self
    }

    /// Sets whether the state is compressed if that makes the token shorter. Default: `true`.
    #[must_use]
    pub fn compressed(mut self, compresses: bool) -> Self {
        self.compresses = compresses;
        self
    }

    /// Makes tokens single-use and revocable. This stores a row per use until the token expires.
    #[must_use]
    pub fn once(mut self) -> Self {
        self.is_once = true;
        self
    }
}

/// Keeps the state in a row of the store. The token is a secret, and the row is found by its hash.
#[derive(Debug, Clone)]
pub struct Handle {
    pub(crate) ttl_ms: Option<u64>,
}

impl Default for Handle {
    fn default() -> Self {
        Handle { ttl_ms: Some(7 * 24 * 3_600_000) }
    }
}

impl Handle {
    /// Creates a strategy whose handles are valid for 7 days.
    pub fn new() -> Self {
        Handle::default()
    }

    /// Sets the lifetime of handles.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl_ms = Some(ms(ttl));
        self
    }

    /// Creates handles that never expire.
    #[must_use]
    pub fn forever(mut self) -> Self {
        self.ttl_ms = None;
        self
    }
}

/// Keeps the flow as a durable run. The token is the secret of an answer link to one of its waits.
#[derive(Debug, Clone)]
pub struct Durable {
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) settle_ms: u64,
}

impl Default for Durable {
    fn default() -> Self {
        Durable { ttl_ms: Some(30 * 24 * 3_600_000), settle_ms: 30_000 }
    }
}

impl Durable {
    /// Creates a strategy whose links are valid for 30 days. A start or resume waits at most 30 seconds for the next
    /// pause.
    pub fn new() -> Self {
        Durable::default()
    }

    /// Sets the lifetime of links.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl_ms = Some(ms(ttl));
        self
    }

    /// Creates links that never expire.
    #[must_use]
    pub fn forever(mut self) -> Self {
        self.ttl_ms = None;
        self
    }

    /// Sets the maximum time that a start or resume waits for the next pause. After it the answer has the status
    /// `running`.
    #[must_use]
    pub fn settle(mut self, timeout: Duration) -> Self {
        self.settle_ms = ms(timeout);
        self
    }
}

fn ms(time: Duration) -> u64 {
    // Less than a millisecond counts as 0.
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A strategy: where the state of a flow is kept.
#[derive(Debug, Clone)]
pub enum Strategy {
    /// In a sealed token.
    Sealed(Sealed),
    /// In a row behind a single-use handle.
    Handle(Handle),
    /// In a durable run.
    Durable(Durable),
}

impl From<Sealed> for Strategy {
    fn from(sealed: Sealed) -> Self {
        Strategy::Sealed(sealed)
    }
}

impl From<Handle> for Strategy {
    fn from(handle: Handle) -> Self {
        Strategy::Handle(handle)
    }
}

impl From<Durable> for Strategy {
    fn from(durable: Durable) -> Self {
        Strategy::Durable(durable)
    }
}

impl Strategy {
    /// Returns the lifetime of tokens in milliseconds. `None`: they never expire.
    pub(crate) fn ttl_ms(&self) -> Option<u64> {
        match self {
            Strategy::Sealed(sealed) => Some(sealed.ttl_ms),
            Strategy::Handle(handle) => handle.ttl_ms,
            Strategy::Durable(durable) => durable.ttl_ms,
        }
    }

    /// Returns an error if a workflow cannot use this strategy. Timers, children and retries need a process that
    /// continues the run between two calls, so only durable runs can have them.
    pub(crate) fn refuses(&self, name: &str, definition: &Definition) -> Option<EngineError> {
        if matches!(self, Strategy::Durable(_)) {
            return None;
        }
        // A sealed flow has no row, and no process looks for due handles.
        let needs = definition.needs();
        let lists = [
            ("a timer at transition", &needs.timers),
            ("children at place", &needs.children),
            ("a wait for an event at place", &needs.events),
            ("retries at transition", &needs.retries),
            ("a call made at most once at transition", &needs.at_most_once),
        ];
        let named =
            lists.iter().flat_map(|(what, names)| names.iter().map(move |name| format!("{what} `{name}`")));
        let parts: Vec<String> = named.collect();
        let (workflow, strategy) = (definition.name().clone(), name.to_owned());
        (!parts.is_empty()).then(|| EngineError::NeedsDurableRun { workflow, strategy, parts })
    }
}

/// Chooses the strategy for new flows of a workflow.
pub(crate) type Chooser = Arc<dyn Fn(&Name) -> String + Send + Sync>;

/// The registered strategies, and the choice among them.
pub(crate) struct Strategies {
    pub(crate) by_name: BTreeMap<String, Strategy>,
    pub(crate) default: Chooser,
    /// Strategies of single workflows. They override the one that the workflow itself names.
    pub(crate) of_workflow: BTreeMap<Name, String>,
}

impl Strategies {
    /// Rejects invalid names and lifetimes.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        let wrong = |why: String| Err(EngineError::Invalid(why));
        if self.by_name.is_empty() {
            return wrong("no strategy is registered: register at least one".to_owned());
        }
        for (name, strategy) in &self.by_name {
            if !is_id(name) {
                return wrong(format!(
                    "`{name}` is not a valid strategy name: use 1 to 64 of the characters A-Z, a-z, 0-9, `_` and `-`"
                ));
            }
            if name == WATCH {
                return wrong(format!(
                    "the strategy name `{WATCH}` is reserved for tokens that only show a flow"
                ));
            }
            if strategy.ttl_ms() == Some(0) {
                return wrong(format!("the TTL of strategy `{name}` must be greater than 0"));
            }
        }
        self.of_workflow.values().try_for_each(|name| self.get(name).map(drop))
    }

    /// Returns `true` if a strategy stores flows in rows.
    pub(crate) fn keeps_rows(&self) -> bool {
        self.by_name.values().any(|strategy| !matches!(strategy, Strategy::Sealed(_)))
    }

    pub(crate) fn get(&self, name: &str) -> Result<&Strategy, EngineError> {
        self.by_name.get(name).ok_or_else(|| {
            let known = self.by_name.keys().cloned().collect();
            EngineError::UnknownStrategy { name: name.to_owned(), known }
        })
    }

    /// Returns the strategy that the configuration or the workflow itself names, if one does.
    pub(crate) fn named<'a>(&'a self, definition: &'a Definition) -> Option<&'a str> {
        let configured = self.of_workflow.get(definition.name());
        configured.or(definition.spec().strategy.as_ref()).map(String::as_str)
    }

    /// Returns the strategy for new flows of a workflow, or an error if the workflow cannot use it.
    pub(crate) fn of(&self, definition: &Definition) -> Result<(String, &Strategy), EngineError> {
        let name = self.named(definition).map(str::to_owned);
        let name = name.unwrap_or_else(|| (self.default)(definition.name()));
        let strategy = self.get(&name)?;
        match strategy.refuses(&name, definition) {
            Some(error) => Err(error),
            None => Ok((name, strategy)),
        }
    }

    /// Returns the durable strategy that creates the answer links to runs of a workflow: the workflow's own, else
    /// `durable`, else the first one by name.
    pub(crate) fn durable(&self, definition: &Definition) -> Option<(&str, &Durable)> {
        let own = self.of(definition).ok().map(|(name, _)| name);
        let wanted =
            own.as_deref().into_iter().chain([DURABLE]).chain(self.by_name.keys().map(String::as_str));
        wanted.filter_map(|name| self.by_name.get_key_value(name)).find_map(|(name, strategy)| match strategy
        {
            Strategy::Durable(durable) => Some((name.as_str(), durable)),
            Strategy::Sealed(_) | Strategy::Handle(_) => None,
        })
    }
}

/// Names of the strategies without a durable run that a server always has.
const NOT_DURABLE: [&str; 2] = ["sealed", "handle"];

/// Returns the strategy because of which a workflow cannot be started as a run, if there is one.
pub(crate) fn refuses_runs<'a>(
    strategies: Option<&'a Strategies>,
    definition: &'a Definition,
) -> Option<&'a str> {
    let Some(strategies) = strategies else {
        let own = definition.spec().strategy.as_deref();
        return own.filter(|name| NOT_DURABLE.contains(name));
    };
    let name = strategies.named(definition)?;
    match strategies.by_name.get(name) {
        Some(Strategy::Sealed(_) | Strategy::Handle(_)) => Some(name),
        Some(Strategy::Durable(_)) | None => None,
    }
}
