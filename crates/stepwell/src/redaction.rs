//! Redacts a secret from text in any common encoding: plain, JSON, URL, HTML, base64 or hexadecimal.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Replaces each secret in redacted text.
pub(crate) const HIDDEN: &str = "***";
/// Minimum length in bytes for the base64 and hexadecimal search; shorter secrets match by chance.
const SHORTEST_CODED: usize = 6;

/// A secret to redact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Redaction {
    /// The secret by character: each character may be escaped differently.
    secret: Vec<char>,
    /// Its base64 and hexadecimal encodings.
    coded: Vec<String>,
}

impl Redaction {
    /// Returns `None` for an empty secret.
    pub(crate) fn of(secret: &str) -> Option<Self> {
        let coded = if secret.len() < SHORTEST_CODED { Vec::new() } else { coded(secret.as_bytes()) };
        (!secret.is_empty()).then(|| Redaction { secret: secret.chars().collect(), coded })
    }

    /// Length in characters. Redact longer secrets first: one may contain another.
    pub(crate) fn length(&self) -> usize {
        self.secret.len()
    }

    /// Redacts every occurrence and returns true if there was one.
    pub(crate) fn hide(&self, text: &mut String) -> bool {
        let mut is_hidden = false;
        for coded in &self.coded {
            if text.contains(coded.as_str()) {
                *text = text.replace(coded.as_str(), HIDDEN);
                is_hidden = true;
            }
        }
        let (mut shown, mut rest) = (String::new(), text.as_str());
        while let Some((at, length)) = self.found(rest) {
            shown.push_str(&rest[..at]);
            shown.push_str(HIDDEN);
            rest = &rest[at + length..];
        }
        if !shown.is_empty() {
            shown.push_str(rest);
            *text = shown;
            is_hidden = true;
        }
        is_hidden
    }

    /// Returns the offset and length in bytes of the first occurrence.
    fn found(&self, text: &str) -> Option<(usize, usize)> {
        text.char_indices().find_map(|(at, _)| matched(&text[at..], &self.secret).map(|length| (at, length)))
    }
}

/// Encodes a secret in hexadecimal, and in base64 at each of the three bit offsets.
fn coded(secret: &[u8]) -> Vec<String> {
    let digits = |upper: bool| -> String {
        let digit = |byte: &u8| if upper { format!("{byte:02X}") } else { format!("{byte:02x}") };
        secret.iter().map(digit).collect()
    };
    let mut all = vec![digits(true), digits(false)];
    // The bytes before a secret shift its bits: three bytes become four characters. Only the characters that depend on
    // the secret alone are searched for.
    for before in 0..3 {
        let bytes = [&[0; 3][..before], secret].concat();
        let whole = bytes.len() / 3 * 3;
        let own = if before == 0 { 0 } else { 4 };
        for written in [STANDARD_NO_PAD.encode(&bytes[..whole]), URL_SAFE_NO_PAD.encode(&bytes[..whole])] {
            all.extend(written.get(own..).filter(|own| !own.is_empty()).map(str::to_owned));
        }
    }
    all
}

/// Returns the length in bytes of the secret if `text` starts with it in any escaping.
fn matched(text: &str, secret: &[char]) -> Option<usize> {
    let (mut at, mut left) = (0, secret);
    while let [first, others @ ..] = left {
        let rest = &text[at..];
        if !['\\', '%', '&'].contains(first) {
            at += written(rest, *first)?;
            left = others;
            continue;
        }
        // A character that starts an escape sequence may be escaped or plain. JSON doubles backslashes, JSON in JSON
        // doubles them again, and the next character may have its own backslash.
        let slashes = leading(rest.chars(), '\\');
        let own = leading(left.iter().copied(), '\\');
        let doubled = [4 * own, 2 * own, own].into_iter().filter(|taken| (1..=slashes).contains(taken));
        let alone = [escape(rest, *first), rest.starts_with(*first).then_some(1)];
        let mut ways =
            doubled.map(|taken| (taken, own)).chain(alone.into_iter().flatten().map(|taken| (taken, 1)));
        let end = |(taken, own): (usize, usize)| Some(at + taken + matched(&rest[taken..], &left[own..])?);
        return ways.find_map(end);
    }
    Some(at)
}

fn leading(chars: impl Iterator<Item = char>, wanted: char) -> usize {
    chars.take_while(|c| *c == wanted).count()
}

/// Returns the length in bytes of one character, plain or escaped, at the start of `text`.
fn written(text: &str, wanted: char) -> Option<usize> {
    if text.starts_with(wanted) { Some(wanted.len_utf8()) } else { escape(text, wanted) }
}

/// Returns the length in bytes of one escaped character at the start of `text`.
fn escape(text: &str, wanted: char) -> Option<usize> {
    match text.chars().next()? {
        '+' if wanted == ' ' => Some(1),
        '%' => percent(text, wanted),
        '\\' => escaped(text, wanted),
        '&' => entity(text, wanted),
        _ => None,
    }
}

/// Matches `%C3%9F`, and `%25C3%259F` for a URL inside a URL.
fn percent(text: &str, wanted: char) -> Option<usize> {
    let mut rest = text;
    for byte in wanted.encode_utf8(&mut [0; 4]).bytes() {
        rest = rest.strip_prefix('%')?;
        while let Some(inner) =
            rest.strip_prefix("25").filter(|_| hexadecimal(rest, 2) != Some(u32::from(byte)))
        {
            rest = inner;
        }
        (hexadecimal(rest, 2)? == u32::from(byte)).then_some(())?;
        rest = &rest[2..];
    }
    Some(text.len() - rest.len())
}

/// Matches `\u00df`, `\"` and `\n`, with more backslashes for a text inside a text.
fn escaped(text: &str, wanted: char) -> Option<usize> {
    let after = text.trim_start_matches('\\');
    let escaped = match wanted {
        '\n' => 'n',
        '\r' => 'r',
        '\t' => 't',
        '\u{8}' => 'b',
        '\u{c}' => 'f',
        other => other,
    };
    let is_escaped = !wanted.is_alphanumeric() && after.starts_with(escaped);
    if is_escaped {
        return Some(text.len() - after.len() + escaped.len_utf8());
    }
    let mut rest = text;
    for unit in wanted.encode_utf16(&mut [0; 2]) {
        rest = rest.strip_prefix('\\')?.trim_start_matches('\\').strip_prefix('u')?;
        (hexadecimal(rest, 4)? == u32::from(*unit)).then_some(())?;
        rest = &rest[4..];
    }
    Some(text.len() - rest.len())
}

/// Matches `&quot;`, `&#39;` and `&#x27;`.
fn entity(text: &str, wanted: char) -> Option<usize> {
    let (name, _) = text.strip_prefix('&')?.split_once(';').filter(|(name, _)| name.len() <= 10)?;
    let is_meant = match (name, name.strip_prefix('#')) {
        (_, Some(number)) => {
            let code = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => number.parse(),
            };
            code == Ok(u32::from(wanted))
        }
        ("amp", _) => wanted == '&',
        ("lt", _) => wanted == '<',
        ("gt", _) => wanted == '>',
        ("quot", _) => wanted == '"',
        ("apos", _) => wanted == '\'',
        _ => false,
    };
    is_meant.then_some(name.len() + 2)
}

/// Parses the given number of hexadecimal digits at the start of `text`.
fn hexadecimal(text: &str, digits: usize) -> Option<u32> {
    let digits = text.get(..digits)?;
    if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        u32::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Redaction;

    fn hidden(secret: &str, text: &str) -> String {
        let mut text = text.to_owned();
        Redaction::of(secret).unwrap().hide(&mut text);
        text
    }

    #[test]
    fn secret_is_redacted_in_every_escaping() {
        let secret = "c\"a/n\\\\a r\\\"y\nß\u{1f426}'&<";
        let json = json!(secret).to_string();
        let twice = json!(json).to_string();
        let ascii = "c\\\"a\\/n\\\\\\\\a r\\\\\\\"y\\n\\u00DF\\ud83d\\uDC26'&<";
        for text in [
            secret,
            &json[1..json.len() - 1],
            &twice[3..twice.len() - 3],
            ascii,
            "c%22a/n%5C%5ca%20r%5c%22y%0a%C3%9F%F0%9F%90%A6'&<",
            "c%22a%2Fn%5C%5ca+r%5c%22y%0a%c3%9f%f0%9f%90%a6%27%26%3C",
            "c%2522a%252Fn%255C%255ca+r%255c%2522y%250a%25c3%259f%25f0%259f%2590%25a6%2527%2526%253C",
            "c&quot;a/n\\\\a r\\&#34;y\n&#xDF;\u{1f426}&apos;&amp;&lt;",
            "c\"a/n\\u005c\\u005Ca r\\u005c\"y\\nß\u{1f426}'\\u0026<",
        ] {
            assert_eq!(hidden(secret, &format!("<{text}> {text}")), "<***> ***", "{text}");
        }
    }

    #[test]
    fn short_secrets_are_redacted_and_other_text_kept() {
        assert_eq!(
            hidden("ß7", "\\u00df7 %C3%9F7 ß7 ß8 \\u00df8 % \\ & &; ß"),
            "*** *** *** ß8 \\u00df8 % \\ & &; ß"
        );
        assert_eq!(hidden("%25x", "%25x %2525x"), "*** ***");
        assert_eq!(hidden("a&lt;b", "a&lt;b a&amp;lt;b a<b"), "*** *** a<b");
        assert_eq!(hidden("7", "17 %37 \\u0037 %38"), "1*** *** *** %38");
        assert_eq!(hidden("secret", "736563726574 736563726574x SECRET"), "*** ***x SECRET");
        assert_eq!(hidden("secret", "nothing"), "nothing");
        assert!(Redaction::of("").is_none());
    }
}
