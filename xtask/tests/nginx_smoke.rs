//! nginx is up: it serves a page.

mod wire;

use std::io::Read;

#[test]
fn a_page_is_served() {
    let mut nginx = wire::connect(&needs::service!("nginx"));
    wire::send(&mut nginx, b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n");
    let mut answer = String::new();
    nginx
        .read_to_string(&mut answer)
        .expect("nginx answers and hangs up");
    let status = answer.lines().next().unwrap_or_default();
    assert!(status.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        answer.to_ascii_lowercase().contains("server: nginx"),
        "{answer}"
    );
}
