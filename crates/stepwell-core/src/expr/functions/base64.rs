//! Base 64 by RFC 4648. Decoding is lenient about padding, as in browsers.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |place: usize| u32::from(chunk.get(place).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = (bits >> (18 - 6 * place)) & 63;
            text.push(if place > chunk.len() { '=' } else { char::from(ALPHABET[digit as usize]) });
        }
    }
    text
}

/// Decodes base 64. Returns `None` if the text is not valid.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let (mut bits, mut count) = (0u32, 0u32);
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3);
    for byte in digits.bytes().filter(|byte| !byte.is_ascii_whitespace()) {
        let digit = ALPHABET.iter().position(|known| *known == byte)?;
        bits = bits << 6 | u32::try_from(digit).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xFF).ok()?);
        }
    }
    Some(bytes)
}
