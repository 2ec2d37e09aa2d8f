//! The pages behind links: accessible HTML without scripts.

use std::fmt::Write as _;

use serde_json::Value;
use stepwell::flow::{Answer, Pause};
use stepwell::store::Status;

use super::form::{Errors, Field, Form, Kind, Typed, in_words, plain};
use super::problem::Problem;
use crate::escape::html;
use crate::outlets::{display_time, segment};

const STYLE: &str = "\
body{font:1.1rem/1.5 system-ui,sans-serif;color:#1a1a1a;background:#fff;margin:0}\
main{max-width:38rem;margin:0 auto;padding:2rem 1rem}\
label,legend{font-weight:600;display:block}\
input[type=checkbox]{width:1.3rem;height:1.3rem;vertical-align:middle;margin:0 .5rem 0 0}\
.check label{display:inline}\
input:not([type=checkbox]),select,textarea{font:inherit;width:100%;box-sizing:border-box;padding:.5rem;border:2px solid #595959;border-radius:.25rem}\
textarea{min-height:8rem}\
button{font:inherit;font-weight:600;padding:.6rem 1.2rem;margin:0 .5rem .5rem 0;border:2px solid #0b4f8a;border-radius:.25rem;background:#0b4f8a;color:#fff}\
:focus{outline:3px solid #b35900;outline-offset:2px}\
.field{margin:0 0 1.25rem}\
.about{margin:0;color:#4d4d4d}\
.error{margin:0;color:#a80000;font-weight:600}\
.summary{border:3px solid #a80000;padding:0 1rem;margin:0 0 1.5rem}\
pre{white-space:pre-wrap}";

/// A rejected answer that is shown again with its errors.
pub(crate) struct Again<'a> {
    /// Index of the pause that the answer was for.
    pub(crate) pause: usize,
    pub(crate) typed: &'a Typed,
    pub(crate) errors: Errors,
}

/// Returns the page of a link: the question and a form for the answer.
pub(crate) fn ask(answer: &Answer, again: Option<&Again<'_>>) -> String {
    let pauses: Vec<&Pause> = answer.waits.iter().filter(|pause| !pause.outcomes.is_empty()).collect();
    let token = answer.token.as_deref().filter(|_| !answer.watch_only);
    let (Some(token), Some(first)) = (token, pauses.first()) else { return status_page(answer, false) };
    let title = Form::of(first.form.as_ref()).title.unwrap_or_else(|| in_words(&first.place));
    let mut body = format!("<h1>{}</h1>\n", html(&title));
    for (at, pause) in pauses.iter().enumerate() {
        if at > 0 {
            let _ = writeln!(body, "<h2>{}</h2>", html(&in_words(&pause.place)));
        }
        let again = again.filter(|again| again.pause == at);
        form(&mut body, at, pause, token, again);
    }
    if let Some(at) = answer.expires_at {
        let (exact, people) = (html(&at.to_string()), html(&display_time(at)));
        let _ = writeln!(body, "<p>You can answer until <time datetime=\"{exact}\">{people}</time>.</p>");
    }
    let is_wrong = if again.is_some() { "Error: " } else { "" };
    page(&format!("{is_wrong}{title} – {}", in_words(&answer.workflow)), &body)
}

fn form(body: &mut String, at: usize, pause: &Pause, token: &str, again: Option<&Again<'_>>) {
    let form = Form::of(pause.form.as_ref());
    if let Some(again) = again {
        summary(body, at, &form, &again.errors);
    }
    prompt(body, pause.prompt.as_ref());
    if let Some(about) = &form.about {
        let _ = writeln!(body, "<p>{}</p>", html(about));
    }
    // The URL is relative to the page, because the routes may be mounted under any prefix.
    let _ = writeln!(body, "<form method=\"post\" action=\"./{}\">", html(&segment(token)));
    for (number, field) in form.fields.iter().enumerate() {
        let errors = again.iter().flat_map(|again| &again.errors.fields);
        let errors: Vec<&str> =
            errors.filter(|(wrong, _)| *wrong == number).map(|(_, message)| message.as_str()).collect();
        let value = value_of(field, again.map(|again| again.typed));
        input(body, &format!("f{at}-{number}"), field, &value, &errors);
    }
    body.push_str("<p>");
    match &pause.outcomes[..] {
        [only] => {
            let _ = write!(body, "<button name=\"outcome\" value=\"{}\">Continue</button>", html(only));
        }
        several => {
            for outcome in several {
                let (value, label) = (html(outcome), html(&in_words(outcome)));
                let _ = writeln!(body, "<button name=\"outcome\" value=\"{value}\">{label}</button>");
            }
        }
    }
    body.push_str("</p>\n</form>\n");
}

/// Writes the list of errors at the top of the form, each with a link to its field.
fn summary(body: &mut String, at: usize, form: &Form, errors: &Errors) {
    body.push_str(
        "<div class=\"summary\" role=\"alert\" aria-labelledby=\"summary\">\n<h2 id=\"summary\">There is a problem</h2>\n<ul>\n",
    );
    for (number, message) in &errors.fields {
        let label = form.fields.get(*number).map(|field| html(&field.label)).unwrap_or_default();
        let _ = writeln!(body, "<li><a href=\"#f{at}-{number}\">{label}: {}</a></li>", html(message));
    }
    for message in &errors.others {
        let _ = writeln!(body, "<li>{}</li>", html(message));
    }
    body.push_str("</ul>\n</div>\n");
}

fn prompt(body: &mut String, prompt: Option<&Value>) {
    match prompt {
        None | Some(Value::Null) => {}
        Some(Value::Object(fields)) => {
            body.push_str("<dl>\n");
            for (name, value) in fields {
                let _ = writeln!(body, "<dt>{}</dt><dd>{}</dd>", html(&in_words(name)), html(&plain(value)));
            }
            body.push_str("</dl>\n");
        }
        Some(other) => {
            for part in plain(other).split("\n\n").filter(|part| !part.trim().is_empty()) {
                let _ = writeln!(body, "<p>{}</p>", html(part).replace('\n', "<br>"));
            }
        }
    }
}

/// Returns the value that a field shows: what was typed before, or the default. Secret fields are always empty.
fn value_of(field: &Field, typed: Option<&Typed>) -> String {
    match typed {
        _ if field.is_secret() => String::new(),
        Some(typed) => match (&field.kind, typed.get(&field.control)) {
            (Kind::Check, given) => if given.is_some() { "true" } else { "" }.to_owned(),
            (_, given) => given.unwrap_or_default().to_owned(),
        },
        None => match (&field.kind, field.initial.as_ref()) {
            (Kind::Check, initial) => {
                if initial == Some(&Value::Bool(true)) { "true" } else { "" }.to_owned()
            }
            (_, initial) => initial.map(plain).unwrap_or_default(),
        },
    }
}

fn input(body: &mut String, id: &str, field: &Field, value: &str, errors: &[&str]) {
    let (label, control) = (html(&field.label), html(&field.control));
    let is_optional = !field.is_required && field.kind != Kind::Check;
    let optional = if is_optional { " <span class=\"about\">(optional)</span>" } else { "" };
    let label = format!("<label for=\"{id}\">{label}{optional}</label>\n");
    let mut notes = String::new();
    if let Some(about) = &field.about {
        let _ = writeln!(notes, "<p class=\"about\" id=\"{id}-about\">{}</p>", html(about));
    }
    if !errors.is_empty() {
        let _ =
            writeln!(notes, "<p class=\"error\" id=\"{id}-error\">Error: {}</p>", html(&errors.join("; ")));
    }
    let mut attributes = format!("id=\"{id}\" name=\"{control}\"");
    let described: Vec<String> = [(field.about.is_some(), "about"), (!errors.is_empty(), "error")]
        .into_iter()
        .filter(|(is_there, _)| *is_there)
        .map(|(_, what)| format!("{id}-{what}"))
        .collect();
    if !described.is_empty() {
        let _ = write!(attributes, " aria-describedby=\"{}\"", described.join(" "));
    }
    if !errors.is_empty() {
        attributes.push_str(" aria-invalid=\"true\"");
    }
    if field.is_required && field.kind != Kind::Check {
        attributes.push_str(" required");
    }
    let control = control_of(field, &attributes, value);
    let _ = match field.kind {
        Kind::Check => writeln!(body, "<div class=\"field check\">\n{notes}{control}{label}</div>"),
        _ => writeln!(body, "<div class=\"field\">\n{label}{notes}{control}</div>"),
    };
}

fn control_of(field: &Field, attributes: &str, value: &str) -> String {
    let shown = html(value);
    match &field.kind {
        Kind::Text { input, has_lines, least, most } => {
            let least = least.map(|least| format!(" minlength=\"{least}\"")).unwrap_or_default();
            let most = most.map(|most| format!(" maxlength=\"{most}\"")).unwrap_or_default();
            if *has_lines {
                // Browsers drop the first line break in a textarea.
                format!("<textarea {attributes}{least}{most}>\n{shown}</textarea>\n")
            } else {
                format!("<input type=\"{input}\" {attributes}{least}{most} value=\"{shown}\">\n")
            }
        }
        // An input of type `number` would not show a typed value that is not a number.
        Kind::Number { is_whole } => {
            let mode = if *is_whole { "numeric" } else { "decimal" };
            format!("<input type=\"text\" inputmode=\"{mode}\" {attributes} value=\"{shown}\">\n")
        }
        Kind::Check => {
            let checked = if value.is_empty() { "" } else { " checked" };
            format!("<input type=\"checkbox\" {attributes} value=\"true\"{checked}>\n")
        }
        Kind::Choice(values) => {
            let mut select = format!("<select {attributes}>\n<option value=\"\">Choose…</option>\n");
            for choice in values {
                let choice = plain(choice);
                let selected = if choice == value { " selected" } else { "" };
                let choice = html(&choice);
                let _ = writeln!(select, "<option value=\"{choice}\"{selected}>{choice}</option>");
            }
            select.push_str("</select>\n");
            select
        }
        Kind::Json => format!("<textarea {attributes} spellcheck=\"false\">\n{shown}</textarea>\n"),
    }
}

/// Returns the page that shows the status of a flow: after an answer, or if there is nothing to answer.
pub(crate) fn status_page(answer: &Answer, is_answered: bool) -> String {
    let (title, text) = match answer.status {
        Status::Completed => ("Done", "There is nothing more to do here."),
        Status::Cancelled => ("Cancelled", "This process was cancelled. There is nothing more to do here."),
        Status::Failed => ("Something went wrong", "A step failed. The operators of this site can see why."),
        Status::Waiting | Status::Suspended if answer.sent.is_some() => {
            ("Waiting", "A message was sent to the next recipient. There is nothing more to do here.")
        }
        Status::Waiting | Status::Suspended => {
            ("Waiting", "This process is waiting. There is nothing more to do here.")
        }
        Status::Pending | Status::Running => {
            ("In progress", "This process is running. There is nothing to do here.")
        }
    };
    let thanks = if is_answered { "<p>Your answer was received.</p>\n" } else { "" };
    let name = in_words(&answer.workflow);
    page(&format!("{title} – {name}"), &format!("<h1>{title}</h1>\n{thanks}<p>{text}</p>\n"))
}

/// Returns the page after an answer: the next question, or the status.
pub(crate) fn answered(answer: &Answer) -> String {
    let has_more = answer.waits.iter().any(|pause| !pause.outcomes.is_empty());
    match answer.token.as_deref().filter(|_| has_more && !answer.watch_only) {
        Some(_) => ask(answer, None),
        None => status_page(answer, true),
    }
}

/// Returns the page for a problem.
pub(crate) fn problem(problem: &Problem) -> String {
    let title = match problem.code {
        "gone" => "This link is no longer valid",
        "busy" => "Try again in a moment",
        "unavailable" | "unknown" => "Not available right now",
        _ => problem.title(),
    };
    page(title, &format!("<h1>{}</h1>\n<p>{}</p>\n", html(title), html(&problem.detail)))
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"robots\" content=\"noindex\">\n<title>{}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        html(title)
    )
}
