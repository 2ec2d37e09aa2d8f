//! Builds the flows of the server from its settings: keys, strategies, outlets and the transport of tokens.

use std::path::Path;
use std::time::Duration;

use stepwell::Engine;
use stepwell::flow::{Durable, Flows, FlowsBuilder, Handle, KeyRing, Sealed, Strategy};
use stepwell_server::api::Server;
use stepwell_server::outlets::{Email, MessageTemplate, Webhook};
use stepwell_server::routes::FlowRoutes;

use crate::config::{
    self, EmailOutlet, Lifetime, MailTemplate, OutletSettings, Settings, StrategySettings, WebhookOutlet,
};
use crate::exit::{Code, Failure};
use crate::{keys, start};

/// Maximum time that starting or resuming a durable flow waits for its next pause. `server.max_wait` may lower it.
const SETTLE: Duration = Duration::from_secs(30);

/// The part of this process in sending queued messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It sends queued messages, and retries those that were not sent.
    Here,
    /// It leaves queued messages to the server: the process ends soon.
    Elsewhere,
}

fn wrong(why: impl std::fmt::Display) -> Failure {
    Failure::new(Code::Invalid, format!("flows: {why}"))
}

/// Adds the configured flows to the server. Without `flows.key_file` there are none, and other settings of flows are an
/// error.
pub(crate) fn add_to(
    server: Server,
    settings: &Settings,
    engine: &Engine,
    delivery: Delivery,
) -> Result<(Server, Option<KeyRing>), Failure> {
    let from = &settings.flows;
    let Some(file) = &from.key_file else {
        if *from != config::Flows::default() {
            let why = "`flows.key_file` is not set, so no other setting of flows has an effect: set it (`stepwell key create FILE` makes the file)";
            return Err(wrong(why));
        }
        return Ok((server, None));
    };
    let ring = keys::ring(Path::new(file))?;
    let mut builder = Flows::builder(engine, ring.clone()).default_strategy(from.default_strategy.as_str());
    builder = strategies(builder, settings)?;
    known_strategy(settings, "flows.default_strategy", &from.default_strategy)?;
    for (workflow, strategy) in &from.workflows {
        known_strategy(settings, &format!("flows.workflows.{workflow}"), strategy)?;
        builder = builder.workflow_strategy(workflow.as_str(), strategy.as_str());
    }
    if !from.allow.is_empty() {
        builder = builder.allow(from.allow.iter().map(String::as_str));
    }
    builder = builder.block(from.block.iter().map(String::as_str));
    if delivery == Delivery::Elsewhere {
        builder = builder.without_delivery();
    }
    builder = outlets(builder, settings)?;
    let flows = builder.build().map_err(wrong)?;
    Ok((server.with_flows(flows).with_flow_routes(routes(settings)?), Some(ring)))
}

fn routes(settings: &Settings) -> Result<FlowRoutes, Failure> {
    let mut routes = FlowRoutes::new();
    if let Some(name) = &settings.flows.cookie {
        routes = routes.cookie(name.as_str()).map_err(|error| wrong(format!("`flows.cookie`: {error}")))?;
    }
    match (settings.flows.insecure_cookie, &settings.flows.cookie) {
        (true, None) => {
            return Err(wrong("`flows.insecure_cookie` has no effect without `flows.cookie`: set the name"));
        }
        (true, Some(_)) => routes = routes.insecure_cookie(),
        (false, _) => {}
    }
    match links(settings) {
        Some(links) => routes.links(&links).map_err(|error| wrong(format!("`server.public_url`: {error}"))),
        None => Ok(routes),
    }
}

/// Returns the base URL of links, if the server has a public URL.
fn links(settings: &Settings) -> Option<String> {
    let url = settings.server.public_url.as_ref()?;
    Some(format!("{}/l", url.trim_end_matches('/')))
}

/// Names of the strategies that exist without a table.
const BUILT_IN: [&str; 3] = ["sealed", "handle", "durable"];

fn known_strategy(settings: &Settings, setting: &str, name: &str) -> Result<(), Failure> {
    let tables = settings.flows.strategies.keys().map(String::as_str);
    let known: Vec<_> = BUILT_IN.into_iter().chain(tables.filter(|name| !BUILT_IN.contains(name))).collect();
    if known.contains(&name) {
        return Ok(());
    }
    let known: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
    Err(wrong(format!(
        "`{setting}` names the unknown strategy `{name}`; known strategies: {}",
        known.join(", ")
    )))
}

/// Registers the built-in strategies and the configured ones.
fn strategies(mut builder: FlowsBuilder, settings: &Settings) -> Result<FlowsBuilder, Failure> {
    let most = settings.server.max_wait.0.min(SETTLE);
    builder = builder
        .strategy("sealed", Sealed::new())
        .strategy("handle", Handle::new())
        .strategy("durable", Durable::new().settle(most));
    for (name, from) in &settings.flows.strategies {
        let at = |field: &str| format!("`flows.strategies.{name}.{field}`");
        builder = builder.strategy(name.as_str(), strategy(from, most, at)?);
    }
    Ok(builder)
}

fn strategy(
    from: &StrategySettings,
    most: Duration,
    at: impl Fn(&str) -> String,
) -> Result<Strategy, Failure> {
    let zero = |is_zero: bool| match is_zero {
        true => Err(wrong(format!("{} must be greater than zero (got 0s)", at("ttl")))),
        false => Ok(()),
    };
    Ok(match from {
        StrategySettings::Sealed(from) => {
            zero(from.ttl.is_some_and(|ttl| ttl.ms() == 0))?;
            let mut sealed = Sealed::new().compressed(from.compressed.unwrap_or(true));
            sealed = from.ttl.into_iter().fold(sealed, |sealed, ttl| sealed.ttl(ttl.0));
            if from.once == Some(true) { sealed.once().into() } else { sealed.into() }
        }
        StrategySettings::Handle(from) => {
            zero(from.ttl.is_some_and(|ttl| ttl.ms() == Some(0)))?;
            match from.ttl {
                None => Handle::new().into(),
                Some(Lifetime::Never) => Handle::new().forever().into(),
                Some(Lifetime::Span(ttl)) => Handle::new().ttl(ttl.0).into(),
            }
        }
        StrategySettings::Durable(from) => {
            zero(from.ttl.is_some_and(|ttl| ttl.ms() == Some(0)))?;
            let settle = from.settle.map_or(most, |settle| settle.0);
            if settle > most {
                let most = most.as_secs();
                return Err(wrong(format!("{} must be at most {most}s, as `server.max_wait`", at("settle"))));
            }
            let durable = Durable::new().settle(settle);
            match from.ttl {
                None => durable.into(),
                Some(Lifetime::Never) => durable.forever().into(),
                Some(Lifetime::Span(ttl)) => durable.ttl(ttl.0).into(),
            }
        }
    })
}

/// Registers the configured outlets.
fn outlets(mut builder: FlowsBuilder, settings: &Settings) -> Result<FlowsBuilder, Failure> {
    for (name, from) in &settings.flows.outlets {
        let wrong = |why: String| wrong(format!("outlet `{name}`: {why}"));
        let links = links(settings).ok_or_else(|| {
            wrong("`server.public_url` is not set, but its messages contain links: set it".to_owned())
        })?;
        builder = match from {
            OutletSettings::Email(from) => {
                builder.outlet(name.as_str(), email(from, settings, links).map_err(wrong)?)
            }
            OutletSettings::Webhook(from) => {
                builder.outlet(name.as_str(), webhook(name, from, links).map_err(wrong)?)
            }
        };
    }
    Ok(builder)
}

fn email(from: &EmailOutlet, settings: &Settings, links: String) -> Result<Email, String> {
    let mailer = start::mailer_builder(settings).map_err(|failure| failure.message)?;
    let mailer = mailer.ok_or("it sends mail, but `mail.host` is not set: set it")?;
    let mut builder = Email::through(mailer, links);
    for (name, template) in &from.templates {
        let template = mail_template(template).map_err(|why| format!("template `{name}`: {why}"))?;
        builder = builder.template(name.as_str(), template);
    }
    builder = from.timeout.into_iter().fold(builder, |builder, timeout| builder.timeout(timeout.0));
    builder.build().map_err(|error| error.to_string())
}

fn mail_template(from: &MailTemplate) -> Result<MessageTemplate, String> {
    let part = |name: &str, text: &Option<String>, file: &Option<String>| match (text, file) {
        (Some(text), None) => Ok(Some(text.clone())),
        (None, Some(file)) => {
            std::fs::read_to_string(file).map(Some).map_err(|error| format!("`{name}_file` {file}: {error}"))
        }
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(format!("set `{name}` or `{name}_file`, not both")),
    };
    let text = part("text", &from.text, &from.text_file)?;
    let text = text.ok_or("it has no text: set `text` or `text_file`")?;
    let template = MessageTemplate::new(from.subject.as_str(), text);
    Ok(match part("html", &from.html, &from.html_file)? {
        Some(html) => template.html(html),
        None => template,
    })
}

fn webhook(name: &str, from: &WebhookOutlet, links: String) -> Result<Webhook, String> {
    let file = &from.secret_file;
    let secrets = std::fs::read_to_string(file).map_err(|error| format!("`secret_file` {file}: {error}"))?;
    let mut secrets =
        secrets.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let first = secrets.next().ok_or_else(|| format!("`secret_file` {file} contains no secret"))?;
    let mut builder = secrets.fold(Webhook::builder(first), stepwell_server::outlets::WebhookBuilder::secret);
    builder = builder.settings(&format!("flows.outlets.{name}"));
    builder = from.url.iter().fold(builder.links(links), |builder, url| builder.url(url.as_str()));
    builder = from.allow_hosts.iter().fold(builder, |builder, host| builder.allow_host(host));
    builder = from.allow_private_hosts.iter().fold(builder, |builder, host| builder.allow_private_host(host));
    if from.allow_plain_http == Some(true) {
        builder = builder.allow_plain_http();
    }
    builder = from.timeout.into_iter().fold(builder, |builder, timeout| builder.timeout(timeout.0));
    builder.build().map_err(|error| error.to_string())
}
