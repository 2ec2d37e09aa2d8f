//! How the program ends: the exit codes that scripts rely on.

use std::process::ExitCode;

/// Why the program ends early.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

/// The exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// There is nothing more to do.
    Success = 0,
    /// Something nobody expected.
    Unexpected = 1,
    /// It is not there.
    NotFound = 3,
    /// Somebody else has it, or it has changed.
    Conflict = 4,
    /// Whoever asks may not.
    Denied = 5,
    /// The input is wrong.
    Invalid = 6,
    /// The run or the test itself failed.
    Failed = 7,
    /// It took too long.
    TimedOut = 8,
    /// The server, or the store, cannot be reached.
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
