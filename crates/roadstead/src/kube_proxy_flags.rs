//! The flags of kube-proxy, so that `roadstead proxy` can be put in its place with the command line
//! that is there. Each is another way to say what a field of the configuration says; whether that
//! has an effect here is for the configuration to know.

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Map, Value};

/// What the value of a flag is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    List,
    /// `--flag` alone means true.
    Truth,
}

/// A flag, and the field of the configuration that it stands for, or several.
const FLAGS: &[(&str, Kind, &str)] = &[
    ("bind-address", Kind::Text, "bindAddress"),
    ("bind-address-hard-fail", Kind::Truth, "bindAddressHardFail"),
    ("config-sync-period", Kind::Text, "configSyncPeriod"),
    ("conntrack-max-per-core", Kind::Number, "conntrack.maxPerCore"),
    ("conntrack-min", Kind::Number, "conntrack.min"),
    ("conntrack-tcp-be-liberal", Kind::Truth, "conntrack.tcpBeLiberal"),
    ("conntrack-tcp-timeout-close-wait", Kind::Text, "conntrack.tcpCloseWaitTimeout"),
    ("conntrack-tcp-timeout-established", Kind::Text, "conntrack.tcpEstablishedTimeout"),
    ("conntrack-udp-timeout", Kind::Text, "conntrack.udpTimeout"),
    ("conntrack-udp-timeout-stream", Kind::Text, "conntrack.udpStreamTimeout"),
    ("detect-local-mode", Kind::Text, "detectLocalMode"),
    ("feature-gates", Kind::Text, "featureGates"),
    ("healthz-bind-address", Kind::Text, "healthzBindAddress"),
    ("iptables-localhost-nodeports", Kind::Truth, "iptables.localhostNodePorts"),
    ("iptables-masquerade-bit", Kind::Number, "iptables.masqueradeBit"),
    ("iptables-min-sync-period", Kind::Text, "iptables.minSyncPeriod"),
    ("iptables-sync-period", Kind::Text, "iptables.syncPeriod"),
    ("ipvs-exclude-cidrs", Kind::List, "ipvs.excludeCIDRs"),
    ("ipvs-min-sync-period", Kind::Text, "ipvs.minSyncPeriod"),
    ("ipvs-scheduler", Kind::Text, "ipvs.scheduler"),
    ("ipvs-strict-arp", Kind::Truth, "ipvs.strictARP"),
    ("ipvs-sync-period", Kind::Text, "ipvs.syncPeriod"),
    ("ipvs-tcp-timeout", Kind::Text, "ipvs.tcpTimeout"),
    ("ipvs-tcpfin-timeout", Kind::Text, "ipvs.tcpFinTimeout"),
    ("ipvs-udp-timeout", Kind::Text, "ipvs.udpTimeout"),
    ("kube-api-burst", Kind::Number, "clientConnection.burst"),
    ("kube-api-content-type", Kind::Text, "clientConnection.contentType"),
    ("kube-api-qps", Kind::Number, "clientConnection.qps"),
    ("log-flush-frequency", Kind::Text, "logging.flushFrequency"),
    ("logging-format", Kind::Text, "logging.format"),
    ("masquerade-all", Kind::Truth, "iptables.masqueradeAll,nftables.masqueradeAll"),
    ("metrics-bind-address", Kind::Text, "metricsBindAddress"),
    ("nodeport-addresses", Kind::List, "nodePortAddresses"),
    ("oom-score-adj", Kind::Number, "oomScoreAdj"),
    ("pod-bridge-interface", Kind::Text, "detectLocal.bridgeInterface"),
    ("pod-interface-name-prefix", Kind::Text, "detectLocal.interfaceNamePrefix"),
    ("profiling", Kind::Truth, "enableProfiling"),
    ("show-hidden-metrics-for-version", Kind::Text, "showHiddenMetricsForVersion"),
    ("v", Kind::Number, "logging.verbosity"),
    ("vmodule", Kind::Text, "logging.vmodule"),
];

/// The fields that flags have set.
#[derive(Clone, Debug, Default)]
pub(crate) struct KubeProxyFlags {
    /// A part of a KubeProxyConfiguration.
    pub fields: Value,
}

impl Args for KubeProxyFlags {
    fn augment_args(command: Command) -> Command {
        FLAGS.iter().fold(command, |command, (name, kind, field)| {
            let value = match kind {
                Kind::Text => "TEXT",
                Kind::Number => "NUMBER",
                Kind::List => "ITEM,…",
                Kind::Truth => "BOOL",
            };
            let arg = Arg::new(*name).long(*name).value_name(value).allow_negative_numbers(true);
            let arg = arg.help(format!("As {field} of the configuration"));
            command.arg(match kind {
                Kind::Truth => {
                    arg.num_args(0..=1).require_equals(true).default_missing_value("true")
                }
                _ if *name == "v" => arg.short('v').hide(true),
                _ => arg,
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KubeProxyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for (name, kind, field) in FLAGS {
            if let Some(text) = matches.get_one::<String>(name) {
                for field in field.split(',') {
                    set(&mut self.fields, field, read(name, *kind, text)?);
                }
            }
        }
        Ok(())
    }
}

fn read(name: &str, kind: Kind, text: &str) -> Result<Value, clap::Error> {
    let wrong = |what: &str| {
        let message = format!("--{name} takes {what}, not {text}\n");
        clap::Error::raw(clap::error::ErrorKind::InvalidValue, message)
    };
    Ok(match kind {
        Kind::Text => text.into(),
        Kind::Number => text.parse::<i64>().map_err(|_| wrong("a number"))?.into(),
        Kind::List => text.split(',').map(|word| word.trim().into()).collect::<Vec<Value>>().into(),
        Kind::Truth => text.parse::<bool>().map_err(|_| wrong("true or false"))?.into(),
    })
}

/// Sets a field of a field.
fn set(fields: &mut Value, path: &str, value: Value) {
    let mut at = fields;
    for name in path.split('.') {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[name];
    }
    *at = value;
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        flags: KubeProxyFlags,
    }

    #[test]
    fn command_lines_of_installers() {
        let cases = [
            ("", Value::Null),
            ("--v=2", json!({"logging": {"verbosity": 2}})),
            ("-v 4", json!({"logging": {"verbosity": 4}})),
            (
                "--oom-score-adj -998 --metrics-bind-address 0.0.0.0:10249 --masquerade-all",
                json!({
                    "oomScoreAdj": -998,
                    "metricsBindAddress": "0.0.0.0:10249",
                    "iptables": {"masqueradeAll": true},
                    "nftables": {"masqueradeAll": true},
                }),
            ),
            (
                "--iptables-localhost-nodeports=false --iptables-masquerade-bit=15",
                json!({"iptables": {"localhostNodePorts": false, "masqueradeBit": 15}}),
            ),
            (
                "--nodeport-addresses=primary,10.0.0.0/8",
                json!({"nodePortAddresses": ["primary", "10.0.0.0/8"]}),
            ),
        ];
        for (line, want) in cases {
            let words = ["proxy"].into_iter().chain(line.split_whitespace());
            assert_eq!(Program::try_parse_from(words).unwrap().flags.fields, want, "{line}");
        }
        for (line, want) in [("--v=x", "takes a number"), ("--masquerade-all=7", "true or false")] {
            let error = Program::try_parse_from(["proxy", line]).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}
