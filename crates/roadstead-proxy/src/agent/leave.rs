//! How the modes go that were in use before this one.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use roadstead_forwarding::service::IpFamily;
use tracing::{debug, info, warn};

use super::{Agent, ProxyError};
use crate::family::FamilyPlane;
use crate::ipvs::IpvsOptions;
use crate::plane::{CommitError, Mode, Plane};

/// How often to look whether connections have ended that need another mode.
const PERIOD: Duration = Duration::from_secs(5);

/// What other modes have left in the kernel.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// The families in which we have taken their place.
    taken: BTreeSet<IpFamily>,
    /// What stays until its last connection has ended.
    leaving: Vec<(Mode, IpFamily, Plane)>,
    looked: Option<Instant>,
}

impl Agent {
    /// Lets the other modes go in each family that we carry now. Not earlier: until then their rules
    /// served.
    pub(super) fn take_the_place_of_others(&mut self) {
        for family in [IpFamily::V4, IpFamily::V6] {
            let waits = |half: &FamilyPlane| half.table.family() == family && !half.proven;
            let waits = self.families.iter().any(waits);
            if waits || !self.others.taken.insert(family) {
                continue;
            }
            for mode in Mode::ALL.into_iter().filter(|mode| *mode != self.mode) {
                let left = Plane::open(mode, family, &self.ipvs).and_then(|mut plane| {
                    let left = plane.leave(self.mode)?;
                    Ok(Some(plane).filter(|_| !left))
                });
                let left = left.map(|plane| {
                    if let Some(plane) = plane {
                        info!(%mode, ?family, "stays until its last connection has ended");
                        self.others.leaving.push((mode, family, plane));
                    }
                });
                if said(mode, family, left).is_err() && mode == Mode::Nftables {
                    self.metrics.nftables_cleanup_failures.get_or_create(&family.into()).inc();
                }
            }
        }
    }

    /// Looks whether what stays is still needed.
    pub(super) fn let_others_leave(&mut self) {
        let others = &mut self.others;
        if others.looked.is_some_and(|then| then.elapsed() < PERIOD) {
            return;
        }
        others.looked = Some(Instant::now());
        others.leaving.retain_mut(|(mode, family, plane)| match plane.has_left() {
            Ok(left) => {
                if left {
                    info!(%mode, ?family, "its last connection has ended");
                }
                !left
            }
            Err(error) => {
                debug!(%mode, ?family, error = error.full_text(), "cannot look at connections");
                true
            }
        });
    }
}

/// Deletes everything that a mode has written into the kernel.
pub(super) fn clean_mode(mode: Mode) -> Result<(), ProxyError> {
    let outcomes = [IpFamily::V4, IpFamily::V6].map(|family| {
        let opened = Plane::open(mode, family, &IpvsOptions::default());
        said(mode, family, opened.and_then(|mut plane| plane.remove(None)))
    });
    outcomes.into_iter().collect()
}

/// Says what became of the rules of a mode. Where the kernel lacks it there are none.
fn said(mode: Mode, family: IpFamily, outcome: Result<(), CommitError>) -> Result<(), ProxyError> {
    match outcome {
        Err(error) if !error.is_missing_feature() => {
            warn!(%mode, ?family, error = error.full_text(), "rules left behind");
            Err(ProxyError::Cleanup { family, source: error })
        }
        _ => {
            debug!(%mode, ?family, "rules deleted");
            Ok(())
        }
    }
}
