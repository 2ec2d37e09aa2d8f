//! `stepwell config show`: the effective settings and their origins.

use serde_json::json;

use super::Config;
use crate::exit::Failure;
use crate::output;
use crate::server;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Show the effective value of every setting; secrets are hidden.
    Show {
        #[command(flatten)]
        options: server::Options,
        /// Also show the origin of each value: default, file, environment or flag.
        #[arg(long)]
        origin: bool,
        /// Print the settings as JSON.
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(verb: &Verb) -> Result<(), Failure> {
    let Verb::Show { options, origin, json } = verb;
    let config: Config = options.read()?;
    if *json {
        let rows = config.shown().map(|(name, value, from)| {
            (name.to_owned(), json!({"value": value, "origin": from.to_string()}))
        });
        let rows: serde_json::Map<_, _> = rows.collect();
        return output::line(&serde_json::Value::Object(rows).to_string());
    }
    let width = config.shown().map(|(name, ..)| name.len()).max().unwrap_or(0);
    config.shown().try_for_each(|(name, value, from)| {
        let from = if *origin { format!("  # {from}") } else { String::new() };
        output::line(&format!("{name:width$} = {value}{from}"))
    })
}
