//! Every way of saying who we are, and of knowing who the broker is.

mod kafka;

use laneway::Bus;

use kafka::server::{KafkaServer, free_ports};
use kafka::{SOON, declare, event, fresh};

/// The user that brokers know; its password has what is special in an address, and in a setting.
const ENCODED: &str = "s3cret%40%3A%2F%3F%26";
const PASSWORD: &str = "s3cret@:/?&";

/// It can do its work there.
async fn works(address: &str, settings: &str) {
    let bus = match Bus::open(&fresh(address, settings)).await {
        Ok(bus) => bus,
        Err(error) => panic!("{address} {settings}: {error}"),
    };
    declare(&bus, "orders", 1).await;
    let published = bus.publish_envelope("orders", &event("a", 0)).await;
    published.expect("published");
    assert!(bus.health().await.is_well());
    bus.close(SOON).await.expect("closed");
}

/// It is refused there, and no secret is told.
async fn refused(address: &str, settings: &str) {
    let error = Bus::open(&fresh(address, settings)).await;
    let error = error.map(drop).expect_err(address).to_string();
    assert!(!error.contains("s3cret"), "{error}");
}

/// The settings of a broker that knows a user.
fn with_user(plain: u16, more: &str) -> String {
    let module = "org.apache.kafka.common.security.plain.PlainLoginModule required";
    format!(
        "listeners=SASL_PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:CONTROLLER_PORT{more}\n\
         inter.broker.listener.name=SASL_PLAINTEXT\nsasl.mechanism.inter.broker.protocol=PLAIN\n\
         listener.name.sasl_plaintext.sasl.enabled.mechanisms=PLAIN\n\
         listener.name.sasl_plaintext.plain.sasl.jaas.config={module} username=\"broker\" \
         password=\"b\" user_broker=\"b\" user_us=\"{PASSWORD}\";\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_user_and_password() {
    needs::slow!();
    let program = needs::service!("kafka_bin");
    let [port] = free_ports();
    let protocols =
        "listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT\n";
    let settings = format!("{}{protocols}", with_user(port, ""));
    let _server = KafkaServer::start(&program, port, &settings, &[]);
    let host = format!("127.0.0.1:{port}");
    works(&format!("us:{ENCODED}@{host}"), "&sasl=plain").await;
    refused(&format!("us:s3cret@{host}"), "&sasl=plain").await;
}

#[cfg(feature = "kafka-tls")]
mod with_openssl {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn by_scram_over_tls() {
        let program = needs::service!("kafka_bin");
        let [plain, tls] = free_ports();
        let folder = tempfile::tempdir().expect("a folder");
        let key = KeyPair::generate().expect("a key");
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // One that is called what it signs would be taken for its own authority.
        ca.distinguished_name.push(DnType::CommonName, "authority");
        let ca = CertifiedIssuer::self_signed(ca, key).expect("an authority");
        let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
        let params = CertificateParams::new(names).expect("parameters");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &ca).expect("a certificate");
        let keystore = folder.path().join("broker.pem");
        let both = format!("{}{}", key.serialize_pem(), certificate.pem());
        std::fs::write(&keystore, both).expect("written");
        let authority = folder.path().join("ca.pem");
        std::fs::write(&authority, ca.pem()).expect("written");
        let more = format!(",SASL_SSL://127.0.0.1:{tls}");
        let settings = format!(
            "{}ssl.keystore.type=PEM\nssl.keystore.location={}\n\
             listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT\n\
             listener.name.sasl_ssl.sasl.enabled.mechanisms=SCRAM-SHA-512\nlistener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;\n",
            with_user(plain, &more),
            keystore.display(),
        );
        let scram = "SCRAM-SHA-512=[name=us,password=s3cret]";
        let format = ["--add-scram", scram];
        let _server = KafkaServer::start(&program, tls, &settings, &format);
        let host = format!("127.0.0.1:{tls}");
        let trusted = format!("&ca={}", authority.display());
        works(&format!("us:s3cret@{host}"), &trusted).await;
        refused(&format!("us:s3cret1@{host}"), &trusted).await;
        // Whom nobody vouches for is not trusted.
        refused(&format!("us:s3cret@{host}"), "&tls=true").await;
        refused(&format!("us:s3cret@{host}"), "").await;
    }
}
