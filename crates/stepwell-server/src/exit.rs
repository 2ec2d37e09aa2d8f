//! Exit codes of the program. Scripts rely on them, so their numbers do not change.

use std::process::ExitCode;

/// An exit code and a message for standard error. An empty message prints nothing.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

/// The exit codes. Code 2 is used by clap for wrong arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Success = 0,
    /// An error that fits no other code.
    Unexpected = 1,
    /// The run, workflow, file or other object does not exist.
    NotFound = 3,
    /// The object is in use by another process, or it has changed since it was read.
    Conflict = 4,
    /// The credential is missing, invalid or lacks a permission.
    Denied = 5,
    /// The input or the configuration is invalid.
    Invalid = 6,
    /// The run, test case or check itself failed.
    Failed = 7,
    /// The time limit passed before the result was there.
    TimedOut = 8,
    /// The server or the database cannot be reached.
    Unreachable = 9,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        ExitCode::from(code as u8)
    }
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Failure { code, message: message.into() }
    }

    pub(crate) fn unexpected(error: impl std::fmt::Display) -> Self {
        Failure::new(Code::Unexpected, format!("{error}"))
    }
}

impl From<stepwell::EngineError> for Failure {
    fn from(error: stepwell::EngineError) -> Self {
        Failure::unexpected(error)
    }
}

impl From<stepwell::store::StoreError> for Failure {
    fn from(error: stepwell::store::StoreError) -> Self {
        Failure::unexpected(error)
    }
}
