//! Implementation of the functions for strings.

use std::ops::Range;

use super::{base64, url};
use crate::expr::call::Call;
use crate::expr::error::ExprError;
use crate::expr::eval::Eval;
use crate::expr::function::Function;
use crate::expr::number::Number;
use crate::expr::value::{Found, Val};
use crate::expr::walk;

impl<'a> Eval<'a, '_> {
    pub(in crate::expr) fn text_function(&mut self, mut call: Call<'a>) -> Result<Found<'a>, ExprError> {
        match call.function {
            Function::String | Function::ToString => return self.string_of(&mut call),
            Function::Join => return self.join(&call),
            _ => {}
        }
        let Some(text) = call.text(0) else { return Ok(None) };
        self.paid(&call.span, |budget| budget.spend_reading(text.len()))?;
        let part = call.text(1);
        match call.function {
            Function::Length => Ok(Some(Val::from(text.chars().count()))),
            Function::Substring => self.substring(text, call.number(1), call.number(2), &call.span),
            Function::SubstringBefore | Function::SubstringAfter => self.cut(text, &call),
            Function::Contains => Ok(part.map(|part| Val::Bool(text.contains(part)))),
            Function::StartsWith => Ok(part.map(|part| Val::Bool(text.starts_with(part)))),
            Function::EndsWith => Ok(part.map(|part| Val::Bool(text.ends_with(part)))),
            Function::Pad => self.pad(text, &call),
            Function::Split => self.split(text, &call),
            Function::Replace => self.replace(text, &call),
            _ => self.rewritten(text, &call),
        }
    }

    /// Computes functions whose result length is known only afterwards. It is at most a few times the length of the
    /// text.
    fn rewritten(&mut self, text: &str, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        self.paid(&call.span, |budget| budget.spend_bytes(text.len()))?;
        let made = match call.function {
            Function::Lowercase => Some(text.to_lowercase()),
            Function::Uppercase => Some(text.to_uppercase()),
            Function::Trim => Some(trimmed(text)),
            Function::EncodeUrl => Some(url::encode(text, true)),
            Function::EncodeUrlComponent => Some(url::encode(text, false)),
            Function::DecodeUrl => url::decode(text, true),
            Function::DecodeUrlComponent => url::decode(text, false),
            Function::Base64Encode => Some(base64::encode(text.as_bytes())),
            _ => base64::decode(text).and_then(|bytes| String::from_utf8(bytes).ok()),
        };
        let Some(made) = made else {
            let message = match call.function {
                Function::Base64Decode => "the string is not valid base 64 of UTF-8 text",
                _ => "the string is not properly percent-encoded",
            };
            let code = if call.function == Function::Base64Decode { "D3137" } else { "D3140" };
            return Err(self.bad_value(code, message, &call.span));
        };
        self.paid(&call.span, |budget| budget.spend_bytes(made.len().saturating_sub(text.len())))?;
        Ok(Some(Val::text(made)))
    }

    fn string_of(&mut self, call: &mut Call<'a>) -> Result<Found<'a>, ExprError> {
        let is_pretty = matches!(call.found(1), Some(value) if matches!(value.view(), crate::expr::value::View::Bool(true)));
        match call.take(0) {
            Some(value) if value.as_text().is_none() => {
                let text = self.paid(&call.span, |budget| match is_pretty {
                    true => walk::pretty(&value, budget),
                    false => walk::text(&value, budget),
                })?;
                Ok(Some(Val::text(text)))
            }
            found => Ok(found),
        }
    }

    /// Copies a part of a text.
    fn copied(&mut self, text: &str, span: &Range<usize>) -> Result<Found<'a>, ExprError> {
        self.paid(span, |budget| budget.spend_bytes(text.len()))?;
        Ok(Some(Val::text(text)))
    }

    fn substring(
        &mut self,
        text: &str,
        start: Option<Number>,
        length: Option<Number>,
        span: &Range<usize>,
    ) -> Result<Found<'a>, ExprError> {
        let count = text.chars().count() as f64;
        // Converts an index as JavaScript's `slice` does: without its fraction, counted from the end if negative, and
        // within the text.
        let place = |index: f64| {
            let index = index.trunc();
            let index = if index < 0.0 { (count + index).max(0.0) } else { index };
            text.char_indices().nth(index as usize).map_or(text.len(), |(place, _)| place)
        };
        let start = start.map(Number::as_f64).map(|start| if count + start < 0.0 { 0.0 } else { start });
        let range = match (start, length.map(Number::as_f64)) {
            (_, Some(length)) if length <= 0.0 => 0..0,
            // Without a start, the end of the range is unknown.
            (None, Some(_)) => 0..0,
            (Some(start), Some(length)) => {
                let from = if start < 0.0 { count + start } else { start };
                place(start)..place(from + length)
            }
            (start, None) => place(start.unwrap_or(0.0))..text.len(),
        };
        self.copied(text.get(range).unwrap_or_default(), span)
    }

    /// Computes `substringBefore` or `substringAfter`.
    fn cut(&mut self, text: &str, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        let cut = call.text(1).and_then(|part| text.split_once(part));
        let part = match (cut, call.function) {
            (Some((before, _)), Function::SubstringBefore) => before,
            (Some((_, after)), _) => after,
            (None, _) => text,
        };
        self.copied(part, &call.span)
    }

    fn pad(&mut self, text: &str, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        let Some(width) = call.number(1) else { return self.copied(text, &call.span) };
        let filler = call.text(2).filter(|filler| !filler.is_empty()).unwrap_or(" ");
        let wanted = usize::try_from(width.to_integer().unsigned_abs()).unwrap_or(usize::MAX);
        let missing = wanted.saturating_sub(text.chars().count());
        // Charged before it is created, because the result can be very long.
        let widest = filler.chars().map(char::len_utf8).max().unwrap_or(1);
        self.paid(&call.span, |budget| budget.spend_bytes(missing.saturating_mul(widest)))?;
        self.paid(&call.span, |budget| budget.spend_bytes(text.len()))?;
        let padding: String = filler.chars().cycle().take(missing).collect();
        Ok(Some(Val::text(if width.is_negative() { padding + text } else { text.to_owned() + &padding })))
    }

    fn split(&mut self, text: &str, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        let limit = self.limit(call, 2, "D3020")?.map_or(usize::MAX, |limit| count(limit.trunc()));
        // With a limit of 0 there are no parts, so the separator does not matter.
        let is_none = call.number(2).is_some_and(|limit| limit.as_f64() == 0.0);
        let Some(separator) = call.text(1).or(is_none.then_some("")) else { return Ok(None) };
        let mut parts: Vec<Val<'a>> = Vec::new();
        let mut put = |eval: &mut Self, part: &str| {
            eval.paid(&call.span, |budget| budget.spend_steps(1))?;
            eval.paid(&call.span, |budget| budget.spend_bytes(part.len() + 3))?;
            parts.push(Val::text(part));
            Ok::<(), ExprError>(())
        };
        if separator.is_empty() {
            for c in text.chars().take(limit) {
                put(self, c.encode_utf8(&mut [0; 4]))?;
            }
        } else {
            for part in text.split(separator).take(limit) {
                put(self, part)?;
            }
        }
        self.plain(parts, &call.span).map(Some)
    }

    /// Returns a limit argument. A negative limit is an error.
    fn limit(&self, call: &Call<'a>, place: usize, code: &'static str) -> Result<Option<f64>, ExprError> {
        match call.number(place) {
            Some(limit) if limit.is_negative() => {
                Err(self.bad_value(code, "the limit must not be negative", &call.span))
            }
            limit => Ok(limit.map(Number::as_f64)),
        }
    }

    fn replace(&mut self, text: &str, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        if call.text(1) == Some("") {
            return Err(self.bad_value("D3010", "the text to replace must not be empty", &call.span));
        }
        // Rounded up, because JSONata replaces while the count is below the limit.
        let limit = self.limit(call, 3, "D3011")?.map_or(usize::MAX, |limit| count(limit.ceil()));
        if limit == 0 {
            return self.copied(text, &call.span);
        }
        let (Some(part), Some(with)) = (call.text(1), call.text(2)) else { return Ok(None) };
        let times = text.matches(part).take(limit).count();
        // Charged before it is created, because the result can be very long.
        let most = text.len().saturating_add(times.saturating_mul(with.len()));
        self.paid(&call.span, |budget| budget.spend_bytes(most))?;
        Ok(Some(Val::text(text.replacen(part, with, limit))))
    }

    fn join(&mut self, call: &Call<'a>) -> Result<Found<'a>, ExprError> {
        let Some(items) = call.items(0) else { return Ok(None) };
        let separator = call.text(1).unwrap_or("");
        let mut joined = String::new();
        for (place, item) in items.iter().enumerate() {
            let separator = if place > 0 { separator } else { "" };
            let text = item.as_text().unwrap_or("");
            self.paid(&call.span, |budget| budget.spend_bytes(separator.len() + text.len()))?;
            joined.push_str(separator);
            joined.push_str(text);
        }
        Ok(Some(Val::text(joined)))
    }
}

/// Converts a number of repetitions. The cast saturates.
fn count(times: f64) -> usize {
    times as usize
}

/// Replaces runs of white space by single spaces, and removes them at the ends.
fn trimmed(text: &str) -> String {
    let words = text.split([' ', '\t', '\n', '\r']).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}
