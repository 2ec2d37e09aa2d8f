//! Keyed requests that are under way in this process: the same one is not begun a second time meanwhile.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::Method;
use sha2::{Digest, Sha256};
use stepwell::store::TenantId;

use super::call::Asked;
use super::route::{Needs, Route};
use crate::routes::flows::key;
use crate::routes::problem::{Problem, busy};

/// A request with a key, as far as two of them are the same.
type Place = [u8; 32];

/// What is under way.
#[derive(Clone, Default)]
pub(crate) struct Underway(Arc<Mutex<HashSet<Place>>>);

/// A request that is under way for as long as this is there.
pub(crate) struct Begun {
    all: Underway,
    place: Place,
}

impl Underway {
    /// Begins a request, unless the same one has begun and not ended. One without a key is none that could be the same.
    pub(crate) fn begin(&self, route: &Route, asked: &Asked) -> Result<Option<Begun>, Problem> {
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

/// Whose, what, on what, and under which key.
fn place(route: &Route, asked: &Asked, key: &str) -> Place {
    let tenant: TenantId = asked.caller.scope().tenant();
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        // How long each part is: no two sequences of parts are the same bytes.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    };
    add(tenant.uuid().as_bytes());
    add(route.id.as_bytes());
    add(key.as_bytes());
    for (_, value) in &asked.path {
        add(value.as_bytes());
    }
    // Whose request it is that nobody in particular makes is in what it brings.
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
