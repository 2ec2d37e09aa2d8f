//! What the program prints: data on standard output, talk on standard error.

use std::io::Write;

use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::{Code, Failure};

/// Prints a line of data. A reader that has gone away ends the program quietly: there is nobody left to tell.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

/// Prints data as it is.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(Failure::new(Code::Success, "")),
        Err(error) => Err(Failure::unexpected(format!("standard output: {error}"))),
    }
}

/// Says something to whoever watches. That nobody does is no reason to stop.
pub(crate) fn talk(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Says how far something has come whose length nobody knows, to whoever sits at a terminal; it is hidden from everybody else.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    turning("{spinner} {pos} {msg}, {elapsed}", what)
}

/// Says that something goes on, to whoever sits at a terminal.
pub(crate) fn busy(what: &'static str) -> ProgressBar {
    turning("{spinner} {msg}, {elapsed}", what)
}

fn turning(template: &str, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    let bar = ProgressBar::new_spinner().with_style(style).with_message(what);
    bar.enable_steady_tick(std::time::Duration::from_millis(100));
    bar
}
