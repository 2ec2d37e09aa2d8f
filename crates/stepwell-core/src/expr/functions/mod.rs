//! What the functions do, a file for each group of them.

mod base64;
mod date;
mod list;
mod logic;
mod number;
mod object;
mod text;
mod url;
