//! Parses the pictures of `$formatNumber`: the decimal formats of XPath 3.1, as JSONata checks and analyses them.

use serde_json::{Map, Value};

use super::{Fault, bounded, interval, shown};

/// The characters of a picture and of the formatted number.
#[derive(Debug)]
pub(super) struct Signs {
    pub(super) decimal: char,
    pub(super) grouping: char,
    pub(super) exponent: char,
    pub(super) zero: char,
    digit: char,
    pattern: char,
    percent: String,
    per_mille: String,
    pub(super) minus: String,
    pub(super) infinity: String,
    pub(super) not_a_number: String,
}

impl Signs {
    /// Creates JSONata's defaults with the given options. As in JSONata, unknown options are ignored.
    pub(super) fn new(options: Option<&Map<String, Value>>) -> Result<Signs, Fault> {
        let text = |name: &str, default: &str| match options.and_then(|options| options.get(name)) {
            None => Ok(default.to_owned()),
            Some(Value::String(text)) if text.chars().count() <= 20 => Ok(text.clone()),
            Some(_) => Err(Fault::unsupported(format!(
                "the option {name:?} must be a text of at most 20 characters"
            ))),
        };
        let sign = |name: &str, default: &str| {
            let text = text(name, default)?;
            let mut chars = text.chars();
            match (chars.next(), chars.next()) {
                (Some(sign), None) => Ok(sign),
                _ => Err(Fault::unsupported(format!("the option {name:?} must be one character"))),
            }
        };
        let signs = Signs {
            decimal: sign("decimal-separator", ".")?,
            grouping: sign("grouping-separator", ",")?,
            exponent: sign("exponent-separator", "e")?,
            zero: sign("zero-digit", "0")?,
            digit: sign("digit", "#")?,
            pattern: sign("pattern-separator", ";")?,
            percent: text("percent", "%")?,
            per_mille: text("per-mille", "\u{2030}")?,
            minus: text("minus-sign", "-")?,
            infinity: text("infinity", "Infinity")?,
            not_a_number: text("NaN", "NaN")?,
        };
        if (0..10).any(|digit| char::from_u32(u32::from(signs.zero) + digit).is_none()) {
            return Err(Fault::unsupported("the option \"zero-digit\" must be followed by nine more digits"));
        }
        Ok(signs)
    }

    fn is_mandatory(&self, c: char) -> bool {
        u32::from(c).wrapping_sub(u32::from(self.zero)) < 10
    }

    fn is_digit(&self, c: char) -> bool {
        self.is_mandatory(c) || c == self.digit
    }

    fn is_active(&self, c: char) -> bool {
        self.is_digit(c) || [self.decimal, self.exponent, self.grouping, self.pattern].contains(&c)
    }

    /// Returns true for characters that can start or end the active part. The exponent separator cannot, because it
    /// may be a letter of the surrounding text.
    fn is_edge(&self, c: char) -> bool {
        self.is_active(c) && c != self.exponent
    }
}

/// The layout of a number by one sub-picture.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) prefix: String,
    pub(super) suffix: String,
    /// Factor of the number: 100 for per cent, 1000 for per mille, otherwise 1.
    pub(super) factor: f64,
    /// Interval of evenly repeated grouping separators; 0 if they are only at `whole_groups`.
    pub(super) every: usize,
    /// Number of digits to the right of each grouping separator.
    pub(super) whole_groups: Vec<usize>,
    /// Number of digits between the decimal separator and each grouping separator.
    pub(super) fraction_groups: Vec<usize>,
    pub(super) least_whole: usize,
    pub(super) least_fraction: usize,
    pub(super) most_fraction: usize,
    pub(super) exponent: Option<Exponent>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Exponent {
    pub(super) least_digits: usize,
    /// Number of digits of the mantissa before the decimal separator.
    pub(super) scaling: usize,
}

/// Parses the layouts for positive and negative numbers.
pub(super) fn layouts(picture: &str, signs: &Signs) -> Result<(Layout, Layout), Fault> {
    bounded(picture, "the picture")?;
    let subpictures: Vec<&str> = picture.split(signs.pattern).collect();
    let (positive, negative) = match subpictures.as_slice() {
        [only] => (only, None),
        [positive, negative] => (positive, Some(negative)),
        _ => {
            return Err(Fault::new(
                "D3080",
                format!("the picture {} has more than two parts", shown(picture)),
            ));
        }
    };
    let positive = layout(positive, signs)?;
    let negative = match negative {
        Some(negative) => layout(negative, signs)?,
        None => Layout { prefix: format!("{}{}", signs.minus, positive.prefix), ..positive.clone() },
    };
    Ok((positive, negative))
}

fn layout(subpicture: &str, signs: &Signs) -> Result<Layout, Fault> {
    let chars: Vec<char> = subpicture.chars().collect();
    let fault = |(code, why): Mistake| Fault::new(code, format!("the picture {} {why}", shown(subpicture)));
    let nothing = || match (chars.is_empty(), chars.contains(&signs.exponent)) {
        (true, _) => NO_DIGIT,
        (false, true) => ("D3093", "has an exponent without digits"),
        (false, false) => ("D3086", "has no part for the number"),
    };
    let parts = Parts::cut(&chars, subpicture, signs).ok_or_else(|| fault(nothing()))?;
    match mistake(&parts, signs) {
        Some(mistake) => Err(fault(mistake)),
        None => Ok(analysed(&parts, signs)),
    }
}

struct Parts<'p> {
    subpicture: &'p str,
    chars: &'p [char],
    prefix: &'p [char],
    suffix: &'p [char],
    /// The part between prefix and suffix.
    active: &'p [char],
    whole: &'p [char],
    fraction: &'p [char],
    exponent: Option<&'p [char]>,
}

impl<'p> Parts<'p> {
    /// Splits a sub-picture. Returns `None` if it has no part for the number.
    fn cut(chars: &'p [char], subpicture: &'p str, signs: &Signs) -> Option<Parts<'p>> {
        let start = chars.iter().position(|c| signs.is_edge(*c))?;
        let end = chars.iter().rposition(|c| signs.is_edge(*c))? + 1;
        let active = &chars[start..end];
        // An exponent separator directly after the active part counts too, because an exponent without digits is a
        // mistake.
        let sign = chars[start..].iter().position(|c| *c == signs.exponent).filter(|at| *at <= active.len());
        let (mantissa, exponent) = match sign {
            Some(at) => (&active[..at], Some(active.get(at + 1..).unwrap_or_default())),
            None => (active, None),
        };
        let (whole, fraction) = match mantissa.iter().position(|c| *c == signs.decimal) {
            Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
            None => (mantissa, Default::default()),
        };
        let (prefix, suffix) = (&chars[..start], &chars[end..]);
        Some(Parts { subpicture, chars, prefix, suffix, active, whole, fraction, exponent })
    }

    fn count(&self, sign: char) -> usize {
        self.chars.iter().filter(|c| **c == sign).count()
    }
}

/// The JSONata code of a mistake, and its description.
type Mistake = (&'static str, &'static str);

const NO_DIGIT: Mistake = ("D3085", "has no digit before its exponent");

/// Returns the last rule that is violated, which is the one that JSONata reports.
fn mistake(parts: &Parts<'_>, signs: &Signs) -> Option<Mistake> {
    let occurs = |sign: &str| !sign.is_empty() && parts.subpicture.contains(sign);
    let repeats = |sign: &str| occurs(sign) && parts.subpicture.find(sign) != parts.subpicture.rfind(sign);
    let percent = occurs(&signs.percent);
    let per_mille = occurs(&signs.per_mille);
    let decimal = parts.chars.iter().position(|c| *c == signs.decimal);
    let is_grouping = |at: usize| parts.chars.get(at) == Some(&signs.grouping);
    let mandatory = |part: &[char]| part.iter().any(|c| signs.is_mandatory(*c));
    let optional_from = parts.whole.iter().position(|c| *c == signs.digit);
    let optional_to = parts.fraction.iter().rposition(|c| *c == signs.digit);
    let rules = [
        (parts.count(signs.decimal) > 1, "D3081", "has more than one decimal separator"),
        (repeats(&signs.percent), "D3082", "has more than one per cent sign"),
        (repeats(&signs.per_mille), "D3083", "has more than one per mille sign"),
        (percent && per_mille, "D3084", "has both a per cent and a per mille sign"),
        (!parts.whole.iter().chain(parts.fraction).any(|c| signs.is_digit(*c)), NO_DIGIT.0, NO_DIGIT.1),
        (!parts.active.iter().all(|c| signs.is_active(*c)), "D3086", "has other characters between digits"),
        (
            decimal.is_some_and(|at| is_grouping(at + 1) || at > 0 && is_grouping(at - 1)),
            "D3087",
            "has a grouping separator next to the decimal separator",
        ),
        (
            decimal.is_none() && parts.whole.last() == Some(&signs.grouping),
            "D3088",
            "has a grouping separator at the end of its whole part",
        ),
        (
            parts.chars.windows(2).any(|two| two == [signs.grouping; 2]),
            "D3089",
            "has two adjacent grouping separators",
        ),
        (
            optional_from.is_some_and(|at| mandatory(&parts.whole[..at])),
            "D3090",
            "has an optional digit after a mandatory one in its whole part",
        ),
        (
            optional_to.is_some_and(|at| mandatory(&parts.fraction[at..])),
            "D3091",
            "has an optional digit before a mandatory one in its fraction",
        ),
        (
            parts.exponent.is_some_and(|exponent| !exponent.is_empty()) && (percent || per_mille),
            "D3092",
            "has both an exponent and a per cent or per mille sign",
        ),
        (
            parts
                .exponent
                .is_some_and(|part| part.is_empty() || !part.iter().all(|c| signs.is_mandatory(*c))),
            "D3093",
            "has an exponent that is not made of digits alone",
        ),
    ];
    rules.into_iter().rev().find(|(broken, ..)| *broken).map(|(_, code, why)| (code, why))
}

fn analysed(parts: &Parts<'_>, signs: &Signs) -> Layout {
    let mandatory = |part: &[char]| part.iter().filter(|c| signs.is_mandatory(**c)).count();
    let digits = |part: &[char]| part.iter().filter(|c| signs.is_digit(**c)).count();
    let separators = |part: &[char]| -> Vec<usize> {
        part.iter().enumerate().filter(|(_, c)| **c == signs.grouping).map(|(at, _)| at).collect()
    };
    let whole_groups: Vec<usize> =
        separators(parts.whole).into_iter().map(|at| digits(&parts.whole[at..])).collect();
    let fraction_groups =
        separators(parts.fraction).into_iter().map(|at| digits(&parts.fraction[..at])).collect();
    let scaling = mandatory(parts.whole);
    let mut least_whole = scaling;
    let mut least_fraction = mandatory(parts.fraction);
    let mut most_fraction = digits(parts.fraction);
    // At least one digit must be written, even if every digit is optional.
    if least_whole == 0 && most_fraction == 0 {
        if parts.exponent.is_some() {
            (least_fraction, most_fraction) = (1, 1);
        } else {
            least_whole = 1;
        }
    }
    if parts.exponent.is_some() && least_whole == 0 && parts.whole.contains(&signs.digit) {
        least_whole = 1;
    }
    if least_whole == 0 && least_fraction == 0 {
        least_fraction = 1;
    }
    let occurs = |sign: &str| !sign.is_empty() && parts.subpicture.contains(sign);
    Layout {
        prefix: parts.prefix.iter().collect(),
        suffix: parts.suffix.iter().collect(),
        factor: match (occurs(&signs.percent), occurs(&signs.per_mille)) {
            (true, _) => 100.0,
            (_, true) => 1000.0,
            _ => 1.0,
        },
        every: interval(&whole_groups),
        whole_groups,
        fraction_groups,
        least_whole,
        least_fraction,
        most_fraction,
        exponent: parts.exponent.map(|digits| Exponent { least_digits: digits.len(), scaling }),
    }
}
