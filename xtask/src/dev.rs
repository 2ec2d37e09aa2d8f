//! Runs the server of this checkout.

use std::process::{Command, ExitCode};

use crate::{needs, process};

/// Builds the server, then replaces this process by `stepwell dev`.
pub(crate) fn dev(args: &[String]) -> Result<ExitCode, String> {
    needs::check(needs::BUILD)?;
    let binary = process::quick_binary()?;
    let mut command = Command::new(binary);
    command.arg("dev").args(args);
    become_command(&mut command)
}

/// Replaces this process, so that signals reach the server directly.
#[cfg(unix)]
fn become_command(command: &mut Command) -> Result<ExitCode, String> {
    use std::os::unix::process::CommandExt;
    let error = command.exec();
    Err(format!("cannot start `{}`: {error}", process::shown(command)))
}

#[cfg(not(unix))]
fn become_command(command: &mut Command) -> Result<ExitCode, String> {
    let status =
        command.status().map_err(|error| format!("cannot start `{}`: {error}", process::shown(command)))?;
    // An exit status that does not fit into a byte becomes a plain failure.
    Ok(match status.code().map(u8::try_from) {
        Some(Ok(code)) => ExitCode::from(code),
        _ => ExitCode::FAILURE,
    })
}
