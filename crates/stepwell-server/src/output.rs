//! Output of the program: data goes to standard output, messages for people go to standard error.

use std::io::{IsTerminal, Write};

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

/// Returns true if the command line asks for JSON. It is read from the arguments themselves, because errors of the
/// arguments are printed as JSON too.
pub(crate) fn wants_json() -> bool {
    let words: Vec<_> = std::env::args().skip(1).take_while(|word| word != "--").collect();
    let is_json = |format: &str| matches!(format, "json" | "ndjson");
    let named = words.windows(2).any(|pair| matches!(&*pair[0], "-o" | "--output") && is_json(&pair[1]));
    named
        || words.iter().any(|word| {
            let format = word.strip_prefix("--output=").or_else(|| word.strip_prefix("-o"));
            word == "--json" || format.is_some_and(|format| is_json(format.trim_start_matches('=')))
        })
}

/// Returns the number of columns of the terminal on standard output, or `None` if that is no terminal.
pub(crate) fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (is_terminal() && size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Returns true if standard output is a terminal.
pub(crate) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Returns true if standard output is a terminal and `NO_COLOR` is not set.
pub(crate) fn has_colour() -> bool {
    is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// A progress spinner with a counter, for work of unknown length. It is shown only on a terminal.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    turning("{spinner} {pos} {msg}, {elapsed}", what)
}

/// A progress spinner without a counter. It is shown only on a terminal.
pub(crate) fn busy(what: &'static str) -> ProgressBar {
    turning("{spinner} {msg}, {elapsed}", what)
}

/// A progress bar for work of known length. It is shown only on a terminal.
pub(crate) fn progress() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} runs, {msg}, {elapsed}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

fn turning(template: &str, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    let bar = ProgressBar::new_spinner().with_style(style).with_message(what);
    bar.enable_steady_tick(std::time::Duration::from_millis(100));
    bar
}
