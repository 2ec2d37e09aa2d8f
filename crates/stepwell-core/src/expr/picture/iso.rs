//! Parsing of ISO 8601 as JSONata accepts it without a picture.

use super::calendar::{days_in, millis_of};

/// Parses `YYYY[-MM[-DD]][Thh:mm:ss[.fff]][Z|±hh:mm|±hhmm]` and returns milliseconds since 1970, or `None` for any
/// other text.
///
/// A time without a zone is UTC. ECMAScript uses the machine's zone, which does not exist here.
pub(super) fn millis(text: &str) -> Option<i64> {
    let mut rest = text;
    let year = digits(&mut rest, 4)?;
    let month = if eat(&mut rest, '-') { digits(&mut rest, 2)? } else { 1 };
    let has_day = rest.starts_with('-') && text.len() - rest.len() == "YYYY-MM".len();
    let day = if has_day && eat(&mut rest, '-') { digits(&mut rest, 2)? } else { 1 };
    let has_time = eat(&mut rest, 'T');
    let time = if has_time { clock(&mut rest)? } else { [0; 4] };
    let offset = if eat(&mut rest, 'Z') { 0 } else { zone(&mut rest, has_time)? };
    let [hour, minute, second, milli] = time;
    let is_clock =
        minute < 60 && second < 60 && (hour < 24 || [hour, minute, second, milli] == [24, 0, 0, 0]);
    let is_date = (1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day);
    if !rest.is_empty() || !is_clock || !is_date {
        return None;
    }
    millis_of([year, month, day], time).map(|millis| millis - offset * 60_000)
}

fn clock(rest: &mut &str) -> Option<[i64; 4]> {
    let hour = digits(rest, 2)?;
    let minute = eat(rest, ':').then(|| digits(rest, 2))??;
    let second = eat(rest, ':').then(|| digits(rest, 2))??;
    Some([hour, minute, second, if eat(rest, '.') { fraction(rest)? } else { 0 }])
}

/// Parses the milliseconds of a fraction. Digits after the third are ignored.
fn fraction(rest: &mut &str) -> Option<i64> {
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (all, behind) = rest.split_at(end);
    *rest = behind;
    let padded: String = all.chars().chain("00".chars()).take(3).collect();
    if all.is_empty() { None } else { padded.parse().ok() }
}

/// Parses the offset in minutes, or zero if there is none. A date without a time can have only `Z`.
fn zone(rest: &mut &str, has_time: bool) -> Option<i64> {
    let sign = match rest.chars().next() {
        Some('+') if has_time => 1,
        Some('-') if has_time => -1,
        _ => return Some(0),
    };
    *rest = &rest[1..];
    let hours = digits(rest, 2)?;
    eat(rest, ':');
    let minutes = digits(rest, 2)?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

fn eat(rest: &mut &str, sign: char) -> bool {
    let behind = rest.strip_prefix(sign);
    *rest = behind.unwrap_or(rest);
    behind.is_some()
}

/// Parses exactly `count` digits.
fn digits(rest: &mut &str, count: usize) -> Option<i64> {
    let number = rest.get(..count).filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
    *rest = &rest[count..];
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::millis;

    #[test]
    fn dates_and_times_are_read() {
        let cases = [
            ("1970", 0),
            ("1970Z", 0),
            ("1970-02", 31 * 86_400_000),
            ("1970-01-02", 86_400_000),
            ("1970-01-02Z", 86_400_000),
            ("1970T00:00:01Z", 1_000),
            ("1970-01-01T01:00:00", 3_600_000),
            ("1970-01-01T01:00:00.5Z", 3_600_500),
            ("1970-01-01T01:00:00.0129999Z", 3_600_012),
            ("1970-01-01T01:00:00+01:00", 0),
            ("1969-12-31T18:30:00.000-0530", 0),
            ("1969-12-31T24:00:00Z", 0),
            ("2000-02-29", 951_782_400_000),
        ];
        for (text, expected) in cases {
            assert_eq!(millis(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_are_rejected() {
        let cases = [
            "",
            "70",
            "1970-",
            "1970-1-1",
            "1970-13-01",
            "1970-00-01",
            "1970-02-30",
            "1970-01-01-01",
            "1970-01-01T01:00Z",
            "1970-01-01T25:00:00Z",
            "1970-01-01T24:00:00.001Z",
            "1970-01-01T01:00:00.Z",
            "1970-01-01T01:00:00+24:00",
            "1970-01-01+01:00",
            "1970-01-01 01:00:00",
            "1970.5",
            "197\u{e9}-01-01",
            "1970-01-01T01:00:00Z ",
        ];
        for text in cases {
            assert_eq!(millis(text), None, "{text}");
        }
    }
}
