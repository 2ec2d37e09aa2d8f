//! Parses the pictures of times: text with markers such as `[Y0001]`.

use super::pattern::{Case, Form, Pattern};
use super::{Fault, LONGEST, bounded, shown};

/// A part of a picture.
#[derive(Debug)]
pub(super) enum Part {
    Literal(String),
    Marker(Marker),
}

/// A marker for a component of a time.
#[derive(Debug)]
pub(super) struct Marker {
    pub(super) component: char,
    pub(super) style: Style,
    /// Maximum length of a name.
    pub(super) widest: Option<usize>,
    /// Number of last digits of a year that are written.
    pub(super) year_digits: Option<usize>,
    /// True if an offset of zero is written as `Z`.
    pub(super) zulu: bool,
}

#[derive(Debug)]
pub(super) enum Style {
    Number(Pattern),
    Name(Case),
}

/// The components that are numbers by default.
const NUMBERS: &str = "YMDdFWwXxHhmsf";

/// Splits a picture into its parts. `[[` and `]]` are escaped brackets.
pub(super) fn parts(picture: &str) -> Result<Vec<Part>, Fault> {
    bounded(picture, "the picture")?;
    let mut parts = Vec::new();
    let mut rest = picture;
    while let Some((literal, behind)) = rest.split_once('[') {
        push_literal(&mut parts, literal);
        if let Some(behind) = behind.strip_prefix('[') {
            parts.push(Part::Literal("[".to_owned()));
            rest = behind;
            continue;
        }
        let Some((inside, behind)) = behind.split_once(']') else {
            return Err(Fault::new(
                "D3135",
                format!("the picture {} has a `[` without its `]`", shown(picture)),
            ));
        };
        let marker = marker(&inside.split_whitespace().collect::<String>())?;
        if NUMBERS.contains(marker.component) && matches!(marker.style, Style::Number(_)) {
            fix_width(&mut parts);
        }
        parts.push(Part::Marker(marker));
        rest = behind;
    }
    push_literal(&mut parts, rest);
    Ok(parts)
}

fn push_literal(parts: &mut Vec<Part>, text: &str) {
    if !text.is_empty() {
        parts.push(Part::Literal(text.replace("]]", "]")));
    }
}

/// Fixes the width of a number that is directly followed by another number, because otherwise its end would be
/// unknown.
fn fix_width(parts: &mut [Part]) {
    if let Some(Part::Marker(Marker { style: Style::Number(pattern), .. })) = parts.last_mut()
        && let Some(decimal) = pattern.decimal()
    {
        decimal.width = Some(decimal.mandatory).filter(|digits| *digits > 0);
    }
}

/// Parses a marker. `text` is the content of the brackets without spaces.
fn marker(text: &str) -> Result<Marker, Fault> {
    let mut chars = text.chars();
    let component = chars.next().ok_or_else(|| unknown(text))?;
    let default = default_presentation(component).ok_or_else(|| unknown(text))?;
    let (presentation, width) = chars.as_str().rsplit_once(',').unwrap_or((chars.as_str(), ""));
    let (least, widest) = width.split_once('-').unwrap_or((width, ""));
    let (least, widest) = (width_of(least)?, width_of(widest)?);
    let (first, second) = match presentation.char_indices().next_back() {
        None => (default, None),
        Some((at, last)) if at > 0 && "atco".contains(last) => (&presentation[..at], Some(last)),
        Some(_) => (presentation, None),
    };
    let is_zone = matches!(component, 'Z' | 'z');
    let case = match first {
        _ if is_zone => None,
        name if name.starts_with("Nn") => Some(Case::Title),
        name if name.starts_with('N') => Some(Case::Upper),
        name if name.starts_with('n') || !NUMBERS.contains(component) => Some(Case::Lower),
        _ => None,
    };
    let mut year_digits = None;
    let style = match (case, second) {
        (Some(case), _) => Style::Name(case),
        (None, _) if is_zone => Style::Number(Pattern::read(first)?),
        (None, second) => {
            let picture = second.map_or_else(|| first.to_owned(), |second| format!("{first};{second}"));
            let mut pattern = Pattern::read(&picture)?;
            year_digits = widened(&mut pattern, least, widest.filter(|_| component == 'Y'));
            Style::Number(pattern)
        }
    };
    Ok(Marker { component, style, widest, year_digits, zulu: second == Some('t') })
}

/// Applies the widths to a number. Returns the number of digits of a year.
fn widened(pattern: &mut Pattern, least: Option<usize>, most: Option<usize>) -> Option<usize> {
    let Some(decimal) = pattern.decimal() else { return most };
    decimal.mandatory = most.unwrap_or(decimal.mandatory.max(least.unwrap_or(0)));
    most.or(Some(decimal.mandatory + decimal.optional).filter(|digits| *digits >= 2))
}

/// Parses a width. `*` and other texts that are not numbers set no width.
fn width_of(text: &str) -> Result<Option<usize>, Fault> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    match text[..end].parse::<usize>() {
        Ok(width) if width <= LONGEST => Ok(Some(width)),
        Err(_) if end == 0 => Ok(None),
        _ => {
            Err(Fault::unsupported(format!("the width {} is greater than {LONGEST} characters", shown(text))))
        }
    }
}

/// Returns the default presentation of a component, or `None` for an unknown component.
fn default_presentation(component: char) -> Option<&'static str> {
    match component {
        'm' | 's' => Some("01"),
        'Z' | 'z' => Some("01:01"),
        'F' | 'P' | 'C' | 'E' => Some("n"),
        number if NUMBERS.contains(number) => Some("1"),
        _ => None,
    }
}

/// Creates the error for an unknown component.
pub(super) fn unknown(marker: &str) -> Fault {
    Fault::new("D3132", format!("`[{marker}]` is not a component of a time"))
}

impl Marker {
    /// Creates the error for a component that has no names.
    pub(super) fn nameless(&self) -> Fault {
        Fault::new("D3133", format!("the component `{}` of a time has no name", self.component))
    }

    /// Returns the minimum number of digits of the picture, or `None` if the picture has no digits.
    pub(super) fn digits(&self) -> Option<usize> {
        match &self.style {
            Style::Number(Pattern { form: Form::Decimal(decimal), .. }) => Some(decimal.mandatory),
            _ => None,
        }
    }
}
