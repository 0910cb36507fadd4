//! What a node asks for: requests for certificates, each with a key that never leaves the machine.

use rcgen::{CertificateParams, DnType, KeyPair};

use crate::identity::authority::IdentityError;

/// A request for a certificate, and the key that it is for; both in PEM.
#[derive(Clone, Debug)]
pub struct NodeRequest {
    /// To be sent.
    pub request: String,
    /// To be kept.
    pub key: String,
}

impl NodeRequest {
    /// A request by the node of that name; with names and addresses if it is a server under them.
    pub fn new(node: &str, names: Vec<String>) -> Result<Self, IdentityError> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        let key = KeyPair::generate()?;
        let request = params.serialize_request(&key)?.pem()?;
        Ok(Self { request, key: key.serialize_pem() })
    }
}
