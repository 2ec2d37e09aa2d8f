//! Idempotent operations: the first result under a key is recorded and returned for every repetition.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use stepwell_store::{KeyWrite, Record, RecordQuery, Refused, TenantScope};

use crate::engine::Inner;
use crate::error::EngineError;

/// The result of an operation that is executed at most once per idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idempotent<T> {
    /// The result, either new or recorded.
    pub value: T,
    /// True if the operation was executed by this call. False if the result was recorded earlier under the same key.
    pub is_new: bool,
}

impl<T> Idempotent<T> {
    pub(crate) fn now(value: T) -> Self {
        Idempotent { value, is_new: true }
    }

    pub(crate) fn before(value: T) -> Self {
        Idempotent { value, is_new: false }
    }

    /// Converts the result and keeps `is_new`.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Idempotent<U> {
        Idempotent { value: change(self.value), is_new: self.is_new }
    }
}

impl Inner {
    /// Returns the result recorded under a key. Fails if the key was used for a different request.
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

    /// Returns the recorded result if a request is refused. The request may have succeeded earlier under the same
    /// idempotency key, and that success may be the cause of the refusal.
    pub(crate) async fn or_recorded<T: DeserializeOwned>(
        &self,
        scope: TenantScope,
        key: Option<&KeyWrite>,
        tried: Result<T, EngineError>,
    ) -> Result<Idempotent<T>, EngineError> {
        let (key, refused) = match (tried, key) {
            (Ok(value), _) => return Ok(Idempotent::now(value)),
            (Err(refused), None) => return Err(refused),
            (Err(refused), Some(key)) => (key, refused),
        };
        // The refusal carries the recorded result, so the store, which may be unavailable by now, is not queried
        // again.
        if let EngineError::Commit(why) = &refused
            && let Refused::Done { answer, .. } = &**why
        {
            return answer_of(key, answer).map(Idempotent::before);
        }
        match self.recorded(scope, key).await {
            Ok(Some(answer)) => answer_of(key, &answer).map(Idempotent::before),
            Err(reused @ EngineError::KeyReused { .. }) => Err(reused),
            Ok(None) | Err(_) => Err(refused),
        }
    }
}

/// Parses the result that was recorded under a key.
pub(crate) fn answer_of<T: DeserializeOwned>(key: &KeyWrite, answer: &[u8]) -> Result<T, EngineError> {
    serde_json::from_slice(answer).map_err(|error| {
        let (operation, key) = (&key.operation, &key.key);
        EngineError::Invalid(format!(
            "the recorded result of `{operation}` with key `{key}` is unreadable: {error}"
        ))
    })
}
