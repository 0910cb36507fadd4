use proptest::prelude::*;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// New York, as its rule says: no machine's database is needed for it.
fn new_york() -> TimeZone {
    TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").unwrap()
}

#[test]
fn when_it_is_due_next() {
    let utc = TimeZone::UTC;
    let cases = [
        ("each minute", "* * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
        ("the minute has begun", "* * * * *", "2026-01-01T00:00:59.5Z", "2026-01-01T00:01:00Z"),
        ("steps", "*/15 * * * *", "2026-01-01T00:46:00Z", "2026-01-01T01:00:00Z"),
        ("steps from one on", "20/20 * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:20:00Z"),
        ("steps in a range", "0 9-17/4 * * *", "2026-01-01T13:00:00Z", "2026-01-01T17:00:00Z"),
        ("a list", "5,35 * * * *", "2026-01-01T00:05:00Z", "2026-01-01T00:35:00Z"),
        ("names", "0 0 * FEB Mon", "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z"),
        ("a range of names", "0 6 * * mon-fri", "2026-01-02T06:00:00Z", "2026-01-05T06:00:00Z"),
        ("either day", "0 0 13 * 5", "2026-03-01T00:00:00Z", "2026-03-06T00:00:00Z"),
        (
            "steps of days are no star",
            "0 0 */31 * 1",
            "2026-03-02T00:00:00Z",
            "2026-03-09T00:00:00Z",
        ),
        ("a star wants both", "0 0 ? * 5", "2026-03-07T00:00:00Z", "2026-03-13T00:00:00Z"),
        ("every fourth year", "0 0 29 2 *", "2025-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("the end of the year", "@yearly", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("hourly", "@hourly", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"),
        ("weekly", "@weekly", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"),
    ];
    for (name, schedule, after, want) in cases {
        let schedule = CronSchedule::parse(schedule).unwrap();
        let next = schedule.next(at(after), Timestamp::UNIX_EPOCH, &utc);
        assert_eq!(next, Some(at(want)), "{name}");
        assert_eq!(
            schedule.latest(at(after), at(want), &utc),
            Some(at(want)),
            "{name}: until then"
        );
        let before = at(want) - SignedDuration::from_nanos(1);
        assert_eq!(schedule.latest(at(after), before, &utc), None, "{name}: not before");
    }
    let never = CronSchedule::parse("59 23 31 2 *").unwrap();
    assert_eq!(never.next(at("2026-01-01T00:00:00Z"), Timestamp::UNIX_EPOCH, &utc), None);
    assert_eq!(never.latest(Timestamp::UNIX_EPOCH, at("2026-01-01T00:00:00Z"), &utc), None);
}

#[test]
fn again_and_again_since_it_began() {
    let schedule = CronSchedule::parse("@every 1h30m").unwrap();
    let (began, zone) = (at("2026-01-01T00:10:00.7Z"), TimeZone::UTC);
    let next = schedule.next(at("2026-01-01T03:10:00Z"), began, &zone);
    assert_eq!(next, Some(at("2026-01-01T04:40:00Z")));
    let latest = |now: &str| schedule.latest(began, at(now), &zone);
    assert_eq!(latest("2026-01-01T01:39:59Z"), None);
    assert_eq!(latest("2026-01-01T01:40:00Z"), Some(at("2026-01-01T01:40:00Z")));
    assert_eq!(latest("2026-01-01T04:39:00Z"), Some(at("2026-01-01T03:10:00Z")));
    assert_eq!(CronSchedule::parse("@every 1ms"), CronSchedule::parse("@every 1s"));
    assert_eq!(CronSchedule::parse("@every 1.5h"), CronSchedule::parse("@every 90m0s"));
}

#[test]
fn clocks_that_are_changed() {
    // At 2:00 on the 8th of March 2026 it is 3:00 at once; at 2:00 on the 1st of November, 1:00 again.
    let zone = new_york();
    let cases = [
        ("the hour that is skipped", "30 2 * * *", "2026-03-07T12:00:00Z", "2026-03-09T06:30:00Z"),
        ("after it", "0 3 * * *", "2026-03-07T12:00:00Z", "2026-03-08T07:00:00Z"),
        ("the hour that comes twice", "30 1 * * *", "2026-10-31T12:00:00Z", "2026-11-01T05:30:00Z"),
        ("and again", "30 1 * * *", "2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z"),
        ("and no third time", "30 1 * * *", "2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"),
        ("each hour", "0 * * * *", "2026-03-08T06:00:00Z", "2026-03-08T07:00:00Z"),
    ];
    for (name, schedule, after, want) in cases {
        let schedule = CronSchedule::parse(schedule).unwrap();
        let next = schedule.next(at(after), Timestamp::UNIX_EPOCH, &zone);
        assert_eq!(next, Some(at(want)), "{name}");
        assert_eq!(schedule.latest(at(after), at(want), &zone), Some(at(want)), "{name}");
    }
}

#[test]
fn what_is_wrong_with_a_schedule() {
    let cases = [
        ("", "empty spec string"),
        ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
        ("a b c d e f", "expected exactly 5 fields, found 6: [a b c d e f]"),
        ("60 * * * *", "end of range (60) above maximum (59): 60"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("5-3 * * * *", "beginning of range (5) beyond end of range (3): 5-3"),
        ("*/0 * * * *", "step of range should be a positive number: */0"),
        ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
        ("1/2/3 * * * *", "too many slashes: 1/2/3"),
        ("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
        ("* * * * 7", "end of range (7) above maximum (6): 7"),
        ("*/-1 * * * *", "negative number (-1) not allowed: -1"),
        ("99999999999 * * * *", "end of range (4294967295) above maximum (59): 99999999999"),
        ("@often", "unrecognized descriptor: @often"),
        ("@every", "unrecognized descriptor: @every"),
        ("@every x", "failed to parse duration @every x: time: invalid duration \"x\""),
        ("@every 5", "failed to parse duration @every 5: time: missing unit in duration \"5\""),
    ];
    for (text, want) in cases {
        assert_eq!(CronSchedule::parse(text).unwrap_err(), want, "{text}");
    }
}

/// Schedules of all shapes.
fn schedules() -> impl Strategy<Value = String> {
    let field = |least: u32, most: u32| {
        prop_oneof![
            Just("*".to_owned()),
            (least..=most).prop_map(|value| value.to_string()),
            (1..=most).prop_map(|step| format!("*/{step}")),
            (least..=most, least..=most).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
        ]
    };
    (field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 6))
        .prop_map(|(a, b, c, d, e)| format!("{a} {b} {c} {d} {e}"))
}

proptest! {
    /// Forwards and backwards it is the same list: nothing due lies between a time and the next one,
    /// and what comes next was not due before.
    #[test]
    fn both_ways_find_the_same(text in schedules(), start in 1_700_000_000i64..1_900_000_000) {
        let (schedule, zone) = (CronSchedule::parse(&text).unwrap(), new_york());
        let start = Timestamp::from_second(start).unwrap();
        if let Some(next) = schedule.next(start, start, &zone) {
            prop_assert!(next > start);
            prop_assert_eq!(schedule.latest(start, next, &zone), Some(next));
            prop_assert_eq!(schedule.latest(start, next - SignedDuration::from_secs(1), &zone), None);
            if let Some(before) = schedule.latest(Timestamp::UNIX_EPOCH, start, &zone) {
                let again = schedule.next(before, before, &zone);
                prop_assert_eq!(again, Some(next));
            }
        }
    }

    /// The next minute that is due is the first of all minutes after it that the clock shows so.
    #[test]
    fn none_is_passed_over(text in schedules(), start in 1_772_900_000i64..1_773_000_000) {
        let (schedule, zone) = (CronSchedule::parse(&text).unwrap(), new_york());
        let Rule::Clock(fields) = &schedule.0 else { return Ok(()) };
        let start = Timestamp::from_second(start).unwrap();
        let first = (start.as_second() / 60 + 1..).take(3 * 24 * 60).find(|minute| {
            let shown = zone.to_datetime(Timestamp::from_second(minute * 60).unwrap());
            let minutes = i32::from(shown.hour()) * 60 + i32::from(shown.minute());
            fields.has_date(shown.date()) && fields.time(minutes).is_some()
        });
        let next = schedule.next(start, start, &zone).map(|next| next.as_second() / 60);
        match first {
            Some(first) => prop_assert_eq!(next, Some(first)),
            None => prop_assert!(next.is_none_or(|next| next > start.as_second() / 60 + 3 * 24 * 60)),
        }
    }

    /// Whatever somebody writes, it is understood or refused.
    #[test]
    fn nothing_breaks_it(text in "[@*/,0-9a-z \\-?]{0,20}") {
        if let Ok(schedule) = CronSchedule::parse(&text) {
            let now = Timestamp::from_second(1_800_000_000).unwrap();
            let next = schedule.next(now, now, &TimeZone::UTC);
            prop_assert!(next.is_none_or(|next| next > now));
        }
    }
}
