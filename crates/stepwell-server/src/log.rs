//! The log: lines on standard error, as text or JSON.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};
use crate::exit::{Code, Failure};

/// Installs the log. `RUST_LOG` overrides the setting `log.filter`.
pub(crate) fn init(log: &Log) -> Result<(), Failure> {
    let said = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_else(|_| log.filter.clone());
    let filter = EnvFilter::try_new(&said).map_err(|error| {
        Failure::new(
            Code::Invalid,
            format!("`{said}` is not a valid log filter: {error}. Example: `info,stepwell=debug`"),
        )
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let begun = match log.format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => {
            let has_colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            builder.with_ansi(has_colour).with_target(false).try_init()
        }
    };
    begun.map_err(Failure::unexpected)
}
