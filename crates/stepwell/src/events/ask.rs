//! Waits for events: query earlier events, and consume events from the inbox.
//!
//! A wait queries earlier events when it has been committed, and again when its timeout has passed. So it takes an
//! event that was accepted before the timeout, even if the event is delivered later. The events that a run has taken at
//! a place stay on record as long as the run. So a wait that opens again in a loop does not take the same event twice.

use bytes::Bytes;
use serde_json::Value;
use stepwell_core::graph::awaited_event;
use stepwell_core::snapshot::{Activation, ActivationId};
use stepwell_core::{Decision, Input, Name, Rejected, RunId, Timestamp, dispatch};
use stepwell_store::{KeyLifetime, KeyWrite, RecordQuery, TenantScope};

use crate::engine::Inner;
use crate::error::EngineError;
use crate::inbox::{InboxMessage, MessageBody};
use crate::ledger::{Ledger, Stopped};
use crate::loaded_run::{LoadedRun, PendingCommit};

/// An event that a wait can take.
struct Offer {
    event: RunId,
    accepted: Timestamp,
    payload: Value,
}

/// Returns `true` if a wait has not queried events yet, or not since its timeout passed.
pub(crate) fn must_fetch_events(ledger: &Ledger, activation: &Activation, now: Timestamp) -> bool {
    match ledger.events_fetched_at.get(&activation.id) {
        None => true,
        Some(asked) => activation.due().is_some_and(|due| due <= now && *asked < due),
    }
}

/// Returns the events in the inbox that are for this wait.
fn sent<'a>(
    loaded_run: &'a LoadedRun,
    id: ActivationId,
) -> impl Iterator<Item = (&'a InboxMessage, Offer)> + 'a {
    loaded_run.inbox.iter().filter_map(move |message| match &message.body {
        MessageBody::Event { activation, event, accepted, payload, .. } if *activation == id => {
            let (event, accepted, payload) = (*event, *accepted, payload.clone());
            Some((message, Offer { event, accepted, payload }))
        }
        _ => None,
    })
}

impl Inner {
    /// Queries the events for a wait. The wait takes the oldest event that it accepts; otherwise the commit records the
    /// query.
    pub(crate) async fn fetch_earlier_events(
        &self,
        scope: TenantScope,
        loaded_run: &LoadedRun,
        id: ActivationId,
    ) -> Result<PendingCommit, EngineError> {
        let now = self.host.now();
        let mut ledger = loaded_run.ledger.clone();
        let taken: Vec<_> = sent(loaded_run, id).map(|(message, _)| message.seq).collect();
        let noted = |ledger: Ledger| PendingCommit { takes: taken.clone(), ..PendingCommit::note(ledger) };
        let activation = loaded_run.snapshot.activation(id);
        let wait = activation.and_then(|activation| awaited_event(loaded_run.definition(), activation));
        let (Some(activation), Some(wait)) = (activation, wait) else { return Ok(noted(ledger)) };
        let mut offers: Vec<_> = sent(loaded_run, id).map(|(_, offer)| offer).collect();
        if must_fetch_events(&ledger, activation, now) {
            let earlier_events = self.earlier_events(scope, &wait, activation.since).await?;
            let offer = |(event, kept): (RunId, super::StoredEvent)| Offer {
                event,
                accepted: kept.accepted,
                payload: kept.data,
            };
            offers.extend(earlier_events.into_iter().map(offer));
            ledger.events_fetched_at.insert(id, now);
        }
        offers.sort_by_key(|offer| (offer.accepted, offer.event));
        offers.dedup_by_key(|offer| offer.event);
        let due = activation.due();
        for offer in offers {
            let is_late = due.is_some_and(|due| offer.accepted >= due);
            if is_late
                || self.has_taken_event(scope, loaded_run.run(), &activation.place, offer.event).await?
            {
                continue;
            }
            let key = taken_event_key(loaded_run.run(), &activation.place, offer.event);
            let body = Input::Answered { activation: id, signal: wait.name.clone(), payload: offer.payload };
            let answers = self.registry.answer(&loaded_run.workflow, &loaded_run.snapshot, &body).await?;
            match dispatch(loaded_run.definition(), &loaded_run.snapshot, &body, &answers, now) {
                Ok(Decision::Change(mut change)) => {
                    change.entry.actor = Some(format!("event:{}", offer.event));
                    let stopped = change.stopped.clone();
                    let mut next = PendingCommit::change(change, loaded_run);
                    next.ledger.events_fetched_at = ledger.events_fetched_at.clone();
                    next.ledger.events_fetched_at.remove(&id);
                    next.ledger.stopped = stopped.map(|error| Stopped { at: now, error, activation: None });
                    next.takes = taken;
                    next.extras.keys.push(key);
                    return Ok(next);
                }
                Ok(_) | Err(Rejected::Refused(_)) => {}
                Err(Rejected::Undecidable(error)) => {
                    ledger.stopped = Some(Stopped { at: now, error: error.failure(), activation: None });
                    return Ok(PendingCommit::note(ledger));
                }
            }
        }
        Ok(noted(ledger))
    }

    /// Returns `true` if the run has already taken the event at this place.
    async fn has_taken_event(
        &self,
        scope: TenantScope,
        run: RunId,
        place: &Name,
        event: RunId,
    ) -> Result<bool, EngineError> {
        let KeyWrite { operation, key, .. } = taken_event_key(run, place, event);
        let query = RecordQuery::Key { operation, key, now: self.host.now() };
        Ok(!self.store.records(scope, query).await?.items.is_empty())
    }
}

/// Builds the record that a run has taken an event at a place.
fn taken_event_key(run: RunId, place: &Name, event: RunId) -> KeyWrite {
    KeyWrite {
        operation: format!("event:{run}"),
        key: format!("{event}:{place}"),
        request: [0; 32],
        answer: Bytes::new(),
        lifetime: KeyLifetime::WithRun(run),
    }
}
