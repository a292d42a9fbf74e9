//! Every way of saying who we are, and of knowing who the server is.

mod nats;

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use laneway::{Bus, NatsOptions, Tls};
use nkeys::KeyPair;
use serde_json::{Value, json};

use nats::server::NatsServer;
use nats::{SOON, declare, event, fresh};

const PASSWORD: &str = "s3cret@:/?&";
const ENCODED: &str = "s3cret%40%3A%2F%3F%26";

/// Two seconds to say who one is are not enough on a busy machine.
const PATIENT: &str = "timeout: 60";

/// It can do its work there.
async fn works(address: &str) {
    let bus = match Bus::open(&fresh_with(address)).await {
        Ok(bus) => bus,
        Err(error) => panic!("{address}: {error}"),
    };
    declare(&bus, "orders", 1).await;
    let published = bus.publish_envelope("orders", &event("a", 0)).await;
    published.expect("published");
    assert!(bus.health().await.is_well());
    bus.close(SOON).await.expect("closed");
}

/// It is refused there, and no secret is told.
async fn refused(address: &str) -> String {
    let error = Bus::open(&fresh_with(address)).await;
    let error = error.map(drop).expect_err(address).to_string();
    assert!(!error.contains("s3cret"), "{error}");
    error
}

/// With a namespace, whether or not there are settings.
fn fresh_with(address: &str) -> String {
    match address.split_once('?') {
        None => fresh(address, ""),
        Some((server, settings)) => fresh(server, &format!("&{settings}")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_user_and_password() {
    let server = NatsServer::start(&needs::service!("nats_bin"), |_| {
        format!("authorization {{ user: us, password: {PASSWORD:?}, {PATIENT} }}")
    });
    let host = server.address().replace("nats://", "");
    works(&format!("nats://us:{ENCODED}@{host}")).await;
    let error = refused(&format!("nats://us:s3cret@{host}")).await;
    assert!(error.contains("authorization"), "{error}");
    refused(&server.address()).await;
    let options = NatsOptions::new([host])
        .namespace("built")
        .user("us", PASSWORD);
    let bus = Bus::builder().open_nats(options).await.expect("opened");
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_token() {
    let server = NatsServer::start(&needs::service!("nats_bin"), |_| {
        format!("authorization {{ token: {PASSWORD:?}, {PATIENT} }}")
    });
    let host = server.address().replace("nats://", "");
    works(&format!("nats://{ENCODED}@{host}")).await;
    works(&format!("{}?token={ENCODED}", server.address())).await;
    refused(&format!("{}?token=s3cret", server.address())).await;
}

/// A file with a secret.
fn file(server: &NatsServer, name: &str, text: &str) -> String {
    let path: PathBuf = server.path(name);
    std::fs::write(&path, text).expect("written");
    path.display().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_nkey() {
    let (us, other) = (KeyPair::new_user(), KeyPair::new_user());
    let server = NatsServer::start(&needs::service!("nats_bin"), |_| {
        format!(
            "authorization {{ users: [ {{ nkey: {} }} ], {PATIENT} }}",
            us.public_key()
        )
    });
    let seed = us.seed().expect("a seed");
    let ours = file(&server, "us.nk", &format!("# ours\n{seed}\n"));
    works(&format!("{}?nkey={ours}", server.address())).await;
    let theirs = file(&server, "other.nk", &other.seed().expect("a seed"));
    refused(&format!("{}?nkey={theirs}", server.address())).await;
    let empty = file(&server, "empty.nk", "s3cret");
    let error = refused(&format!("{}?nkey={empty}", server.address())).await;
    assert!(
        error.contains("empty.nk: there is no seed in it"),
        "{error}"
    );
    let error = refused(&format!("{}?nkey=nowhere.nk", server.address())).await;
    assert!(error.contains("nowhere.nk"), "{error}");
}

/// A token signed as NATS does it.
fn signed(by: &KeyPair, about: &KeyPair, name: &str, nats: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = part(&json!({"typ": "JWT", "alg": "ed25519-nkey"}));
    let claims = part(&json!({
        "jti": name, "iat": 1_700_000_000, "iss": by.public_key(), "sub": about.public_key(),
        "name": name, "nats": nats,
    }));
    let text = format!("{header}.{claims}");
    let signature = by.sign(text.as_bytes()).expect("signed");
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_credentials_file() {
    let program = needs::service!("nats_bin");
    let (operator, system) = (KeyPair::new_operator(), KeyPair::new_account());
    let (account, us) = (KeyPair::new_account(), KeyPair::new_user());
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1,
        "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
    });
    let mut no_storage = limits.clone();
    for limit in ["mem_storage", "disk_storage", "streams", "consumer"] {
        no_storage.as_object_mut().expect("an object").remove(limit);
    }
    let of_account = |limits: &Value| json!({"type": "account", "version": 2, "limits": limits});
    let operator_token = signed(
        &operator,
        &operator,
        "operator",
        &json!({"type": "operator", "version": 2, "system_account": system.public_key()}),
    );
    let system_token = signed(&operator, &system, "system", &of_account(&no_storage));
    let account_token = signed(&operator, &account, "account", &of_account(&limits));
    let user = json!({
        "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {},
    });
    let server = NatsServer::start(&program, |_| {
        format!(
            "operator: {operator_token}\nsystem_account: {system}\nresolver: MEMORY\n\
             resolver_preload: {{ {system}: {system_token}, {account}: {account_token} }}",
            system = system.public_key(),
            account = account.public_key(),
        )
    });
    let credentials = |token: &str, seed: &str| {
        format!(
            "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
    };
    let seed = us.seed().expect("a seed");
    let ours = credentials(&signed(&account, &us, "us", &user), &seed);
    let ours = file(&server, "us.creds", &ours);
    works(&format!("{}?creds={ours}", server.address())).await;
    let forged = KeyPair::new_account();
    let forged = credentials(&signed(&forged, &us, "us", &user), &seed);
    let forged = file(&server, "forged.creds", &forged);
    refused(&format!("{}?creds={forged}", server.address())).await;
    let error = refused(&format!("{}?creds=nowhere.creds", server.address())).await;
    assert!(error.contains("nowhere.creds"), "{error}");
}

/// Certificates of an authority of our own.
struct Certificates {
    authority: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Certificates {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = rcgen::CertifiedIssuer::self_signed(params, key);
        Self {
            authority: authority.expect("an authority"),
        }
    }

    fn authority(&self, server: &NatsServer, name: &str) -> String {
        file(server, name, &self.authority.pem())
    }

    /// Files with a certificate for this name, and its key.
    fn issue(&self, server: &NatsServer, name: &str) -> (String, String) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.authority).expect("signed");
        let certificate = file(server, &format!("{name}.pem"), &certificate.pem());
        let key = file(server, &format!("{name}.key"), &key.serialize_pem());
        (certificate, key)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_connection_to_a_server_that_we_trust() {
    let (certificates, strangers) = (Certificates::new(), Certificates::new());
    let server = NatsServer::start(&needs::service!("nats_bin"), |server| {
        let (certificate, key) = certificates.issue(server, "127.0.0.1");
        format!("tls {{ cert_file: {certificate:?}, key_file: {key:?}, {PATIENT} }}")
    });
    let ca = certificates.authority(&server, "ca.pem");
    works(&format!("{}?ca={ca}", server.address())).await;
    let strange = strangers.authority(&server, "strange.pem");
    let error = refused(&format!("{}?ca={strange}", server.address())).await;
    assert!(error.to_lowercase().contains("certificate"), "{error}");
    refused(&format!("{}?tls=true", server.address())).await;
    let error = refused(&format!("{}?ca=nowhere.pem", server.address())).await;
    assert!(error.contains("connecting"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_certificate() {
    let certificates = Certificates::new();
    let server = NatsServer::start(&needs::service!("nats_bin"), |server| {
        let (certificate, key) = certificates.issue(server, "127.0.0.1");
        let ca = certificates.authority(server, "ca.pem");
        format!(
            "tls {{ cert_file: {certificate:?}, key_file: {key:?}, ca_file: {ca:?}, verify: true, {PATIENT} }}"
        )
    });
    let ca = server.path("ca.pem").display().to_string();
    let (certificate, key) = certificates.issue(&server, "us");
    works(&format!(
        "{}?ca={ca}&cert={certificate}&key={key}",
        server.address()
    ))
    .await;
    let tls = Tls::required()
        .certificate_authority(&ca)
        .client_certificate(&certificate, &key);
    let options = NatsOptions::new([server.address().replace("nats://", "")]).tls(tls);
    let bus = Bus::builder().open_nats(options).await.expect("opened");
    bus.close(SOON).await.expect("closed");
    refused(&format!("{}?ca={ca}", server.address())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_tls_will_not_do_where_it_is_required() {
    let server = NatsServer::start(&needs::service!("nats_bin"), |_| String::new());
    let error = refused(&format!("{}?tls=true", server.address())).await;
    assert!(error.contains("connecting"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_domain_and_under_a_prefix() {
    let server = NatsServer::start(&needs::service!("nats_bin"), |_| {
        "jetstream { domain: hub }".to_owned()
    });
    works(&format!("{}?domain=hub", server.address())).await;
    works(&format!("{}?prefix=$JS.hub.API", server.address())).await;
    works(&server.address()).await;
    let error = refused(&format!("{}?domain=elsewhere", server.address())).await;
    assert!(error.contains("127.0.0.1"), "{error}");
}
