//! The authority of the cluster as a signer.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256,
    PublicKeyData, SigningKey,
};
use roadstead_plan::certificate_signing::Usages;
use uuid::Uuid;
use x509_parser::extensions::ParsedExtension;
use x509_parser::pem::{Pem, parse_x509_pem};

use super::der::{bits, integer, octets, sequence, tagged, time};
use super::request::Request;

/// Clocks differ: a certificate is valid from a little before it is made.
const BACKDATE: SignedDuration = SignedDuration::from_mins(5);

// Object identifiers, and what goes with them, in DER.
const ECDSA_SHA256: &[u8] = b"\x30\x0a\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02";
const ECDSA_SHA384: &[u8] = b"\x30\x0a\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x03";
const RSA_SHA256: &[u8] = b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b\x05\x00";
const ED25519: &[u8] = b"\x30\x05\x06\x03\x2b\x65\x70";
const KEY_USAGE: &[u8] = b"\x06\x03\x55\x1d\x0f";
const EXTENDED_KEY_USAGE: &[u8] = b"\x06\x03\x55\x1d\x25";
const BASIC_CONSTRAINTS: &[u8] = b"\x06\x03\x55\x1d\x13";
const AUTHORITY_KEY: &[u8] = b"\x06\x03\x55\x1d\x23";
const ALTERNATIVE_NAMES: &[u8] = b"\x06\x03\x55\x1d\x11";
const SERVER_AUTH: &[u8] = b"\x06\x08\x2b\x06\x01\x05\x05\x07\x03\x01";
const CLIENT_AUTH: &[u8] = b"\x06\x08\x2b\x06\x01\x05\x05\x07\x03\x02";
const TRUE: &[u8] = b"\x01\x01\xff";

/// Who signs.
pub struct Signer {
    key: KeyPair,
    algorithm: &'static [u8],
    /// The authority's own certificate, as its issuer is named in others.
    issuer: Vec<u8>,
    /// The name of its key, if it says one.
    key_id: Option<Vec<u8>>,
    /// Nothing outlives the authority.
    end: Timestamp,
    longest: Duration,
}

impl fmt::Debug for Signer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Signer").field("end", &self.end).finish_non_exhaustive()
    }
}

impl Signer {
    /// An authority by its certificate and key, in PEM.
    pub fn new(certificate: &str, key: &str, longest: Duration) -> Result<Self, String> {
        let unreadable =
            |error: &dyn fmt::Display| format!("the certificate is unreadable: {error}");
        let (_, pem): (_, Pem) =
            parse_x509_pem(certificate.as_bytes()).map_err(|error| unreadable(&error))?;
        let authority = pem.parse_x509().map_err(|error| unreadable(&error))?;
        if !authority.is_ca() {
            return Err("the certificate is not one of an authority".into());
        }
        let key =
            KeyPair::from_pem(key).map_err(|error| format!("the key is unreadable: {error}"))?;
        if authority.public_key().subject_public_key.data.as_ref() != key.der_bytes() {
            return Err("the key does not belong to the certificate".into());
        }
        let known = [
            (&PKCS_ECDSA_P256_SHA256, ECDSA_SHA256),
            (&PKCS_ECDSA_P384_SHA384, ECDSA_SHA384),
            (&PKCS_RSA_SHA256, RSA_SHA256),
            (&PKCS_ED25519, ED25519),
        ];
        let found = known.iter().find(|(algorithm, _)| key.algorithm() == *algorithm);
        let Some(&(_, algorithm)) = found else {
            return Err("the key is of a kind that cannot sign here".into());
        };
        let key_id = authority.extensions().iter().find_map(|own| match own.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        });
        let end = authority.validity().not_after.timestamp();
        let end = Timestamp::from_second(end).map_err(|error| unreadable(&error))?;
        let issuer = authority.subject().as_raw().to_vec();
        Ok(Self { algorithm, issuer, key_id, end, longest, key })
    }

    /// For how many seconds certificates are valid, at most.
    pub fn longest(&self) -> i64 {
        i64::try_from(self.longest.as_secs()).unwrap_or(i64::MAX)
    }

    /// A certificate for a request, in PEM.
    pub fn sign(
        &self,
        request: &Request,
        usages: Usages,
        now: Timestamp,
        seconds: i64,
    ) -> Result<String, String> {
        let begin = now - BACKDATE;
        let end = now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(self.end);
        let body = sequence(&[
            &tagged(0xa0, &integer(&[2])),
            &integer(Uuid::new_v4().as_bytes()),
            self.algorithm,
            &self.issuer,
            &sequence(&[&time(begin), &time(end.min(self.end))]),
            &request.subject,
            &request.key,
            &tagged(0xa3, &sequence(&[&self.extensions(request, usages)])),
        ]);
        let signature = self.key.sign(&body).map_err(|error| error.to_string())?;
        Ok(pem(&sequence(&[&body, self.algorithm, &bits(&signature)])))
    }

    fn extensions(&self, request: &Request, usages: Usages) -> Vec<u8> {
        let mut all = sequence(&[KEY_USAGE, TRUE, &octets(&key_usage(usages))]);
        let purposes = [(usages.server_auth, SERVER_AUTH), (usages.client_auth, CLIENT_AUTH)];
        let purposes = purposes.iter().filter(|(wanted, _)| *wanted);
        let purposes: Vec<_> = purposes.map(|(_, purpose)| *purpose).collect();
        all.extend(sequence(&[EXTENDED_KEY_USAGE, &octets(&sequence(&purposes))]));
        // Whoever asks to be an authority is none.
        all.extend(sequence(&[BASIC_CONSTRAINTS, TRUE, &octets(&sequence(&[]))]));
        if let Some(id) = &self.key_id {
            all.extend(sequence(&[AUTHORITY_KEY, &octets(&sequence(&[&tagged(0x80, id)]))]));
        }
        if let Some(names) = &request.names {
            all.extend(sequence(&[ALTERNATIVE_NAMES, &octets(names)]));
        }
        all
    }
}

/// The first and the third bit; a handshake needs the first in any case.
fn key_usage(usages: Usages) -> Vec<u8> {
    match usages.key_encipherment {
        true => tagged(0x03, &[5, 0xa0]),
        false => tagged(0x03, &[7, 0x80]),
    }
}

fn pem(der: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem + "-----END CERTIFICATE-----\n"
}
