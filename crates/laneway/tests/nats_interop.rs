//! Envelopes go both ways between us and a jxt-core bus on NATS.

mod interop;

#[tokio::test(flavor = "multi_thread")]
async fn envelopes_go_both_ways_in_order() {
    let server = needs::service!("nats");
    match interop::program() {
        Ok(program) => {
            let address = format!("{server}?namespace=interop");
            interop::both_ways(&program, &server, &address).await;
        }
        Err(why) => needs::skip!(why),
    }
}
