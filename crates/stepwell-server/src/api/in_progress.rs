//! Tracks requests with an idempotency key that are in progress in this process, so that a duplicate does not start.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::Method;
use sha2::{Digest, Sha256};
use stepwell::store::TenantId;

use super::call::RequestContext;
use super::route::{Needs, Route};
use crate::routes::flows::key;
use crate::routes::problem::{Problem, busy};

/// SHA-256 hash that identifies a request with an idempotency key.
type Place = [u8; 32];

/// The set of requests in progress.
#[derive(Clone, Default)]
pub(crate) struct RequestsInProgress(Arc<Mutex<HashSet<Place>>>);

/// Guard of a request in progress. Dropping it removes the request from the set.
pub(crate) struct Begun {
    all: RequestsInProgress,
    place: Place,
}

impl RequestsInProgress {
    /// Registers a request, or answers busy if the same one is in progress. Returns `None` for a request without a
    /// key.
    pub(crate) fn begin(&self, route: &Route, asked: &RequestContext) -> Result<Option<Begun>, Problem> {
        if !route.is_keyed {
            return Ok(None);
        }
        let Some(key) = key(&asked.headers)? else { return Ok(None) };
        let place = place(route, asked, &key);
        match self.places().insert(place) {
            true => Ok(Some(Begun { all: self.clone(), place })),
            false => Err(busy(1)),
        }
    }

    fn places(&self) -> MutexGuard<'_, HashSet<Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hashes the tenant, the route, the idempotency key and the path parameters.
fn place(route: &Route, asked: &RequestContext, key: &str) -> Place {
    let tenant: TenantId = asked.caller.scope().tenant();
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        // The length prefix makes the encoding unambiguous.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    };
    add(tenant.uuid().as_bytes());
    add(route.id.as_bytes());
    add(key.as_bytes());
    for (_, value) in &asked.path {
        add(value.as_bytes());
    }
    // An anonymous request is identified by its query, its flow token and its body.
    if route.needs == Needs::Nothing && route.method != Method::GET {
        add(asked.query.as_deref().unwrap_or_default().as_bytes());
        add(asked.headers.get("x-flow-token").map(axum::http::HeaderValue::as_bytes).unwrap_or_default());
        add(&asked.body);
    }
    hash.finalize().into()
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.all.places().remove(&self.place);
    }
}
