//! Output of the program: data goes to standard output, messages for people go to standard error.

use std::io::Write;

use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::{Code, Failure};

/// Prints a line of data. If the reader has closed the pipe, the program ends with code 0 and without a message.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

/// Prints data without adding a line end.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(Failure::new(Code::Success, "")),
        Err(error) => Err(Failure::unexpected(format!("standard output: {error}"))),
    }
}

/// Prints a message to standard error. Write errors are ignored, because the message is not part of the result.
pub(crate) fn print_message(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A progress spinner with a counter, for work of unknown length. It is shown only on a terminal.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    turning("{spinner} {pos} {msg}, {elapsed}", what)
}

/// A progress spinner without a counter. It is shown only on a terminal.
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
