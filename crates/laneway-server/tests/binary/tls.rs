//! Callbacks over TLS: with HTTP/2 where the receiver has it, and only to whom can be trusted.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::harness::{PATIENCE, Server, empty_directory};

/// A receiver with a certificate for `localhost` that nobody knows.
struct SecureReceiver {
    address: SocketAddr,
    certificate: PathBuf,
    callbacks: Receiver<(Version, Bytes)>,
    connections: Arc<AtomicUsize>,
    _directory: TempDir,
    _runtime: tokio::runtime::Runtime,
}

impl SecureReceiver {
    fn start(protocols: &[&str]) -> Self {
        let made =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let directory = empty_directory();
        let certificate = directory.path().join("certificate.pem");
        std::fs::write(&certificate, made.cert.pem()).expect("written");
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .expect("a certificate and its key");
        config.alpn_protocols = protocols
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();

        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let listener = runtime
            .block_on(TcpListener::bind("127.0.0.1:0"))
            .expect("loopback");
        let address = listener.local_addr().expect("bound");
        let (sender, callbacks) = mpsc::channel();
        let connections = Arc::new(AtomicUsize::new(0));
        let (acceptor, count) = (
            TlsAcceptor::from(Arc::new(config)),
            Arc::clone(&connections),
        );
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else {
                    continue;
                };
                count.fetch_add(1, Ordering::SeqCst);
                let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let sender = sender.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let sender = sender.clone();
                    async move {
                        let version = request.version();
                        let body = request
                            .into_body()
                            .collect()
                            .await
                            .map(http_body_util::Collected::to_bytes);
                        let _ = sender.send((version, body.unwrap_or_default()));
                        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
                    }
                });
                let stream = TokioIo::new(stream);
                tokio::spawn(async move {
                    if is_h2 {
                        let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        let _ = http.serve_connection(stream, service).await;
                    } else {
                        let http = hyper::server::conn::http1::Builder::new();
                        let _ = http.serve_connection(stream, service).await;
                    }
                });
            }
        });
        Self {
            address,
            certificate,
            callbacks,
            connections,
            _directory: directory,
            _runtime: runtime,
        }
    }

    fn message(&self) -> serde_json::Value {
        json!({
            "topic": "t", "delay": 0, "payload": 7, "retry": [],
            "target": { "callback": { "url": format!("https://localhost:{}/", self.address.port()) } },
        })
    }
}

#[test]
fn the_best_protocol_that_the_receiver_has_is_spoken() {
    for (protocols, version) in [
        (&["h2", "http/1.1"][..], Version::HTTP_2),
        (&["http/1.1"], Version::HTTP_11),
    ] {
        let receiver = SecureReceiver::start(protocols);
        let trusted = receiver.certificate.to_str().expect("UTF-8");
        let server = Server::start_with(&[], &[("SSL_CERT_FILE", trusted)]);
        for _ in 0..5 {
            let id = server.submit(&receiver.message());
            let (spoken, body) = receiver.callbacks.recv_timeout(PATIENCE).expect("in time");
            assert_eq!((spoken, body.as_ref()), (version, &b"7"[..]));
            server.wait_for_state(&id, "delivered");
        }
        assert_eq!(
            receiver.connections.load(Ordering::SeqCst),
            1,
            "{version:?}"
        );
    }
}

#[test]
fn a_receiver_that_cannot_prove_who_it_is_gets_nothing() {
    let receiver = SecureReceiver::start(&["h2", "http/1.1"]);
    let server = Server::start(&[]);
    let id = server.submit(&receiver.message());
    server.wait_for_state(&id, "dead");
    let message = server.get(&format!("/v1/messages/{id}")).json();
    let reason = message["history"][0]["reason"].as_str().expect("a reason");
    assert!(reason.contains("certificate"), "{reason}");
    assert!(receiver.callbacks.try_recv().is_err());
}
