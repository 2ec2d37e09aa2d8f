//! Implementations of the functions, one file per group.

mod base64;
mod date;
mod list;
mod logic;
mod number;
mod object;
mod text;
mod url;
