//! Ages as kubectl shows them: two units at most, and only as exact as anyone cares.

/// `42s`, `3m10s`, `25m`, `5h3m`, `20h`, `6d4h`, `90d`, `3y12d`, `9y`.
pub fn age(seconds: i64) -> String {
    if seconds < -1 {
        return "<invalid>".into();
    }
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let years = days / 365;
    let two = |large: i64, unit: char, small: i64, lesser: char| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{lesser}"),
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, 'd', hours % 24, 'h'),
        () if years < 2 => format!("{days}d"),
        () if years < 8 => two(years, 'y', days % 365, 'd'),
        () => format!("{years}y"),
    }
}

/// The age of a moment written in RFC 3339, `<unknown>` if it is not one.
pub fn age_of(moment: &str, now: jiff::Timestamp) -> String {
    match moment.parse::<jiff::Timestamp>() {
        Ok(moment) => age(now.as_second() - moment.as_second()),
        Err(_) => "<unknown>".into(),
    }
}

#[test]
fn ages() {
    const M: i64 = 60;
    const H: i64 = 60 * M;
    const D: i64 = 24 * H;
    let cases = [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (9 * M + 5, "9m5s"),
        (10 * M + 5, "10m"),
        (179 * M, "179m"),
        (3 * H + 2 * M, "3h2m"),
        (8 * H + M, "8h"),
        (47 * H, "47h"),
        (2 * D + 5 * H, "2d5h"),
        (8 * D + 5 * H, "8d"),
        (729 * D, "729d"),
        (730 * D, "2y"),
        (3 * 365 * D + 7 * D, "3y7d"),
        (9 * 365 * D, "9y"),
        (-5, "<invalid>"),
    ];
    for (seconds, want) in cases {
        assert_eq!(age(seconds), want, "{seconds}");
    }
}
