//! Cron schedules: firings around clock changes, missed firings after an outage, and invalid expressions.

use std::time::{Duration, Instant};

use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use proptest::prelude::*;
use stepwell::core::Timestamp;
use stepwell::cron::{Cron, CronError, Firings, MissedFirings, Overlap};

fn cron(expression: &str, zone: &str) -> Cron {
    Cron::parse(expression, zone).unwrap()
}

fn at(instant: &str) -> Timestamp {
    instant.parse().unwrap()
}

/// The first `count` firings after an instant.
fn after(cron: &Cron, instant: &str, count: usize) -> Vec<Timestamp> {
    std::iter::successors(cron.next_after(at(instant)), |last| cron.next_after(*last)).take(count).collect()
}

#[track_caller]
fn fires(expression: &str, zone: &str, from: &str, expected: &[&str]) {
    let expected: Vec<Timestamp> = expected.iter().map(|instant| at(instant)).collect();
    assert_eq!(after(&cron(expression, zone), from, expected.len()), expected, "{expression} in {zone}");
}

#[test]
fn berlin_local_time_in_a_gap_fires_when_the_gap_ends() {
    // On 29 March 2026 the clock goes from 02:00 +01:00 to 03:00 +02:00, at 01:00 UTC.
    fires(
        "30 2 * * *",
        "Europe/Berlin",
        "2026-03-28T00:00:00Z",
        &["2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"],
    );
    // The first and the last second of the gap; the next day is ordinary.
    for inside in ["0 0 2 * * *", "59 59 2 * * *"] {
        fires(inside, "Europe/Berlin", "2026-03-28T12:00:00Z", &["2026-03-29T01:00:00Z"]);
    }
}

#[test]
fn berlin_several_times_in_one_gap_fire_once() {
    fires(
        "10,20,50 2 * * *",
        "Europe/Berlin",
        "2026-03-28T12:00:00Z",
        &["2026-03-29T01:00:00Z", "2026-03-30T02:10:00+02:00"],
    );
    // A firing in the gap and one at its end are the same instant.
    fires(
        "0,30 2,3 * * *",
        "Europe/Berlin",
        "2026-03-28T12:00:00Z",
        &["2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00", "2026-03-30T02:00:00+02:00"],
    );
}

#[test]
fn berlin_repeated_local_time_fires_the_first_time() {
    // On 25 October 2026 the clock goes from 03:00 +02:00 to 02:00 +01:00, at 01:00 UTC.
    fires(
        "30 2 * * *",
        "Europe/Berlin",
        "2026-10-24T12:00:00Z",
        &["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"],
    );
    // The search starts after the first 02:30 and before the second.
    for asked in ["2026-10-25T00:45:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:15:00Z"] {
        fires("30 2 * * *", "Europe/Berlin", asked, &["2026-10-26T02:30:00+01:00"]);
    }
}

#[test]
fn quarter_hour_schedule_skips_the_repeated_hour() {
    fires(
        "*/15 * * * *",
        "Europe/Berlin",
        "2026-10-25T00:20:00Z",
        &[
            "2026-10-25T02:30:00+02:00",
            "2026-10-25T02:45:00+02:00",
            "2026-10-25T03:00:00+01:00",
            "2026-10-25T03:15:00+01:00",
        ],
    );
    // In spring there is no pause: the firing after 01:45 is at 03:00.
    fires(
        "*/15 * * * *",
        "Europe/Berlin",
        "2026-03-29T00:40:00Z",
        &["2026-03-29T01:45:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:15:00+02:00"],
    );
    // In UTC the interval stays constant.
    let paced = after(&cron("*/15 * * * *", "UTC"), "2026-10-24T23:00:00Z", 20);
    assert!(paced.windows(2).all(|pair| pair[1].ms_since(pair[0]) == 15 * 60_000));
}

#[test]
fn new_york_handles_both_clock_changes() {
    fires(
        "15 2 * * *",
        "America/New_York",
        "2026-03-07T12:00:00Z",
        &["2026-03-08T03:00:00-04:00", "2026-03-09T02:15:00-04:00"],
    );
    fires(
        "30 1 * * *",
        "America/New_York",
        "2026-10-31T12:00:00Z",
        &["2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"],
    );
    // A daily schedule over a year fires once a day, so the 365th firing is on 31 December.
    let year = after(&cron("30 1 * * *", "America/New_York"), "2026-01-01T00:00:00-05:00", 365);
    assert_eq!(year.last(), Some(&at("2026-12-31T01:30:00-05:00")));
}

#[test]
fn lord_howe_shifts_by_half_an_hour() {
    // Forward from 02:00 +10:30 to 02:30 +11:00 on 4 October 2026, back from 02:00 +11:00 to 01:30 on 5 April.
    fires(
        "15 2 * * *",
        "Australia/Lord_Howe",
        "2026-10-03T00:00:00Z",
        &["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"],
    );
    fires(
        "45 1 * * *",
        "Australia/Lord_Howe",
        "2026-04-04T00:00:00Z",
        &["2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"],
    );
    fires(
        "*/10 1-2 * * *",
        "Australia/Lord_Howe",
        "2026-04-05T01:35:00+11:00",
        &["2026-04-05T01:40:00+11:00", "2026-04-05T01:50:00+11:00", "2026-04-05T02:00:00+10:30"],
    );
}

#[test]
fn skipped_day_fires_when_it_ends() {
    // Samoa crossed the date line: 29 December 2011 was followed by 31 December.
    fires(
        "0 9 * * *",
        "Pacific/Apia",
        "2011-12-29T00:00:00-10:00",
        &["2011-12-29T09:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T09:00:00+14:00"],
    );
}

#[test]
fn month_end_patterns_fire_on_the_right_days() {
    fires(
        "0 12 31 * *",
        "UTC",
        "2026-01-31T12:00:00Z",
        &["2026-03-31T12:00:00Z", "2026-05-31T12:00:00Z", "2026-07-31T12:00:00Z"],
    );
    fires(
        "0 0 L * *",
        "UTC",
        "2028-01-31T00:00:00Z",
        &["2028-02-29T00:00:00Z", "2028-03-31T00:00:00Z", "2028-04-30T00:00:00Z"],
    );
    // 31 May 2026 is a Sunday.
    fires("0 0 LW * *", "UTC", "2026-05-01T00:00:00Z", &["2026-05-29T00:00:00Z", "2026-06-30T00:00:00Z"]);
    fires("0 0 31W 5 *", "UTC", "2026-05-01T00:00:00Z", &["2026-05-29T00:00:00Z"]);
    // Month ends are computed in the zone of the schedule, not in UTC.
    fires("0 0 1 * *", "Pacific/Auckland", "2026-06-15T00:00:00Z", &["2026-06-30T12:00:00Z"]);
}

#[test]
fn leap_day_fires_in_leap_years_only() {
    fires("0 0 29 2 *", "UTC", "2024-02-29T00:00:00Z", &["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]);
    fires("0 0 29 2 *", "UTC", "2096-02-29T00:00:00Z", &["2104-02-29T00:00:00Z"]);
    fires("0 0 29 2 +MON", "UTC", "2026-01-01T00:00:00Z", &["2044-02-29T00:00:00Z"]);
}

#[test]
fn days_of_the_week() {
    // 1 November 2026 is a Sunday.
    let from = "2026-10-31T12:00:00Z";
    for sunday in
        ["0 0 * * 0", "0 0 * * 7", "0 0 * * sun", "0 0 ? * Sun", "@weekly", "@WEEKLY", "0 0 * * 0-0"]
    {
        fires(sunday, "UTC", from, &["2026-11-01T00:00:00Z", "2026-11-08T00:00:00Z"]);
    }
    for weekend in ["0 0 * * 6-7", "0 0 * * SAT-SUN", "0 0 * * 6,0"] {
        let expected = ["2026-11-01T00:00:00Z", "2026-11-07T00:00:00Z", "2026-11-08T00:00:00Z"];
        fires(weekend, "UTC", from, &expected);
    }
    fires("0 0 * * FRI#2", "UTC", from, &["2026-11-13T00:00:00Z", "2026-12-11T00:00:00Z"]);
    for last_sunday in ["0 0 * * SUNL", "0 0 * * 7L", "0 0 * * 0L", "0 0 * * SUN#L"] {
        fires(last_sunday, "UTC", from, &["2026-11-29T00:00:00Z", "2026-12-27T00:00:00Z"]);
    }
    // A day matches either of the two fields, or with `+` both.
    fires("0 0 13 * FRI", "UTC", "2026-11-11T00:00:00Z", &["2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z"]);
    fires("0 0 13 * +FRI", "UTC", "2026-11-11T00:00:00Z", &["2026-11-13T00:00:00Z", "2027-08-13T00:00:00Z"]);
}

#[test]
fn next_firing_is_strictly_later() {
    fires("*/20 * * * * *", "UTC", "2026-01-01T00:00:59Z", &["2026-01-01T00:01:00Z", "2026-01-01T00:01:20Z"]);
    // The next firing is strictly later, to the microsecond.
    let minutely = cron("* * * * *", "UTC");
    assert_eq!(minutely.next_after(at("2026-01-01T00:00:59.999999Z")), Some(at("2026-01-01T00:01:00Z")));
    assert_eq!(minutely.next_after(at("2026-01-01T00:01:00Z")), Some(at("2026-01-01T00:02:00Z")));
    assert_eq!(minutely.next_after(at("2026-01-01T00:01:00.000001Z")), Some(at("2026-01-01T00:02:00Z")));
    // The same holds before 1970.
    assert_eq!(minutely.next_after(at("1969-12-31T23:58:00.5Z")), Some(at("1969-12-31T23:59:00Z")));
}

#[test]
fn nicknames() {
    for (nickname, fields) in [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        (" @hourly ", "0 * * * *"),
    ] {
        let (short, long) = (cron(nickname, "Europe/Berlin"), cron(fields, "Europe/Berlin"));
        assert_eq!(after(&short, "2026-10-20T00:00:00Z", 9), after(&long, "2026-10-20T00:00:00Z", 9));
    }
}

#[test]
fn extreme_timestamps_are_handled() {
    for expression in ["* * * * * *", "0 0 29 2 *"] {
        for zone in ["UTC", "Pacific/Kiritimati", "America/New_York"] {
            let cron = cron(expression, zone);
            assert_eq!(cron.next_after(Timestamp::MAX), None);
            assert!(cron.next_after(Timestamp::MIN).is_some());
            for missed in [MissedFirings::Skip, MissedFirings::Once, MissedFirings::All] {
                let all = cron.firings(Timestamp::MIN, Timestamp::MAX, missed, u64::MAX, 2);
                assert_eq!(all.fire.len(), 2, "{missed:?}");
                let all = cron.firings(Timestamp::MIN, Timestamp::MAX, missed, 0, usize::MIN);
                assert!(all.fire.len() <= 1, "{missed:?}");
                let none = cron.firings(Timestamp::MAX, Timestamp::MIN, missed, u64::MAX, usize::MAX);
                assert_eq!(none, Firings { fire: vec![], next: Some(Timestamp::MAX) });
            }
        }
    }
}

const GRACE: u64 = 5_000;

#[track_caller]
fn owed(missed: MissedFirings, planned: &str, now: &str, max: usize, fire: &[&str], next: &str) {
    let firings = cron("0 * * * *", "UTC").firings(at(planned), at(now), missed, GRACE, max);
    let fire = fire.iter().map(|instant| at(instant)).collect();
    assert_eq!(firings, Firings { fire, next: Some(at(next)) }, "{missed:?}");
}

#[test]
fn firing_within_its_grace_period_always_fires() {
    for missed in [MissedFirings::Skip, MissedFirings::Once, MissedFirings::All] {
        let planned = "2026-01-01T09:00:00Z";
        owed(missed, planned, "2026-01-01T08:59:59.999999Z", 10, &[], planned);
        // The grace period includes its last instant.
        for now in ["2026-01-01T09:00:00Z", "2026-01-01T09:00:05Z"] {
            owed(missed, planned, now, 10, &[planned], "2026-01-01T10:00:00Z");
        }
    }
}

#[test]
fn a_single_missed_firing() {
    let (planned, now, next) =
        ("2026-01-01T09:00:00Z", "2026-01-01T09:00:05.000001Z", "2026-01-01T10:00:00Z");
    owed(MissedFirings::Skip, planned, now, 10, &[], next);
    owed(MissedFirings::Once, planned, now, 10, &[planned], next);
    owed(MissedFirings::All, planned, now, 10, &[planned], next);
}

#[test]
fn an_outage_over_several_firings() {
    let (planned, now, next) = ("2026-01-01T09:00:00Z", "2026-01-01T12:30:00Z", "2026-01-01T13:00:00Z");
    owed(MissedFirings::Skip, planned, now, 10, &[], next);
    owed(MissedFirings::Once, planned, now, 10, &["2026-01-01T12:00:00Z"], next);
    let each = [planned, "2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z", "2026-01-01T12:00:00Z"];
    owed(MissedFirings::All, planned, now, 10, &each, next);
    owed(MissedFirings::All, planned, now, 4, &each, next);
    // The first firing above the bound is the next one, and is already due.
    owed(MissedFirings::All, planned, now, 3, &each[..3], each[3]);
    owed(MissedFirings::All, each[3], now, 3, &each[3..], next);
    // A bound of zero counts as one, because otherwise the schedule would never advance.
    owed(MissedFirings::All, planned, now, 0, &each[..1], each[1]);
}

#[test]
fn an_outage_that_ends_just_as_the_next_firing_is_due() {
    let (planned, now, next) = ("2026-01-01T09:00:00Z", "2026-01-01T12:00:01Z", "2026-01-01T13:00:00Z");
    let on_time = "2026-01-01T12:00:00Z";
    owed(MissedFirings::Skip, planned, now, 10, &[on_time], next);
    owed(MissedFirings::Once, planned, now, 10, &["2026-01-01T11:00:00Z", on_time], next);
    owed(MissedFirings::Once, planned, now, 1, &["2026-01-01T11:00:00Z"], on_time);
    owed(MissedFirings::Once, on_time, now, 1, &[on_time], next);
}

#[test]
fn planned_time_outside_the_pattern_is_kept() {
    let (planned, next) = ("2026-01-01T09:10:00Z", "2026-01-01T10:00:00Z");
    owed(MissedFirings::Skip, planned, "2026-01-01T09:10:01Z", 10, &[planned], next);
    owed(MissedFirings::Skip, planned, "2026-01-01T09:30:00Z", 10, &[], next);
    owed(MissedFirings::Once, planned, "2026-01-01T09:30:00Z", 10, &[planned], next);
    owed(MissedFirings::All, planned, "2026-01-01T10:30:00Z", 10, &[planned, next], "2026-01-01T11:00:00Z");
}

#[test]
fn outage_over_the_repeated_hour_finds_the_last_firing() {
    let cron = cron("*/15 * * * *", "Europe/Berlin");
    let planned = at("2026-10-25T00:00:00Z");
    let found = cron.firings(planned, at("2026-10-25T01:10:00Z"), MissedFirings::Once, GRACE, 10);
    let (fire, next) = (vec![at("2026-10-25T02:45:00+02:00")], Some(at("2026-10-25T03:00:00+01:00")));
    assert_eq!(found, Firings { fire, next });
    let found = cron.firings(planned, at("2026-10-25T01:10:00Z"), MissedFirings::Skip, GRACE, 10);
    assert_eq!(found, Firings { fire: vec![], next });
}

/// Stepping through the 300 million seconds one by one would take minutes.
#[test]
fn ten_years_of_missed_seconds_are_skipped_quickly() {
    let cron = cron("* * * * * *", "Europe/Berlin");
    let (planned, now) = (at("2016-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z"));
    let began = Instant::now();
    let once = cron.firings(planned, now, MissedFirings::Once, 0, 100);
    let skip = cron.firings(planned, now, MissedFirings::Skip, 0, 100);
    let all = cron.firings(planned, now, MissedFirings::All, 0, 100);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert_eq!(once.fire, [at("2025-12-31T23:59:59Z"), now]);
    assert_eq!((skip.fire, skip.next), (vec![now], Some(at("2026-01-01T00:00:01Z"))));
    assert_eq!((all.fire.len(), all.next), (100, Some(at("2016-01-01T00:01:40Z"))));
    assert_eq!(once.next, skip.next);
}

#[track_caller]
fn refused(expression: &str, problem: &str) {
    let error = Cron::parse(expression, "UTC").expect_err(expression);
    let expected = format!("invalid cron expression `{expression}`: {problem}");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn invalid_field_is_reported_with_allowed_values() {
    let count = "write five, `minute hour day-of-month month day-of-week`, or six with the second in front";
    refused("", "it is empty; write five fields such as `0 9 * * MON-FRI`");
    refused("  ", "it is empty; write five fields such as `0 9 * * MON-FRI`");
    refused("daily", &format!("it has 1 field; {count}"));
    refused("* * * *", &format!("it has 4 fields; {count}"));
    refused("0 0 0 1 1 * 2030", &format!("it has 7 fields; {count}"));
    let nicknames = "@yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly";
    refused("@reboot", &format!("there is no such nickname; write one of {nicknames}, or five fields"));
    refused("61 * * * *", "in field 1 (the minute), `61` is not a valid minute: write 0 to 59");
    refused("0 0 24 * * *", "in field 3 (the hour), `24` is not a valid hour: write 0 to 23");
    refused("0 -5 * * *", "in field 2 (the hour), `` is not a valid hour: write 0 to 23");
    refused(
        "0 0 0 * *",
        "in field 3 (the day of the month), `0` is not a valid day of the month: write 1 to 31",
    );
    refused("JAN 0 1 1 *", "in field 1 (the minute), `JAN` is not a valid minute: write 0 to 59");
    let months = "write 1 to 12, or JAN, FEB, MAR, APR, MAY, JUN, JUL, AUG, SEP, OCT, NOV, DEC";
    refused("0 0 1 JANUARY *", &format!("in field 4 (the month), `JANUARY` is not a valid month: {months}"));
    let days = "write 0 to 7, or SUN, MON, TUE, WED, THU, FRI, SAT";
    refused(
        "0 0 * * MON-",
        &format!("in field 5 (the day of the week), `` is not a valid day of the week: {days}"),
    );
    refused(
        "0 0 * * 1-5#2",
        &format!("in field 5 (the day of the week), `1-5` is not a valid day of the week: {days}"),
    );
    refused("99999999 * * * *", "in field 1 (the minute), `99999999` is not a valid minute: write 0 to 59");
}

#[test]
fn invalid_list_range_or_step_is_reported_with_a_fix() {
    let missing = "a value is missing next to a comma: add a value or remove the comma";
    refused("1,,2 * * * *", &format!("in field 1 (the minute), {missing}"));
    refused("5, * * * *", &format!("in field 1 (the minute), {missing}"));
    let alone = "`*` means every value already: write it alone, or leave it out";
    refused("*,5 * * * *", &format!("in field 1 (the minute), {alone}"));
    let swap = "or swap its ends";
    refused(
        "0 22-2 * * *",
        &format!("in field 2 (the hour), `22-2` runs backwards: write `22-23,0-2`, {swap}"),
    );
    refused(
        "0 0 * NOV-FEB *",
        &format!("in field 4 (the month), `NOV-FEB` runs backwards: write `NOV-12,1-FEB`, {swap}"),
    );
    refused(
        "0 0 * * FRI-MON",
        &format!("in field 5 (the day of the week), `FRI-MON` runs backwards: write `FRI-6,0-MON`, {swap}"),
    );
    let which = "does not say which values to step through";
    refused("/15 * * * *", &format!("in field 1 (the minute), `/15` {which}: write `*/15`"));
    refused("5/15 * * * *", &format!("in field 1 (the minute), `5/15` {which}: write `5-59/15`"));
    let step = "is not a valid step: write 1 to 60";
    refused("*/90 * * * *", &format!("in field 1 (the minute), `90` in `*/90` {step}"));
    refused("*/0 * * * *", &format!("in field 1 (the minute), `0` in `*/0` {step}"));
    refused("*/x * * * *", &format!("in field 1 (the minute), `x` in `*/x` {step}"));
    let week = "is not a week of a month: write `#1` to `#5`, or `#L`";
    refused("0 0 * * 1#6", &format!("in field 5 (the day of the week), `#6` {week}"));
    let which = "`L` does not say which day: write `FRIL` for the last Friday";
    refused("0 0 * * L", &format!("in field 5 (the day of the week), {which}"));
    let two = "`L` and `LW` cannot be in one list: make it two schedules";
    refused("0 0 L,LW * *", &format!("in field 3 (the day of the month), {two}"));
}

#[test]
fn pattern_that_never_fires_is_refused() {
    let never = "no date fits it, so it would never fire; check the days against the months";
    for expression in ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 8 * +MON#1", "0 0 0 31 APR *"] {
        let began = Instant::now();
        refused(expression, never);
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    }
    // An expression that fires once in 28 or 40 years is accepted.
    fires("0 0 * 2 MON#5", "UTC", "2072-03-01T00:00:00Z", &["2112-02-29T00:00:00Z"]);
}

#[test]
fn malformed_expressions_are_refused() {
    for expression in [
        "🙂 * * * *",
        "* * * * * * *",
        "@",
        "@daily @daily",
        "+ * * * *",
        "0 0 W * *",
        "0 0 * * #",
        "0 0 1 1 +",
    ] {
        assert!(matches!(Cron::parse(expression, "UTC"), Err(CronError::Expression { .. })), "{expression}");
    }
}

#[test]
fn mistyped_time_zone_gets_a_suggestion() {
    let hint = |name: &str| match Cron::parse("@daily", name) {
        Err(CronError::TimeZone { hint, .. }) => hint,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(hint("Europe/Berln"), " (did you mean `Europe/Berlin`?)");
    assert_eq!(hint("Berlin"), " (did you mean `Europe/Berlin`?)");
    assert_eq!(hint("new york"), " (did you mean `America/New_York`?)");
    assert_eq!(hint("Amerika/New York"), " (did you mean `America/New_York`?)");
    assert_eq!(hint("America/Port au Prince"), " (did you mean `America/Port-au-Prince`?)");
    for nowhere in ["", "PST", "+02:00", "local", "Middle/Earth", "Etc/Unknown", "../etc/passwd"] {
        assert_eq!(hint(nowhere), "", "{nowhere}");
    }
    let error = Cron::parse("@daily", "Europe/Berln").unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no time zone `Europe/Berln` (did you mean `Europe/Berlin`?): write a name from the IANA time zone \
         database, such as `Europe/Berlin` or `UTC`"
    );
    // A suggested zone name must itself be accepted.
    let berlin = cron(" 0 9 * * MON ", "europe/berlin");
    assert_eq!((berlin.time_zone(), berlin.expression()), ("Europe/Berlin", " 0 9 * * MON "));
    assert_eq!(
        format!("{berlin:?}"),
        "Cron { expression: \" 0 9 * * MON \", time_zone: \"Europe/Berlin\", .. }"
    );
    assert_eq!(cron("@daily", "utc").time_zone(), "UTC");
}

#[test]
fn cron_can_be_shared_between_threads() {
    fn shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    shared(&cron("@daily", "UTC"));
}

#[test]
fn policies_serialize_as_lowercase_words() {
    for (missed, text) in [
        (MissedFirings::Skip, "\"skip\""),
        (MissedFirings::Once, "\"once\""),
        (MissedFirings::All, "\"all\""),
    ] {
        assert_eq!(serde_json::to_string(&missed).unwrap(), text);
        assert_eq!(serde_json::from_str::<MissedFirings>(text).unwrap(), missed);
    }
    for (overlap, text) in [(Overlap::Start, "\"start\""), (Overlap::Skip, "\"skip\"")] {
        assert_eq!(serde_json::to_string(&overlap).unwrap(), text);
        assert_eq!(serde_json::from_str::<Overlap>(text).unwrap(), overlap);
    }
    assert_eq!((MissedFirings::default(), Overlap::default()), (MissedFirings::Once, Overlap::Start));
}

/// For every clock change of every zone: an every-second schedule continues at once after skipped seconds, and resumes
/// after repeated ones.
#[test]
fn every_clock_change_since_1970_is_handled() {
    let mut changes = 0;
    let names: Vec<String> = jiff::tz::db().available().map(|name| name.to_string()).collect();
    for name in names.iter().filter(|name| !name.starts_with("posix/") && !name.starts_with("right/")) {
        let Ok(cron) = Cron::parse("* * * * * *", name) else { continue };
        let zone = TimeZone::get(name).unwrap();
        let years = jiff::Timestamp::UNIX_EPOCH..at_jiff(at("2040-01-01T00:00:00Z"));
        for change in zone.following(years.start).take_while(|change| change.timestamp() < years.end) {
            let change = change.timestamp();
            let just_before = change - SignedDuration::from_micros(1);
            let repeated = zone.to_offset(just_before).seconds() - zone.to_offset(change).seconds();
            let expected = change + SignedDuration::from_secs(i64::from(repeated.max(0)));
            let next = cron.next_after(Timestamp::from_micros(just_before.as_microsecond()));
            assert_eq!(next.map(at_jiff), Some(expected), "{name} at {change}");
            let second = SignedDuration::from_secs(1);
            let planned = Timestamp::from_micros((change - second * 9).as_microsecond());
            let owed = cron.firings(planned, next.unwrap(), MissedFirings::Once, 0, 1);
            assert_eq!(
                owed.fire,
                [Timestamp::from_micros((change - second).as_microsecond())],
                "{name} at {change}"
            );
            assert_eq!(owed.next, next, "{name} at {change}");
            changes += 1;
        }
    }
    assert!(changes > 10_000, "{changes}");
}

fn at_jiff(at: Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_microsecond(at.micros()).unwrap()
}

const ZONES: &[&str] = &[
    "UTC",
    "Europe/Berlin",
    "Europe/Dublin",
    "America/New_York",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
    "Antarctica/Troll",
    "Asia/Kathmandu",
];

/// A pattern as sets of numbers, so that a test can evaluate it without the code under test.
#[derive(Debug, Clone)]
struct Sets {
    minutes: Vec<i8>,
    hours: Vec<i8>,
    weekdays: Vec<i8>,
}

impl Sets {
    fn expression(&self) -> String {
        let list = |numbers: &[i8]| numbers.iter().map(i8::to_string).collect::<Vec<_>>().join(",");
        format!("{} {} * * {}", list(&self.minutes), list(&self.hours), list(&self.weekdays))
    }

    fn fits(&self, shown: DateTime) -> bool {
        shown.second() == 0
            && self.minutes.contains(&shown.minute())
            && self.hours.contains(&shown.hour())
            && self.weekdays.contains(&shown.weekday().to_sunday_zero_offset())
    }

    /// Finds the firings in a span of whole minutes by stepping through local time. When local time reaches a minute
    /// later than any before, it fires if that minute, or one that was skipped, matches.
    fn watched(&self, zone: &TimeZone, from: jiff::Timestamp, minutes: i64) -> Vec<jiff::Timestamp> {
        let minute = SignedDuration::from_mins(1);
        // Starts a day earlier, to include the minutes shown before the span began.
        let mut latest = zone.to_datetime(from - SignedDuration::from_hours(25));
        let mut firings = Vec::new();
        for step in -24 * 60..minutes {
            let now = from + minute * i32::try_from(step).unwrap();
            let shown = zone.to_datetime(now);
            let mut fires = false;
            while latest < shown {
                latest = latest.checked_add(minute).unwrap();
                fires |= self.fits(latest);
            }
            if fires && step >= 0 {
                firings.push(now);
            }
        }
        firings
    }
}

fn sets() -> impl Strategy<Value = Sets> {
    let some = |from: std::ops::Range<i8>, most: usize| {
        let all: Vec<i8> = from.collect();
        prop_oneof![proptest::sample::subsequence(all.clone(), 1..=most), Just(all)]
    };
    (some(0..60, 4), some(0..24, 6), some(0..7, 7)).prop_map(|(minutes, hours, weekdays)| Sets {
        minutes,
        hours,
        weekdays,
    })
}

/// A whole minute up to two days before a clock change, or before a new year in a zone without clock changes.
fn around_a_change(zone: &TimeZone, year: i16, ahead: i64) -> jiff::Timestamp {
    let start = DateTime::constant(2000, 1, 1, 0, 0, 0, 0).with().year(year).build().unwrap();
    let start = zone.to_timestamp(start).unwrap();
    let second = SignedDuration::from_secs(1);
    let mut changes = zone.following(start).map(|change| change.timestamp()).take(4);
    let change = changes.find(|change| zone.to_offset(*change) != zone.to_offset(*change - second));
    change.unwrap_or(start) - SignedDuration::from_mins(ahead)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Around a clock change, the firings equal those found by stepping through local time. They strictly increase, and
    /// each matches the pattern in local time or is the end of a gap.
    #[test]
    fn firings_match_stepping_through_local_time(
        sets in sets(),
        zone in proptest::sample::select(ZONES),
        year in 1995_i16..2036,
        ahead in 0..2_880_i64,
    ) {
        let cron = cron(&sets.expression(), zone);
        let zone = TimeZone::get(zone).unwrap();
        let from = around_a_change(&zone, year, ahead);
        let expected = sets.watched(&zone, from, 2 * 2_880);
        let mut last = Timestamp::from_micros(from.as_microsecond() - 1);
        for instant in &expected {
            let next = cron.next_after(last).unwrap();
            prop_assert!(next > last);
            prop_assert_eq!(at_jiff(next), *instant, "after {}", last);
            let before = zone.to_offset(*instant - SignedDuration::from_micros(1));
            let gap_ends = before < zone.to_offset(*instant);
            prop_assert!(gap_ends || sets.fits(zone.to_datetime(*instant)));
            last = next;
        }
        let over = from + SignedDuration::from_mins(2 * 2_880);
        prop_assert!(at_jiff(cron.next_after(last).unwrap()) >= over);
    }

    /// For any sequence of checks and any policy, no firing is handled twice, and `all` omits none.
    #[test]
    fn repeated_checks_handle_each_firing_once(
        sets in sets(),
        zone in proptest::sample::select(ZONES),
        year in 1995_i16..2036,
        ahead in 0..2_880_i64,
        pauses in proptest::collection::vec(1..600_i64, 1..8),
        max in 1..5_usize,
        grace_min in 0..90_u64,
    ) {
        let cron = cron(&sets.expression(), zone);
        let zone = TimeZone::get(zone).unwrap();
        let from = around_a_change(&zone, year, ahead);
        let every = sets.watched(&zone, from, pauses.iter().sum::<i64>() + 1);
        let planned = cron.next_after(Timestamp::from_micros(from.as_microsecond() - 1)).unwrap();
        for missed in [MissedFirings::Skip, MissedFirings::Once, MissedFirings::All] {
            let (mut next, mut now, mut fired) = (planned, from, Vec::new());
            for pause in &pauses {
                now += SignedDuration::from_mins(*pause);
                let instant = Timestamp::from_micros(now.as_microsecond());
                while next <= instant {
                    let owed = cron.firings(next, instant, missed, grace_min * 60_000, max);
                    prop_assert!(owed.fire.len() <= max);
                    let on_time = now - SignedDuration::from_mins(i64::try_from(grace_min).unwrap());
                    let late = owed.fire.iter().filter(|firing| at_jiff(**firing) < on_time).count();
                    match missed {
                        MissedFirings::Skip => prop_assert_eq!(late, 0),
                        MissedFirings::Once => prop_assert!(late <= 1),
                        MissedFirings::All => {}
                    }
                    fired.extend(owed.fire.into_iter().map(at_jiff));
                    prop_assert!(owed.next.unwrap() > next);
                    next = owed.next.unwrap();
                }
            }
            prop_assert!(fired.is_sorted_by(|a, b| a < b));
            prop_assert!(fired.iter().all(|firing| every.binary_search(firing).is_ok()));
            let due = every.iter().filter(|firing| **firing <= now);
            prop_assert!(missed != MissedFirings::All || due.eq(&fired));
        }
    }
}
