//! Exit codes of the program. Scripts rely on them, so their numbers do not change.

use std::process::ExitCode;

use serde_json::{Value, json};

/// An exit code and a message for standard error. An empty message prints nothing.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
    /// The problem with which the server answered, if it is the cause.
    pub(crate) problem: Option<Box<Value>>,
}

/// An exit code of the program, by its cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Success = 0,
    /// An error that fits no other code.
    Unexpected = 1,
    /// The command line is invalid.
    Usage = 2,
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

impl Code {
    /// Returns the stable code of a problem that the command line itself reports.
    fn word(self) -> &'static str {
        match self {
            Code::Success => "success",
            Code::Unexpected => "unexpected",
            Code::Usage => "usage",
            Code::NotFound => "notFound",
            Code::Conflict => "conflict",
            Code::Denied => "denied",
            Code::Invalid => "invalid",
            Code::Failed => "failed",
            Code::TimedOut => "timedOut",
            Code::Unreachable => "unreachable",
        }
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        ExitCode::from(code as u8)
    }
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), problem: None }
    }

    pub(crate) fn unexpected(error: impl std::fmt::Display) -> Self {
        Failure::new(Code::Unexpected, format!("{error}"))
    }

    /// Returns the failure as problem JSON: the server's problem, or one with the message, and the exit code.
    pub(crate) fn as_problem(&self) -> Value {
        let own = || {
            let is_retryable = matches!(self.code, Code::TimedOut | Code::Unreachable);
            json!({
                "type": "about:blank",
                "title": "The command failed",
                "code": self.code.word(),
                "detail": self.message,
                "retryable": is_retryable,
            })
        };
        let mut problem = self.problem.as_deref().cloned().unwrap_or_else(own);
        problem["exitCode"] = (self.code as u8).into();
        problem
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
