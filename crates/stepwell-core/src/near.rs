//! Suggestions for misspelled names.

/// Returns the known name closest to `wrong`, if it is close enough to be a typing error.
pub fn near<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Two errors in a very short word leave nothing in common.
    let tolerance = match wrong.chars().take(6).count() {
        0..=1 => 0,
        2..=3 => 1,
        4..=5 => 2,
        _ => 3,
    };
    known
        .into_iter()
        .map(|name| (distance(&wrong.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= tolerance)
        .min()
        .map(|(_, name)| name)
}

/// Returns the suggestion of [`near`] as the end of a message: ` (did you mean `x`?)`, or an empty string.
pub fn did_you_mean<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    near(wrong, known).map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default()
}

/// Computes the Levenshtein distance, one row at a time.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    // 256 characters are enough to be far from any name. The cap bounds the work for very long input.
    for (i, ca) in a.chars().take(256).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::{did_you_mean, near};

    #[test]
    fn only_similar_names_are_suggested() {
        assert_eq!(near("aproved", ["approved", "rejected"]), Some("approved"));
        assert_eq!(near("APPROVED", ["approved"]), Some("approved"));
        assert_eq!(near("shipping", ["approved", "rejected"]), None);
        assert_eq!(did_you_mean("drft", ["draft"]), " (did you mean `draft`?)");
        assert_eq!(did_you_mean("x", []), "");
    }
}
