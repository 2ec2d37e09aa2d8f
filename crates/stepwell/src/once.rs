//! What happens once under a key: what it came to the first time is what it comes to every time.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use stepwell_store::{KeyWrite, Record, RecordQuery, Refused, TenantScope};

use crate::engine::Inner;
use crate::error::EngineError;

/// What something came to that happens once under its key, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done<T> {
    /// What it came to.
    pub came_to: T,
    /// It was done now; otherwise it had been, under the same key.
    pub is_new: bool,
}

impl<T> Done<T> {
    pub(crate) fn now(came_to: T) -> Self {
        Done { came_to, is_new: true }
    }

    pub(crate) fn before(came_to: T) -> Self {
        Done { came_to, is_new: false }
    }

    /// The same, with something made of what it came to.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Done<U> {
        Done { came_to: change(self.came_to), is_new: self.is_new }
    }
}

impl Inner {
    /// The answer that is on record under a key; `None` = none is. The same key with another request is an error.
    pub(crate) async fn recorded(
        &self,
        scope: TenantScope,
        key: &KeyWrite,
    ) -> Result<Option<Bytes>, EngineError> {
        let (operation, name) = (key.operation.clone(), key.key.clone());
        let query = RecordQuery::Key { operation, key: name, now: self.host.now() };
        match self.store.records(scope, query).await?.items.pop() {
            Some(Record::Key(record)) if record.request == Some(key.request) => {
                Ok(Some(record.answer.unwrap_or_default()))
            }
            Some(Record::Key(_)) => {
                Err(EngineError::KeyReused { operation: key.operation.clone(), key: key.key.clone() })
            }
            _ => Ok(None),
        }
    }

    /// What was refused may have been done before under its key, and have led to where it is refused now.
    pub(crate) async fn unless_done<T: DeserializeOwned>(
        &self,
        scope: TenantScope,
        key: Option<&KeyWrite>,
        tried: Result<T, EngineError>,
    ) -> Result<Done<T>, EngineError> {
        let (key, refused) = match (tried, key) {
            (Ok(came_to), _) => return Ok(Done::now(came_to)),
            (Err(refused), None) => return Err(refused),
            (Err(refused), Some(key)) => (key, refused),
        };
        // The commit itself says so: the store, which may be gone by now, need not be asked again.
        if let EngineError::Commit(why) = &refused
            && let Refused::Done { answer, .. } = &**why
        {
            return answer_of(key, answer).map(Done::before);
        }
        match self.recorded(scope, key).await {
            Ok(Some(answer)) => answer_of(key, &answer).map(Done::before),
            Err(reused @ EngineError::KeyReused { .. }) => Err(reused),
            Ok(None) | Err(_) => Err(refused),
        }
    }
}

/// Reads the answer that was recorded under a key.
pub(crate) fn answer_of<T: DeserializeOwned>(key: &KeyWrite, answer: &[u8]) -> Result<T, EngineError> {
    serde_json::from_slice(answer).map_err(|error| {
        let (operation, key) = (&key.operation, &key.key);
        EngineError::Invalid(format!(
            "what is recorded of `{operation}` with key `{key}` is unreadable: {error}"
        ))
    })
}
