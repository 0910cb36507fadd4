//! Names of time zones, and where a machine keeps what they mean. We bring no database of our own: the one
//! of the machine is newer than the program.

/// Where the files of the zones may be, the first that has one counts.
pub const DIRECTORIES: [&str; 4] =
    ["/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo"];

/// What is known without any database.
pub fn is_utc(name: &str) -> bool {
    matches!(name, "" | "UTC")
}

/// Says what is wrong with a name, before anybody looks for its file. A name that leads out of the
/// database is one of them.
pub fn check_name(name: &str) -> Result<(), String> {
    let leads_away = name.starts_with(['/', '\\'])
        || name.contains('\\')
        || name.split('/').any(|part| matches!(part, "." | ".."));
    let is_odd = |c: char| !c.is_ascii_alphanumeric() && !"/_+-.".contains(c);
    match leads_away {
        true => Err("time: invalid location name".to_owned()),
        false if name.len() > 255 || name.contains(is_odd) => Err(unknown(name, true)),
        false => Ok(()),
    }
}

/// How it is said that there is no such zone, or nowhere to look for any.
pub fn unknown(name: &str, has_database: bool) -> String {
    match has_database {
        true => format!("unknown time zone {name}"),
        false => format!(
            "unknown time zone {name}: this machine has no time zone database (tzdata) in {}",
            DIRECTORIES[0]
        ),
    }
}

#[test]
fn names_of_zones() {
    let away = Err("time: invalid location name".to_owned());
    let unknown = |name: &str| Err(unknown(name, true));
    let long = "a".repeat(256);
    for (name, want) in [
        ("Europe/Berlin", Ok(())),
        ("Etc/GMT+5", Ok(())),
        ("America/Port-au-Prince", Ok(())),
        ("../../etc/passwd", away.clone()),
        ("Europe/../../etc/passwd", away.clone()),
        ("/etc/passwd", away.clone()),
        ("a\\b", away),
        ("Europe/Berlin\0", unknown("Europe/Berlin\0")),
        (long.as_str(), unknown(&long)),
    ] {
        assert_eq!(check_name(name), want, "{name}");
    }
}
