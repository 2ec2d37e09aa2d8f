//! A wait for an event asks for those that were accepted before it was there, and takes what was sent to it.
//!
//! It asks when it has been committed, and once more when its time is over: an event that was accepted before that is taken,
//! also if it is delivered later. Which events a run has taken at a place is on record as long as the run is, so that a wait
//! that opens again, in a loop, does not take the same one twice.

use bytes::Bytes;
use serde_json::Value;
use stepwell_core::graph::awaited_event;
use stepwell_core::snapshot::{Activation, ActivationId};
use stepwell_core::{Decision, Event, Name, Rejected, RunId, Timestamp, dispatch};
use stepwell_store::{KeyWrite, Lives, RecordQuery, TenantScope};

use crate::engine::Inner;
use crate::error::EngineError;
use crate::ledger::{Ledger, Stopped};
use crate::post::{Letter, Says};
use crate::standing::{Move, Standing};

/// An event that a wait may take.
struct Offer {
    event: RunId,
    accepted: Timestamp,
    payload: Value,
}

/// The wait has to ask for events: it has not yet, or not since its time is over.
pub(crate) fn has_to_ask(ledger: &Ledger, activation: &Activation, now: Timestamp) -> bool {
    match ledger.asked.get(&activation.id) {
        None => true,
        Some(asked) => activation.due().is_some_and(|due| due <= now && *asked < due),
    }
}

/// The events that were sent to a wait.
fn sent<'a>(standing: &'a Standing, id: ActivationId) -> impl Iterator<Item = (&'a Letter, Offer)> + 'a {
    standing.inbox.iter().filter_map(move |letter| match &letter.says {
        Says::Event { activation, event, accepted, payload, .. } if *activation == id => {
            let (event, accepted, payload) = (*event, *accepted, payload.clone());
            Some((letter, Offer { event, accepted, payload }))
        }
        _ => None,
    })
}

impl Inner {
    /// What comes of asking for the events that a wait is for: it takes the first that is its own, or it has asked.
    pub(crate) async fn ask(
        &self,
        scope: TenantScope,
        standing: &Standing,
        id: ActivationId,
    ) -> Result<Move, EngineError> {
        let now = self.host.now();
        let mut ledger = standing.ledger.clone();
        let taken: Vec<_> = sent(standing, id).map(|(letter, _)| letter.seq).collect();
        let noted = |ledger: Ledger| Move { takes: taken.clone(), ..Move::note(ledger) };
        let activation = standing.snapshot.activation(id);
        let wait = activation.and_then(|activation| awaited_event(standing.definition(), activation));
        let (Some(activation), Some(wait)) = (activation, wait) else { return Ok(noted(ledger)) };
        let mut offers: Vec<_> = sent(standing, id).map(|(_, offer)| offer).collect();
        if has_to_ask(&ledger, activation, now) {
            let early = self.early(scope, &wait, activation.since).await?;
            let offer = |(event, kept): (RunId, super::Kept)| Offer {
                event,
                accepted: kept.accepted,
                payload: kept.data,
            };
            offers.extend(early.into_iter().map(offer));
            ledger.asked.insert(id, now);
        }
        offers.sort_by_key(|offer| (offer.accepted, offer.event));
        offers.dedup_by_key(|offer| offer.event);
        let due = activation.due();
        for offer in offers {
            let is_late = due.is_some_and(|due| offer.accepted >= due);
            if is_late || self.has_heard(scope, standing.run(), &activation.place, offer.event).await? {
                continue;
            }
            let key = heard(standing.run(), &activation.place, offer.event);
            let says = Event::Answered { activation: id, signal: wait.name.clone(), payload: offer.payload };
            let answers = self.registry.answer(&standing.workflow, &standing.snapshot, &says).await?;
            match dispatch(standing.definition(), &standing.snapshot, &says, &answers, now) {
                Ok(Decision::Change(change)) => {
                    let stopped = change.stopped.clone();
                    let mut next = Move::change(change, standing);
                    next.ledger.asked = ledger.asked.clone();
                    next.ledger.asked.remove(&id);
                    next.ledger.stopped = stopped.map(|error| Stopped { at: now, error, activation: None });
                    next.takes = taken;
                    next.along.keys.push(key);
                    return Ok(next);
                }
                Ok(_) | Err(Rejected::Refused(_)) => {}
                Err(Rejected::Undecidable(error)) => {
                    ledger.stopped = Some(Stopped { at: now, error: error.failure(), activation: None });
                    return Ok(Move::note(ledger));
                }
            }
        }
        Ok(noted(ledger))
    }

    /// The run has taken the event at this place before.
    async fn has_heard(
        &self,
        scope: TenantScope,
        run: RunId,
        place: &Name,
        event: RunId,
    ) -> Result<bool, EngineError> {
        let KeyWrite { operation, key, .. } = heard(run, place, event);
        let query = RecordQuery::Key { operation, key, now: self.host.now() };
        Ok(!self.store.records(scope, query).await?.items.is_empty())
    }
}

/// The record that a run has taken an event at a place.
fn heard(run: RunId, place: &Name, event: RunId) -> KeyWrite {
    KeyWrite {
        operation: format!("event:{run}"),
        key: format!("{event}:{place}"),
        request: [0; 32],
        answer: Bytes::new(),
        lives: Lives::WithRun(run),
    }
}
