//! Envelopes go both ways between us and a jxt-core bus on Kafka.

mod interop;

#[tokio::test(flavor = "multi_thread")]
async fn envelopes_go_both_ways_in_order() {
    let servers = needs::service!("kafka");
    match interop::program() {
        Ok(program) => {
            let server = format!("kafka://{servers}");
            interop::both_ways(&program, &server, &server).await;
        }
        Err(why) => needs::skip!(why),
    }
}
