//! The certificates of a cluster: its own authority, the server's, and those of clients.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::X509Name;

use crate::identity::secret_file::write_secret;
use crate::identity::user::User;
use crate::transport::serving_certificate::ServingCertificate;

/// Why certificates could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The files of the authority cannot be used.
    #[error("cannot use {path}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// A certificate could not be made or read.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// TLS does not accept what we made.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
    /// A key in a file is not one.
    #[error("the key of service-account tokens is unreadable: {0}")]
    Key(String),
    /// A certificate in a file is not one.
    #[error("the certificate of the authority is unreadable: {0}")]
    Pem(String),
}

/// A certificate with its key.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate, in PEM.
    pub certificate: String,
    /// Its private key, in PEM.
    pub key: String,
}

/// Who signs the certificates of the cluster.
pub struct Authority {
    pair: Pair,
    issuer: Issuer<'static, KeyPair>,
    /// How long what it signs is valid.
    lifetime: Duration,
}

/// How long the authority itself is valid.
const TEN_YEARS: Duration = Duration::from_secs(3652 * 24 * 3600);
/// How long what it signs is valid, unless the operator wants it otherwise.
pub const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// Clocks differ: everything is valid from a little before it was made.
const BACKDATE: Duration = Duration::from_secs(300);

impl Authority {
    /// A new authority that lives as long as the process.
    pub fn ephemeral() -> Result<Self, IdentityError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, "roadstead-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        limit(&mut params, TEN_YEARS);
        let certificate = params.self_signed(&key)?.pem();
        let pair = Pair { certificate, key: key.serialize_pem() };
        Ok(Self { pair, issuer: Issuer::new(params, key), lifetime: YEAR })
    }

    /// The authority kept in a directory, made on first use.
    pub fn in_directory(directory: &Path) -> Result<Self, IdentityError> {
        let file = |path: &Path| {
            let path = path.to_owned();
            move |source| IdentityError::File { path, source }
        };
        let (certificate, key) = (directory.join("ca.crt"), directory.join("ca.key"));
        if key.exists() {
            let read = |path: &Path| fs::read_to_string(path).map_err(file(path));
            let pair = Pair { certificate: read(&certificate)?, key: read(&key)? };
            let signing = KeyPair::from_pem(&pair.key)?;
            let issuer = Issuer::from_ca_cert_pem(&pair.certificate, signing)?;
            return Ok(Self { pair, issuer, lifetime: YEAR });
        }
        let authority = Self::ephemeral()?;
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(directory).map_err(file(directory))?;
        // The key last: it is what says that the authority is complete.
        write_secret(&certificate, &authority.pair.certificate).map_err(file(&certificate))?;
        write_secret(&key, &authority.pair.key).map_err(file(&key))?;
        Ok(authority)
    }

    /// Signs for another time than a year.
    pub fn valid_for(self, lifetime: Duration) -> Self {
        Self { lifetime, ..self }
    }

    /// How long what it signs is valid.
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// The certificate that clients trust, in PEM.
    pub fn certificate(&self) -> &str {
        &self.pair.certificate
    }

    /// Certificate and key, for those who sign for others.
    pub fn signing(&self) -> &Pair {
        &self.pair
    }

    /// A certificate for a server that is reached under these names and addresses.
    pub fn server(&self, names: Vec<String>) -> Result<Pair, IdentityError> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, "roadstead-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// A certificate for the agent of a node that is reached under these names and addresses. It opens no
    /// doors: it is for a server only.
    pub fn agent(&self, node: &str, names: Vec<String>) -> Result<Pair, IdentityError> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// A certificate for a client: its name and its group.
    pub fn client(&self, name: &str, group: &str) -> Result<Pair, IdentityError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Pair, IdentityError> {
        limit(&mut params, self.lifetime);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Pair { certificate, key: key.serialize_pem() })
    }

    /// TLS that shows `server` and believes client certificates of this authority.
    pub fn tls(&self, server: &Pair) -> Result<Arc<rustls::ServerConfig>, IdentityError> {
        self.tls_with(Arc::new(ServingCertificate::new(server)?))
    }

    /// TLS that shows what is to be shown at that moment.
    pub fn tls_with(
        &self,
        serving: Arc<ServingCertificate>,
    ) -> Result<Arc<rustls::ServerConfig>, IdentityError> {
        let pem = |error: rustls::pki_types::pem::Error| IdentityError::Pem(error.to_string());
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.pair.certificate.as_bytes()).map_err(pem)?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|error| IdentityError::Pem(error.to_string()))?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(serving);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// TLS of a client that shows this certificate, and believes servers of this authority.
    pub(crate) fn client_tls(
        &self,
        client: &Pair,
    ) -> Result<Arc<rustls::ClientConfig>, IdentityError> {
        let pem = |error: rustls::pki_types::pem::Error| IdentityError::Pem(error.to_string());
        let certificate = |text: &str| CertificateDer::from_pem_slice(text.as_bytes());
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&self.pair.certificate).map_err(pem)?)?;
        let chain = vec![certificate(&client.certificate).map_err(pem)?];
        let key = PrivateKeyDer::from_pem_slice(client.key.as_bytes()).map_err(pem)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        Ok(Arc::new(config))
    }

    /// A kubeconfig with one context, `roadstead`.
    pub fn kubeconfig(&self, server: &str, client: &Pair) -> String {
        let encode = |text: &str| STANDARD.encode(text);
        format!(
            "apiVersion: v1\n\
             kind: Config\n\
             current-context: roadstead\n\
             clusters:\n\
             - name: roadstead\n\
             \x20 cluster:\n\
             \x20   server: {server}\n\
             \x20   certificate-authority-data: {}\n\
             contexts:\n\
             - name: roadstead\n\
             \x20 context:\n\
             \x20   cluster: roadstead\n\
             \x20   user: roadstead-admin\n\
             users:\n\
             - name: roadstead-admin\n\
             \x20 user:\n\
             \x20   client-certificate-data: {}\n\
             \x20   client-key-data: {}\n",
            encode(&self.pair.certificate),
            encode(&client.certificate),
            encode(&client.key),
        )
    }
}

/// Valid from now on, for so long.
fn limit(params: &mut CertificateParams, lifetime: Duration) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(BACKDATE);
    params.not_after = epoch + now + lifetime;
}

/// By which somebody who was told it knows a certificate in PEM: the SHA-256 of its public key info, as kubeadm
/// has it.
pub fn public_key_hash(pem: &str) -> Option<[u8; 32]> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    let hash = digest(&SHA256, certificate.public_key().raw);
    hash.as_ref().try_into().ok()
}

/// Of a bundle in PEM, the certificates that have this hash, and nothing else: whoever told us of the bundle may
/// have added an authority of his own to it. `None` if there are none.
pub fn known_by(bundle: &str, hash: &[u8; 32]) -> Option<String> {
    let all = CertificateDer::pem_slice_iter(bundle.as_bytes()).filter_map(Result::ok);
    let all = all.map(|der| {
        let text = STANDARD.encode(&der).into_bytes();
        let lines = text.chunks(64).map(String::from_utf8_lossy).collect::<Vec<_>>().join("\n");
        format!("-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n")
    });
    let known: String = all.filter(|one| public_key_hash(one).as_ref() == Some(hash)).collect();
    (!known.is_empty()).then_some(known)
}

/// From when until when a certificate in PEM is valid.
pub fn validity_of(pem: &str) -> Option<(Timestamp, Timestamp)> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    let time = |time: i64| Timestamp::from_second(time).ok();
    let validity = certificate.validity();
    Some((time(validity.not_before.timestamp())?, time(validity.not_after.timestamp())?))
}

/// When a certificate in PEM ends.
pub fn end_of(pem: &str) -> Option<Timestamp> {
    validity_of(pem).map(|(_, end)| end)
}

/// Whom a certificate, or a request for one, is about.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The first common name; empty if there is none.
    pub common_name: String,
    pub organizations: Vec<String>,
}

impl Subject {
    pub(crate) fn of(name: &X509Name<'_>) -> Self {
        let common_name = name.iter_common_name().next().and_then(|part| part.as_str().ok());
        let organizations = name.iter_organization().filter_map(|part| part.as_str().ok());
        Self {
            common_name: common_name.unwrap_or("").to_owned(),
            organizations: organizations.map(str::to_owned).collect(),
        }
    }
}

/// Who a client certificate says its holder is: the common name and the organizations.
pub(crate) fn user_of(certificate: &CertificateDer<'_>) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let Subject { common_name, mut organizations } = Subject::of(certificate.subject());
    if common_name.is_empty() {
        return None;
    }
    organizations.push("system:authenticated".to_owned());
    Some(User::new(common_name, organizations))
}

#[test]
fn a_certificate_says_who_its_holder_is() {
    let authority = Authority::ephemeral().unwrap();
    let pair = authority.client("jane", "system:masters").unwrap();
    let der = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
    let user = user_of(&der).unwrap();
    assert_eq!((user.name.as_str(), user.is_master()), ("jane", true));
}

#[test]
fn a_year_and_ten_years() {
    let authority = Authority::ephemeral().unwrap();
    let days = |pem: &str| {
        let left = end_of(pem).unwrap().as_second() - Timestamp::now().as_second();
        (left + 3600) / (24 * 3600)
    };
    assert_eq!(days(authority.certificate()), 3652);
    let short = || Authority::ephemeral().unwrap().valid_for(Duration::from_secs(48 * 3600));
    for (authority, want) in [(authority, 365), (short(), 2)] {
        for pair in [
            authority.client("jane", "dev").unwrap(),
            authority.server(vec!["localhost".into()]).unwrap(),
        ] {
            assert_eq!(days(&pair.certificate), want);
        }
    }
}

/// Clusters of earlier versions have an authority until 2060. It stays, since clients trust it;
/// what it signs is limited all the same.
#[test]
fn an_authority_of_earlier_versions_stays() {
    let place = tempfile::tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = rcgen::date_time_ymd(2060, 1, 1);
    let certificate = params.self_signed(&key).unwrap().pem();
    write_secret(&place.path().join("ca.crt"), &certificate).unwrap();
    write_secret(&place.path().join("ca.key"), &key.serialize_pem()).unwrap();
    let authority = Authority::in_directory(place.path()).unwrap();
    assert_eq!(authority.certificate(), certificate);
    let end = end_of(&authority.client("jane", "dev").unwrap().certificate).unwrap();
    assert!(end.as_second() < Timestamp::now().as_second() + 366 * 24 * 3600, "{end}");
}

#[test]
fn an_authority_is_known_by_its_hash_alone() {
    let [own, other] = [(); 2].map(|()| Authority::ephemeral().unwrap());
    let (own, other) = (own.certificate(), other.certificate());
    let hash = public_key_hash(own).unwrap();
    let bare = |pem: &str| pem.split_whitespace().collect::<String>();
    for bundle in [own.to_owned(), format!("{own}{other}"), format!("{other}\nand\n{own}{other}")] {
        assert_eq!(known_by(&bundle, &hash).map(|known| bare(&known)), Some(bare(own)));
    }
    assert_eq!(known_by(other, &hash), None);
    assert_eq!(known_by("nonsense", &hash), None);
}
