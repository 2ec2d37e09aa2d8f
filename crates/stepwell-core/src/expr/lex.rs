//! Splits an expression into tokens, one at a time.
//!
//! The parser must stop at a construct that is not part of the dialect before its content is read. That content may
//! not consist of tokens at all, for example in a regular expression.

use std::ops::Range;

use super::error::{ExprError, ExprErrorKind};

/// Symbols, longer ones before their prefixes. Symbols that are not part of the dialect are included, so that the
/// parser can reject them by name.
const SYMBOLS: [&str; 38] = [
    "**", "..", ":=", "!=", ">=", "<=", "~>", "??", "?:", "==", "&&", "||", ".", "[", "]", "{", "}", "(",
    ")", ",", "@", "#", ";", ":", "?", "+", "-", "*", "/", "%", "|", "=", "<", ">", "^", "&", "!", "~",
];

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Null,
    True,
    False,
    /// At most 2^63, the absolute value of the smallest integer.
    Integer(u64),
    Decimal(f64),
    Text(String),
    Name(String),
    /// A name in back-quotes.
    QuotedName(String),
    /// `$name`, without the `$`.
    Variable(String),
    Symbol(&'static str),
    End,
}

pub(super) struct Lexer<'s> {
    source: &'s str,
    at: usize,
}

impl<'s> Lexer<'s> {
    pub(super) fn new(source: &'s str) -> Self {
        Lexer { source, at: 0 }
    }

    /// Returns the next token and its range; after the last token, always `End`.
    pub(super) fn next(&mut self) -> Result<(Token, Range<usize>), ExprError> {
        self.skip_blank()?;
        let start = self.at;
        let token = match self.rest().chars().next() {
            None => Token::End,
            Some(quote @ ('"' | '\'')) => self.text(quote)?,
            Some('`') => self.quoted_name()?,
            Some('0'..='9') => self.number()?,
            Some('$') => {
                self.at += 1;
                Token::Variable(self.word())
            }
            Some(c) if is_part_of_name(c) => match self.word().as_str() {
                "null" => Token::Null,
                "true" => Token::True,
                "false" => Token::False,
                name => Token::Name(name.to_owned()),
            },
            Some(c) => self.symbol(c)?,
        };
        Ok((token, start..self.at))
    }

    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    fn skip_blank(&mut self) -> Result<(), ExprError> {
        loop {
            self.at = self.source.len() - self.rest().trim_start_matches(is_blank).len();
            let Some(comment) = self.rest().strip_prefix("/*") else {
                return Ok(());
            };
            match comment.find("*/") {
                Some(length) => self.at += "/*".len() + length + "*/".len(),
                None => {
                    let message = "the comment is not closed: `*/` is missing";
                    return Err(self.error("S0106", message, self.at..self.at + 2));
                }
            }
        }
    }

    fn word(&mut self) -> String {
        let rest = self.rest();
        let length = rest.find(|c: char| !is_part_of_name(c)).unwrap_or(rest.len());
        self.at += length;
        rest[..length].to_owned()
    }

    fn symbol(&mut self, first: char) -> Result<Token, ExprError> {
        let rest = self.rest();
        let Some(symbol) = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) else {
            let message = format!(
                "unexpected character `{}`: put names that contain it in back-quotes",
                first.escape_debug()
            );
            return Err(self.error("S0204", message, self.at..self.at + first.len_utf8()));
        };
        self.at += symbol.len();
        Ok(Token::Symbol(symbol))
    }

    fn quoted_name(&mut self) -> Result<Token, ExprError> {
        let inside = &self.rest()[1..];
        let Some(length) = inside.find('`') else {
            let message = "the name in back-quotes is not closed";
            return Err(self.error("S0105", message, self.at..self.source.len()));
        };
        self.at += length + 2;
        Ok(Token::QuotedName(inside[..length].to_owned()))
    }

    /// Reads a number in JSON syntax: digits on both sides of the decimal point, and nothing after a leading zero.
    fn number(&mut self) -> Result<Token, ExprError> {
        let rest = self.rest();
        let length = number_length(rest);
        let text = &rest[..length];
        let span = self.at..self.at + length;
        self.at += length;
        if text.bytes().all(|b| b.is_ascii_digit()) {
            let fits = text.parse().ok().filter(|n| *n <= i64::MIN.unsigned_abs());
            return fits
                .map(Token::Integer)
                .ok_or_else(|| self.error("S0102", "the integer does not fit in 64 bits", span));
        }
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Token::Decimal(number)),
            _ => Err(self.error("S0102", "the number is too large", span)),
        }
    }

    /// Reads a string with JSON escapes, in either kind of quotes.
    fn text(&mut self, quote: char) -> Result<Token, ExprError> {
        let start = self.at;
        let mut text = String::new();
        self.at += 1;
        loop {
            let here = self.at;
            let Some(c) = self.rest().chars().next() else {
                return Err(self.error("S0101", "the string is not closed", start..self.source.len()));
            };
            self.at += c.len_utf8();
            match c {
                '\\' => text.push(self.escape(here)?),
                c if c == quote => return Ok(Token::Text(text)),
                c => text.push(c),
            }
        }
    }

    /// Reads the escape after the backslash at `start`.
    fn escape(&mut self, start: usize) -> Result<char, ExprError> {
        let next = self.rest().chars().next();
        self.at += next.map_or(0, char::len_utf8);
        Ok(match next {
            Some(c @ ('"' | '\\' | '/')) => c,
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => return self.code_point(start),
            _ => return Err(self.error("S0103", "this is not a valid JSON escape", start..self.at)),
        })
    }

    /// Reads `\uXXXX`, or two of them for a character outside the basic multilingual plane.
    fn code_point(&mut self, start: usize) -> Result<char, ExprError> {
        let mut units = vec![self.code_unit(start)?];
        if (0xD800..0xDC00).contains(&units[0]) && self.rest().starts_with("\\u") {
            self.at += 2;
            units.push(self.code_unit(start)?);
        }
        match char::decode_utf16(units).next() {
            Some(Ok(c)) => Ok(c),
            _ => Err(self.error("S0104", "this escape is half of a surrogate pair", start..self.at)),
        }
    }

    fn code_unit(&mut self, start: usize) -> Result<u16, ExprError> {
        let digits = self.rest().get(..4).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let message = "`\\u` needs four hexadecimal digits";
        let unit = unit.ok_or_else(|| self.error("S0104", message, start..self.at))?;
        self.at += 4;
        Ok(unit)
    }

    fn error(&self, code: &'static str, message: impl Into<String>, span: Range<usize>) -> ExprError {
        ExprError::new(ExprErrorKind::Syntax, code, message, span, self.source)
    }
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{b}')
}

/// Returns true for characters that can be part of a name. As in JSONata, this is every character that is not a
/// symbol, including letters of any script and `$`. Quotes and backslashes are excluded, because there they are
/// typing errors.
fn is_part_of_name(c: char) -> bool {
    !c.is_whitespace() && !c.is_control() && !".[]{}(),@#;:?+-*/%|=<>^&!~\"'`\\".contains(c)
}

/// Returns the length of the number at the start of `text`, which starts with a digit.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits =
        |from: usize| bytes[from.min(bytes.len())..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut length = if bytes.starts_with(b"0") { 1 } else { digits(0) };
    if bytes.get(length) == Some(&b'.') && digits(length + 1) > 0 {
        length += 1 + digits(length + 1);
    }
    if matches!(bytes.get(length), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(length + 1), Some(b'+' | b'-')));
        if digits(length + 1 + sign) > 0 {
            length += 1 + sign + digits(length + 1 + sign);
        }
    }
    length
}
