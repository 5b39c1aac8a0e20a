//! The certificates of a `ca_file`: those that are believed beside the built-in roots. Whom they vouch for is rustls's to say.

use std::path::Path;

use anyhow::Result;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::trouble::Trouble;

/// At least one, each of them fit to be a root. Errors name the key and the file.
pub fn of(ca_file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let refused = |why: &str| {
        Trouble::usage(format!(
            "ca_file {}: {why}; name a file of certificates in PEM that this user may read",
            ca_file.display()
        ))
    };
    let pem = std::fs::read(ca_file).map_err(|error| refused(&error.to_string()))?;
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().map_err(|_| refused("not PEM"))?;
    for certificate in &certificates {
        // What cannot be used would be left out in silence.
        RootCertStore::empty()
            .add(certificate.clone())
            .map_err(|error| refused(&format!("a certificate cannot be used: {error}")))?;
    }
    if certificates.is_empty() {
        return Err(refused("no certificate in it").into());
    }
    Ok(certificates)
}
