//! How the modes go that were in use before this one.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use roadstead_forwarding::iptables::diff::Kept;
use roadstead_forwarding::service::IpFamily;
use tracing::{debug, info, warn};

use super::{Agent, ProxyError};
use crate::data_plane::{CommitError, DataPlane, PLANES, PlaneContext, PlaneKind, ProxyMode};

/// How often to look whether connections have ended that need another mode.
const PERIOD: Duration = Duration::from_secs(5);

/// What other modes have left in the kernel.
#[derive(Debug, Default)]
pub(super) struct OtherModes {
    /// The families in which we have taken their place.
    taken: BTreeSet<IpFamily>,
    /// What stays until its last connection has ended.
    leaving: Vec<(ProxyMode, IpFamily, Box<dyn DataPlane>)>,
    looked: Option<Instant>,
}

impl Agent {
    /// Lets the other modes go in each family that we carry now. Not earlier: until then their rules
    /// served.
    pub(super) fn remove_other_modes(&mut self) {
        for ip_family in [IpFamily::V4, IpFamily::V6] {
            let mut ours = self.families.iter().filter(|family| family.ip_family() == ip_family);
            let waits = ours.any(|family| !family.is_proven());
            if waits || !self.other_modes.taken.insert(ip_family) {
                continue;
            }
            let kept = (self.mode.kind().iptables_rules)();
            for kind in PLANES.iter().filter(|kind| kind.mode != self.mode) {
                let left = self.other_modes.leave(kind, ip_family, &self.context, &kept);
                if report(kind, ip_family, left).is_err() {
                    (kind.metrics)(&self.outputs.metrics).note_cleanup_failure(ip_family);
                }
            }
        }
    }
}

impl OtherModes {
    fn leave(
        &mut self,
        kind: &PlaneKind,
        family: IpFamily,
        context: &PlaneContext,
        kept: &Kept,
    ) -> Result<(), CommitError> {
        let mut plane = (kind.open)(context, family)?;
        if !plane.leave(kept)? {
            info!(mode = kind.name, ?family, "stays until its last connection has ended");
            self.leaving.push((kind.mode, family, plane));
        }
        Ok(())
    }

    /// Looks whether what stays is still needed.
    pub(super) fn finish_leaving(&mut self) {
        if self.looked.is_some_and(|then| then.elapsed() < PERIOD) {
            return;
        }
        self.looked = Some(Instant::now());
        self.leaving.retain_mut(|(mode, family, plane)| match plane.has_left() {
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
pub(super) fn clean(kind: &PlaneKind) -> Result<(), ProxyError> {
    let outcomes = [IpFamily::V4, IpFamily::V6].map(|family| {
        let opened = (kind.open)(&PlaneContext::default(), family);
        report(kind, family, opened.and_then(|mut plane| plane.remove(&Kept::nothing())))
    });
    outcomes.into_iter().collect()
}

/// Says what became of the rules of a mode. Where the kernel lacks it there are none.
fn report(
    kind: &PlaneKind,
    family: IpFamily,
    outcome: Result<(), CommitError>,
) -> Result<(), ProxyError> {
    let mode = kind.name;
    match outcome {
        Err(error) if !error.is_missing_feature() => {
            warn!(mode, ?family, error = error.full_text(), "rules left behind");
            Err(ProxyError::Cleanup { family, source: error })
        }
        _ => {
            debug!(mode, ?family, "rules deleted");
            Ok(())
        }
    }
}
