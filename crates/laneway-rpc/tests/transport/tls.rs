use std::path::Path;

use laneway_rpc::proto::worker_client::WorkerClient;
use laneway_rpc::{CallError, Error, Tls, connect_worker};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::support::{number, ping, settings, worker};

/// An authority, and one certificate that it signed for 127.0.0.1, as files.
struct Authority {
    directory: TempDir,
}

impl Authority {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            std::fs::write(directory.path().join(name), text).unwrap();
        };
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        write("ca.pem", params.self_signed(&key).unwrap().pem());
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        write("certificate.pem", certificate.pem());
        write("key.pem", key.serialize_pem());
        Self { directory }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// The certificate of this one, with trust in the certificates of `trusted`.
    fn tls(&self, trusted: &Self) -> Tls {
        let ca = trusted.path("ca.pem");
        let tls = Tls::load(&ca, &self.path("certificate.pem"), &self.path("key.pem"));
        tls.unwrap()
    }
}

#[tokio::test]
async fn both_sides_show_certificates() {
    let own = Authority::new();
    let (server, mut connections) = worker(&settings("worker").tls(Some(own.tls(&own)))).await;
    let address = server.address().to_string();
    let center = settings("center").tls(Some(own.tls(&own)));
    let center = connect_worker(&address, &center).await.unwrap();
    let mut worker = connections.recv().await.unwrap();
    center.sender.send(ping(1)).await.unwrap();
    assert_eq!(number(worker.receiver.recv().await), 1);
}

#[tokio::test]
async fn without_trust_there_is_no_connection() {
    let (own, other) = (Authority::new(), Authority::new());
    let (server, mut connections) = worker(&settings("worker").tls(Some(own.tls(&own)))).await;
    let address = server.address().to_string();

    // The center does not trust the worker.
    let center = settings("center").tls(Some(own.tls(&other)));
    let error = connect_worker(&address, &center).await.unwrap_err();
    assert!(
        matches!(&error, Error::Call(CallError::NotTrusted(_))),
        "{error:?}"
    );
    assert!(!error.is_retryable());
    // The worker does not trust the center.
    let center = settings("center").tls(Some(other.tls(&own)));
    assert!(connect_worker(&address, &center).await.is_err());
    // The center speaks no TLS.
    assert!(connect_worker(&address, &settings("center")).await.is_err());
    // The center has no certificate.
    let ca = std::fs::read(own.path("ca.pem")).unwrap();
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
    let channel = endpoint.tls_config(tls).unwrap().connect_lazy();
    let worked = WorkerClient::new(channel)
        .work(tokio_stream::pending())
        .await;
    assert!(worked.is_err());

    assert!(connections.try_recv().is_err());
    // The worker goes on.
    let center = settings("center").tls(Some(own.tls(&own)));
    connect_worker(&address, &center).await.unwrap();
    connections.recv().await.unwrap();
}

#[tokio::test]
async fn a_worker_without_tls_is_not_trusted() {
    let own = Authority::new();
    let (server, _connections) = worker(&settings("worker")).await;
    let address = server.address().to_string();
    let center = settings("center").tls(Some(own.tls(&own)));
    let error = connect_worker(&address, &center).await.unwrap_err();
    assert!(matches!(&error, Error::Call(_)), "{error:?}");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let own = Authority::new();
    let (ca, key) = (own.path("ca.pem"), own.path("key.pem"));
    let missing = Path::new("there-is-no-such-file.pem");
    let error = Tls::load(&ca, missing, &key).unwrap_err().to_string();
    assert!(error.contains("there-is-no-such-file.pem"), "{error}");
    let error = Tls::load(&ca, &key, &key).unwrap_err().to_string();
    assert!(
        error.contains("key.pem") && error.contains("PEM"),
        "{error}"
    );
}
