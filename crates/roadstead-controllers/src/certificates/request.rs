//! A request for a certificate, taken apart.

use std::net::{IpAddr, Ipv4Addr};

use roadstead_plan::certificate_signing::{Contents, Names};
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension, X509Extension};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::{FromDer, X509CertificationRequest};
use x509_parser::x509::X509Name;

/// What a certificate takes over from its request, as the request has it.
pub struct Request {
    contents: Contents,
    /// The subject.
    pub subject: Vec<u8>,
    /// The public key and what kind of key it is.
    pub key: Vec<u8>,
    /// The alternative names, if there are any.
    pub names: Option<Vec<u8>>,
}

impl Request {
    /// Reads a request in PEM, which must be signed with the key that it is for.
    pub fn parse(pem: &[u8]) -> Result<Self, String> {
        let wrong = || "PEM block type must be CERTIFICATE REQUEST".to_owned();
        let (_, pem) = parse_x509_pem(pem).map_err(|_| wrong())?;
        if pem.label != "CERTIFICATE REQUEST" {
            return Err(wrong());
        }
        let parsed = X509CertificationRequest::from_der(&pem.contents);
        let (_, request) = parsed.map_err(|error| format!("asn1: {error}"))?;
        request.verify_signature().map_err(|error| format!("x509: {error}"))?;
        let info = &request.certification_request_info;
        let extensions: Vec<_> = info
            .iter_attributes()
            .filter_map(|attribute| match attribute.parsed_attribute() {
                ParsedCriAttribute::ExtensionRequest(asked) => Some(&asked.extensions),
                _ => None,
            })
            .flatten()
            .filter(|extension| is_names(extension))
            .collect();
        let contents = Contents {
            names: count(&extensions),
            dns_names: dns_names(&extensions),
            addresses: addresses(&extensions),
            ..subject(&request.certification_request_info.subject)
        };
        Ok(Self {
            contents,
            subject: info.subject.as_raw().to_vec(),
            key: info.subject_pki.raw.to_vec(),
            names: extensions.first().map(|extension| extension.value.to_vec()),
        })
    }

    /// What the rules are about.
    pub fn contents(&self) -> Contents {
        self.contents.clone()
    }
}

fn is_names(extension: &X509Extension<'_>) -> bool {
    matches!(extension.parsed_extension(), ParsedExtension::SubjectAlternativeName(_))
}

fn subject(name: &X509Name<'_>) -> Contents {
    let common_name = name.iter_common_name().next().and_then(|part| part.as_str().ok());
    let organizations = name.iter_organization().filter_map(|part| part.as_str().ok());
    Contents {
        common_name: common_name.unwrap_or("").to_owned(),
        organizations: organizations.map(str::to_owned).collect(),
        ..Contents::default()
    }
}

fn all_names<'a>(
    extensions: &'a [&X509Extension<'a>],
) -> impl Iterator<Item = &'a GeneralName<'a>> {
    let names = extensions.iter().filter_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectAlternativeName(alternatives) => Some(&alternatives.general_names),
        _ => None,
    });
    names.flatten()
}

fn dns_names(extensions: &[&X509Extension<'_>]) -> Vec<String> {
    let dns = all_names(extensions).filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    });
    dns.collect()
}

/// What is no address of either family is unspecified, which nobody gets.
fn addresses(extensions: &[&X509Extension<'_>]) -> Vec<IpAddr> {
    let addresses = all_names(extensions).filter_map(|name| match name {
        GeneralName::IPAddress(octets) => Some(*octets),
        _ => None,
    });
    let address = |octets: &[u8]| -> IpAddr {
        let four = <[u8; 4]>::try_from(octets).map(IpAddr::from);
        let six = || <[u8; 16]>::try_from(octets).map(IpAddr::from);
        four.or_else(|_| six()).unwrap_or(Ipv4Addr::UNSPECIFIED.into())
    };
    addresses.map(address).collect()
}

fn count(extensions: &[&X509Extension<'_>]) -> Names {
    let mut names = Names::default();
    for name in all_names(extensions) {
        match name {
            GeneralName::DNSName(_) => names.dns += 1,
            GeneralName::IPAddress(_) => names.addresses += 1,
            GeneralName::RFC822Name(_) => names.emails += 1,
            _ => names.uris += 1,
        }
    }
    names
}
