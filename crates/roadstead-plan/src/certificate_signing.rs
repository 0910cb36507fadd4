//! Which approved requests for certificates are signed, and for how long. The rules are those of the
//! signers of Kubernetes (`k8s.io/docs/reference/access-authn-authz/certificate-signing-requests`);
//! reading requests and making certificates is left to others.

use std::net::IpAddr;

use roadstead_api::kinds::certificate_request::SHORTEST;
use roadstead_schema::json::Pointer;
use serde_json::Value;

/// The signers that we are.
pub(crate) const SIGNERS: [&str; 3] = [CLIENT, NODE_CLIENT, NODE_SERVING];
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub(crate) const NODE_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub(crate) const NODE_SERVING: &str = "kubernetes.io/kubelet-serving";

/// What is inside of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The first common name; empty if there is none.
    pub common_name: String,
    /// All organizations.
    pub organizations: Vec<String>,
    /// How many alternative names there are of each kind.
    pub names: Names,
    /// Those of the domain name system.
    pub dns_names: Vec<String>,
    /// Those that are IP addresses.
    pub addresses: Vec<IpAddr>,
}

/// How many alternative names there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Of the domain name system.
    pub dns: usize,
    /// IP addresses.
    pub addresses: usize,
    /// Of people.
    pub emails: usize,
    /// Others are counted here, too: nobody may have them.
    pub uris: usize,
}

/// What a certificate may be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usages {
    /// Signatures of a handshake.
    pub digital_signature: bool,
    /// Keys of a handshake with RSA.
    pub key_encipherment: bool,
    /// By servers.
    pub server_auth: bool,
    /// By clients.
    pub client_auth: bool,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It gets a certificate for these usages and this time.
    Sign(Usages, i64),
    /// It never gets one, for this reason.
    Fail(String),
}

/// Whether a request waits for us: for one of our signers, approved, and neither signed nor failed.
pub fn is_due(request: &Value) -> bool {
    let has = |name: &str| {
        let mut conditions = request.list("/status/conditions").iter();
        conditions.any(|own| own.text("/type") == name && own.text("/status") == "True")
    };
    SIGNERS.contains(&request.text("/spec/signerName"))
        && has("Approved")
        && !has("Denied")
        && !has("Failed")
        && request.text("/status/certificate").is_empty()
}

/// Decides about a request that is due. Nothing is valid for more than `longest` seconds.
pub fn judge(request: &Value, contents: &Contents, longest: i64) -> Decision {
    let usages: Vec<_> = request.list("/spec/usages").iter().filter_map(Value::as_str).collect();
    let checked = match request.text("/spec/signerName") {
        CLIENT => check_client(&usages),
        NODE_CLIENT => check_node_client(contents, &usages),
        _ => check_node_serving(contents, &usages),
    };
    if let Err(why) = checked {
        return Decision::Fail(why);
    }
    let has = |name: &str| usages.contains(&name);
    let granted = Usages {
        digital_signature: has("digital signature"),
        key_encipherment: has("key encipherment"),
        server_auth: has("server auth"),
        client_auth: has("client auth"),
    };
    let seconds = match request.has("/spec/expirationSeconds") {
        true => request.int("/spec/expirationSeconds").max(SHORTEST).min(longest),
        false => longest,
    };
    Decision::Sign(granted, seconds)
}

fn check_client(usages: &[&str]) -> Result<(), String> {
    let allowed = ["digital signature", "key encipherment", "client auth"];
    if let Some(other) = usages.iter().find(|usage| !allowed.contains(usage)) {
        return Err(format!("invalid usage for client certificate: {other}"));
    }
    match usages.contains(&"client auth") {
        true => Ok(()),
        false => Err("missing required usage for client certificate: client auth".into()),
    }
}

fn check_node_client(contents: &Contents, usages: &[&str]) -> Result<(), String> {
    check_organization(contents)?;
    let Names { dns, addresses, emails, uris } = contents.names;
    for (count, kind) in [(dns, "DNS"), (emails, "Email"), (addresses, "IP"), (uris, "URI")] {
        if count > 0 {
            return Err(format!("{kind} subjectAltNames are not allowed"));
        }
    }
    check_name(contents)?;
    check_usages(usages, "client auth")
}

fn check_node_serving(contents: &Contents, usages: &[&str]) -> Result<(), String> {
    check_organization(contents)?;
    let Names { dns, addresses, emails, uris } = contents.names;
    if dns + addresses == 0 {
        return Err("DNS or IP subjectAltName is required".into());
    }
    for (count, kind) in [(emails, "Email"), (uris, "URI")] {
        if count > 0 {
            return Err(format!("{kind} subjectAltNames are not allowed"));
        }
    }
    check_usages(usages, "server auth")?;
    check_name(contents)
}

fn check_organization(contents: &Contents) -> Result<(), String> {
    match contents.organizations == ["system:nodes"] {
        true => Ok(()),
        false => Err("subject organization is not system:nodes".into()),
    }
}

fn check_name(contents: &Contents) -> Result<(), String> {
    match contents.common_name.starts_with("system:node:") {
        true => Ok(()),
        false => Err("subject common name does not begin with system:node:".into()),
    }
}

/// Exactly these, with or without the one that only RSA needs.
fn check_usages(usages: &[&str], purpose: &str) -> Result<(), String> {
    let mut all = ["digital signature", "key encipherment", purpose];
    all.sort_unstable();
    let allowed = usages.iter().all(|usage| all.contains(usage));
    match allowed && usages.contains(&"digital signature") && usages.contains(&purpose) {
        true => Ok(()),
        false => Err(format!("usages did not match [{}]", all.join(" "))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `CN O,O dns=1 ip=1 …`.
    fn contents(text: &str) -> Contents {
        let mut contents = Contents::default();
        let mut words = text.split(' ');
        contents.common_name = words.next().unwrap_or("").into();
        contents.organizations = words.next().unwrap_or("").split(',').map(Into::into).collect();
        for word in words {
            match word {
                "dns" => contents.names.dns += 1,
                "ip" => contents.names.addresses += 1,
                "email" => contents.names.emails += 1,
                "uri" => contents.names.uris += 1,
                other => panic!("{other}"),
            }
        }
        contents
    }

    #[test]
    fn what_is_signed() {
        let node = "system:node:n1 system:nodes";
        let ok = "";
        for (signer, usages, text, want) in [
            (CLIENT, "client auth", "jane dev,ops", ok),
            (CLIENT, "client auth+digital signature+key encipherment", "jane dev", ok),
            (
                CLIENT,
                "client auth+server auth",
                "jane dev",
                "invalid usage for client certificate: server auth",
            ),
            (
                CLIENT,
                "digital signature",
                "jane dev",
                "missing required usage for client certificate: client auth",
            ),
            (NODE_CLIENT, "client auth+digital signature", node, ok),
            (NODE_CLIENT, "client auth+digital signature+key encipherment", node, ok),
            (
                NODE_CLIENT,
                "client auth",
                node,
                "usages did not match [client auth digital signature key encipherment]",
            ),
            (
                NODE_CLIENT,
                "client auth+digital signature",
                "system:node:n1 system:masters",
                "subject organization is not system:nodes",
            ),
            (
                NODE_CLIENT,
                "client auth+digital signature",
                "system:node:n1 system:nodes,system:masters",
                "subject organization is not system:nodes",
            ),
            (
                NODE_CLIENT,
                "client auth+digital signature",
                "jane system:nodes",
                "subject common name does not begin with system:node:",
            ),
            (
                NODE_CLIENT,
                "client auth+digital signature",
                "system:node:n1 system:nodes ip",
                "IP subjectAltNames are not allowed",
            ),
            (
                NODE_SERVING,
                "server auth+digital signature",
                "system:node:n1 system:nodes ip dns",
                ok,
            ),
            (
                NODE_SERVING,
                "server auth+digital signature",
                node,
                "DNS or IP subjectAltName is required",
            ),
            (
                NODE_SERVING,
                "server auth+digital signature",
                "system:node:n1 system:nodes ip uri",
                "URI subjectAltNames are not allowed",
            ),
            (
                NODE_SERVING,
                "server auth+client auth+digital signature",
                "system:node:n1 system:nodes ip",
                "usages did not match [digital signature key encipherment server auth]",
            ),
            (
                NODE_SERVING,
                "server auth+digital signature",
                "jane system:nodes ip",
                "subject common name does not begin with system:node:",
            ),
        ] {
            let usages: Vec<_> = usages.split('+').collect();
            let request = json!({"spec": {"signerName": signer, "usages": usages}});
            let found = match judge(&request, &contents(text), 1000) {
                Decision::Sign(..) => String::new(),
                Decision::Fail(why) => why,
            };
            assert_eq!(found, want, "{signer} {usages:?} {text}");
        }
    }

    #[test]
    fn for_how_long() {
        for (asked, want) in [(None, 9000), (Some(700), 700), (Some(9001), 9000), (Some(1), 600)] {
            let mut request = json!({"spec": {"signerName": CLIENT, "usages": ["client auth"]}});
            if let Some(seconds) = asked {
                request["spec"]["expirationSeconds"] = json!(seconds);
            }
            let usages = Usages { client_auth: true, ..Usages::default() };
            assert_eq!(judge(&request, &contents("a b"), 9000), Decision::Sign(usages, want));
        }
    }

    #[test]
    fn what_waits_for_us() {
        let condition = |name: &str| json!({"type": name, "status": "True"});
        for (signer, conditions, certificate, want) in [
            (CLIENT, "", "", false),
            (CLIENT, "Approved", "", true),
            (CLIENT, "Approved", "eA==", false),
            (CLIENT, "Approved Failed", "", false),
            (CLIENT, "Approved Denied", "", false),
            ("example.com/x", "Approved", "", false),
        ] {
            let conditions: Vec<_> = conditions.split_whitespace().map(condition).collect();
            let request = json!({"spec": {"signerName": signer},
                "status": {"conditions": conditions, "certificate": certificate}});
            assert_eq!(is_due(&request), want, "{request}");
        }
        let not_yet = json!({"spec": {"signerName": CLIENT},
            "status": {"conditions": [{"type": "Approved", "status": "False"}]}});
        assert!(!is_due(&not_yet));
    }
}
