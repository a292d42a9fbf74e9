//! Redis is up: it keeps what it is given.

mod wire;

use std::io::BufRead;

#[test]
fn a_value_comes_back() {
    let mut redis = wire::connect(&needs::service!("redis"));
    let key = format!("laneway:smoke:{}", std::process::id());
    let mut ask = |command: String, lines: usize| -> Vec<String> {
        wire::send(&mut redis, command.as_bytes());
        (0..lines)
            .map(|_| {
                let mut line = String::new();
                redis.read_line(&mut line).expect("Redis answers");
                line.trim_end().to_owned()
            })
            .collect()
    };
    assert_eq!(ask(format!("SET {key} kept EX 60\r\n"), 1), ["+OK"]);
    assert_eq!(ask(format!("GET {key}\r\n"), 2), ["$4", "kept"]);
    assert_eq!(ask(format!("DEL {key}\r\n"), 1), [":1"]);
}
