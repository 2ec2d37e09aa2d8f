//! The proleptic Gregorian calendar in the range of JSONata's dates.
//!
//! The dates are those of ECMAScript: 100 million days before and after 1970, which is more than calendar libraries
//! support. Parts that are too large carry over into the next larger part.

const DAY_MILLIS: i64 = 86_400_000;

/// The maximum distance from 1970, in milliseconds.
const FURTHEST: i64 = 100_000_000 * DAY_MILLIS;

/// A point in time, split into its parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// Number of days since 1970-01-01.
    days: i64,
    year: i64,
    /// The month, 1 to 12.
    month: i64,
    day: i64,
    millis: i64,
}

impl Moment {
    /// Splits a time. Returns `None` if it is out of range.
    pub(super) fn at(millis: i64) -> Option<Moment> {
        if !(-FURTHEST..=FURTHEST).contains(&millis) {
            return None;
        }
        let days = millis.div_euclid(DAY_MILLIS);
        // Dividing by the longer or shorter year gives a first guess that is never too late.
        let mut year = 1970 + days.div_euclid(366).min(days.div_euclid(365));
        while days_before(year + 1, 1) <= days {
            year += ((days - days_before(year + 1, 1)) / 366).max(1);
        }
        let is_past = |month: &i64| days_before(year, *month) <= days;
        let month = (1..=12).rev().find(is_past).unwrap_or(1);
        let day = days - days_before(year, month) + 1;
        Some(Moment { days, year, month, day, millis: millis.rem_euclid(DAY_MILLIS) })
    }

    /// Returns the number for a component of a picture, or `None` if the component is not a number.
    pub(super) fn component(&self, component: char) -> Option<i64> {
        let hour = self.millis / 3_600_000;
        let number = match component {
            'Y' => self.year,
            'M' => self.month,
            'D' => self.day,
            'd' => self.days - days_before(self.year, 1) + 1,
            'F' => weekday(self.days),
            'W' => self.week_of_year().1,
            'X' => self.week_of_year().0,
            'w' => self.week_of_month().1,
            'x' => (self.week_of_month().0 - 1).rem_euclid(12) + 1,
            'H' => hour,
            'h' => (hour + 11) % 12 + 1,
            'm' => self.millis / 60_000 % 60,
            's' => self.millis / 1_000 % 60,
            'f' => self.millis % 1_000,
            _ => return None,
        };
        Some(number)
    }

    pub(super) fn is_afternoon(&self) -> bool {
        self.millis >= DAY_MILLIS / 2
    }

    /// Returns the year that the week belongs to, and the number of the week, by ISO 8601.
    fn week_of_year(&self) -> (i64, i64) {
        self.week(self.year, |year| first_monday(year, 1))
    }

    /// Returns the month that the week belongs to, and the number of the week in it. Month 0 is the December before,
    /// 13 the January after.
    fn week_of_month(&self) -> (i64, i64) {
        self.week(self.month, |month| first_monday(self.year, month))
    }

    fn week(&self, period: i64, first: impl Fn(i64) -> i64) -> (i64, i64) {
        let begun = [period + 1, period, period - 1].into_iter().find(|period| first(*period) <= self.days);
        let period = begun.unwrap_or(period);
        (period, (self.days - first(period)).div_euclid(7) + 1)
    }
}

/// Returns the days from 1970-01-01 to the first day of a month. The month may be outside 1 to 12.
fn days_before(year: i64, month: i64) -> i64 {
    const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let year = year + (month - 1).div_euclid(12);
    let month = (month - 1).rem_euclid(12);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let past = year - 1;
    let leaps = past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400);
    // There are 477 leap years from year 1 to 1969.
    let days = (year - 1970) * 365 + leaps - 477;
    let in_year = usize::try_from(month).ok().and_then(|month| BEFORE.get(month)).copied().unwrap_or(0);
    days + in_year + i64::from(is_leap && month > 1)
}

/// Returns 1 for Monday to 7 for Sunday. Day 0 was a Thursday.
fn weekday(days: i64) -> i64 {
    (days + 3).rem_euclid(7) + 1
}

/// Returns the day on which the first week starts: the week with the first Thursday of the year or month.
fn first_monday(year: i64, month: i64) -> i64 {
    let first = days_before(year, month);
    let weekday = weekday(first);
    if weekday > 4 { first + 8 - weekday } else { first + 1 - weekday }
}

/// Returns the number of days of a month.
pub(super) fn days_in(year: i64, month: i64) -> i64 {
    days_before(year, month + 1) - days_before(year, month)
}

/// Returns the milliseconds since 1970 of a date and time. Parts that are too large carry over. Returns `None` if the
/// result is out of range.
pub(super) fn millis_of(date: [i64; 3], time: [i64; 4]) -> Option<i64> {
    const LARGEST: i64 = 1_000_000_000_000;
    if date.into_iter().chain(time).any(|part| !(-LARGEST..=LARGEST).contains(&part)) {
        return None;
    }
    let [year, month, day] = date;
    let days = i128::from(days_before(year, month) + day - 1);
    let clock = time.into_iter().zip([3_600_000, 60_000, 1_000, 1]);
    let clock: i128 = clock.map(|(part, millis)| i128::from(part) * millis).sum();
    let millis = i64::try_from(days * i128::from(DAY_MILLIS) + clock).ok()?;
    (-FURTHEST..=FURTHEST).contains(&millis).then_some(millis)
}

#[cfg(test)]
mod tests {
    use super::{FURTHEST, Moment, days_in, millis_of};

    fn parts(millis: i64, components: &str) -> Vec<i64> {
        let moment = Moment::at(millis);
        components.chars().filter_map(|c| moment.as_ref().and_then(|moment| moment.component(c))).collect()
    }

    #[test]
    fn times_are_split_into_components() {
        assert_eq!(parts(0, "YMDdFHhmsf"), [1970, 1, 1, 1, 4, 0, 12, 0, 0, 0]);
        assert_eq!(parts(-1, "YMDdFHhmsf"), [1969, 12, 31, 365, 3, 23, 11, 59, 59, 999]);
        assert_eq!(parts(951_782_400_000, "YMDd"), [2000, 2, 29, 60]);
        assert_eq!(parts(FURTHEST, "YMD"), [275_760, 9, 13]);
        assert_eq!(parts(-FURTHEST, "YMD"), [-271_821, 4, 20]);
        assert_eq!(parts(i64::MAX, "YMD"), [0; 0]);
        assert_eq!(parts(i64::MIN, "YMD"), [0; 0]);
    }

    #[test]
    fn dates_survive_a_round_trip() {
        for millis in (-FURTHEST..=FURTHEST).step_by(9_876_543_210_123) {
            let got = parts(millis, "YMDHmsf");
            let [year, month, day, time @ ..] = got.as_slice() else { panic!("{millis} has no parts") };
            let time = time.try_into().expect("four parts");
            assert_eq!(millis_of([*year, *month, *day], time), Some(millis));
        }
    }

    #[test]
    fn weeks_belong_to_the_period_of_their_thursday() {
        // Friday, 1 January 2021.
        assert_eq!(parts(1_609_459_200_000, "XWxwF"), [2020, 53, 12, 5, 5]);
        // Monday, 30 December 2024.
        assert_eq!(parts(1_735_516_800_000, "XWxwF"), [2025, 1, 1, 1, 1]);
        // Saturday, 1 August 2020.
        assert_eq!(parts(1_596_240_000_000, "xw"), [7, 5]);
    }

    #[test]
    fn parts_carry_over() {
        assert_eq!(millis_of([1969, 13, 1], [0, 0, 0, 0]), Some(0));
        assert_eq!(millis_of([1970, 1, 0], [24, 0, 0, 0]), Some(0));
        assert_eq!(millis_of([1970, 1, 1], [0, 0, 0, i64::MAX]), None);
        assert_eq!(millis_of([300_000, 1, 1], [0; 4]), None);
        assert_eq!(days_in(1900, 2), 28);
        assert_eq!(days_in(2400, 2), 29);
        assert_eq!(days_in(2023, 12), 31);
    }
}
