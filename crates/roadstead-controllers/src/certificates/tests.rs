//! Certificates that come out, read by another reader than the one that wrote them.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P384_SHA384, SanType,
};
use serde_json::json;
use std::time::Duration;
use x509_parser::pem::parse_x509_pem;

use super::*;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

fn authority() -> (Signer, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2036, 1, 1);
    let certificate = params.self_signed(&key).unwrap().pem();
    (Signer::new(&certificate, &key.serialize_pem(), YEAR).unwrap(), certificate)
}

/// A request that somebody has approved.
fn request(signer: &str, usages: &[&str], csr: &str) -> CertificateSigningRequest {
    let bytes = {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(csr)
    };
    let request = json!({"metadata": {"name": "r"}, "spec": {"request": bytes,
        "signerName": signer, "usages": usages},
        "status": {"conditions": [{"type": "Approved", "status": "True"}]}});
    serde_json::from_value(request).unwrap()
}

fn signing_request(common_name: &str, organization: &str, names: Vec<SanType>) -> String {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.distinguished_name.push(DnType::OrganizationName, organization);
    params.subject_alt_names = names;
    // Nobody becomes an authority by asking.
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.serialize_request(&key).unwrap().pem().unwrap()
}

#[test]
fn a_certificate_that_others_accept() {
    let (signer, authority) = authority();
    let (_, authority) = parse_x509_pem(authority.as_bytes()).unwrap();
    let authority = authority.parse_x509().unwrap();
    let now: Timestamp = "2026-11-18T00:00:00Z".parse().unwrap();
    let address = SanType::IpAddress("192.0.2.7".parse().unwrap());
    for (signer_name, purpose, organization, names, server) in [
        ("kubernetes.io/kube-apiserver-client", "client auth", "dev", vec![], false),
        (
            "kubernetes.io/kube-apiserver-client-kubelet",
            "client auth",
            "system:nodes",
            vec![],
            false,
        ),
        ("kubernetes.io/kubelet-serving", "server auth", "system:nodes", vec![address], true),
    ] {
        let csr = signing_request("system:node:n1", organization, names);
        let request = request(signer_name, &["digital signature", purpose], &csr);
        let answered = answer(&signer, &request, now).unwrap().status.unwrap();
        let pem = answered.certificate.unwrap_or_else(|| panic!("{:?}", answered.conditions));
        let (_, pem) = parse_x509_pem(&pem.0).unwrap();
        let certificate = pem.parse_x509().unwrap();
        certificate.verify_signature(Some(authority.public_key())).unwrap();
        let subject = certificate.subject().to_string();
        assert_eq!(subject, format!("CN=system:node:n1, O={organization}"));
        assert!(!certificate.is_ca());
        let usage = certificate.extended_key_usage().unwrap().unwrap().value;
        assert_eq!((usage.server_auth, usage.client_auth), (server, !server));
        assert_eq!(certificate.subject_alternative_name().unwrap().is_some(), server);
        let validity = certificate.validity();
        assert_eq!(validity.not_before.timestamp(), now.as_second() - 300);
        assert_eq!(validity.not_after.timestamp(), now.as_second() + 365 * 24 * 3600);
    }
}

#[test]
fn nothing_outlives_the_authority() {
    let (signer, _) = authority();
    let csr = signing_request("jane", "dev", Vec::new());
    let request = request("kubernetes.io/kube-apiserver-client", &["client auth"], &csr);
    let now: Timestamp = "2035-12-01T00:00:00Z".parse().unwrap();
    let pem = answer(&signer, &request, now).unwrap().status.unwrap().certificate.unwrap();
    let (_, pem) = parse_x509_pem(&pem.0).unwrap();
    let end: Timestamp = "2036-01-01T00:00:00Z".parse().unwrap();
    assert_eq!(pem.parse_x509().unwrap().validity().not_after.timestamp(), end.as_second());
}

#[test]
fn what_cannot_be_signed_fails_with_the_reason() {
    let (signer, _) = authority();
    let csr = signing_request("jane", "dev", Vec::new());
    let client = "kubernetes.io/kube-apiserver-client";
    for (signer_name, usages, csr, why) in [
        (client, &["server auth"][..], &*csr, "invalid usage for client certificate: server auth"),
        (
            "kubernetes.io/kube-apiserver-client-kubelet",
            &["client auth", "digital signature"],
            &csr,
            "subject organization is not system:nodes",
        ),
        (client, &["client auth"], "nonsense", "PEM block type must be CERTIFICATE REQUEST"),
    ] {
        let request = request(signer_name, usages, csr);
        let status = answer(&signer, &request, Timestamp::now()).unwrap().status.unwrap();
        let last = status.conditions.unwrap().pop().unwrap();
        assert_eq!(
            (last.type_.as_str(), last.reason.as_deref(), last.message.as_deref()),
            ("Failed", Some("SignerValidationFailure"), Some(why))
        );
        assert!(status.certificate.is_none());
    }
}

#[test]
fn an_authority_that_is_none() {
    let (_, certificate) = authority();
    let other = KeyPair::generate().unwrap().serialize_pem();
    let refused = Signer::new(&certificate, &other, YEAR).unwrap_err();
    assert_eq!(refused, "the key does not belong to the certificate");
    assert!(Signer::new("x", &other, YEAR).is_err());
    assert!(Signer::new(&certificate, "x", YEAR).is_err());
}
