//! The certificate that the server shows, which can be replaced while connections go on.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::identity::authority::{IdentityError, Pair};

/// What new connections are shown.
pub struct ServingCertificate(RwLock<Arc<CertifiedKey>>);

impl fmt::Debug for ServingCertificate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ServingCertificate")
    }
}

impl ServingCertificate {
    /// Shows this certificate from the start.
    pub fn new(pair: &Pair) -> Result<Self, IdentityError> {
        Ok(Self(RwLock::new(certified(pair)?)))
    }

    /// From now on shows another one. Connections that there are do not notice.
    pub fn replace(&self, pair: &Pair) -> Result<(), IdentityError> {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = certified(pair)?;
        Ok(())
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

fn certified(pair: &Pair) -> Result<Arc<CertifiedKey>, IdentityError> {
    let pem = |error: rustls::pki_types::pem::Error| IdentityError::Pem(error.to_string());
    let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).map_err(pem)?];
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(pem)?;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &provider)?))
}
