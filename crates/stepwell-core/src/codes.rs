//! Error codes as `retryOn` and `codes` list them: compared without case, `_` and `-`, with aliases and HTTP statuses.

use crate::refusal::Failure;

/// Other names of error codes, as other workflow engines spell them. All are in the plain form.
const ALIASES: [(&str, &[&str]); 8] = [
    ("validationerror", &["validationfailed", "invalidinput", "invalid", "limit"]),
    ("conflicterror", &["conflict"]),
    ("timeouterror", &["timeout"]),
    ("notfounderror", &["notfound"]),
    ("permissiondenied", &["denied"]),
    ("forbidden", &["denied"]),
    ("internalerror", &["error", "panic"]),
    ("ratelimited", &["http429"]),
];

/// Returns true if the list contains the code of the failure, an alias of it, or its HTTP status (`http404`,
/// `http5xx`).
pub fn lists(listed: &[String], failure: &Failure) -> bool {
    let code = plain(&failure.code);
    lists_status(listed, failure) || listed.iter().flat_map(|listed| meanings(listed)).any(|one| one == code)
}

/// Returns true if the list contains the HTTP status of the failure.
pub(crate) fn lists_status(listed: &[String], failure: &Failure) -> bool {
    let Some(status) = failure.status else { return false };
    let mut meanings = listed.iter().flat_map(|listed| meanings(listed));
    meanings.any(|one| statuses(&one).is_some_and(|range| range.has(status)))
}

/// Returns the codes that a listed code stands for, in the plain form.
pub(crate) fn meanings(listed: &str) -> Vec<String> {
    let listed = plain(listed);
    let aliases = ALIASES.iter().filter(|(alias, _)| *alias == listed).flat_map(|(_, codes)| codes.iter());
    let aliases: Vec<_> = aliases.map(|code| (*code).to_owned()).collect();
    [vec![listed], aliases].concat()
}

/// Returns a code in lower case, without `_` and `-`: the form in which codes are compared.
pub(crate) fn plain(code: &str) -> String {
    code.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect()
}

/// The HTTP statuses that a code such as `http404` or `http4xx` stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Statuses {
    first: u16,
    last: u16,
}

impl Statuses {
    fn has(self, status: u16) -> bool {
        (self.first..=self.last).contains(&status)
    }
}

/// Parses a code in the plain form that stands for HTTP statuses.
pub(crate) fn statuses(code: &str) -> Option<Statuses> {
    let digits = code.strip_prefix("http")?;
    let (first, last) = match digits.strip_suffix("xx") {
        Some(class) => (class.parse::<u16>().ok()?.checked_mul(100)?, 99),
        None => (digits.parse().ok()?, 0),
    };
    let is_status = digits.len() == 3 && (100..600).contains(&first);
    is_status.then_some(Statuses { first, last: first + last })
}

/// Builds an expression that is true if the error in this local has one of the listed codes.
pub(crate) fn condition(local: &str, listed: &[String]) -> String {
    let meanings: Vec<_> = listed.iter().flat_map(|listed| meanings(listed)).collect();
    let codes = serde_json::to_string(&meanings).expect("a list of texts is plain data");
    let plain = format!("$lowercase($replace($replace({local}.code, \"_\", \"\"), \"-\", \"\"))");
    let own = format!("{plain} in {codes}");
    match status_condition(local, listed) {
        Some(statuses) => format!("({own} or {statuses})"),
        None => own,
    }
}

/// Builds an expression that is true if the error in this local has one of the listed HTTP statuses. Returns `None` if
/// no status is listed.
pub(crate) fn status_condition(local: &str, listed: &[String]) -> Option<String> {
    let meanings = listed.iter().flat_map(|listed| meanings(listed));
    let one = |Statuses { first, last }| {
        let status = format!("({local}.status ?? 0)");
        match first == last {
            true => format!("{status} = {first}"),
            false => format!("({status} >= {first} and {status} <= {last})"),
        }
    };
    let parts: Vec<_> = meanings.filter_map(|code| statuses(&code)).map(one).collect();
    (!parts.is_empty()).then(|| format!("({})", parts.join(" or ")))
}

#[cfg(test)]
mod tests {
    use super::lists;
    use crate::refusal::Failure;

    #[test]
    fn codes_are_compared_without_case_and_separators() {
        let conflict = Failure::new("conflict", "it was changed");
        let invalid = Failure::new("invalidInput", "it is wrong");
        for (listed, failure, is_listed) in [
            ("CONFLICT", &conflict, true),
            ("conflict", &conflict, true),
            ("ConflictError", &conflict, true),
            ("conflicts", &conflict, false),
            ("INVALID_INPUT", &invalid, true),
            ("VALIDATION_ERROR", &invalid, true),
            ("VALIDATION_ERROR", &conflict, false),
        ] {
            assert_eq!(lists(&[listed.to_owned()], failure), is_listed, "{listed}");
        }
    }

    #[test]
    fn http_errors_are_listed_by_status() {
        let missing = Failure::new("httpStatus", "the server answered 404").status(404);
        for (listed, is_listed) in
            [("http404", true), ("HTTP_404", true), ("http4xx", true), ("http5xx", false), ("http40", false)]
        {
            assert_eq!(lists(&[listed.to_owned()], &missing), is_listed, "{listed}");
        }
        assert!(!lists(&["http404".to_owned()], &Failure::new("httpStatus", "no answer")));
    }
}
