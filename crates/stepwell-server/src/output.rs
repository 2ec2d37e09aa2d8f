//! What the program prints: data on standard output, talk on standard error.

use std::io::Write;

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
