//! `kubernetes` and `k8s_external`: which names of the cluster are served, and how.

use roadstead_zone::name::Name;
use roadstead_zone::settings::{Namespaces, Outside, PodNames, Reverse, ZoneSettings};

use super::parse::Directive;
use super::{ClusterAccess, CorefileReader, CorefileResult};
use crate::setup::{Block, FallThrough};

impl CorefileReader<'_> {
    pub(super) fn kubernetes(
        &mut self,
        directive: &Directive,
        zones: &[Name],
    ) -> CorefileResult<(ZoneSettings, FallThrough)> {
        let given = directive.words[1..].iter().map(|zone| directive.zone(zone));
        let mut given: Vec<Name> = given.collect::<CorefileResult<_>>()?;
        if given.is_empty() {
            given = zones.to_vec();
        }
        let is_reverse = |name: &Name| {
            let text = name.to_string().to_lowercase();
            text.ends_with("in-addr.arpa.") || text.ends_with("ip6.arpa.")
        };
        let (reverse, mut own): (Vec<_>, Vec<_>) = given.into_iter().partition(is_reverse);
        let origin = own.pop().ok_or_else(|| directive.wrong("there is no zone for Services"))?;
        if !own.is_empty() {
            return Err(directive.wrong("only one zone for Services is served"));
        }
        let mut settings = ZoneSettings::new(&origin);
        // As CoreDNS: 5 seconds for everything, unless `ttl` says otherwise.
        set_lifetimes(&mut settings, 5);
        settings.pods = PodNames::Disabled;
        let mut fall_through = FallThrough::default();
        let all: Vec<Name> = reverse.iter().cloned().chain([origin]).collect();
        for option in &directive.body {
            self.kubernetes_option(option, &mut settings, (&mut fall_through, &all))?;
        }
        settings.reverse =
            match (reverse.first(), reverse.iter().any(|z| fall_through.covers(z.wire()))) {
                (None, _) => Reverse::NotServed,
                (Some(_), true) => Reverse::FallThrough,
                (Some(_), false) => Reverse::Authoritative,
            };
        settings.reverse_zones = reverse;
        Ok((settings, fall_through))
    }

    fn kubernetes_option(
        &mut self,
        option: &Directive,
        settings: &mut ZoneSettings,
        (fall_through, zones): (&mut FallThrough, &[Name]),
    ) -> CorefileResult<()> {
        match option.name() {
            "pods" => {
                settings.pods = match option.only()? {
                    "disabled" => PodNames::Disabled,
                    "insecure" => PodNames::Insecure,
                    "verified" => PodNames::Verified,
                    other => return Err(option.wrong(format!("pods {other}: not a mode"))),
                }
            }
            "ttl" => {
                let seconds: u32 = option.number()?;
                if seconds > 3600 {
                    return Err(option.wrong("ttl must be between 0 and 3600"));
                }
                set_lifetimes(settings, seconds);
            }
            "fallthrough" => *fall_through = option.fall_through(zones)?,
            "endpoint_pod_names" => settings.endpoint_pod_names = true,
            "zonal" => settings.zonal = true,
            "ignore" if option.only()? == "empty_service" => settings.ignore_empty_services = true,
            "namespaces" => {
                settings.namespaces =
                    Namespaces::Listed(option.words[1..].iter().cloned().collect());
            }
            "namespace_labels" => {
                self.corefile.namespace_selector = Some(option.words[1..].join(" "));
                settings.namespaces = Namespaces::Seen;
            }
            "labels" => self.corefile.service_selector = Some(option.words[1..].join(" ")),
            // The last two meant something long ago, and are still around.
            "startup_timeout"
            | "upstream"
            | "resyncperiod"
            | "apiserver_qps"
            | "apiserver_burst"
            | "apiserver_max_inflight" => {}
            "kubeconfig" => {
                let (kubeconfig, context) = match option.words.as_slice() {
                    [_, file] => (file.clone(), None),
                    [_, file, context] => (file.clone(), Some(context.clone())),
                    _ => return Err(option.wrong("kubeconfig: should be FILE [CONTEXT]")),
                };
                self.corefile.cluster =
                    Some(ClusterAccess { line: option.line, kubeconfig, context });
            }
            "endpoint" | "tls" => {
                return Err(option.wrong(format!(
                    "{}: which cluster to follow is said by --kubeconfig",
                    option.name()
                )));
            }
            other => return Err(option.wrong(format!("kubernetes: unknown option {other:?}"))),
        }
        Ok(())
    }

    /// `k8s_external ZONE`: a zone for outsiders.
    pub(super) fn outside(
        &mut self,
        directive: &Directive,
        block: &mut Block,
    ) -> CorefileResult<()> {
        let settings = self.corefile.settings.as_mut().zip(block.kubernetes.as_mut());
        let Some((settings, fall_through)) = settings else {
            return Err(directive.wrong("k8s_external needs kubernetes beside it"));
        };
        if settings.outside.is_some() {
            return Err(directive.wrong("k8s_external: only one zone is served"));
        }
        let origin = directive.zone(directive.only()?)?;
        let mut outside = Outside { origin, lifetime: 5, headless: false };
        for option in &directive.body {
            match option.name() {
                "ttl" => outside.lifetime = option.number()?,
                "headless" => outside.headless = true,
                "fallthrough" => {
                    let own = std::slice::from_ref(&outside.origin);
                    fall_through.zones.extend(option.fall_through(own)?.zones);
                }
                "apex" if option.only()? == "dns" => {}
                other => {
                    return Err(option.wrong(format!("k8s_external: {other:?} is not understood")));
                }
            }
        }
        settings.outside = Some(outside);
        Ok(())
    }
}

fn set_lifetimes(settings: &mut ZoneSettings, seconds: u32) {
    settings.lifetimes.cluster_ip = seconds;
    settings.lifetimes.endpoint = seconds;
    settings.lifetimes.negative = seconds;
    settings.lifetimes.negative_below_service = seconds;
}
