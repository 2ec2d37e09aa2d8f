//! Cron schedules: computes when a pattern fires in its time zone, and which firings are still due after an outage.
//!
//! A pattern describes local wall-clock time; a firing is an instant. Only this module converts between the two.
//! croner searches the pattern in plain calendar time, in which every second exists exactly once. A local time maps to
//! the first instant at which the clock shows that time or a later one. If the clock skips the local time, that is the
//! end of the gap. If the clock shows it twice, that is the first of the two instants. A local time has therefore
//! fired by an instant exactly if it is not later than the latest local time that the clock has shown until then. One
//! calendar search from there, forwards or backwards, finds the next or the previous firing.
//!
//! With a pattern such as `*/15 * * * *` nothing fires in the second pass of a repeated hour: 02:00 to 02:45 fired in
//! the first pass, and the next firing is 03:00. Use the time zone `UTC` if a constant interval matters more than the
//! wall clock.

use std::fmt;
use std::sync::Arc;

use croner::parser::{CronParser, Seconds, Year};
use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};
use serde::{Deserialize, Serialize};
use stepwell_core::Timestamp;

/// The policy for firings that were missed because no process was running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MissedFirings {
    /// Missed firings are dropped.
    Skip,
    /// Only the newest missed firing fires.
    #[default]
    Once,
    /// Every missed firing fires, oldest first.
    All,
}

/// The policy for a firing while the run of the previous firing is still active.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Overlap {
    /// Starts another run in parallel.
    #[default]
    Start,
    /// Drops the firing without a run.
    Skip,
}

/// The due firings, as returned by [`Cron::firings`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firings {
    /// The instants to fire for, oldest first, without duplicates.
    pub fire: Vec<Timestamp>,
    /// The first instant that is not handled yet. It lies in the past if more firings were due than allowed at once.
    /// `None` if the schedule has ended.
    pub next: Option<Timestamp>,
}

/// The error of an invalid cron pattern or time zone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    /// The pattern cannot be parsed, or no date matches it.
    #[error("invalid cron expression `{expression}`: {problem}")]
    Expression {
        /// The expression that was passed.
        expression: String,
        /// The problem, its field, and the correct form.
        problem: String,
    },
    /// The time zone does not exist.
    #[error(
        "there is no time zone `{name}`{hint}: write a name from the IANA time zone database, such as `Europe/Berlin` \
         or `UTC`"
    )]
    TimeZone {
        /// The name that was passed.
        name: String,
        /// ` (did you mean …?)`, or empty.
        hint: String,
    },
}

/// A cron pattern in a time zone.
///
/// # The pattern
///
/// Five fields, `minute hour day-of-month month day-of-week`, or six with the second in front; or one of `@yearly`
/// (`@annually`), `@monthly`, `@weekly`, `@daily` (`@midnight`) and `@hourly`.
///
/// | in a field | meaning |
/// |---|---|
/// | `*` | every value |
/// | `5`, `1,15`, `9-17` | a value, a list, a range |
/// | `*/15`, `9-17/2` | every fifteenth value, every second one of a range |
/// | `JAN`…`DEC`, `SUN`…`SAT` | names of months and days in any case; Sunday is 0 and 7 |
/// | `L`, `15W`, `LW` | day of month: the last, the weekday (Monday to Friday) nearest the 15th, the last weekday |
/// | `FRI#2`, `FRIL` | day of week: the second Friday of the month, the last one |
/// | `?` | in a day field, the same as `*` |
///
/// If both day fields differ from `*`, a day must match only one of them. With a `+` before the day of the week
/// (`0 9 13 * +FRI`) it must match both.
///
/// # Daylight saving time
///
/// A local time that the clock skips fires at the end of the gap. Several of them in one gap, or one in the gap and one
/// at its end, fire once. A local time that occurs twice fires only the first time.
///
/// The time zone rules are read when the pattern is parsed: from the system, or from the database bundled with this
/// program if the system has none. Parse the pattern again to use newer rules. Nothing fires from the year 5000 on.
#[derive(Clone)]
pub struct Cron {
    expression: Arc<str>,
    pattern: Arc<croner::Cron>,
    zone: TimeZone,
}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cron")
            .field("expression", &self.expression)
            .field("time_zone", &self.time_zone())
            .finish_non_exhaustive()
    }
}

impl Cron {
    /// Parses a pattern for local time in a time zone.
    ///
    /// # Errors
    ///
    /// Fails if the pattern cannot be parsed, if no date matches it, or if the time zone does not exist.
    pub fn parse(expression: &str, time_zone: &str) -> Result<Cron, CronError> {
        let wrong = |problem| CronError::Expression { expression: expression.to_owned(), problem };
        let pattern = pattern(expression).map_err(wrong)?;
        Ok(Cron { expression: expression.into(), pattern: Arc::new(pattern), zone: zone(time_zone)? })
    }

    /// Returns the pattern that was passed.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Returns the name of the time zone, in its usual spelling.
    pub fn time_zone(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// Returns the first firing strictly after an instant. `None` from the year 5000 on.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let local = self.pattern.find_next_occurrence(&self.latest_shown(after)?, false).ok()?;
        self.instant(local)
    }

    /// Returns the last firing strictly before an instant.
    fn last_before(&self, before: Timestamp) -> Option<Timestamp> {
        let latest = self.latest_shown(just_before(before))?;
        self.instant(self.pattern.find_previous_occurrence(&latest, true).ok()?)
    }

    /// Returns the firings that are due at `now`, if `planned` was the next firing at the last check.
    ///
    /// A firing that is at most `grace_ms` late counts as on time and fires under every policy. A later one was
    /// missed, and `missed` determines its treatment. With [`MissedFirings::Once`] the newest missed firing replaces all
    /// missed ones; those on time still fire individually.
    ///
    /// At most `max` firings are returned at once (one if `max` is 0). The rest is left for the next call, with
    /// [`next`](Firings::next) as its `planned`. `planned` itself counts as a firing even if the pattern does not
    /// match it, so that a plan made under an earlier pattern is kept.
    ///
    /// The work is bounded by `max`: one calendar search skips all dropped firings, however long the outage was.
    pub fn firings(
        &self,
        planned: Timestamp,
        now: Timestamp,
        missed: MissedFirings,
        grace_ms: u64,
        max: usize,
    ) -> Firings {
        let on_time = minus_ms(now, grace_ms);
        let mut fire = Vec::new();
        let mut next = Some(planned);
        if planned < on_time && missed != MissedFirings::All {
            if missed == MissedFirings::Once {
                fire.push(self.last_before(on_time).map_or(planned, |newest| newest.max(planned)));
            }
            next = self.next_after(just_before(on_time));
        }
        while let Some(due) = next.filter(|at| *at <= now && fire.len() < max.max(1)) {
            fire.push(due);
            next = self.next_after(due);
        }
        Firings { fire, next }
    }

    /// Returns the latest local time that the clock has shown up to an instant. That is the current local time or,
    /// shortly after the clock was set back, the local time before that.
    fn latest_shown(&self, at: Timestamp) -> Option<DateTime> {
        // Patterns and clock changes are both in whole seconds.
        let at = jiff::Timestamp::from_second(at.micros().div_euclid(1_000_000)).ok()?;
        let mut latest = self.zone.to_datetime(at);
        let changes = self.zone.preceding(at.checked_add(SECOND).ok()?).map(|change| change.timestamp());
        for change in changes.take_while(|change| change.duration_until(at) < FARTHEST) {
            latest = latest.max(self.zone.to_datetime(change.checked_sub(SECOND).ok()?));
        }
        Some(latest)
    }

    /// Returns the first instant at which the clock shows a local time or a later one.
    fn instant(&self, local: DateTime) -> Option<Timestamp> {
        let mut from = Offset::UTC.to_timestamp(local).and_then(|at| at.checked_sub(FARTHEST)).ok()?;
        // Go from one clock change to the next: the offset is constant in between.
        loop {
            let shown = self.zone.to_offset(from).to_timestamp(local).ok()?.max(from);
            match self.zone.following(from).next().map(|change| change.timestamp()) {
                Some(change) if change <= shown => from = change,
                _ => return Some(Timestamp::from_micros(shown.as_microsecond())),
            }
        }
    }
}

/// Upper bound for the offset of a clock from UTC and for a single clock change.
const FARTHEST: SignedDuration = SignedDuration::from_hours(48);

const SECOND: SignedDuration = SignedDuration::from_secs(1);

fn just_before(at: Timestamp) -> Timestamp {
    Timestamp::from_micros(at.micros() - 1)
}

fn minus_ms(at: Timestamp, ms: u64) -> Timestamp {
    let micros = i64::try_from(ms.saturating_mul(1000)).unwrap_or(i64::MAX);
    Timestamp::from_micros(at.micros().saturating_sub(micros))
}

const NICKNAMES: &[(&str, &str)] = &[
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// The allowed values of one field of a pattern.
struct Field {
    name: &'static str,
    min: u16,
    max: u16,
    /// Number of distinct values. Sunday counts once, although it is both 0 and 7.
    values: u16,
    /// Names of the values, starting at `min`.
    names: &'static [&'static str],
}

const FIELDS: [Field; 6] = [
    Field { name: "second", min: 0, max: 59, values: 60, names: &[] },
    Field { name: "minute", min: 0, max: 59, values: 60, names: &[] },
    Field { name: "hour", min: 0, max: 23, values: 24, names: &[] },
    Field { name: DAY_OF_MONTH, min: 1, max: 31, values: 31, names: &[] },
    Field { name: "month", min: 1, max: 12, values: 12, names: MONTHS },
    Field { name: DAY_OF_WEEK, min: 0, max: 7, values: 7, names: DAYS },
];

const DAY_OF_MONTH: &str = "day of the month";
const DAY_OF_WEEK: &str = "day of the week";
const MONTHS: &[&str] = &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// Parses an expression, or returns a description of the problem.
///
/// The fields are checked and converted to numbers here. croner accepts names in any field and inside words, ignores
/// empty list items, and reports its own version of the text in errors.
fn pattern(expression: &str) -> Result<croner::Cron, String> {
    let text = match expression.trim() {
        "" => return Err("it is empty; write five fields such as `0 9 * * MON-FRI`".to_owned()),
        nickname if nickname.starts_with('@') => unfold(nickname)?,
        fields => fields,
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    if !(5..=6).contains(&words.len()) {
        let plural = if words.len() == 1 { "" } else { "s" };
        return Err(format!(
            "it has {} field{plural}; write five, `minute hour day-of-month month day-of-week`, or six with the second \
             in front",
            words.len()
        ));
    }
    let mut numbers = Vec::with_capacity(words.len());
    for (index, (word, field)) in words.iter().zip(&FIELDS[FIELDS.len() - words.len()..]).enumerate() {
        let place = |problem| format!("in field {} (the {}), {problem}", index + 1, field.name);
        numbers.push(field.list(word).map_err(place)?);
    }
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    let pattern = parser.parse(&numbers.join(" ")).map_err(|error| error.to_string())?;
    // The calendar repeats every 400 years, and croner stops at the year 5000.
    if pattern.find_next_occurrence(&DateTime::constant(4600, 1, 1, 0, 0, 0, 0), true).is_err() {
        return Err("no date fits it, so it would never fire; check the days against the months".to_owned());
    }
    Ok(pattern)
}

/// Returns the fields that a nickname stands for.
fn unfold(nickname: &str) -> Result<&'static str, String> {
    let known = NICKNAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(nickname));
    known.map(|(_, fields)| *fields).ok_or_else(|| {
        let names: Vec<&str> = NICKNAMES.iter().map(|(name, _)| *name).collect();
        format!("there is no such nickname; write one of {}, or five fields", names.join(", "))
    })
}

impl Field {
    /// Converts the field to numbers, or returns a description of the problem.
    fn list(&self, text: &str) -> Result<String, String> {
        let (both, text) = match text.strip_prefix('+') {
            Some(rest) if self.name == DAY_OF_WEEK => ("+", rest),
            _ => ("", text),
        };
        let items: Vec<&str> = text.split(',').collect();
        let has = |wanted: &str| items.iter().any(|item| item.eq_ignore_ascii_case(wanted));
        if items.len() > 1 && (has("*") || has("?")) {
            return Err("`*` means every value already: write it alone, or leave it out".to_owned());
        }
        if has("L") && has("LW") {
            return Err("`L` and `LW` cannot be in one list: make it two schedules".to_owned());
        }
        let items: Result<Vec<String>, String> = items.iter().map(|item| self.item(item)).collect();
        Ok(format!("{both}{}", items?.join(",")))
    }

    /// Converts one item of a list to numbers.
    fn item(&self, item: &str) -> Result<String, String> {
        let special = match self.name {
            DAY_OF_MONTH => self.special_day_of_month(item)?,
            DAY_OF_WEEK => self.special_day_of_week(item)?,
            _ => None,
        };
        if let Some(special) = special {
            return Ok(special);
        }
        if item.is_empty() {
            return Err("a value is missing next to a comma: add a value or remove the comma".to_owned());
        }
        let Some((range, step)) = item.split_once('/') else {
            return self.range(item);
        };
        if range != "*" && !range.contains('-') {
            let from = if range.is_empty() { "*".to_owned() } else { format!("{range}-{}", self.max) };
            return Err(format!("`{item}` does not say which values to step through: write `{from}/{step}`"));
        }
        match number(step) {
            Some(step) if (1..=self.values).contains(&step) => Ok(format!("{}/{step}", self.range(range)?)),
            _ => Err(format!("`{step}` in `{item}` is not a valid step: write 1 to {}", self.values)),
        }
    }

    /// Converts `*`, a value or a range to numbers.
    fn range(&self, text: &str) -> Result<String, String> {
        if text == "*" {
            return Ok(text.to_owned());
        }
        let Some((from, to)) = text.split_once('-') else {
            return Ok(self.value(text)?.to_string());
        };
        let (first, last) = (self.value(from)?, self.value(to)?);
        // A range may end with Sunday.
        let last = if self.name == DAY_OF_WEEK && last == 0 && first > 0 { 7 } else { last };
        if first > last {
            return Err(format!(
                "`{text}` runs backwards: write `{from}-{},{}-{to}`, or swap its ends",
                self.min + self.values - 1,
                self.min
            ));
        }
        Ok(format!("{first}-{last}"))
    }

    /// Parses a value, given as a number or as a name.
    fn value(&self, text: &str) -> Result<u16, String> {
        let named = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let named = named.and_then(|place| u16::try_from(place).ok()).map(|place| self.min + place);
        if let Some(value) = named.or_else(|| number(text)).filter(|n| (self.min..=self.max).contains(n)) {
            return Ok(value);
        }
        let or_names = match self.names {
            [] => String::new(),
            names => format!(", or {}", names.join(", ")),
        };
        Err(format!("`{text}` is not a valid {}: write {} to {}{or_names}", self.name, self.min, self.max))
    }

    /// Converts `L`, `LW`, `15W` and `?`. Returns `None` for anything else.
    fn special_day_of_month(&self, item: &str) -> Result<Option<String>, String> {
        let item = item.to_ascii_uppercase();
        match item.strip_suffix('W') {
            _ if item == "?" => Ok(Some("*".to_owned())),
            _ if item == "L" || item == "LW" => Ok(Some(item)),
            Some(day) => Ok(Some(format!("{}W", self.value(day)?))),
            None => Ok(None),
        }
    }

    /// Converts `FRI#2`, `FRIL` and `?`. Returns `None` for anything else. Sunday becomes 0, because croner does not
    /// handle the last day 7.
    fn special_day_of_week(&self, item: &str) -> Result<Option<String>, String> {
        let item = item.to_ascii_uppercase();
        if item == "?" {
            return Ok(Some("*".to_owned()));
        }
        if let Some((day, nth)) = item.split_once('#') {
            let nth = match number(nth) {
                Some(nth) if (1..=5).contains(&nth) => nth.to_string(),
                _ if nth == "L" => nth.to_owned(),
                _ => return Err(format!("`#{nth}` is not a week of a month: write `#1` to `#5`, or `#L`")),
            };
            return Ok(Some(format!("{}#{nth}", self.value(day)? % 7)));
        }
        match item.strip_suffix('L') {
            Some("") => Err("`L` does not say which day: write `FRIL` for the last Friday".to_owned()),
            Some(day) => Ok(Some(format!("{}#L", self.value(day)? % 7))),
            None => Ok(None),
        }
    }
}

/// Parses a text of digits only.
fn number(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Returns a time zone by name, from the system or else from the database bundled with this program.
fn zone(name: &str) -> Result<TimeZone, CronError> {
    let found = jiff::tz::db().get(name).or_else(|_| TimeZoneDatabase::bundled().get(name));
    // `Etc/Unknown` means that the zone is not known, and would behave like UTC.
    found.ok().filter(|zone| !zone.is_unknown()).ok_or_else(|| CronError::TimeZone {
        name: name.to_owned(),
        hint: match near_zones(name).as_slice() {
            [] => String::new(),
            names => format!(" (did you mean {}?)", names.join(" or ")),
        },
    })
}

/// Returns the names that were probably meant: zones of that city, or names within a small edit distance.
fn near_zones(wrong: &str) -> Vec<String> {
    let wrong: String = wrong.trim().to_ascii_lowercase().replace([' ', '-'], "_").chars().take(64).collect();
    let mut scored: Vec<(usize, String)> = TimeZoneDatabase::bundled()
        .available()
        .map(|name| {
            let lower = name.as_str().to_ascii_lowercase();
            let place = lower.rsplit('/').next().unwrap_or(&lower).replace('-', "_");
            let away = if place == wrong { 0 } else { slips(&wrong, &lower.replace('-', "_")) };
            (away, format!("`{name}`"))
        })
        .collect();
    scored.sort();
    // Abbreviations are all similar, so a guess could be wrong by hours.
    let tolerance = if wrong.len() < 6 { 0 } else { 3 };
    let nearest = scored.first().map_or(0, |(away, _)| *away);
    scored.retain(|(away, _)| *away == nearest && *away <= tolerance);
    scored.into_iter().take(3).map(|(_, name)| name).collect()
}

/// Returns the Levenshtein distance of two texts.
fn slips(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
