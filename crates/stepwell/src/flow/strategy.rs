//! Where a flow rests between two steps, by name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stepwell_core::{Definition, Name};

use super::keys::is_id;
use crate::error::EngineError;

/// The name of the strategy of whoever has only one.
pub const ONLY: &str = "default";
/// The name under which a token only shows that a flow waits.
pub(crate) const WATCH: &str = "watch";

/// Sealed: the token is the state, encrypted and authenticated; nothing is written for it.
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
    /// For a quarter of an hour, compressed where that makes the token shorter, good until it expires.
    pub fn new() -> Self {
        Sealed::default()
    }

    /// How long a token is good.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl_ms = ms(ttl);
        self
    }

    /// Whether the state is compressed where that makes the token shorter.
    #[must_use]
    pub fn compressed(mut self, compresses: bool) -> Self {
        self.compresses = compresses;
        self
    }

    /// A token can be used once, and can be revoked: that is a row per use until the token expires.
    #[must_use]
    pub fn once(mut self) -> Self {
        self.is_once = true;
        self
    }
}

/// Handle: the token is a secret, and the state is in a row that is found by its hash.
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
    /// For seven days.
    pub fn new() -> Self {
        Handle::default()
    }

    /// How long a handle is good.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl_ms = Some(ms(ttl));
        self
    }

    /// It never expires.
    #[must_use]
    pub fn forever(mut self) -> Self {
        self.ttl_ms = None;
        self
    }
}

/// Durable: the flow is a run, and the token is the secret of a link to one of its waits.
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
    /// Links are good for 30 days; whoever starts or resumes a run waits half a minute at most for its next pause.
    pub fn new() -> Self {
        Durable::default()
    }

    /// How long a link is good.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl_ms = Some(ms(ttl));
        self
    }

    /// Links never expire.
    #[must_use]
    pub fn forever(mut self) -> Self {
        self.ttl_ms = None;
        self
    }

    /// How long whoever starts or resumes a run waits for its next pause; then they are told that it is running.
    #[must_use]
    pub fn settle(mut self, patience: Duration) -> Self {
        self.settle_ms = ms(patience);
        self
    }
}

fn ms(time: Duration) -> u64 {
    // What is shorter than a millisecond is none.
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Where a flow rests.
#[derive(Debug, Clone)]
pub enum Strategy {
    /// In its token.
    Sealed(Sealed),
    /// Behind a handle.
    Handle(Handle),
    /// As a durable run.
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
    /// How long its tokens are good; `None` = for ever.
    pub(crate) fn ttl_ms(&self) -> Option<u64> {
        match self {
            Strategy::Sealed(sealed) => Some(sealed.ttl_ms),
            Strategy::Handle(handle) => handle.ttl_ms,
            Strategy::Durable(durable) => durable.ttl_ms,
        }
    }

    /// Why a workflow cannot rest so: whatever somebody has to do for it while it rests.
    pub(crate) fn refuses(&self, name: &str, definition: &Definition) -> Option<EngineError> {
        if matches!(self, Strategy::Durable(_)) {
            return None;
        }
        let needs = definition.needs();
        let lists = [
            ("a timer at transition", &needs.timers),
            ("children at place", &needs.children),
            ("retries at transition", &needs.retries),
        ];
        let named =
            lists.iter().flat_map(|(what, names)| names.iter().map(move |name| format!("{what} `{name}`")));
        let named: Vec<String> = named.collect();
        (!named.is_empty()).then(|| {
            EngineError::Invalid(format!(
                "workflow `{}` cannot rest in `{name}`: it has {}, which only a durable run has",
                definition.name(),
                named.join(", ")
            ))
        })
    }
}

/// Says by which strategy a workflow's flows begin.
pub(crate) type Chooser = Arc<dyn Fn(&Name) -> String + Send + Sync>;

/// The strategies by name, and which is meant when none is named.
pub(crate) struct Strategies {
    pub(crate) by_name: BTreeMap<String, Strategy>,
    pub(crate) default: Chooser,
}

impl Strategies {
    /// Refuses names and times that cannot be meant.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        let wrong = |why: String| Err(EngineError::Invalid(why));
        if self.by_name.is_empty() {
            return wrong("there is no strategy: flows have to rest somewhere".to_owned());
        }
        for (name, strategy) in &self.by_name {
            if !is_id(name) {
                return wrong(format!(
                    "`{name}` is not a strategy's name: use 1 to 64 of the characters A-Z, a-z, 0-9, `_` and `-`"
                ));
            }
            if name == WATCH {
                return wrong(format!(
                    "no strategy can be called `{WATCH}`: tokens that only show something are"
                ));
            }
            if strategy.ttl_ms() == Some(0) {
                return wrong(format!("the TTL of strategy `{name}` is 0: its tokens would be over at once"));
            }
        }
        Ok(())
    }

    /// Flows may rest in rows.
    pub(crate) fn keeps_rows(&self) -> bool {
        self.by_name.values().any(|strategy| !matches!(strategy, Strategy::Sealed(_)))
    }

    pub(crate) fn get(&self, name: &str) -> Result<&Strategy, EngineError> {
        self.by_name.get(name).ok_or_else(|| {
            let known: Vec<_> = self.by_name.keys().map(|name| format!("`{name}`")).collect();
            EngineError::Invalid(format!("there is no strategy `{name}`; there are {}", known.join(", ")))
        })
    }

    /// The strategy by which a workflow's flows begin, if they can rest so.
    pub(crate) fn of(&self, definition: &Definition) -> Result<(String, &Strategy), EngineError> {
        let name = (self.default)(definition.name());
        let strategy = self.get(&name)?;
        match strategy.refuses(&name, definition) {
            Some(error) => Err(error),
            None => Ok((name, strategy)),
        }
    }
}
