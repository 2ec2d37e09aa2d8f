//! Parses a time with a picture.

use std::collections::BTreeMap;

use regex_lite::RegexBuilder;

use super::Fault;
use super::calendar::{Moment, millis_of};
use super::integer::{self, Whole};
use super::marker::{Marker, Part, Style};
use super::pattern::{Form, Grouping, Pattern};
use super::time::{DAYS, MONTHS, cut};

/// Maximum size in bytes of the regular expression for a picture. It is evaluated for each character of the text.
const LARGEST_EXPRESSION: usize = 512 * 1024;

/// The parsed components and their numbers. Offsets are in minutes.
type Components = BTreeMap<char, i64>;

/// Parses a time and returns milliseconds since 1970, or `None` if the text does not match the picture.
pub(super) fn scanned(text: &str, parts: &[Part], now: Option<i64>) -> Result<Option<i64>, Fault> {
    let groups: Vec<String> = parts.iter().map(expression).collect::<Result<_, _>>()?;
    let regex = RegexBuilder::new(&format!("^{}$", groups.concat()))
        .case_insensitive(true)
        .size_limit(LARGEST_EXPRESSION)
        .build()
        .map_err(|_| Fault::unsupported("the picture has too many parts for parsing"))?;
    let Some(found) = regex.captures(text) else { return Ok(None) };
    let mut components = Components::new();
    let mut is_empty = true;
    for (part, found) in parts.iter().zip(found.iter().skip(1)) {
        let Part::Marker(marker) = part else { continue };
        is_empty = false;
        match read(marker, found.map_or("", |found| found.as_str()))? {
            Read::Number(number) => _ = components.insert(marker.component, number),
            // The day of the week is not needed, and JSONata does not compare it with the date either.
            Read::Unknown if marker.component == 'F' => {}
            Read::Unknown => {
                return Err(underspecified(&format!(
                    "the name for component `{}` is unknown",
                    marker.component
                )));
            }
            Read::Nothing => return Ok(None),
        }
    }
    if is_empty { Ok(None) } else { assembled(components, now).map(Some) }
}

/// Returns the regular expression of a part, as one group.
fn expression(part: &Part) -> Result<String, Fault> {
    let inside = match part {
        Part::Literal(text) => regex_lite::escape(text),
        Part::Marker(marker) => match (marker.component, &marker.style) {
            ('Z' | 'z', style) => {
                let prefix = if marker.component == 'z' { "GMT" } else { "" };
                let separator = zone_separator(style).map(|sign| regex_lite::escape(&sign.to_string()));
                let minutes = separator.map_or_else(String::new, |separator| format!("{separator}[0-9]+"));
                format!("{prefix}[-+][0-9]+{minutes}")
            }
            ('f', _) => "[0-9]+".to_owned(),
            (_, Style::Number(pattern)) => integer::expression(pattern)?,
            ('M' | 'x' | 'F' | 'P', Style::Name(_)) => "[a-z]+".to_owned(),
            (_, Style::Name(_)) => return Err(marker.nameless()),
        },
    };
    Ok(format!("({inside})"))
}

fn zone_separator(style: &Style) -> Option<char> {
    match style {
        Style::Number(Pattern { form: Form::Decimal(decimal), .. }) => match decimal.grouping {
            Grouping::Every(_, sign) => Some(sign),
            Grouping::At(_) => None,
        },
        _ => None,
    }
}

enum Read {
    Number(i64),
    /// The text is not a known name.
    Unknown,
    /// The text does not match the picture.
    Nothing,
}

fn read(marker: &Marker, text: &str) -> Result<Read, Fault> {
    let number = match (marker.component, &marker.style) {
        ('Z' | 'z', style) => minutes(text, zone_separator(style)),
        // The first three digits of a fraction are milliseconds, whatever its presentation.
        ('f', _) => text.chars().chain("00".chars()).take(3).collect::<String>().parse().ok(),
        (_, Style::Number(pattern)) => match integer::read(text, pattern)? {
            Some(Whole::Exact(number)) => i64::try_from(number).ok(),
            _ => None,
        },
        ('P', _) => return Ok(named(text, &["am", "pm"], 0, None)),
        ('F', _) => return Ok(named(text, &DAYS, 1, marker.widest)),
        _ => return Ok(named(text, &MONTHS, 1, marker.widest)),
    };
    Ok(number.map_or(Read::Nothing, Read::Number))
}

/// Returns the position of a name in a list, counted from `first`. Names may be truncated to a width. If two are
/// equal then, the last one counts, as in JSONata.
fn named(text: &str, names: &[&str], first: i64, widest: Option<usize>) -> Read {
    let widest = widest.filter(|widest| *widest > 0);
    let found = names.iter().rposition(|name| cut(name, widest).eq_ignore_ascii_case(text));
    found.and_then(|at| i64::try_from(at).ok()).map_or(Read::Unknown, |at| Read::Number(first + at))
}

/// Parses an offset in minutes: `+01:30`, `+0130`, `+1`, and the same after `GMT`.
fn minutes(text: &str, separator: Option<char>) -> Option<i64> {
    let (at, sign) = text.char_indices().find(|(_, c)| matches!(c, '+' | '-'))?;
    let digits = &text[at + 1..];
    let (hours, minutes) = match separator {
        Some(separator) => digits.split_once(separator)?,
        None if digits.len() <= 2 => (digits, "0"),
        None if digits.len() <= 4 => digits.split_at(digits.len() - 2),
        None => return None,
    };
    let offset = hours.parse::<i64>().ok()?.checked_mul(60)?.checked_add(minutes.parse().ok()?)?;
    (offset < 100 * 60).then_some(if sign == '-' { -offset } else { offset })
}

/// Combines components into a time. Components larger than the first one present are taken from the current time, and
/// components smaller than the last one present get their minimum. No component in between may be missing.
fn assembled(mut components: Components, now: Option<i64>) -> Result<i64, Fault> {
    let kinds = Kinds::of(&components);
    let date = if kinds.by_day_of_year {
        "YD"
    } else if kinds.by_week_of_month {
        "XxwF"
    } else if kinds.by_week_of_year {
        "XWF"
    } else {
        "YMD"
    };
    let time = if kinds.by_half_day { "Phmsf" } else { "Hmsf" };
    let (mut begun, mut ended) = (false, false);
    for component in date.chars().chain(time.chars()) {
        if components.contains_key(&component) {
            begun = true;
            if ended {
                return Err(underspecified("the picture lacks a component between two others"));
            }
            continue;
        }
        ended = begun;
        let number = match component {
            'M' | 'D' if begun => 1,
            _ if begun => 0,
            // Week dates are rejected below, and the half day defaults to the first one.
            'X' | 'x' | 'W' | 'w' | 'F' | 'P' => 0,
            _ => fragment(now, component)?,
        };
        components.insert(component, number);
    }
    if kinds.by_week_of_month || kinds.by_week_of_year {
        return Err(underspecified("week dates are not supported"));
    }
    let millis = combined(&components, &kinds);
    millis.ok_or_else(|| Fault::unsupported("the time is out of range"))
}

fn combined(components: &Components, kinds: &Kinds) -> Option<i64> {
    let part = |component: char| components.get(&component).copied().unwrap_or(0);
    // As in ECMAScript, a year with two digits is in the 20th century.
    let year = if (0..100).contains(&part('Y')) { part('Y') + 1900 } else { part('Y') };
    let date = if kinds.by_day_of_year { [year, 1, part('d')] } else { [year, part('M').max(1), part('D')] };
    let hour = match (kinds.by_half_day, part('h')) {
        (false, _) => part('H'),
        (true, 12) => part('P') * 12,
        (true, hour) => part('P').checked_mul(12)?.checked_add(hour)?,
    };
    let offset = [part('Z'), part('z')].into_iter().find(|offset| *offset != 0).unwrap_or(0);
    millis_of(date, [hour, part('m'), part('s'), part('f')])?.checked_sub(offset * 60_000)
}

fn fragment(now: Option<i64>, component: char) -> Result<i64, Fault> {
    let now = now.and_then(Moment::at).and_then(|now| now.component(component));
    now.ok_or_else(|| {
        Fault::unsupported("the picture lacks parts of the time, and there is no clock to complete them")
    })
}

fn underspecified(why: &str) -> Fault {
    Fault::new("D3136", format!("the time cannot be parsed: {why}"))
}

/// The components by which date and time are given.
struct Kinds {
    by_day_of_year: bool,
    by_week_of_month: bool,
    by_week_of_year: bool,
    by_half_day: bool,
}

impl Kinds {
    /// Determines the kinds. As in JSONata, a component that is zero does not count.
    fn of(components: &Components) -> Kinds {
        let among = |all: &str, kind: &str| {
            let mut given =
                all.chars().filter(|c| components.get(c).is_some_and(|number| *number != 0)).peekable();
            given.peek().is_some() && given.all(|c| kind.contains(c))
        };
        const DATE: &str = "YXMxWwdD";
        const TIME: &str = "PHhmsf";
        let by_week_of_month = among(DATE, "Xxw");
        Kinds {
            by_day_of_year: !among(DATE, "YMD") && among(DATE, "Yd"),
            by_week_of_month,
            by_week_of_year: !by_week_of_month && among(DATE, "XW"),
            by_half_day: !among(TIME, "Hmsf") && among(TIME, "Phmsf"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::time::{from_millis, to_millis};

    /// Friday, 9 August 2019, 21:08:05.432 UTC.
    const NOW: i64 = 1_565_384_885_432;

    fn read(text: &str, picture: &str) -> String {
        match to_millis(text, Some(picture), Some(NOW)) {
            Ok(None) => "none".to_owned(),
            Ok(Some(millis)) => {
                from_millis(millis as f64, None, None).unwrap_or_else(|fault| fault.code.to_owned())
            }
            Err(fault) => fault.code.to_owned(),
        }
    }

    #[test]
    fn dates_are_read() {
        let cases = [
            ("7/4/2031", "[D]/[M]/[Y]", "2031-04-07T00:00:00.000Z"),
            ("20310407", "[Y0001][M01][D01]", "2031-04-07T00:00:00.000Z"),
            ("7th of april, 2031", "[D1o] of [MNn], [Y]", "2031-04-07T00:00:00.000Z"),
            ("Mon 7 Apr 2031", "[FNn,*-3] [D] [MNn,*-3] [Y]", "2031-04-07T00:00:00.000Z"),
            ("VII.iv.MMXXXI", "[DI].[Mi].[YI]", "2031-04-07T00:00:00.000Z"),
            ("fourth d, two thousand and thirty-one", "[Mwo] [Da], [Yw]", "2031-04-04T00:00:00.000Z"),
            ("2032-060", "[Y0001]-[d001]", "2032-02-29T00:00:00.000Z"),
            ("31-04-07", "[Y,2-2]-[M01]-[D01]", "1931-04-07T00:00:00.000Z"),
            ("2031-02-30", "[Y]-[M]-[D]", "2031-03-02T00:00:00.000Z"),
            ("[2031]", "[[[Y]]]", "2031-01-01T00:00:00.000Z"),
        ];
        for (text, picture, expected) in cases {
            assert_eq!(read(text, picture), expected, "{text} by {picture}");
        }
    }

    #[test]
    fn times_and_zones_are_read() {
        let cases = [
            ("2031-04-07 9:05 pm", "[Y]-[M]-[D] [h]:[m] [P]", "2031-04-07T21:05:00.000Z"),
            ("2031-04-07 am 12", "[Y]-[M]-[D] [PN] [h]", "2031-04-07T00:00:00.000Z"),
            ("2031-04-07T09:05:06.078+05:30", "[Y]-[M]-[D]T[H]:[m]:[s].[f][Z]", "2031-04-07T03:35:06.078Z"),
            ("2031-04-07T09:05:06.5", "[Y]-[M]-[D]T[H]:[m]:[s].[f1]", "2031-04-07T09:05:06.500Z"),
            ("2031-04-07T09:05:06.0789", "[Y]-[M]-[D]T[H]:[m]:[s].[f001]", "2031-04-07T09:05:06.078Z"),
            ("2031-04-07T09:05:06.5", "[Y]-[M]-[D]T[H]:[m]:[s].[fN]", "2031-04-07T09:05:06.500Z"),
            ("2031-04-07 09 GMT-0330", "[Y]-[M]-[D] [H] [z0000]", "2031-04-07T12:30:00.000Z"),
            ("2031-04-07 09 +2", "[Y]-[M]-[D] [H] [Z0]", "2031-04-07T07:00:00.000Z"),
            ("2031-04-07 09 +12345", "[Y]-[M]-[D] [H] [Z0000]", "none"),
        ];
        for (text, picture, expected) in cases {
            assert_eq!(read(text, picture), expected, "{text} by {picture}");
        }
    }

    #[test]
    fn missing_leading_parts_default_to_now() {
        assert_eq!(read("5/6", "[D]/[M]"), "2019-06-05T00:00:00.000Z");
        assert_eq!(read("06:07", "[H]:[m]"), "2019-08-09T06:07:00.000Z");
        assert_eq!(read("33", "[s]"), "2019-08-09T21:08:33.000Z");
        assert_eq!(to_millis("33", Some("[s]"), None).map_err(|fault| fault.code), Err("unsupported"));
    }

    #[test]
    fn other_times_are_refused() {
        let cases = [
            ("2031 07", "[Y] [D]", "D3136"),
            ("2031-W15-1", "[X]-W[W01]-[F1]", "D3136"),
            ("2031-4-2", "[X]-[x]-[w]", "D3136"),
            ("2031 Aprul", "[Y] [MNn]", "D3136"),
            ("2031", "[YN]", "D3133"),
            ("ISO", "[E]", "D3133"),
            ("2031", "[Y*]", "D3130"),
            ("2031", "[q]", "D3132"),
            ("2031", "[Y", "D3135"),
            ("next week", "[Y]", "none"),
            ("2031 ", "[Y]", "none"),
            ("text", "text", "none"),
            ("and", "[Yw]", "none"),
            (&"9".repeat(30), "[Y]", "none"),
            ("999999", "[Y]", "unsupported"),
            (&"9".repeat(1001), "[Y]", "unsupported"),
            ("1", &"[Dw]".repeat(200), "unsupported"),
        ];
        for (text, picture, expected) in cases {
            assert_eq!(read(text, picture), expected, "{text} by {picture}");
        }
    }
}
