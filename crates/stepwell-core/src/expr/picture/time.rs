//! Implementation of `$fromMillis` and `$toMillis`.

use super::calendar::Moment;
use super::marker::{self, Marker, Part, Style};
use super::pattern::{Case, Form, Grouping, Pattern};
use super::{Fault, bounded, integer, iso, scan, shown};

pub(super) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

pub(super) const DAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// The default picture: ISO 8601 with milliseconds.
const DEFAULT: &str = "[Y0001]-[M01]-[D01]T[H01]:[m01]:[s01].[f001][Z01:01t]";

/// Formats a time, in milliseconds since 1970, with a picture and a time zone (`±HHMM`).
pub(in crate::expr) fn from_millis(
    millis: f64,
    picture: Option<&str>,
    timezone: Option<&str>,
) -> Result<String, Fault> {
    let offset = timezone.map_or(Ok(Offset { minutes: 0 }), Offset::read)?;
    let parts = marker::parts(picture.unwrap_or(DEFAULT))?;
    // A double represents every time in range exactly. The cast saturates.
    let moment = Moment::at((millis + (offset.minutes * 60_000) as f64) as i64);
    let Some(moment) = moment else {
        return Err(Fault::unsupported(format!("the time {millis} is out of range")));
    };
    let mut text = String::new();
    for part in &parts {
        match part {
            Part::Literal(literal) => text.push_str(literal),
            Part::Marker(marker) => text.push_str(&component(marker, &moment, offset)?),
        }
    }
    Ok(text)
}

/// Parses a time by ISO 8601 or by a picture, and returns milliseconds since 1970.
///
/// Returns `None` if the text does not match the picture. Parts that are larger than the largest part of the picture
/// are taken from the current time.
pub(in crate::expr) fn to_millis(
    text: &str,
    picture: Option<&str>,
    now_millis: Option<i64>,
) -> Result<Option<i64>, Fault> {
    let Some(picture) = picture else {
        let millis = iso::millis(text).map(Some);
        return millis
            .ok_or_else(|| Fault::new("D3110", format!("{} is not a time in ISO 8601 format", shown(text))));
    };
    bounded(text, "the text")?;
    scan::scanned(text, &marker::parts(picture)?, now_millis)
}

/// Truncates a name to its maximum length.
pub(super) fn cut(name: &str, widest: Option<usize>) -> &str {
    let end = widest.and_then(|widest| name.char_indices().nth(widest));
    end.map_or(name, |(at, _)| &name[..at])
}

/// The offset of a time zone from UTC.
#[derive(Debug, Clone, Copy)]
struct Offset {
    minutes: i64,
}

impl Offset {
    fn read(timezone: &str) -> Result<Offset, Fault> {
        let (sign, digits) = match timezone.strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, timezone.strip_prefix('+').unwrap_or(timezone)),
        };
        let is_number = (1..=4).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        match digits.parse::<i64>() {
            Ok(clock) if is_number && clock % 100 < 60 => {
                Ok(Offset { minutes: sign * (clock / 100 * 60 + clock % 100) })
            }
            _ => {
                Err(Fault::unsupported(format!("the time zone {} must be written as ±HHMM", shown(timezone))))
            }
        }
    }
}

fn component(marker: &Marker, moment: &Moment, offset: Offset) -> Result<String, Fault> {
    match (marker.component, &marker.style) {
        ('Z' | 'z', Style::Number(pattern)) => zone(marker, pattern, offset),
        ('P', style) => {
            let half = if moment.is_afternoon() { "pm" } else { "am" };
            let is_upper = matches!(style, Style::Name(Case::Upper));
            Ok(if is_upper { half.to_uppercase() } else { half.to_owned() })
        }
        ('C' | 'E', _) => Ok("ISO".to_owned()),
        (component, style) => {
            let number = moment.component(component);
            let number = number.ok_or_else(|| marker::unknown(&component.to_string()))?;
            match style {
                Style::Name(case) => name(marker, number).map(|name| case.apply(name)),
                Style::Number(pattern) => numeral(year_end(number, marker), pattern),
            }
        }
    }
}

fn numeral(number: i64, pattern: &Pattern) -> Result<String, Fault> {
    integer::written(number < 0, &number.unsigned_abs().to_string(), pattern)
}

/// Returns only the last digits of a year, if its picture limits the digits.
fn year_end(number: i64, marker: &Marker) -> i64 {
    let digits = marker.year_digits.filter(|_| marker.component == 'Y');
    let modulus =
        digits.and_then(|digits| u32::try_from(digits).ok()).and_then(|digits| 10_i64.checked_pow(digits));
    modulus.map_or(number, |modulus| number % modulus)
}

fn name(marker: &Marker, number: i64) -> Result<&'static str, Fault> {
    let names: &[&str] = match marker.component {
        'M' | 'x' => &MONTHS,
        'F' => &DAYS,
        _ => return Err(marker.nameless()),
    };
    let at = usize::try_from(number - 1).ok();
    let name = at.and_then(|at| names.get(at)).ok_or_else(|| marker.nameless())?;
    Ok(cut(name, marker.widest))
}

fn zone(marker: &Marker, pattern: &Pattern, offset: Offset) -> Result<String, Fault> {
    if offset.minutes == 0 && marker.zulu {
        return Ok("Z".to_owned());
    }
    let (hours, minutes) = (offset.minutes.abs() / 60, offset.minutes.abs() % 60);
    let is_regular =
        matches!(&pattern.form, Form::Decimal(decimal) if matches!(decimal.grouping, Grouping::Every(..)));
    let clock = match marker.digits() {
        Some(_) if is_regular => numeral(hours * 100 + minutes, pattern)?,
        Some(1 | 2) if minutes == 0 => numeral(hours, pattern)?,
        Some(1 | 2) => format!("{}:{minutes:02}", numeral(hours, pattern)?),
        Some(3 | 4) => numeral(hours * 100 + minutes, pattern)?,
        _ => {
            let message =
                format!("the component `{}` must be written with one to four digits", marker.component);
            return Err(Fault::new("D3134", message));
        }
    };
    let sign = if offset.minutes < 0 { '-' } else { '+' };
    let prefix = if marker.component == 'z' { "GMT" } else { "" };
    Ok(format!("{prefix}{sign}{clock}"))
}

#[cfg(test)]
mod tests {
    use super::{from_millis, to_millis};

    /// Thursday, 29 February 2024, 17:03:09.041 UTC.
    const LEAP: f64 = 1_709_226_189_041.0;

    fn by(picture: &str) -> String {
        from_millis(LEAP, Some(picture), None).unwrap_or_else(|fault| fault.code.to_owned())
    }

    fn in_zone(picture: &str, timezone: &str) -> String {
        from_millis(LEAP, Some(picture), Some(timezone)).unwrap_or_else(|fault| fault.code.to_owned())
    }

    #[test]
    fn the_default_is_iso() {
        assert_eq!(from_millis(LEAP, None, None).as_deref(), Ok("2024-02-29T17:03:09.041Z"));
        assert_eq!(from_millis(LEAP, None, Some("+0900")).as_deref(), Ok("2024-03-01T02:03:09.041+09:00"));
        assert_eq!(from_millis(LEAP, None, Some("-0330")).as_deref(), Ok("2024-02-29T13:33:09.041-03:30"));
        assert_eq!(from_millis(-1.0, None, None).as_deref(), Ok("1969-12-31T23:59:59.999Z"));
        assert_eq!(from_millis(1.9, None, None).as_deref(), Ok("1970-01-01T00:00:00.001Z"));
        assert_eq!(from_millis(1.9, None, Some("-0001")).as_deref(), Ok("1969-12-31T23:59:00.002-00:01"));
        assert_eq!(from_millis(1e300, None, None).map_err(|fault| fault.code), Err("unsupported"));
        assert_eq!(to_millis("2024-02-29T17:03:09.041Z", None, None), Ok(Some(LEAP as i64)));
        assert_eq!(to_millis("2024-02-30", None, None).map_err(|fault| fault.code), Err("D3110"));
        assert_eq!(to_millis("29 February", None, None).map_err(|fault| fault.code), Err("D3110"));
    }

    #[test]
    fn numbers_have_widths_and_forms() {
        assert_eq!(by("[Y] [M] [D] [d] [F1] [W] [w] [X] [x]"), "2024 2 29 60 4 9 5 2024 2");
        assert_eq!(by("[H]:[m]:[s].[f] [h] [h00]"), "17:03:09.41 5 05");
        assert_eq!(by("[Y,2-2] [Y,4] [Y,*-3] [Y#0] [M,3] [f001]"), "24 2024 024 24 002 041");
        assert_eq!(
            by("[D1o] [Dwo] [DWw] [YI] [Mi] [Ma] [Y9,999,*]"),
            "29th twenty-ninth Twenty-Nine MMXXIV ii b 2,024"
        );
        assert_eq!(by("[ Y 0001 ]"), "2024");
    }

    #[test]
    fn names_have_cases_and_widths() {
        assert_eq!(by("[FNn], [MN] [Fn] [F] [xNn]"), "Thursday, FEBRUARY thursday thursday February");
        assert_eq!(by("[FNn,*-3] [MN,3-3] [Mn,2]"), "Thu FEB february");
        assert_eq!(by("[P] [PN] [PNn] [C] [E]"), "pm PM pm ISO ISO");
    }

    #[test]
    fn zones_are_written_in_every_form() {
        assert_eq!(
            in_zone("[Z] [Z0] [Z00] [Z0000] [Z0:00] [z]", "+0530"),
            "+05:30 +5:30 +05:30 +0530 +5:30 GMT+05:30"
        );
        assert_eq!(in_zone("[Z] [Z0] [Z000] [z0]", "-0800"), "-08:00 -8 -800 GMT-8");
        assert_eq!(in_zone("[Z] [Z0]", "-0045"), "-00:45 -0:45");
        assert_eq!(in_zone("[Z] [Z01:01t] [z00t]", "0"), "+00:00 Z Z");
        for zone in ["", "+", "Z", "+05:30", "+05300", "+0560", "Europe/Paris"] {
            assert_eq!(in_zone("[Z]", zone), "unsupported", "{zone}");
        }
    }

    #[test]
    fn brackets_are_doubled() {
        assert_eq!(by("[[[Y]]] [[x]] a]b"), "[2024] [x] a]b");
        assert_eq!(by(""), "");
    }

    #[test]
    fn invalid_pictures_have_jsonata_codes() {
        let cases = [
            ("[D*]", "D3130"),
            ("[D0\u{660}]", "D3131"),
            ("[]", "D3132"),
            ("[ ]", "D3132"),
            ("[q]", "D3132"),
            ("[q01]", "D3132"),
            ("[YN]", "D3133"),
            ("[fn]", "D3133"),
            ("[Z00000]", "D3134"),
            ("[ZN]", "D3134"),
            ("[Y", "D3135"),
            ("[M,1001]", "unsupported"),
            ("[M,99999999999999999999999]", "unsupported"),
        ];
        for (picture, code) in cases {
            assert_eq!(by(picture), code, "{picture}");
        }
    }
}
