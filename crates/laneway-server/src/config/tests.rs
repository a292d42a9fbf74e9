use std::ffi::OsString;

use super::key::{Form, Key};
use super::keys::KEYS;
use super::source::File;
use super::*;

fn file(text: &str) -> Inputs {
    Inputs::default().with_file(text)
}

impl Inputs {
    fn with_file(mut self, text: &str) -> Self {
        self.file = Some(File {
            path: "laneway.toml".into(),
            text: text.to_owned(),
        });
        self
    }

    fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    fn with_flag(mut self, name: &str, value: &str) -> Self {
        let key = Key::find(name).expect("a known key");
        self.flags.0.push((key, value.to_owned()));
        self
    }

    /// Everything that is wrong, one message each.
    fn complaints(self) -> Vec<String> {
        let problems = self.resolve().expect_err("something is wrong").0;
        problems.iter().map(ToString::to_string).collect()
    }
}

const FILE: &str = "[serve]\nlisten = \"127.0.0.1:1\"\n";
const VARIABLE: (&str, &str) = ("LANEWAY_SERVE__LISTEN", "127.0.0.1:2");
const FLAG: (&str, &str) = ("serve.listen", "127.0.0.1:3");

fn port_and_origin(inputs: Inputs) -> (u16, String) {
    let effective = inputs.resolve().expect("nothing is wrong");
    let origin = effective.origin("serve.listen").to_string();
    (effective.config.serve.listen.port(), origin)
}

#[test]
fn without_any_source_everything_is_default() {
    let effective = Inputs::default().resolve().expect("defaults are fine");
    assert_eq!(effective.config, Config::default());
    assert!(
        KEYS.iter()
            .all(|key| *effective.origin(key.name) == Origin::Default)
    );
}

#[test]
fn the_file_is_stronger_than_the_default() {
    let expected = (1, "laneway.toml:2".to_owned());
    assert_eq!(port_and_origin(file(FILE)), expected);
}

#[test]
fn the_environment_is_stronger_than_the_default() {
    let inputs = Inputs::default().with_variable(VARIABLE.0, VARIABLE.1);
    let expected = (2, "environment LANEWAY_SERVE__LISTEN".to_owned());
    assert_eq!(port_and_origin(inputs), expected);
}

#[test]
fn a_flag_is_stronger_than_the_default() {
    let inputs = Inputs::default().with_flag(FLAG.0, FLAG.1);
    assert_eq!(port_and_origin(inputs), (3, "flag --listen".to_owned()));
}

#[test]
fn the_environment_is_stronger_than_the_file() {
    let inputs = file(FILE).with_variable(VARIABLE.0, VARIABLE.1);
    assert_eq!(port_and_origin(inputs).0, 2);
}

#[test]
fn a_flag_is_stronger_than_the_file() {
    let inputs = file(FILE).with_flag(FLAG.0, FLAG.1);
    assert_eq!(port_and_origin(inputs).0, 3);
}

#[test]
fn a_flag_is_stronger_than_the_environment() {
    let inputs = Inputs::default()
        .with_flag(FLAG.0, FLAG.1)
        .with_variable(VARIABLE.0, VARIABLE.1);
    assert_eq!(port_and_origin(inputs).0, 3);
}

#[test]
fn sources_set_different_keys_side_by_side() {
    let effective = file("[serve]\nmax_connections = 7\n")
        .with_variable("LANEWAY_LOG__FORMAT", "json")
        .with_flag("log.level", "debug")
        .resolve()
        .expect("nothing is wrong");
    assert_eq!(effective.config.serve.max_connections, 7);
    assert_eq!(effective.config.log.format, LogFormat::Json);
    assert_eq!(effective.config.log.level, LogLevel::Debug);
    assert_eq!(*effective.origin("serve.header_timeout"), Origin::Default);
}

/// Each key, from each source, changes the configuration: no setting does nothing.
#[test]
fn every_key_can_be_set_from_every_source() {
    let values = [
        ("serve.listen", "0.0.0.0:80"),
        ("serve.max_connections", "3"),
        ("serve.header_timeout", "7ms"),
        ("serve.write_timeout", "1h"),
        ("serve.shutdown_timeout", "0s"),
        ("serve.max_body", "4096"),
        ("serve.data_dir", "/var/lib/laneway"),
        ("serve.bus", "nats://localhost:4222"),
        ("serve.roles", "receive,admin"),
        ("serve.log", "nats://localhost:4222"),
        ("serve.registry", "zookeeper://localhost:2181"),
        ("serve.backup", "rediss://localhost:6379"),
        ("serve.cluster", "blue"),
        ("serve.shards", "4"),
        ("serve.rpc_listen", "10.0.0.5:7071"),
        ("serve.rpc_address", "center-1.internal:7071"),
        ("serve.rpc_ca", "ca.pem"),
        ("serve.rpc_cert", "cert.pem"),
        ("serve.rpc_key", "key.pem"),
        ("serve.name", "center-1"),
        ("serve.sorakaq", "on"),
        ("serve.hosts", "delay.example"),
        ("delay.max_delay", "7d"),
        ("delay.retry", "1s,2s"),
        ("delay.topic_retry", "mail=1m,5m; orders=1s"),
        ("delay.keep_ended", "7d"),
        ("delay.clock_distrust", "10m"),
        ("callback.allow", "10.0.0.0/8, hooks.internal"),
        ("callback.timeout", "5s"),
        ("callback.per_host", "7"),
        ("callback.total", "70"),
        ("callback.secrets_file", "secrets"),
        ("callback.host_secrets", "a.example=a; b.example:8443=b"),
        ("callback.body", "envelope"),
        ("log.level", "trace"),
        ("log.filter", "laneway::http=debug,hyper=off"),
        ("log.format", "json"),
    ];
    assert_eq!(values.len(), KEYS.len(), "a value for every key");
    for (name, value) in values {
        let key = Key::find(name).expect(name);
        let literal = match key.form {
            Form::Text => format!("{value:?}"),
            Form::Integer | Form::Size => value.to_owned(),
        };
        let sources = [
            file(&format!("{name} = {literal}")),
            Inputs::default().with_variable(&key.variable(), value),
            Inputs::default().with_flag(name, value),
        ];
        for inputs in sources {
            let config = inputs.apply_all().expect(name).config;
            assert_ne!(config, Config::default(), "{name}");
            assert_eq!((key.show)(&config), value, "{name}");
        }
    }
}

#[test]
fn an_unknown_key_in_the_file_gets_the_nearest_name_and_its_line() {
    assert_eq!(
        file("# comment\n[serve]\nlisen = \"127.0.0.1:1\"\n").complaints(),
        ["laneway.toml:3: unknown key `serve.lisen`: did you mean `serve.listen`?"]
    );
}

#[test]
fn an_unknown_variable_gets_the_nearest_name() {
    for name in [
        "LANEWAY_SERVE__LISEN",
        "LANEWAY_SERVE_LISTEN",
        "LANEWAY_LISTEN",
        "LANEWAY_SERVER__LISTEN",
    ] {
        let complaints = Inputs::default()
            .with_variable(name, "127.0.0.1:1")
            .complaints();
        let expected =
            format!("unknown environment variable `{name}`: did you mean `LANEWAY_SERVE__LISTEN`?");
        assert_eq!(complaints, [expected]);
    }
}

#[test]
fn a_misplaced_or_misspelled_key_finds_its_home() {
    for (text, suggestion) in [
        ("listen = \"127.0.0.1:1\"", "serve.listen"),
        ("[server]\nlisten = \"127.0.0.1:1\"", "serve.listen"),
        ("[serve]\nlevel = \"info\"", "log.level"),
        ("[logging]\nformat = \"json\"", "log.format"),
        ("[serve]\nmax-connections = 3", "serve.max_connections"),
        ("[serve]\nmaxconnections = 3", "serve.max_connections"),
        (
            "[serve]\nshutdown_timout = \"1s\"",
            "serve.shutdown_timeout",
        ),
        ("[serve]\nHeader_Timeout = \"1s\"", "serve.header_timeout"),
    ] {
        let complaints = file(text).complaints();
        let expected = format!("did you mean `{suggestion}`?");
        assert!(complaints[0].ends_with(&expected), "{text}: {complaints:?}");
    }
}

#[test]
fn a_key_like_no_other_gets_the_list() {
    let complaints = file("[kafka]\nbrokers = 3").complaints();
    assert!(
        complaints[0].starts_with(
            "laneway.toml:2: unknown key `kafka.brokers`: there are only serve.listen, "
        ),
        "{complaints:?}"
    );
}

#[test]
fn an_empty_section_that_nobody_knows_is_refused_too() {
    let complaints = file("[kafka]\n").complaints();
    assert!(
        complaints[0].contains("unknown key `kafka`"),
        "{complaints:?}"
    );
    assert!(file("[serve]\n").resolve().is_ok());
}

#[test]
fn a_section_that_is_a_value_is_explained() {
    assert_eq!(
        file("serve = 3").complaints(),
        ["laneway.toml:1: `serve` is a section: write `[serve]`, and its keys below it"]
    );
}

#[test]
fn wrong_types_in_the_file_name_key_value_place_and_what_is_accepted() {
    for (text, complaint) in [
        (
            "[serve]\nlisten = 7070",
            "laneway.toml:2: `serve.listen` is 7070: expected an IP address and a port, such as \
             127.0.0.1:7070 or [::1]:7070 (a text, in quotes)",
        ),
        (
            "[serve]\nmax_connections = \"12\"",
            "laneway.toml:2: `serve.max_connections` is \"12\": expected a whole number from 1 to \
             1000000 (without quotes)",
        ),
        (
            "[serve]\nmax_connections = 1.5",
            "laneway.toml:2: `serve.max_connections` is of the type float: expected a whole \
             number from 1 to 1000000 (without quotes)",
        ),
        (
            "[log.level]\nx = 1",
            "laneway.toml:1: `log.level` is of the type table: expected off, error, warn, info, \
             debug or trace (a text, in quotes)",
        ),
    ] {
        assert_eq!(file(text).complaints(), [complaint]);
    }
}

#[test]
fn wrong_values_are_refused_from_every_source() {
    for (name, value) in [
        ("serve.listen", "localhost"),
        ("serve.listen", "127.0.0.1"),
        ("serve.listen", ""),
        ("serve.max_connections", "0"),
        ("serve.max_connections", "-1"),
        ("serve.max_connections", "1000001"),
        (
            "serve.max_connections",
            "99999999999999999999999999999999999999999999",
        ),
        ("serve.header_timeout", "0s"),
        ("serve.header_timeout", "10"),
        ("serve.header_timeout", "2h"),
        ("serve.shutdown_timeout", "soon"),
        ("serve.max_body", "1023"),
        ("serve.data_dir", ""),
        ("serve.bus", "kafka"),
        ("serve.sorakaq", "yes"),
        ("serve.roles", "none"),
        ("serve.roles", "receive,receive"),
        ("serve.log", "memory:"),
        ("serve.registry", "nats"),
        ("serve.backup", "redis://"),
        ("serve.backup", "localhost:6379"),
        ("serve.backup", "redis+sentinel://a"),
        ("serve.cluster", "a/b"),
        ("serve.shards", "0"),
        ("serve.rpc_listen", "localhost:1"),
        ("serve.rpc_address", "host"),
        ("serve.name", "a b"),
        ("delay.max_delay", "0s"),
        ("delay.retry", "1s,"),
        ("delay.topic_retry", "mail"),
        ("delay.keep_ended", "none"),
        ("callback.allow", "10.0.0.1/8"),
        ("callback.timeout", "6m"),
        ("callback.per_host", "0"),
        ("callback.total", "0"),
        ("callback.secrets_file", ""),
        ("callback.body", "xml"),
        ("log.level", "INFO"),
        ("log.format", "xml"),
    ] {
        let key = Key::find(name).expect(name);
        let literal = match key.form {
            Form::Text => format!("{value:?}"),
            Form::Integer | Form::Size => value.to_owned(),
        };
        let sources = [
            (
                file(&format!("{name} = {literal}")),
                "laneway.toml:1".to_owned(),
            ),
            (
                Inputs::default().with_variable(&key.variable(), value),
                format!("environment {}", key.variable()),
            ),
            (
                Inputs::default().with_flag(name, value),
                format!("flag --{}", key.flag),
            ),
        ];
        for (inputs, origin) in sources {
            let complaints = inputs.complaints();
            let start = format!("{origin}: `{name}` is ");
            assert!(complaints[0].starts_with(&start), "{complaints:?}");
            assert!(complaints[0].contains(value), "{complaints:?}");
            assert!(complaints[0].contains(key.accepts), "{complaints:?}");
        }
    }
}

#[test]
fn a_wrong_value_is_reported_even_where_a_stronger_source_hides_it() {
    let complaints = file("serve.listen = \"x\"")
        .with_flag(FLAG.0, FLAG.1)
        .complaints();
    assert_eq!(complaints.len(), 1);
}

#[test]
fn everything_that_is_wrong_is_reported_at_once_and_in_order() {
    let complaints = file("[serve]\nmax_connections = true\nlisen = \"x\"\n[log]\nlevel = 1\n")
        .with_variable("LANEWAY_LOG__FORMT", "json")
        .with_flag("serve.max_connections", "many")
        .complaints();
    let places: Vec<&str> = complaints
        .iter()
        .map(|complaint| complaint.split(": ").next().expect("a place"))
        .collect();
    assert_eq!(
        places,
        [
            "laneway.toml:2",
            "laneway.toml:3",
            "laneway.toml:5",
            "unknown environment variable `LANEWAY_LOG__FORMT`",
            "flag --max-connections",
        ]
    );
}

#[test]
fn broken_toml_names_the_line() {
    let complaints = file("[serve]\nlisten = \n").complaints();
    assert!(
        complaints[0].starts_with("laneway.toml:2: "),
        "{complaints:?}"
    );
}

#[test]
fn a_key_that_is_written_twice_is_refused() {
    let complaints = file("[log]\nlevel = \"info\"\nlevel = \"warn\"\n").complaints();
    assert!(
        complaints[0].starts_with("laneway.toml:3: "),
        "{complaints:?}"
    );
}

#[test]
fn toml_integers_of_any_notation_are_read() {
    let config = file("serve.max_connections = 0x1_00").resolve();
    assert_eq!(config.expect("256").config.serve.max_connections, 256);
}

#[test]
fn variables_that_are_not_settings_are_left_alone() {
    let inputs = Inputs::default()
        .with_variable("LANEWAY_CONFIG", "other.toml")
        .with_variable("LANEWAY_SERVER", "http://127.0.0.1:7070")
        .with_variable("LANEWAY_BUS", "memory:")
        .with_variable("LANEWAY_TEST_NATS", "nats://127.0.0.1:4222")
        .with_variable("LANEWAY_SERVICE_HOST", "10.0.0.1")
        .with_variable("LANEWAY_PORT_7070_TCP_ADDR", "10.0.0.1")
        .with_variable("LANEWAYS", "1")
        .with_variable("PATH", "/bin");
    assert!(inputs.resolve().is_ok());
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_utf8_is_named() {
    use std::os::unix::ffi::OsStringExt;

    let mut inputs = Inputs::default();
    let value = OsString::from_vec(vec![0xff]);
    inputs.environment.push((VARIABLE.0.into(), value));
    let complaints = inputs.complaints();
    assert!(complaints[0].contains("LANEWAY_SERVE__LISTEN is not valid UTF-8"));
}

#[test]
fn durations_of_settings_are_those_of_the_table() {
    let range = Duration::from_secs(1)..=Duration::from_hours(365 * 24);
    for (text, millis) in laneway_units::table::DURATIONS {
        let duration = Duration::from_millis(millis);
        if range.contains(&duration) {
            let flag = Inputs::default().with_flag("delay.keep_ended", text);
            let effective = flag.resolve().expect(text);
            assert_eq!(effective.config.delay.keep_ended, duration, "{text}");
        }
    }
    for text in laneway_units::table::NOT_DURATIONS {
        let complaints = Inputs::default()
            .with_variable("LANEWAY_DELAY__KEEP_ENDED", text)
            .complaints();
        assert!(
            complaints[0].contains(laneway_units::DURATION_EXAMPLES),
            "{text:?}: {complaints:?}"
        );
    }
}

#[test]
fn the_password_of_a_backup_is_shown_neither_by_the_configuration_nor_in_an_error() {
    let effective = Inputs::default()
        .with_flag("serve.log", "nats://a:1")
        .with_flag("serve.backup", "rediss://me:hunter2@a:1/2?ca=c.pem")
        .resolve()
        .expect("nothing is wrong");
    let shown = effective.show();
    assert!(shown.contains("rediss://***@a:1/2?ca=c.pem"), "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");
    let wrong = Inputs::default().with_flag("serve.backup", "rediz://me:hunter2@a:1");
    let complaints = wrong.complaints();
    assert!(complaints[0].contains("rediz://***@a:1"), "{complaints:?}");
}

#[test]
fn what_is_shown_says_where_it_came_from_and_can_be_read_again() {
    let effective = file("[serve]\nheader_timeout = \"1500ms\"\n")
        .with_variable("LANEWAY_LOG__LEVEL", "warn")
        .with_flag("serve.max_connections", "9")
        .resolve()
        .expect("nothing is wrong");
    let shown = effective.show();
    let line = |start: &str| {
        let line = shown.lines().find(|line| line.starts_with(start));
        line.unwrap_or_else(|| panic!("{start} is missing in:\n{shown}"))
    };
    assert!(line("header_timeout = \"1s500ms\"").ends_with("# laneway.toml:2"));
    assert!(line("level = \"warn\"").ends_with("# environment LANEWAY_LOG__LEVEL"));
    assert!(line("max_connections = 9").ends_with("# flag --max-connections"));
    assert!(line("listen = \"127.0.0.1:7070\"").ends_with("# default"));
    let again = file(&shown).resolve().expect("a valid file");
    assert_eq!(again.config, effective.config);
}
