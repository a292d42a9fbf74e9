use super::*;

fn strict() -> Guard {
    Guard::new(Allow::nothing())
}

/// Ways of writing an address that is not public. Whatever the parser makes of them, none passes.
const FORBIDDEN: &[&str] = &[
    "http://127.0.0.1/",
    "http://127.0.0.1:8080/",
    "https://127.0.0.1/",
    "HTTP://127.0.0.1/",
    "http:127.0.0.1",
    "http:/127.0.0.1/",
    "http:\\\\127.0.0.1\\x",
    "http://127.1/",
    "http://127.0.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0X7F.0.0.1/",
    "http://0x7f.1/",
    "http://017700000001/",
    "http://0177.0.0.1/",
    "http://0177.0x0.0.01/",
    "http://00000177.1/",
    "http://127.0.0.1./",
    "http://%31%32%37.0.0.1/",
    "http://１２７.０.０.１/",
    "http://127。0。0。1/",
    "http://127．0．0．1/",
    "http://①②⑦.⓪.⓪.①/",
    "http://0/",
    "http://0.0.0.0/",
    "http://0x0/",
    "http://255.255.255.255/",
    "http://4294967295/",
    "http://10.0.0.1/",
    "http://167772161/",
    "http://012.1/",
    "http://172.16.0.1/",
    "http://192.168.0.1/",
    "http://3232235521/",
    "http://169.254.169.254/latest/meta-data/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://0251.0376.0251.0376/",
    "http://100.100.100.200/",
    "http://168.63.129.16/",
    "http://224.0.0.1/",
    "http://[::]/",
    "http://[::1]/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[0000:0000:0000:0000:0000:0000:0000:0001]:80/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::FFFF:10.0.0.1]/",
    "http://[::ffff:0:127.0.0.1]/",
    "http://[::127.0.0.1]/",
    "http://[64:ff9b::127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[64:ff9b:1::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[2002:a00:1::1]/",
    "http://[2001::1]/",
    "http://[2001:0:4136:e378:8000:63bf:80ff:fffe]/",
    "http://[fe80::1]/",
    "http://[fe80::1%25eth0]/",
    "http://[fe80::1%eth0]/",
    "http://[fd00:ec2::254]/",
    "http://[fc00::1]/",
    "http://[fec0::1]/",
    "http://[ff02::1]/",
    "http://[100::1]/",
    "http://[4000::1]/",
    "http://user@127.0.0.1/",
    "http://example.com@127.0.0.1/",
    "http://127.0.0.1#@example.com/",
    "http://127.0.0.1\t/",
    "http://127.0.0.1\\@example.com/",
    "http://example.com:80@127.0.0.1:80/",
    "http://127.0.0.1:80@[::1]/",
    "http://256.256.256.256/",
    "http://1.2.3.4.5/",
    "http://0x100000000/",
    "http:///",
    "http://",
    "//127.0.0.1/",
    "127.0.0.1",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_x",
    "ftp://example.com/",
    "unix:/run/docker.sock",
    "javascript:alert(1)",
    "http://example.com:22/",
    "http://example.com:25/",
    "http://example.com:0/",
    "http://example.com:6667/",
    "http://example.com:65536/",
    "http://exa mple.com/",
    "http://user:password@example.com/",
    "http://[::1/",
    "http://[1.2.3.4]/",
    "",
];

#[test]
fn no_way_of_writing_a_forbidden_address_passes() {
    for url in FORBIDDEN {
        let checked = strict().check(url);
        assert!(checked.is_err(), "{url} passed as {checked:?}");
    }
}

#[test]
fn public_addresses_and_names_pass_unchanged() {
    for url in [
        "http://example.com/",
        "https://example.com/a/b?c=d",
        "https://example.com:8443/",
        "http://1.1.1.1/",
        "http://[2606:4700::1111]:8080/x",
        "https://bücher.example/",
        "http://localhost.example.com/",
        "http://127.0.0.1.example.com/",
    ] {
        let destination = strict().check(url).expect(url);
        assert!(!destination.host_and_port().is_empty());
    }
    let destination = strict().check("https://Example.COM/A").expect("fine");
    assert_eq!(destination.url().as_str(), "https://example.com/A");
    assert_eq!(destination.host_and_port(), "example.com:443");
}

#[test]
fn an_allowed_range_passes_in_every_notation_and_its_neighbour_does_not() {
    let guard = Guard::new("127.0.0.1/32, 10.1.0.0/16, ::1".parse().expect("a list"));
    for url in [
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://[::ffff:127.0.0.1]/",
        "http://10.1.9.9/",
        "http://[::1]/",
    ] {
        assert!(guard.check(url).is_ok(), "{url}");
    }
    for url in [
        "http://127.0.0.2/",
        "http://10.2.0.1/",
        "http://[::2]/",
        "http://[64:ff9b::127.0.0.1]/",
    ] {
        assert!(guard.check(url).is_err(), "{url}");
    }
}

#[test]
fn one_forbidden_address_among_many_refuses_the_name() {
    let addresses =
        ["1.1.1.1", "2606:4700::1111", "10.0.0.7"].map(|text| text.parse().expect(text));
    assert!(
        strict()
            .check_resolved("a.example", &addresses[..2])
            .is_ok()
    );
    let refused = strict()
        .check_resolved("a.example", &addresses)
        .expect_err("10.0.0.7");
    assert_eq!(
        refused.to_string(),
        "a.example resolves to 10.0.0.7, which is not a public address (private): the operator can \
         allow it with callback.allow"
    );
}

#[test]
fn an_allowed_name_may_resolve_to_anything() {
    let guard = Guard::new("hooks.internal".parse().expect("a list"));
    let private = ["10.0.0.7".parse().expect("an address")];
    assert!(guard.check_resolved("hooks.internal", &private).is_ok());
    assert!(guard.check_resolved("other.internal", &private).is_err());
}

#[test]
fn ports_are_sorted_for_the_search() {
    assert!(NOT_HTTP.is_sorted());
}
