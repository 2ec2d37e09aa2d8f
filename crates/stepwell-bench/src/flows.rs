//! Shared parts of the flow workloads: a workflow that pauses repeatedly, and contexts of a given size.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::spec::{LoopStep, Transition};
use stepwell::core::{Definition, Spec};
use stepwell::engine::Builder;
use stepwell::flow::{Flows, Handle, Key, KeyRing, Sealed};
use stepwell::{Engine, Host};
use stepwell_store::Store;

use crate::script::Random;

/// The workflow of these workloads: each `GO` makes it wait again, `STOP` ends it.
pub(crate) const WORKFLOW: &str = "pauses";

pub(crate) fn definition() -> Result<Definition, String> {
    let again = Transition::new("again", "waiting", "waiting").on_signal("GO").loop_step(LoopStep::Next);
    let spec = Spec::new(WORKFLOW).initial("begun").step("begun").step("waiting").end("done");
    let spec = spec.signal("GO").signal("STOP");
    let enter = Transition::new("enter", "begun", "waiting").loop_step(LoopStep::Enter);
    let stop = Transition::new("stop", "waiting", "done").on_signal("STOP").loop_step(LoopStep::Leave);
    let spec = spec.transition(enter).transition(again).transition(stop);
    spec.build().map_err(|problems| problems.to_string())
}

/// Returns a context of about `bytes` bytes as JSON, with typical form data: names, addresses and numbers.
pub(crate) fn context(bytes: usize, seed: u64) -> Value {
    let mut random = Random::new(seed + 1);
    let (mut people, mut so_far) = (Vec::new(), r#"{"note":"","people":[]}"#.len());
    loop {
        let (id, age) = (random.next() % 1_000_000, random.next() % 90);
        let person =
            json!({"name": format!("person {id}"), "mail": format!("p{id}@example.com"), "age": age});
        let more = person.to_string().len() + 1;
        if so_far + more > bytes {
            break;
        }
        so_far += more;
        people.push(person);
    }
    let letters = (0..bytes.saturating_sub(so_far)).map(|_| char::from(b'a' + (random.next() % 26) as u8));
    json!({"people": people, "note": letters.collect::<String>()})
}

/// Starts an engine on a store with this workflow registered.
pub(crate) async fn engine(
    store: Arc<dyn Store>,
    host: Host,
    build: impl FnOnce(Builder) -> Builder,
) -> Result<Engine, String> {
    let builder = build(Engine::builder(store).host(host).workflow(definition()?));
    builder.start().await.map_err(|error| error.to_string())
}

pub(crate) fn ring() -> Result<KeyRing, String> {
    Key::generate("bench").map(KeyRing::new).map_err(|error| error.to_string())
}

/// Returns flows on an engine that start with the strategy `begin`: `plain` (sealed, uncompressed), `packed` (sealed,
/// compressed) or `handle`.
pub(crate) fn flows(engine: &Engine, begin: &str) -> Result<Flows, String> {
    let hour = Duration::from_secs(3_600);
    Flows::builder(engine, ring()?)
        .strategy("plain", Sealed::new().compressed(false).ttl(hour))
        .strategy("packed", Sealed::new().ttl(hour))
        .strategy("handle", Handle::new().ttl(hour))
        .default_strategy(begin)
        .build()
        .map_err(|error| error.to_string())
}
