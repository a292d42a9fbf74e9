//! The blocks of the README do what it says, pasted as they are.

#[path = "binary/harness.rs"]
#[expect(dead_code, reason = "shared with the tests of the binary")]
mod harness;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::empty_directory;

const README: &str = include_str!("../../../README.md");

/// The blocks of a language, in order.
fn blocks(language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    README
        .split(&fence)
        .skip(1)
        .filter_map(|rest| rest.split_once("\n```"))
        .map(|(block, _)| block.to_owned())
        .collect()
}

/// With ports that nobody has, so that it runs beside other tests.
fn script() -> String {
    let free = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        listener.local_addr().expect("bound").port().to_string()
    };
    let (server, receiver) = (free(), free());
    let blocks = blocks("sh").join("\n");
    assert!(blocks.contains("laneway listen 8000 &"), "{blocks}");
    let lines = blocks.lines().map(|line| match line {
        "laneway serve &" => format!("laneway serve --listen 127.0.0.1:{server} &"),
        line if line.contains("laneway delay ") => {
            format!("{line} --server http://127.0.0.1:{server}")
        }
        line => line.to_owned(),
    });
    let lines: Vec<String> = lines.collect();
    lines
        .join("\n")
        .replace("7070", &server)
        .replace("8000", &receiver)
}

#[test]
fn the_two_minutes_work_as_pasted() {
    let directory = empty_directory();
    let binary = Path::new(env!("CARGO_BIN_EXE_laneway"));
    let path = format!(
        "{}:{}",
        binary.parent().expect("a directory").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    // Stops at the first command that fails, with a deadline over all of them.
    let script = format!(
        "set -em\ntrap 'kill %2 %1 2>/dev/null' EXIT\n{}\nwait",
        script()
    );
    let mut command = Command::new("timeout");
    command.args(["60", "bash", "-c", &script]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LANEWAY_") {
            command.env_remove(name);
        }
    }
    let output = command
        .env("PATH", path)
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .output()
        .expect("bash is there");
    let said = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    for part in [
        "waiting for callbacks on http://127.0.0.1:",
        "is listening on http://127.0.0.1:",
        "\"duplicate\":false",
        "POST /hook  id ",
        "{\"cart\": 17}",
        "accepted: cart-17, due ",
        "extended: cart-17, due ",
        "withdrawn: cart-17",
    ] {
        assert!(said.contains(part), "{part}:\n{said}\n{log}");
    }
}

/// Nothing that is pasted may open this machine to others, or take minutes before the next line can work.
#[test]
fn nothing_in_it_listens_for_other_machines() {
    for block in [blocks("sh"), blocks("console")].concat() {
        for word in ["0.0.0.0", "http.server", "cargo run --release -- serve &"] {
            assert!(!block.contains(word), "{word}:\n{block}");
        }
    }
}
