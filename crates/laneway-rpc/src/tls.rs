use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

use crate::Error;
use crate::settings::HELLO_TIMEOUT;

/// What a process shows, and whom it trusts: both sides of every connection show a certificate that is signed by `ca`. That
/// of a server has the host in it by which it is reached.
///
/// The files are read once. A process that is to show another certificate is started again.
#[derive(Clone)]
pub struct Tls(Arc<Pems>);

struct Pems {
    ca: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Tls {
    /// Reads three PEM files: the certificate that signed all others, and the own certificate with its key.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the file, if it cannot be read, or has nothing of its kind in it.
    pub fn load(ca: &Path, certificate: &Path, key: &Path) -> Result<Self, Error> {
        let read = |path: &Path, marks: &[&str]| {
            let bytes = std::fs::read(path);
            let bytes =
                bytes.map_err(|error| Error::invalid(path.display().to_string(), &error))?;
            let text = String::from_utf8_lossy(&bytes);
            if marks.iter().any(|mark| text.contains(mark)) {
                return Ok(bytes);
            }
            let problem = format!("there is no `-----{}` in it; give a PEM file", marks[0]);
            Err(Error::invalid(path.display().to_string(), &problem))
        };
        let certificates = ["BEGIN CERTIFICATE"];
        let keys = [
            "BEGIN PRIVATE KEY",
            "BEGIN EC PRIVATE KEY",
            "BEGIN RSA PRIVATE KEY",
        ];
        Ok(Self(Arc::new(Pems {
            ca: read(ca, &certificates)?,
            certificate: read(certificate, &certificates)?,
            key: read(key, &keys)?,
        })))
    }

    pub(crate) fn server(&self) -> ServerTlsConfig {
        provide();
        ServerTlsConfig::new()
            .identity(self.identity())
            .client_ca_root(Certificate::from_pem(&self.0.ca))
            .timeout(HELLO_TIMEOUT)
    }

    pub(crate) fn client(&self, host: &str) -> ClientTlsConfig {
        provide();
        ClientTlsConfig::new()
            .identity(self.identity())
            .ca_certificate(Certificate::from_pem(&self.0.ca))
            .domain_name(host)
    }

    fn identity(&self) -> Identity {
        Identity::from_pem(&self.0.certificate, &self.0.key)
    }
}

/// There is one provider in the process. One that is there already is the same.
fn provide() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

impl fmt::Debug for Tls {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}
