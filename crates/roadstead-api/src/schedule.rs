//! Schedules of CronJobs: five fields, as cron has them since 1975, or `@hourly` and its like, or
//! `@every 90m`. What is understood, and what is said about the rest, is as in robfig/cron, which
//! upstream uses.
//!
//! A schedule speaks of what clocks on walls show. In the hour that is skipped in spring nothing is
//! due, and what is due in the one that autumn repeats is due twice.

use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

mod every;
mod fields;
#[cfg(test)]
mod tests;

/// When something is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronSchedule(Rule);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// Whenever the clock on the wall shows one of these.
    Clock(Fields),
    /// Again and again after this long.
    Every(SignedDuration),
}

/// The values of each field, a bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether a day must be in both of its lists; else one of them is enough.
    both_days: bool,
}

/// Who names a date that never comes hears of it after so many years.
const YEARS: i16 = 5;

impl CronSchedule {
    /// Reads a schedule; says what is wrong with it in the words of robfig/cron.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix('@') {
            Some(_) => every::parse(text).map(Self),
            None => fields::parse(text).map(|fields| Self(Rule::Clock(fields))),
        }
    }

    /// When it is due next after `after`. What is due again and again is so since `began`.
    pub fn next(&self, after: Timestamp, began: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match &self.0 {
            Rule::Clock(fields) => fields.next(after, zone),
            Rule::Every(period) => {
                let began = whole_second(began);
                let rounds = (after.as_second() - began.as_second()).div_euclid(period.as_secs());
                let whole = period.checked_mul(i32::try_from(rounds.max(0) + 1).ok()?)?;
                began.checked_add(whole).ok()
            }
        }
    }

    /// When it was due last until `now`, but after `since`, which is when it began.
    pub fn latest(&self, since: Timestamp, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let found = match &self.0 {
            Rule::Clock(fields) => fields.latest(now, zone),
            Rule::Every(period) => {
                self.next(now, since, zone).and_then(|next| next.checked_sub(*period).ok())
            }
        };
        found.filter(|found| *found > since)
    }
}

fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

impl Fields {
    /// Between two changes of a zone its clocks are as far from UTC, so that times and what clocks
    /// show are one to one there: the search goes from change to change.
    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let mut from = after.checked_add(SignedDuration::from_nanos(1)).ok()?;
        let last = zone.to_datetime(after).year().checked_add(YEARS)?;
        loop {
            let offset = zone.to_offset(from);
            let shown = offset.to_datetime(from);
            if shown.year() > last {
                return None;
            }
            let change = zone.following(from).next().map(|change| change.timestamp());
            let found = offset.to_timestamp(self.at_or_after(shown, last)?).ok()?;
            match change {
                Some(change) if found >= change => from = change,
                _ => return Some(found),
            }
        }
    }

    fn latest(&self, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let moment = SignedDuration::from_nanos(1);
        let mut until = now;
        let first = zone.to_datetime(now).year().checked_sub(YEARS)?;
        loop {
            let offset = zone.to_offset(until);
            let shown = offset.to_datetime(until);
            if shown.year() < first {
                return None;
            }
            let just_after = until.checked_add(moment).ok()?;
            let change = zone.preceding(just_after).next().map(|change| change.timestamp());
            let found = offset.to_timestamp(self.at_or_before(shown, first)?).ok()?;
            match change {
                Some(change) if found < change => until = change.checked_sub(moment).ok()?,
                _ => return Some(found),
            }
        }
    }

    /// The first of the times that a clock may show, from `from` on, until the end of a year.
    fn at_or_after(&self, from: DateTime, last: i16) -> Option<DateTime> {
        let begun = from.second() != 0 || from.subsec_nanosecond() != 0;
        let mut earliest = from.hour() as i32 * 60 + from.minute() as i32 + i32::from(begun);
        let mut date = from.date();
        while date.year() <= last {
            if self.has_date(date)
                && let Some(time) = (earliest..24 * 60).find_map(|minute| self.time(minute))
            {
                return Some(date.to_datetime(time));
            }
            date = date.tomorrow().ok()?;
            earliest = 0;
        }
        None
    }

    fn at_or_before(&self, until: DateTime, first: i16) -> Option<DateTime> {
        let mut latest = until.hour() as i32 * 60 + until.minute() as i32;
        let mut date = until.date();
        while date.year() >= first {
            if self.has_date(date)
                && let Some(time) = (0..=latest).rev().find_map(|minute| self.time(minute))
            {
                return Some(date.to_datetime(time));
            }
            date = date.yesterday().ok()?;
            latest = 24 * 60 - 1;
        }
        None
    }

    /// That minute of a day, if it is one of ours.
    fn time(&self, minute: i32) -> Option<Time> {
        let (hour, minute) = (minute / 60, minute % 60);
        let ours = has(self.hours, hour) && has(self.minutes, minute);
        Time::new(i8::try_from(hour).ok()?, i8::try_from(minute).ok()?, 0, 0).ok().filter(|_| ours)
    }

    fn has_date(&self, date: Date) -> bool {
        let weekday = i32::from(Weekday::to_sunday_zero_offset(date.weekday()));
        let (day, weekday) = (has(self.days, i32::from(date.day())), has(self.weekdays, weekday));
        has(self.months, i32::from(date.month()))
            && if self.both_days { day && weekday } else { day || weekday }
    }
}

fn has(values: u64, value: i32) -> bool {
    values & (1 << value) != 0
}
