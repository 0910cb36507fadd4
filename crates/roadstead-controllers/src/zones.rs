//! Time zones by name, from the database of this machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use k8s_openapi::jiff::tz::TimeZone;
use roadstead_api::time_zone::{DIRECTORIES, check_name, is_utc, unknown};

/// No zone needs more; what is larger is something else.
const LONGEST: u64 = 1 << 20;

/// Those that were asked for. Only zones that there are take a place, so that there are never many.
#[derive(Default)]
pub(crate) struct Zones(BTreeMap<String, TimeZone>);

impl Zones {
    /// The zone of that name, UTC for none; or why there is none. A file of some thousand bytes is read
    /// the first time, and once more when the controllers start again.
    pub(crate) fn find(&mut self, name: &str) -> Result<TimeZone, String> {
        if is_utc(name) {
            return Ok(TimeZone::UTC);
        }
        if let Some(known) = self.0.get(name) {
            return Ok(known.clone());
        }
        check_name(name)?;
        let places = DIRECTORIES.iter().map(Path::new);
        let present: Vec<_> = places.filter(|place| place.is_dir()).collect();
        let failed = || unknown(name, !present.is_empty());
        let files = present.iter().map(|place| place.join(name));
        let is_zone = |file: &fs::Metadata| file.is_file() && file.len() <= LONGEST;
        let mut files = files.filter(|file| file.metadata().is_ok_and(|file| is_zone(&file)));
        let bytes = files.find_map(|file| fs::read(file).ok()).ok_or_else(failed)?;
        let zone = TimeZone::tzif(name, &bytes).map_err(|_| failed())?;
        self.0.insert(name.to_owned(), zone.clone());
        Ok(zone)
    }
}

#[test]
fn names_lead_to_zones() {
    let mut zones = Zones::default();
    assert_eq!(zones.find(""), Ok(TimeZone::UTC));
    assert_eq!(zones.find("UTC"), Ok(TimeZone::UTC));
    let away = "time: invalid location name".to_owned();
    assert_eq!(zones.find("../../../etc/passwd"), Err(away));
    for name in ["Nowhere/Else", "tzdata.zi", "Europe"] {
        let why = zones.find(name).unwrap_err();
        assert!(why.starts_with(&format!("unknown time zone {name}")), "{why}");
    }
    assert!(zones.0.is_empty(), "{:?}", zones.0);
}
