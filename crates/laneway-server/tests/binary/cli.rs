//! The command line: what it teaches, what it refuses, and the configuration it reads.

use std::fs;
use std::process::{Command, Stdio};

use crate::harness::{empty_directory, laneway};
use tempfile::TempDir;

/// Exit code, standard output, standard error.
fn outcome(command: &mut Command) -> (i32, String, String) {
    let output = command.output().expect("the binary starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let code = output.status.code().expect("an exit code");
    (code, text(output.stdout), text(output.stderr))
}

fn directory_with(file: &str) -> TempDir {
    let directory = empty_directory();
    fs::write(directory.path().join("laneway.toml"), file).expect("written");
    directory
}

#[test]
fn help_teaches() {
    let (code, help, _) = outcome(laneway(&empty_directory()).arg("--help"));
    assert_eq!(code, 0);
    for lesson in [
        "Examples:",
        "laneway serve --listen 127.0.0.1:0",
        "laneway config check",
        "laneway.toml",
        "LANEWAY_CONFIG",
        "LANEWAY_SERVE__LISTEN",
        "laneway delay submit",
        "laneway dead list",
    ] {
        assert!(help.contains(lesson), "{lesson}:\n{help}");
    }
}

#[test]
fn help_of_serve_lists_every_setting_with_its_default() {
    let (code, help, _) = outcome(laneway(&empty_directory()).args(["serve", "--help"]));
    assert_eq!(code, 0);
    let shown = outcome(laneway(&empty_directory()).args(["config", "show"])).1;
    let settings = shown.lines().filter(|line| line.contains(" = "));
    let mut count = 0;
    for setting in settings {
        let value = setting
            .split(" = ")
            .nth(1)
            .and_then(|rest| rest.split("  #").next());
        let value = value.expect("a value").trim().trim_matches('"');
        assert!(
            help.contains(&format!("[default: {value}]")),
            "{setting}:\n{help}"
        );
        count += 1;
    }
    assert_eq!(help.matches("[default: ").count(), count);
}

#[test]
fn without_a_command_there_is_help() {
    let (code, _, error) = outcome(&mut laneway(&empty_directory()));
    assert_eq!(code, 2);
    assert!(error.contains("Usage: laneway"), "{error}");
}

#[test]
fn version_says_how_it_was_built() {
    let (code, version, _) = outcome(laneway(&empty_directory()).arg("--version"));
    assert_eq!(code, 0);
    let first = format!("laneway {}\n", env!("CARGO_PKG_VERSION"));
    assert!(version.starts_with(&first), "{version}");
    for line in ["target:", "profile:", "rustc:"] {
        assert!(version.contains(line), "{version}");
    }
}

#[test]
fn check_accepts_a_good_file() {
    let directory = directory_with("[log]\nlevel = \"warn\"\n");
    let (code, said, _) = outcome(laneway(&directory).args(["config", "check"]));
    assert_eq!(
        (code, said.as_str()),
        (0, "ok: laneway.toml; 1 key set, the others are defaults\n")
    );
}

#[test]
fn check_without_any_file_is_fine() {
    let (code, said, _) = outcome(laneway(&empty_directory()).args(["config", "check"]));
    assert_eq!(code, 0);
    assert!(said.contains("no configuration file"), "{said}");
}

#[test]
fn check_refuses_a_bad_file_and_says_all_that_is_wrong() {
    let directory = directory_with("[serve]\nlisen = \"x\"\n\n[log]\nlevel = 3\n");
    for arguments in [
        &["config", "check"][..],
        &["config", "check", "laneway.toml"],
    ] {
        let (code, said, error) = outcome(laneway(&directory).args(arguments));
        assert_eq!((code, said.as_str()), (1, ""));
        assert!(
            error.contains(
                "laneway.toml:2: unknown key `serve.lisen`: did you mean `serve.listen`?"
            ),
            "{error}"
        );
        assert!(
            error.contains("laneway.toml:5: `log.level` is 3"),
            "{error}"
        );
    }
}

#[test]
fn check_looks_at_the_environment_and_the_flags_too() {
    let directory = empty_directory();
    let (code, _, error) = outcome(
        laneway(&directory)
            .args(["config", "check", "--max-connections", "none"])
            .env("LANEWAY_SERVE__LISEN", "127.0.0.1:1"),
    );
    assert_eq!(code, 1);
    assert!(
        error.contains("did you mean `LANEWAY_SERVE__LISTEN`?"),
        "{error}"
    );
    assert!(
        error.contains("flag --max-connections: `serve.max_connections` is \"none\""),
        "{error}"
    );
}

/// `cargo run` hands on what the build script sets. None of that may look like a setting, or
/// `cargo run -- serve` would refuse to start.
#[test]
fn it_starts_in_the_environment_that_cargo_makes() {
    let directory = empty_directory();
    let (code, _, error) = outcome(
        Command::new(env!("CARGO_BIN_EXE_laneway"))
            .current_dir(directory.path())
            .env_remove("LANEWAY_CONFIG")
            .args(["config", "check"]),
    );
    assert_eq!(code, 0, "{error}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    for arguments in [
        &["config", "check", "missing.toml"][..],
        &["--config", "missing.toml", "serve"],
        &["serve", "--config", "missing.toml"],
    ] {
        let (code, _, error) = outcome(laneway(&empty_directory()).args(arguments));
        assert_eq!(code, 1);
        assert!(
            error.contains("cannot read the configuration file missing.toml"),
            "{error}"
        );
    }
}

#[test]
fn serve_refuses_a_bad_configuration_before_it_listens() {
    let directory = directory_with("[serve]\nlisten = 7070\n");
    let (code, said, error) = outcome(laneway(&directory).arg("serve"));
    assert_eq!((code, said.as_str()), (1, ""));
    assert!(
        error.contains("laneway.toml:2: `serve.listen` is 7070"),
        "{error}"
    );
}

#[test]
fn show_names_the_source_of_every_value() {
    let directory = directory_with("[serve]\nlisten = \"127.0.0.1:1\"\nmax_connections = 5\n");
    let (code, shown, _) = outcome(
        laneway(&directory)
            .args(["config", "show", "--log-level", "debug"])
            .env("LANEWAY_SERVE__MAX_CONNECTIONS", "6"),
    );
    assert_eq!(code, 0);
    let words: Vec<Vec<&str>> = shown
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    for line in [
        "listen = \"127.0.0.1:1\" # laneway.toml:2",
        "max_connections = 6 # environment LANEWAY_SERVE__MAX_CONNECTIONS",
        "level = \"debug\" # flag --log-level",
        "format = \"human\" # default",
    ] {
        let expected: Vec<&str> = line.split_whitespace().collect();
        assert!(words.contains(&expected), "{line}:\n{shown}");
    }
}

#[test]
fn what_show_prints_is_a_file_that_check_accepts() {
    let directory = empty_directory();
    let (_, shown, _) = outcome(laneway(&directory).args(["config", "show"]));
    fs::write(directory.path().join("laneway.toml"), shown).expect("written");
    let (code, said, error) = outcome(laneway(&directory).args(["config", "check"]));
    assert_eq!(code, 0, "{said}{error}");
}

#[test]
fn the_file_can_be_named_by_the_environment() {
    let directory = empty_directory();
    fs::write(directory.path().join("other.toml"), "log.level = \"off\"").expect("written");
    let (code, shown, _) = outcome(
        laneway(&directory)
            .args(["config", "show"])
            .env("LANEWAY_CONFIG", "other.toml"),
    );
    assert_eq!(code, 0);
    assert!(shown.contains("# other.toml:1"), "{shown}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let directory = empty_directory();
    let mut child = laneway(&directory)
        .args(["config", "show"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it exits");
    assert_eq!(output.status.code(), Some(0));
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn check_warns_of_an_address_that_others_reach() {
    let directory = directory_with("[serve]\nlisten = \"0.0.0.0:7070\"\n");
    let (code, said, _) = outcome(laneway(&directory).args(["config", "check"]));
    assert_eq!(code, 0);
    assert!(said.starts_with("ok: "), "{said}");
    assert!(
        said.contains(
            "warning: other machines may reach 0.0.0.0:7070 (serve.listen, laneway.toml:2)"
        ),
        "{said}"
    );
}

#[test]
fn sizes_are_numbers_or_texts_with_a_unit() {
    for (file, code) in [
        ("serve.max_body = \"16MiB\"", 0),
        ("serve.max_body = 65536", 0),
        ("serve.max_body = \"16 MiB\"", 1),
        ("serve.max_body = \"1B\"", 1),
    ] {
        let directory = directory_with(file);
        let (found, _, error) = outcome(laneway(&directory).args(["config", "check"]));
        assert_eq!(found, code, "{file}: {error}");
    }
}

#[test]
fn a_port_alone_is_answered_with_how_to_write_it() {
    let (code, _, error) = outcome(laneway(&empty_directory()).args(["serve", "--port", "7099"]));
    assert_eq!(code, 1);
    assert!(error.contains("127.0.0.1:7070"), "{error}");
}

#[test]
fn the_doctor_knows_directories_and_memory() {
    let directory = empty_directory();
    let (code, said, _) = outcome(laneway(&directory).args(["doctor", "memory:"]));
    assert_eq!(code, 0);
    assert!(said.contains("nothing to examine"), "{said}");
    let (code, said, _) = outcome(laneway(&directory).args(["doctor", "file:."]));
    assert_eq!(code, 0);
    assert!(
        said.contains("holds no store") && !said.contains("chmod"),
        "{said}"
    );
    fs::create_dir_all(directory.path().join("data/log")).expect("made");
    let (_, said, _) = outcome(laneway(&directory).args(["doctor", "file:data"]));
    assert!(
        said.contains("data is there") && said.contains("MiB are free"),
        "{said}"
    );
    let (code, said, _) = outcome(laneway(&directory).args(["doctor", "file:missing"]));
    assert_eq!(code, 1);
    assert!(said.contains("missing: No such file"), "{said}");
    let server = crate::harness::Server::start(&[]);
    let (code, said, _) = outcome(laneway(&directory).args(["doctor", &server.url()]));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("ready"), "{said}");
    let foreign = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = foreign.local_addr().expect("an address");
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for stream in foreign.incoming().take(3) {
            let mut stream = stream.expect("a client");
            let _ = stream.read(&mut vec![0; 4096]);
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    let url = format!("http://{address}");
    let (code, said, _) = outcome(laneway(&directory).args(["doctor", &url]));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("no laneway server"), "{said}");
}

#[test]
fn with_json_every_error_is_json() {
    let directory = empty_directory();
    let wrong: [(&[&str], i32, &str); 4] = [
        (&["delay", "list", "--json", "--nonsense"], 2, "usage"),
        (&["doctor", "--json"], 2, "usage"),
        (&["doctor", "file:missing", "--json"], 1, "failed"),
        (
            &["bus", "dead", "list", "t", "--bus", "gopher:x", "--json"],
            1,
            "failed",
        ),
    ];
    for (arguments, expected, name) in wrong {
        let (code, _, error) = outcome(laneway(&directory).args(arguments));
        assert_eq!(code, expected, "{arguments:?}: {error}");
        let said: serde_json::Value = serde_json::from_str(&error).expect(&error);
        assert_eq!(said["code"], name, "{arguments:?}: {error}");
        assert!(said["detail"].is_string(), "{arguments:?}: {error}");
    }
    // What is asked for is no error.
    let (code, said, _) = outcome(laneway(&directory).args(["doctor", "--json", "--help"]));
    assert_eq!(code, 0);
    assert!(said.contains("Usage"), "{said}");
}

#[test]
fn check_reads_the_files_of_secrets() {
    let directory = empty_directory();
    let check = ["config", "check", "--callback-secrets-file", "secrets"];
    let (code, _, error) = outcome(laneway(&directory).args(check));
    assert_eq!(code, 1);
    assert!(
        error.contains("cannot read secrets (callback.secrets_file)"),
        "{error}"
    );
    fs::write(directory.path().join("secrets"), "not a secret\n").expect("written");
    let (code, _, error) = outcome(laneway(&directory).args(check));
    assert_eq!(code, 1);
    assert!(
        error.contains("secrets:1 (callback.secrets_file)"),
        "{error}"
    );
    let good = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqr\n";
    fs::write(directory.path().join("secrets"), good).expect("written");
    let (code, _, error) = outcome(laneway(&directory).args(check));
    assert_eq!(code, 0, "{error}");
}
