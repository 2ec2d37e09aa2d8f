//! Reads the pictures of times: text with markers such as `[Y0001]` in it.

use super::pattern::{Case, Form, Pattern};
use super::{Fault, LONGEST, bounded, shown};

/// A part of a picture.
#[derive(Debug)]
pub(super) enum Part {
    Literal(String),
    Marker(Marker),
}

/// Where a component of a time is written.
#[derive(Debug)]
pub(super) struct Marker {
    pub(super) component: char,
    pub(super) style: Style,
    /// The longest name.
    pub(super) widest: Option<usize>,
    /// Of how many digits a year is the end.
    pub(super) year_digits: Option<usize>,
    /// An offset of zero is written `Z`.
    pub(super) zulu: bool,
}

#[derive(Debug)]
pub(super) enum Style {
    Number(Pattern),
    Name(Case),
}

/// The components that are numbers, unless a name is asked for.
const NUMBERS: &str = "YMDdFWwXxHhmsf";

/// Cuts a picture into its parts. `[[` and `]]` stand for one bracket.
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

/// A number right before another one has to say by its picture where it ends.
fn fix_width(parts: &mut [Part]) {
    if let Some(Part::Marker(Marker { style: Style::Number(pattern), .. })) = parts.last_mut()
        && let Some(decimal) = pattern.decimal()
    {
        decimal.width = Some(decimal.mandatory).filter(|digits| *digits > 0);
    }
}

/// `text`: what is between the brackets, without blanks.
fn marker(text: &str) -> Result<Marker, Fault> {
    let mut chars = text.chars();
    let component = chars.next().ok_or_else(|| unknown(text))?;
    let (presentation, width) = chars.as_str().rsplit_once(',').unwrap_or((chars.as_str(), ""));
    let (least, widest) = width.split_once('-').unwrap_or((width, ""));
    let (least, widest) = (width_of(least)?, width_of(widest)?);
    let (first, second) = match presentation.char_indices().next_back() {
        None => (default_presentation(component).ok_or_else(|| unknown(text))?, None),
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

/// Applies the widths to a number; the answer is how many digits a year keeps.
fn widened(pattern: &mut Pattern, least: Option<usize>, most: Option<usize>) -> Option<usize> {
    let Some(decimal) = pattern.decimal() else { return most };
    decimal.mandatory = most.unwrap_or(decimal.mandatory.max(least.unwrap_or(0)));
    most.or(Some(decimal.mandatory + decimal.optional).filter(|digits| *digits >= 2))
}

/// A width; `*` and whatever else is no number set none.
fn width_of(text: &str) -> Result<Option<usize>, Fault> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    match text[..end].parse::<usize>() {
        Ok(width) if width <= LONGEST => Ok(Some(width)),
        Err(_) if end == 0 => Ok(None),
        _ => Err(Fault::unsupported(format!("the width {} is more than {LONGEST} characters", shown(text)))),
    }
}

/// How a component is written if its marker does not say it; `None` if there is no such component.
fn default_presentation(component: char) -> Option<&'static str> {
    match component {
        'm' | 's' => Some("01"),
        'Z' | 'z' => Some("01:01"),
        'F' | 'P' | 'C' | 'E' => Some("n"),
        number if NUMBERS.contains(number) => Some("1"),
        _ => None,
    }
}

/// That there is no such component. As in JSONata, one with a presentation is found out only when it is used.
pub(super) fn unknown(marker: &str) -> Fault {
    Fault::new("D3132", format!("`[{marker}]` is no component of a time"))
}

impl Marker {
    /// That there is no name for it.
    pub(super) fn nameless(&self) -> Fault {
        Fault::new("D3133", format!("the component `{}` of a time has no name", self.component))
    }

    /// The digits that its picture asks for at least; `None` if it asks for no digits.
    pub(super) fn digits(&self) -> Option<usize> {
        match &self.style {
            Style::Number(Pattern { form: Form::Decimal(decimal), .. }) => Some(decimal.mandatory),
            _ => None,
        }
    }
}
