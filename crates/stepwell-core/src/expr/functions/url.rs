//! Percent-encoding, as in ECMAScript.

/// Characters that are not encoded in a URL component.
const PLAIN: &[u8] = b"-_.!~*'()";
/// Characters with a meaning in a URL, which are not encoded in a whole URL.
const RESERVED: &[u8] = b";,/?:@&=+$#";

pub(super) fn encode(text: &str, is_whole: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        let is_plain =
            byte.is_ascii_alphanumeric() || PLAIN.contains(&byte) || is_whole && RESERVED.contains(&byte);
        match is_plain {
            true => encoded.push(char::from(byte)),
            false => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Decodes a text. Returns `None` if it is not properly encoded.
pub(super) fn decode(text: &str, is_whole: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (high, low) = (rest.next(), rest.next());
        let decoded = u8::try_from(digit(high)? * 16 + digit(low)?).ok()?;
        match is_whole && RESERVED.contains(&decoded) {
            true => bytes.extend([b'%', high?, low?]),
            false => bytes.push(decoded),
        }
    }
    String::from_utf8(bytes).ok()
}
