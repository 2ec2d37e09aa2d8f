//! The near miss: which known name somebody probably meant.

/// The known name closest to `wrong`, if it is close enough to be a slip of the finger.
pub fn near<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // In a very short word two slips leave nothing in common.
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

/// `near`, as the end of a sentence: ` (did you mean `x`?)` or nothing.
pub fn did_you_mean<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    near(wrong, known).map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default()
}

/// Levenshtein's distance, one row at a time.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    // Enough letters to be far from any name; a million of them must not cost as much.
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
    fn a_slip_is_recognised_and_a_stranger_is_not() {
        assert_eq!(near("aproved", ["approved", "rejected"]), Some("approved"));
        assert_eq!(near("APPROVED", ["approved"]), Some("approved"));
        assert_eq!(near("shipping", ["approved", "rejected"]), None);
        assert_eq!(did_you_mean("drft", ["draft"]), " (did you mean `draft`?)");
        assert_eq!(did_you_mean("x", []), "");
    }
}
