//! Implementation of the function `$formatNumber`.

use serde_json::{Map, Value};

use super::Fault;
use super::subpicture::{Exponent, Layout, Signs, layouts};

/// Formats a number with a picture. The options replace characters of JSONata's default decimal format.
pub(in crate::expr) fn format_number(
    value: f64,
    picture: &str,
    options: Option<&Map<String, Value>>,
) -> Result<String, Fault> {
    let signs = Signs::new(options)?;
    let (positive, negative) = layouts(picture, &signs)?;
    if value.is_nan() {
        return Ok(signs.not_a_number);
    }
    let layout = if value >= 0.0 { positive } else { negative };
    let scaled = value.abs() * layout.factor;
    let written = if scaled.is_finite() { written(scaled, &layout, &signs)? } else { signs.infinity };
    Ok(format!("{}{written}{}", layout.prefix, layout.suffix))
}

/// Formats the part between prefix and suffix.
fn written(size: f64, layout: &Layout, signs: &Signs) -> Result<String, Fault> {
    let (mantissa, exponent) = match layout.exponent {
        Some(exponent) => {
            let (mantissa, power) = normalised(size, exponent.scaling)?;
            (mantissa, Some((exponent, power)))
        }
        None => (size, None),
    };
    let places = layout.most_fraction;
    let text = format!("{:.places$}", rounded(mantissa, places));
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let whole = format!("{:0>width$}", whole.trim_start_matches('0'), width = layout.least_whole);
    let fraction = format!("{:0<width$}", fraction.trim_end_matches('0'), width = layout.least_fraction);
    let mut out = String::new();
    push_whole(&mut out, &whole, layout, signs);
    push_fraction(&mut out, &fraction, layout, signs);
    if let Some((exponent, power)) = exponent {
        push_exponent(&mut out, exponent, power, signs);
    }
    Ok(out)
}

/// Returns the mantissa and the power of ten. As in JSONata, a mantissa equal to the upper bound is not scaled
/// further (10 with `0e0` gives `10e0`). Zero is not scaled either; JSONata would loop endlessly.
fn normalised(size: f64, scaling: usize) -> Result<(f64, i32), Fault> {
    let scaling = i32::try_from(scaling).unwrap_or(i32::MAX);
    let (least, most) = (10_f64.powi(scaling.saturating_sub(1)), 10_f64.powi(scaling));
    if !most.is_finite() {
        return Err(Fault::unsupported("the mantissa of the picture has more digits than a number can have"));
    }
    let (mut mantissa, mut power) = (size, 0);
    while mantissa > 0.0 && mantissa < least {
        mantissa *= 10.0;
        power -= 1;
    }
    while mantissa > most {
        mantissa /= 10.0;
        power += 1;
    }
    Ok((mantissa, power))
}

/// Rounds half to even at a decimal place. The decimal point is moved in the shortest text of the number, because
/// multiplication would make 1.005 smaller than the tie that it represents.
fn rounded(size: f64, places: usize) -> f64 {
    let places = i64::try_from(places).unwrap_or(i64::MAX);
    let whole = moved(size, places).map(f64::round_ties_even);
    // A number that becomes too large has no fraction to round.
    whole.and_then(|whole| moved(whole, -places)).unwrap_or(size)
}

/// Moves the decimal point. Returns `None` if the result is too large.
fn moved(size: f64, places: i64) -> Option<f64> {
    let text = format!("{size:e}");
    let (mantissa, power) = text.split_once('e')?;
    let power = power.parse::<i64>().ok()?.checked_add(places)?;
    format!("{mantissa}e{power}").parse().ok().filter(|moved: &f64| moved.is_finite())
}

fn push_whole(out: &mut String, digits: &str, layout: &Layout, signs: &Signs) {
    for (at, digit) in digits.bytes().enumerate() {
        let right = digits.len() - at;
        let is_boundary = match layout.every {
            0 => layout.whole_groups.contains(&right),
            every => right.is_multiple_of(every),
        };
        if at > 0 && is_boundary {
            out.push(signs.grouping);
        }
        out.push(digit_of(digit, signs));
    }
}

fn push_fraction(out: &mut String, digits: &str, layout: &Layout, signs: &Signs) {
    for (at, digit) in digits.bytes().enumerate() {
        if at == 0 {
            out.push(signs.decimal);
        } else if layout.fraction_groups.contains(&at) {
            out.push(signs.grouping);
        }
        out.push(digit_of(digit, signs));
    }
}

fn push_exponent(out: &mut String, exponent: Exponent, power: i32, signs: &Signs) {
    out.push(signs.exponent);
    if power < 0 {
        out.push_str(&signs.minus);
    }
    let digits = format!("{:0>width$}", power.unsigned_abs(), width = exponent.least_digits);
    out.extend(digits.bytes().map(|digit| digit_of(digit, signs)));
}

/// Converts an ASCII digit to the family of the picture. `Signs` ensures that the family is complete.
fn digit_of(digit: u8, signs: &Signs) -> char {
    let value = u32::from(digit.wrapping_sub(b'0'));
    char::from_u32(u32::from(signs.zero).wrapping_add(value)).unwrap_or(signs.zero)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::format_number;

    fn by(value: f64, picture: &str) -> String {
        format_number(value, picture, None).unwrap_or_else(|fault| fault.code.to_owned())
    }

    fn with(value: f64, picture: &str, options: &Value) -> String {
        format_number(value, picture, options.as_object()).unwrap_or_else(|fault| fault.code.to_owned())
    }

    #[test]
    fn digits_are_padded_and_grouped() {
        assert_eq!(by(7654.3, "#,##0.00"), "7,654.30");
        assert_eq!(by(0.7, "#.0#"), ".7");
        assert_eq!(by(0.0, "#"), "0");
        assert_eq!(by(0.0, "#.##"), ".0");
        assert_eq!(by(42.0, "#,#,##0"), "42");
        assert_eq!(by(98765.0, "#,#,##0"), "9,8,765");
        assert_eq!(by(98765.0, "#,#0,0"), "98,76,5");
        assert_eq!(by(2.345_678_9, "0.00,00,00"), "2.34,56,79");
        assert_eq!(by(3.5, "0.##,##"), "3.5");
        assert_eq!(by(2e21, "#,###"), "2,000,000,000,000,000,000,000");
    }

    #[test]
    fn ties_are_rounded_to_even_by_the_shortest_decimal() {
        assert_eq!(by(1.005, "0.00"), "1.00");
        assert_eq!(by(1.015, "0.00"), "1.02");
        assert_eq!(by(2.5, "0"), "2");
        assert_eq!(by(-3.5, "0"), "-4");
        assert_eq!(by(-0.2, "0"), "-0");
        assert_eq!(by(f64::MAX, "0.00").len(), 312);
    }

    #[test]
    fn negative_numbers_have_their_own_part() {
        assert_eq!(by(-8.25, "0.0#;(0.0#)"), "(8.25)");
        assert_eq!(by(-8.25, "EUR 0.0#"), "-EUR 8.25");
        assert_eq!(with(-8.25, "0.0#", &json!({"minus-sign": "~"})), "~8.25");
    }

    #[test]
    fn exponents_and_percents_scale() {
        assert_eq!(by(987_654.0, "0.00e00"), "9.88e05");
        assert_eq!(by(-0.000_12, "0.0e0"), "-1.2e-4");
        assert_eq!(by(0.0, "0.0e0"), "0.0e0");
        assert_eq!(by(250.0, "x0.0e000"), "x2.5e002");
        assert_eq!(by(0.55, "0%"), "55%");
        assert_eq!(by(0.0125, "0.0\u{2030}"), "12.5\u{2030}");
    }

    #[test]
    fn options_replace_characters() {
        let continental = json!({"decimal-separator": ",", "grouping-separator": "."});
        assert_eq!(with(1_234_567.5, "#.##0,00", &continental), "1.234.567,50");
        assert_eq!(
            with(30.0, "\u{660}\u{660}\u{660}", &json!({"zero-digit": "\u{660}"})),
            "\u{660}\u{663}\u{660}"
        );
        assert_eq!(with(1.0, "0", &json!({"zero-digit": "ab"})), "unsupported");
        assert_eq!(with(1.0, "0", &json!({"digit": 5})), "unsupported");
        assert_eq!(with(1.0, "0", &json!({"zero-digit": "\u{10ffff}"})), "unsupported");
    }

    #[test]
    fn invalid_pictures_have_jsonata_codes() {
        let cases = [
            ("0;0;0", "D3080"),
            ("0.0.0", "D3081"),
            ("%0%", "D3082"),
            ("\u{2030}0\u{2030}", "D3083"),
            ("%0\u{2030}", "D3084"),
            ("", "D3085"),
            ("abc", "D3086"),
            ("---", "D3086"),
            ("%%", "D3086"),
            ("%\u{2030}", "D3086"),
            ("e", "D3093"),
            ("0;", "D3085"),
            (",", "D3088"),
            ("0x0", "D3086"),
            ("0,.0", "D3087"),
            ("00,", "D3088"),
            ("0,,0", "D3089"),
            ("0#", "D3090"),
            ("0.#0", "D3091"),
            ("0e0%", "D3092"),
            ("0e", "D3093"),
        ];
        for (picture, code) in cases {
            assert_eq!(by(1.0, picture), code, "{picture}");
        }
        assert_eq!(by(1.0, &"0".repeat(1001)), "unsupported");
        assert_eq!(by(1.0, &format!("{}e0", "0".repeat(400))), "unsupported");
    }
}
