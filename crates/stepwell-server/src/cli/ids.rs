//! Abbreviated run ids: expanded in the arguments of every command, and shortened in tables on a terminal.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::client::{ApiRequest, Client};
use super::encoded;
use crate::exit::{Code, Failure};

/// Number of characters of a complete id.
const WHOLE: usize = 36;
/// Maximum number of ids that are shortened by one request.
const AT_A_TIME: usize = 200;
/// Maximum number of candidates that an error names.
const CANDIDATES: usize = 10;

/// Returns the full ids of the given ones. Ids of waits and tasks begin with a run's id, a dot follows.
pub(super) async fn expanded(
    client: &Client,
    given: Vec<String>,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut whole = BTreeMap::new();
    for id in given {
        let (run, rest) = id.split_once('.').map_or((id.as_str(), None), |(run, rest)| (run, Some(rest)));
        let run = expand(client, run).await?;
        let full = rest.map_or_else(|| run.clone(), |rest| format!("{run}.{rest}"));
        whole.insert(id, full);
    }
    Ok(whole)
}

/// Returns the full id of a run that is given by the beginning of its id.
pub(super) async fn expand(client: &Client, given: &str) -> Result<String, Failure> {
    if given.len() >= WHOLE - 4 {
        return Ok(given.to_owned());
    }
    let unknown = || Failure::new(Code::NotFound, format!("no run id starts with `{given}`"));
    if given.is_empty() || !given.bytes().all(|c| c.is_ascii_hexdigit() || c == b'-') {
        return Err(unknown());
    }
    let asked = ApiRequest::get(format!("/v1/run-ids?limit={}&prefix={}", CANDIDATES + 1, encoded(given)));
    let page = client.ask(asked).await.map_err(|failure| match failure.code {
        // Text of hexadecimal digits with hyphens in other places is no beginning of an id.
        Code::Invalid => unknown(),
        _ => failure,
    })?;
    let page = page.json()?;
    let mut found: Vec<_> = page["items"].as_array().into_iter().flatten().map(Value::clone).collect();
    // A run whose row cannot be read is found too, because commands repair and delete it.
    found.extend(page["unreadable"].as_array().into_iter().flatten().map(|row| json!({ "id": row["run"] })));
    match found.as_slice() {
        [one] => Ok(one["id"].as_str().unwrap_or_default().to_owned()),
        [] => Err(unknown()),
        several => {
            let mut why = format!("`{given}` matches several runs: write more of the id");
            for run in several.iter().take(CANDIDATES) {
                let field = |name: &str| run[name].as_str().unwrap_or_default();
                why.push_str(&format!("\n  {}  {} {}", field("id"), field("workflow"), field("status")));
            }
            if several.len() > CANDIDATES {
                why.push_str("\n  …");
            }
            Err(Failure::new(Code::Invalid, why))
        }
    }
}

/// Replaces the run ids of a table by their shortest unique beginnings. Ids that cannot be shortened stay.
pub(super) async fn shorten(client: &Client, noun: &str, items: &mut [Value]) {
    let mut ids: Vec<String> = Vec::new();
    each(noun, items, |id| ids.push(id.to_owned()));
    ids.sort();
    ids.dedup();
    let mut short = BTreeMap::new();
    for some in ids.chunks(AT_A_TIME) {
        let body = json!({ "runs": some }).to_string().into_bytes();
        let asked = ApiRequest {
            method: axum::http::Method::POST,
            path: "/v1/run-ids".to_owned(),
            body: Some(("application/json".to_owned(), body)),
            ..ApiRequest::default()
        };
        // An older server has no such operation, and a caller may lack the permission: then the ids are shown in full.
        let Ok(Ok(answer)) = client.ask(asked).await.map(|answer| answer.json()) else { return };
        let found = answer["ids"].as_array().into_iter().flatten().filter_map(Value::as_str);
        short.extend(some.iter().cloned().zip(found.map(str::to_owned)));
    }
    each(noun, items, |id| {
        if let Some(short) = short.get(id.as_str()) {
            id.clone_from(short);
        }
    });
}

/// Calls a function with every run id of the rows, also those at the beginning of other ids.
fn each(noun: &str, items: &mut [Value], mut call: impl FnMut(&mut String)) {
    for item in items.iter_mut().filter_map(Value::as_object_mut) {
        for (name, value) in item.iter_mut() {
            let is_run = match name.as_str() {
                "id" => matches!(noun, "run" | "wait" | "task"),
                name => matches!(name, "run" | "parent" | "lastRun"),
            };
            let Value::String(text) = value else { continue };
            if !is_run {
                continue;
            }
            let (run, rest) =
                text.split_once('.').map_or((text.as_str(), None), |(run, rest)| (run, Some(rest)));
            if run.len() != WHOLE {
                continue;
            }
            let mut run = run.to_owned();
            let rest = rest.map(|rest| format!(".{rest}")).unwrap_or_default();
            call(&mut run);
            *text = format!("{run}{rest}");
        }
    }
}
