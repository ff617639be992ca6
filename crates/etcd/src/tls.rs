//! TLS: CA certificates, and the client certificate.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::error::EtcdError;
use crate::settings::Settings;

/// `None` if no endpoint needs TLS.
///
/// # Errors
/// If a file is missing, or has no certificate or key in it.
pub(crate) fn connector(settings: &Settings) -> Result<Option<TlsConnector>, EtcdError> {
    if !settings.endpoints.iter().any(|endpoint| endpoint.tls) {
        return Ok(None);
    }
    let ca = settings.ca.as_deref().ok_or_else(|| {
        file("ca", Path::new(""), "missing: https needs a file with the certificates of the CA")
    })?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca", ca)? {
        roots.add(certificate).map_err(|why| file("ca", ca, why))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let versions = versions.map_err(|why| file("ca", ca, why))?;
    let builder = versions.with_root_certificates(roots);
    let config = match (settings.cert.as_deref(), settings.key.as_deref()) {
        (Some(cert), Some(key)) => {
            let own = PrivateKeyDer::from_pem_file(key).map_err(|why| file("key", key, why))?;
            let chain = certificates("cert", cert)?;
            builder.with_client_auth_cert(chain, own).map_err(|why| file("cert", cert, why))?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok(Some(TlsConnector::from(Arc::new(config))))
}

fn certificates(setting: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, EtcdError> {
    let all = CertificateDer::pem_file_iter(path).map_err(|why| file(setting, path, why))?;
    let all: Result<Vec<_>, _> = all.collect();
    let all = all.map_err(|why| file(setting, path, why))?;
    if all.is_empty() { Err(file(setting, path, "there is no certificate in it")) } else { Ok(all) }
}

fn file(setting: &'static str, path: &Path, why: impl ToString) -> EtcdError {
    EtcdError::File { setting, path: path.into(), why: why.to_string() }
}
