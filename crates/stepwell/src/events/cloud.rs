//! CloudEvents 1.0 over HTTP: structured, batched and binary mode.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use stepwell_core::Timestamp;

use super::Event;

/// Maximum number of events in a batch.
pub const MAX_BATCH: usize = 100;
const STRUCTURED: &str = "application/cloudevents+json";
const BATCHED: &str = "application/cloudevents-batch+json";
/// Attribute names that are not extensions.
const OWN: [&str; 9] = [
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "dataschema",
    "data_base64",
];

/// A message that is not a valid CloudEvent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", index.map(|index| format!("event {index}: ")).unwrap_or_default())]
pub struct CloudError {
    /// Position of the event in the batch, starting at 0.
    pub index: Option<usize>,
    /// Name of the attribute and the reason.
    pub why: String,
}

fn wrong(why: impl Into<String>) -> CloudError {
    CloudError { index: None, why: why.into() }
}

/// The events of one message.
#[derive(Debug, Clone)]
pub struct CloudEvents {
    /// Events in the order of the message.
    pub events: Vec<Event>,
    /// The message was a batch.
    pub is_batch: bool,
}

impl CloudEvents {
    /// Reads a message from its headers and its body. Header names are case-insensitive.
    pub fn read<'a>(
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        body: &[u8],
    ) -> Result<CloudEvents, CloudError> {
        let headers: Vec<_> =
            headers.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
        let header = |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| *value);
        let content = header("content-type").unwrap_or_default();
        let kind = content.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if kind == BATCHED {
            let items: Vec<Value> = json(body)?;
            if items.len() > MAX_BATCH {
                return Err(wrong(format!(
                    "a batch can have at most {MAX_BATCH} events (got {})",
                    items.len()
                )));
            }
            let read = |(index, item): (usize, Value)| {
                structured(&item).map_err(|error| CloudError { index: Some(index), ..error })
            };
            let events = items.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
            return Ok(CloudEvents { events, is_batch: true });
        }
        if kind == STRUCTURED {
            return Ok(CloudEvents { events: vec![structured(&json(body)?)?], is_batch: false });
        }
        if kind.starts_with("application/cloudevents") {
            return Err(wrong(format!("`{kind}` is not supported: send `{STRUCTURED}` or `{BATCHED}`")));
        }
        if header("ce-specversion").is_none() {
            let why = format!(
                "this is not a CloudEvent: send `Content-Type: {STRUCTURED}`, or the headers `ce-specversion`, `ce-id`, `ce-source` and `ce-type`"
            );
            return Err(wrong(why));
        }
        let mut attributes = Map::new();
        for (name, value) in &headers {
            if let Some(name) = name.strip_prefix("ce-") {
                let text = percent_decode_str(value).decode_utf8();
                let text = text.map_err(|_| wrong(format!("the header `ce-{name}` is not valid UTF-8")))?;
                attributes.insert(name.to_owned(), Value::String(text.into_owned()));
            }
        }
        let data = binary_data(&kind, body)?;
        Ok(CloudEvents { events: vec![event(&attributes, &data)?], is_batch: false })
    }
}

fn json<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, CloudError> {
    serde_json::from_slice(body).map_err(|error| wrong(format!("the body is not valid JSON: {error}")))
}

fn is_json(kind: &str) -> bool {
    kind.is_empty() || kind == "application/json" || kind == "text/json" || kind.ends_with("+json")
}

/// Reads the payload of a binary message: JSON, text, or other bytes as base64.
fn binary_data(kind: &str, body: &[u8]) -> Result<Value, CloudError> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    if is_json(kind) {
        return json(body);
    }
    match std::str::from_utf8(body) {
        Ok(text) => Ok(Value::String(text.to_owned())),
        Err(_) => Ok(Value::String(STANDARD.encode(body))),
    }
}

fn structured(item: &Value) -> Result<Event, CloudError> {
    let fields = item.as_object().ok_or_else(|| wrong("an event must be a JSON object"))?;
    let coded = fields.get("data_base64").filter(|coded| !coded.is_null());
    let data = match (fields.get("data"), coded) {
        (Some(_), Some(_)) => return Err(wrong("`data` and `data_base64` are mutually exclusive")),
        (Some(data), None) => data.clone(),
        (None, None) => Value::Null,
        (None, Some(coded)) => {
            let bytes = coded.as_str().and_then(|text| STANDARD.decode(text).ok());
            let bytes = bytes.ok_or_else(|| wrong("`data_base64` is not valid base64"))?;
            let kind = fields.get("datacontenttype").and_then(Value::as_str).unwrap_or_default();
            let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            // Data that is not declared as JSON stays base64.
            if !kind.is_empty() && is_json(&kind) { json(&bytes)? } else { coded.clone() }
        }
    };
    event(fields, &data)
}

/// Builds an event from its attributes and its payload.
fn event(attributes: &Map<String, Value>, data: &Value) -> Result<Event, CloudError> {
    let text = |name: &str| match attributes.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text.as_str())),
        Some(_) => Err(wrong(format!("`{name}` must be a non-empty string"))),
    };
    let need = |name: &str| text(name)?.ok_or_else(|| wrong(format!("`{name}` is missing")));
    match need("specversion")? {
        "1.0" => {}
        other => return Err(wrong(format!("`specversion` must be `1.0` (got `{other}`)"))),
    }
    for name in attributes.keys().filter(|name| *name != "data" && !OWN.contains(&name.as_str())) {
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()) {
            let why = format!("`{name}` is not a valid attribute name: use lower-case letters and digits");
            return Err(wrong(why));
        }
    }
    let mut event = Event::new(need("type")?).source(need("source")?).id(need("id")?).with(data);
    if let Some(subject) = text("subject")? {
        event = event.subject(subject);
    }
    if let Some(time) = text("time")? {
        let time: Timestamp = time.parse().map_err(|_| {
            wrong(format!("`time` must be a timestamp such as `2030-01-31T12:00:00Z` (got `{time}`)"))
        })?;
        event = event.at(time);
    }
    Ok(event)
}
