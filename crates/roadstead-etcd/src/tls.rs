//! What it takes to speak TLS with etcd: whom we believe, and who we are.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The files that an operator names; without an authority no server is believed.
#[derive(Clone, Debug, Default)]
pub struct EtcdTls {
    /// Whose servers are believed.
    pub authority: Option<PathBuf>,
    /// What we show, and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// Why TLS cannot be spoken.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not what it should be.
    #[error("cannot use {path}: {why}")]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The certificate and its key do not fit.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

impl EtcdTls {
    /// Reads them.
    pub fn read(&self) -> Result<ClientConfig, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.authority.iter().map(|path| certificates(path)) {
            for certificate in certificate? {
                roots.add(certificate)?;
            }
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let Some((certificate, key)) = &self.client else {
            return Ok(builder.with_no_client_auth());
        };
        let read = fs::read(key).map_err(|error| wrong(key, error))?;
        let secret = PrivateKeyDer::from_pem_slice(&read).map_err(|error| wrong(key, error))?;
        Ok(builder.with_client_auth_cert(certificates(certificate)?, secret)?)
    }
}

/// All certificates of a file.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = fs::read(path).map_err(|error| wrong(path, error))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match all.map_err(|error| wrong(path, error))? {
        all if all.is_empty() => Err(wrong(path, "it has no certificate")),
        all => Ok(all),
    }
}

fn wrong(path: &Path, why: impl ToString) -> TlsError {
    TlsError::File { path: path.to_owned(), why: why.to_string() }
}
