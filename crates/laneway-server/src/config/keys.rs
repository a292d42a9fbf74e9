//! The table of all settings.

use std::time::Duration;

use laneway_delay::callback::Body;

use super::key::{Form, Key};
use super::roles::{Registry, Roles};
use super::value::{self, HostNames, LogFilter, LogFormat, LogLevel, Reach};

const HOUR: Duration = Duration::from_hours(1);
const YEAR: Duration = Duration::from_hours(365 * 24);

pub(crate) static KEYS: [Key; 37] = [
    Key {
        name: "serve.listen",
        flag: "listen",
        placeholder: "ADDRESS",
        help: "Where the HTTP server listens. Port 0 takes any free port",
        accepts: "an IP address and a port, such as 127.0.0.1:7070 or [::1]:7070",
        form: Form::Text,
        read: |config, text| value::set(&mut config.serve.listen, text.parse().ok()),
        show: |config| config.serve.listen.to_string(),
    },
    Key {
        name: "serve.max_connections",
        flag: "max-connections",
        placeholder: "COUNT",
        help: "How many connections may be open at the same time; the next ones wait",
        accepts: "a whole number from 1 to 1000000",
        form: Form::Integer,
        read: |config, text| {
            let count = value::count(text, 1..=1_000_000);
            value::set(&mut config.serve.max_connections, count)
        },
        show: |config| config.serve.max_connections.to_string(),
    },
    Key {
        name: "serve.header_timeout",
        flag: "header-timeout",
        placeholder: "TIME",
        help: "How long a client may take to send a request head, or idle between two requests",
        accepts: "a duration from 1ms to 1h, like 90s, 1h30m, 2w or PT5M",
        form: Form::Text,
        read: |config, text| {
            let time = value::time(text, Duration::from_millis(1)..=HOUR);
            value::set(&mut config.serve.header_timeout, time)
        },
        show: |config| laneway_units::format_duration(config.serve.header_timeout),
    },
    Key {
        name: "serve.write_timeout",
        flag: "write-timeout",
        placeholder: "TIME",
        help: "How long a client may leave its answer unread before it is cut off",
        accepts: "a duration from 1ms to 1h, like 90s, 1h30m, 2w or PT5M",
        form: Form::Text,
        read: |config, text| {
            let time = value::time(text, Duration::from_millis(1)..=HOUR);
            value::set(&mut config.serve.write_timeout, time)
        },
        show: |config| laneway_units::format_duration(config.serve.write_timeout),
    },
    Key {
        name: "serve.shutdown_timeout",
        flag: "shutdown-timeout",
        placeholder: "TIME",
        help: "How long requests in flight may take to finish once the server is told to stop",
        accepts: "a duration from 0s to 1h, like 90s, 1h30m, 2w or PT5M",
        form: Form::Text,
        read: |config, text| {
            let time = value::time(text, Duration::ZERO..=HOUR);
            value::set(&mut config.serve.shutdown_timeout, time)
        },
        show: |config| laneway_units::format_duration(config.serve.shutdown_timeout),
    },
    Key {
        name: "serve.max_body",
        flag: "max-body",
        placeholder: "BYTES",
        help: "The largest request body; a larger one is answered with 413",
        accepts: "a number of bytes from 1024 to 268435456, such as 65536 or 16MiB",
        form: Form::Size,
        read: |config, text| {
            let bytes = value::size(text, 1_024..=256 << 20);
            value::set(&mut config.serve.max_body, bytes)
        },
        show: |config| config.serve.max_body.to_string(),
    },
    Key {
        name: "serve.data_dir",
        flag: "data-dir",
        placeholder: "DIRECTORY",
        help: "Where messages are kept. It is made if it is not there; one server owns it at a time",
        accepts: "the name of a directory",
        form: Form::Text,
        read: |config, text| value::set(&mut config.serve.data_dir, value::path(text)),
        show: |config| config.serve.data_dir.display().to_string(),
    },
    Key {
        name: "serve.bus",
        flag: "bus",
        placeholder: "URL",
        help: "The bus that messages can be published to; with `none` there are callbacks only",
        accepts: "none, or the address of a bus, such as kafka://localhost:9092 or nats://localhost:4222",
        form: Form::Text,
        read: |config, text| {
            let address = |text: &str| text.contains(':').then(|| text.to_owned());
            value::set_optional(&mut config.serve.bus, text, address)
        },
        show: |config| value::show_optional(config.serve.bus.as_ref(), String::clone),
    },
    Key {
        name: "serve.sorakaq",
        flag: "sorakaq",
        placeholder: "SWITCH",
        help: "Whether the routes of SorakaQ (/sorakaq/msg/...) are served too",
        accepts: "on or off",
        form: Form::Text,
        read: |config, text| value::set(&mut config.serve.sorakaq, value::switch(text)),
        show: |config| value::show_switch(config.serve.sorakaq),
    },
    Key {
        name: "serve.hosts",
        flag: "hosts",
        placeholder: "NAMES",
        help: "The names that clients reach this server by; addresses and localhost need not be named",
        accepts: "none, or names with commas, such as delay.example.com, laneway",
        form: Form::Text,
        read: |config, text| value::set(&mut config.serve.hosts, HostNames::parse(text)),
        show: |config| config.serve.hosts.show(),
    },
    Key {
        name: "serve.roles",
        flag: "roles",
        placeholder: "ROLES",
        help: "What this process does: take messages (receive), decide and keep them (center), deliver them (worker), show the cluster (admin). Fewer than all need --log",
        accepts: "roles with commas, such as receive,center,worker,admin",
        form: Form::Text,
        read: |config, text| value::set(&mut config.serve.roles, Roles::parse(text)),
        show: |config| config.serve.roles.show(),
    },
    Key {
        name: "serve.log",
        flag: "log",
        placeholder: "URL",
        help: "The broker that the servers of a cluster share: it keeps their messages. With `none` this server is alone, and keeps them in the data directory",
        accepts: "none, or kafka://HOST:PORT or nats://HOST:PORT",
        form: Form::Text,
        read: |config, text| value::set_optional(&mut config.serve.log, text, value::broker),
        show: |config| value::show_optional(config.serve.log.as_ref(), String::clone),
    },
    Key {
        name: "serve.registry",
        flag: "registry",
        placeholder: "URL",
        help: "Where the servers of a cluster find each other; `auto` is the NATS of --log, or this process if it has all roles",
        accepts: "auto, local, zookeeper://HOST:PORT or nats://HOST:PORT",
        form: Form::Text,
        read: |config, text| value::set(&mut config.serve.registry, Registry::parse(text)),
        show: |config| config.serve.registry.show(),
    },
    Key {
        name: "serve.backup",
        flag: "backup",
        placeholder: "URL",
        help: "A Redis that a center copies its shards to, and restores a lost view from. Nothing is decided by it",
        accepts: "none, or redis://HOST:PORT, rediss:// for TLS, redis+cluster:// or rediss+cluster:// for a Redis Cluster",
        form: Form::Text,
        read: |config, text| value::set_optional(&mut config.serve.backup, text, value::redis),
        show: |config| value::show_optional(config.serve.backup.as_ref(), String::clone),
    },
    Key {
        name: "serve.cluster",
        flag: "cluster",
        placeholder: "NAME",
        help: "The name of the cluster: servers of another one are refused",
        accepts: "1 to 64 letters, digits, - and _",
        form: Form::Text,
        read: |config, text| value::set(&mut config.serve.cluster, value::word(text)),
        show: |config| config.serve.cluster.clone(),
    },
    Key {
        name: "serve.shards",
        flag: "shards",
        placeholder: "COUNT",
        help: "Into how many parts the messages of a cluster are split. Fixed when its topics are made",
        accepts: "a whole number from 1 to 1024",
        form: Form::Integer,
        read: |config, text| value::set(&mut config.serve.shards, value::count(text, 1..=1_024)),
        show: |config| config.serve.shards.to_string(),
    },
    Key {
        name: "serve.rpc_listen",
        flag: "rpc-listen",
        placeholder: "ADDRESS",
        help: "Where a center or worker listens for the other servers of its cluster. Port 0 takes any free port",
        accepts: "an IP address and a port, such as 10.0.0.5:7071 or 127.0.0.1:0",
        form: Form::Text,
        read: |config, text| value::set(&mut config.serve.rpc_listen, text.parse().ok()),
        show: |config| config.serve.rpc_listen.to_string(),
    },
    Key {
        name: "serve.rpc_address",
        flag: "rpc-address",
        placeholder: "HOST:PORT",
        help: "The address that the other servers are told; `auto` is the one of --rpc-listen",
        accepts: "auto, or a host and a port, such as center-1.internal:7071",
        form: Form::Text,
        read: |config, text| {
            value::set_auto(&mut config.serve.rpc_address, text, value::host_and_port)
        },
        show: |config| value::show_auto(config.serve.rpc_address.as_ref()),
    },
    Key {
        name: "serve.rpc_ca",
        flag: "rpc-ca",
        placeholder: "FILE",
        help: "The certificates that the other servers have to be signed by, in PEM",
        accepts: "none, or the name of a file",
        form: Form::Text,
        read: |config, text| value::set_optional(&mut config.serve.rpc_ca, text, value::path),
        show: |config| {
            value::show_optional(config.serve.rpc_ca.as_ref(), |file| {
                file.display().to_string()
            })
        },
    },
    Key {
        name: "serve.rpc_cert",
        flag: "rpc-cert",
        placeholder: "FILE",
        help: "The certificate of this server for the other ones, in PEM",
        accepts: "none, or the name of a file",
        form: Form::Text,
        read: |config, text| value::set_optional(&mut config.serve.rpc_cert, text, value::path),
        show: |config| {
            value::show_optional(config.serve.rpc_cert.as_ref(), |file| {
                file.display().to_string()
            })
        },
    },
    Key {
        name: "serve.rpc_key",
        flag: "rpc-key",
        placeholder: "FILE",
        help: "The key of that certificate, in PEM",
        accepts: "none, or the name of a file",
        form: Form::Text,
        read: |config, text| value::set_optional(&mut config.serve.rpc_key, text, value::path),
        show: |config| {
            value::show_optional(config.serve.rpc_key.as_ref(), |file| {
                file.display().to_string()
            })
        },
    },
    Key {
        name: "serve.name",
        flag: "name",
        placeholder: "NAME",
        help: "What this server is called in a cluster, for people; `auto` is the name of the machine",
        accepts: "auto, or 1 to 64 letters, digits, -, _ and .",
        form: Form::Text,
        read: |config, text| value::set_auto(&mut config.serve.name, text, value::name),
        show: |config| value::show_auto(config.serve.name.as_ref()),
    },
    Key {
        name: "delay.max_delay",
        flag: "max-delay",
        placeholder: "TIME",
        help: "The longest delay that is accepted",
        accepts: "none, or a duration from 1s to 36500d, like 90s, 1h30m, 2w or PT5M",
        form: Form::Text,
        read: |config, text| {
            let time = |text: &str| value::time(text, Duration::from_secs(1)..=100 * YEAR);
            value::set_optional(&mut config.delay.longest, text, time)
        },
        show: |config| {
            value::show_optional(config.delay.longest.as_ref(), |time| {
                laneway_units::format_duration(*time)
            })
        },
    },
    Key {
        name: "delay.retry",
        flag: "retry",
        placeholder: "TIMES",
        help: "The waits between attempts; after the last one a message is a dead letter",
        accepts: "none, or up to 32 durations of at most 30d, such as 1s,10s,1m",
        form: Form::Text,
        read: |config, text| value::set(&mut config.delay.retry, value::waits(text)),
        show: |config| value::show_waits(&config.delay.retry),
    },
    Key {
        name: "delay.topic_retry",
        flag: "topic-retry",
        placeholder: "TIMES",
        help: "The waits between attempts of the messages of some topics",
        accepts: "none, or topics and their waits, such as `mail=1m,5m; orders=1s`",
        form: Form::Text,
        read: |config, text| value::set(&mut config.delay.topic_retry, value::waits_by_topic(text)),
        show: |config| value::show_waits_by_topic(&config.delay.topic_retry),
    },
    Key {
        name: "delay.keep_ended",
        flag: "keep-ended",
        placeholder: "TIME",
        help: "How long messages are kept that were delivered or withdrawn; dead ones stay",
        accepts: "a duration from 1s to 365d, like 90s, 1h30m, 2w or PT5M",
        form: Form::Text,
        read: |config, text| {
            let time = value::time(text, Duration::from_secs(1)..=YEAR);
            value::set(&mut config.delay.keep_ended, time)
        },
        show: |config| laneway_units::format_duration(config.delay.keep_ended),
    },
    Key {
        name: "delay.clock_distrust",
        flag: "clock-distrust",
        placeholder: "TIME",
        help: "For how long a wall clock that was set ahead is not believed, at most",
        accepts: "a time from 1s to 365d, such as 10m or 1h",
        form: Form::Text,
        read: |config, text| {
            let time = value::time(text, Duration::from_secs(1)..=YEAR);
            value::set(&mut config.delay.clock_distrust, time)
        },
        show: |config| laneway_units::format_duration(config.delay.clock_distrust),
    },
    Key {
        name: "callback.allow",
        flag: "callback-allow",
        placeholder: "LIST",
        help: "Whom callbacks may reach beside public addresses; `auto` is this machine as long as \
               the server listens on a loopback address, and nothing otherwise",
        accepts: "auto, none, or ranges and hosts with commas, such as 10.0.0.0/8, hooks.internal",
        form: Form::Text,
        read: |config, text| value::set(&mut config.callback.allow, Reach::parse(text)),
        show: |config| config.callback.allow.show(),
    },
    Key {
        name: "callback.timeout",
        flag: "callback-timeout",
        placeholder: "TIME",
        help: "How long a receiver may take to answer, where the message does not say",
        accepts: "a duration from 1ms to 5m, like 90s, 1h30m, 2w or PT5M",
        form: Form::Text,
        read: |config, text| {
            let time = value::time(text, Duration::from_millis(1)..=Duration::from_mins(5));
            value::set(&mut config.callback.timeout, time)
        },
        show: |config| laneway_units::format_duration(config.callback.timeout),
    },
    Key {
        name: "callback.per_host",
        flag: "callbacks-per-host",
        placeholder: "COUNT",
        help: "How many callbacks to one host may run at the same time",
        accepts: "a whole number from 1 to 10000",
        form: Form::Integer,
        read: |config, text| {
            value::set(
                &mut config.callback.per_host,
                value::count(text, 1..=10_000),
            )
        },
        show: |config| config.callback.per_host.to_string(),
    },
    Key {
        name: "callback.total",
        flag: "callbacks",
        placeholder: "COUNT",
        help: "How many callbacks may run at the same time",
        accepts: "a whole number from 1 to 100000",
        form: Form::Integer,
        read: |config, text| {
            value::set(&mut config.callback.total, value::count(text, 1..=100_000))
        },
        show: |config| config.callback.total.to_string(),
    },
    Key {
        name: "callback.secrets_file",
        flag: "callback-secrets-file",
        placeholder: "FILE",
        help: "A file with the secrets that callbacks are signed with, one `whsec_...` a line",
        accepts: "none, or the name of a file",
        form: Form::Text,
        read: |config, text| {
            value::set_optional(&mut config.callback.secrets_file, text, value::path)
        },
        show: |config| {
            let file = config.callback.secrets_file.as_ref();
            value::show_optional(file, |file| file.display().to_string())
        },
    },
    Key {
        name: "callback.host_secrets",
        flag: "callback-host-secrets",
        placeholder: "LIST",
        help: "Hosts whose callbacks are signed with secrets of their own, and the files that those are in",
        accepts: "none, or hosts and files, such as `hooks.example.com=a.secrets; 10.0.0.7:8080=b.secrets`",
        form: Form::Text,
        read: |config, text| {
            value::set(
                &mut config.callback.host_secrets,
                value::files_by_host(text),
            )
        },
        show: |config| value::show_files_by_host(&config.callback.host_secrets),
    },
    Key {
        name: "callback.body",
        flag: "callback-body",
        placeholder: "FORM",
        help: "What the body of a callback is: the payload as it was submitted, or a JSON object \
               with id, topic, due time, attempt, metadata and payload",
        accepts: "payload or envelope",
        form: Form::Text,
        read: |config, text| value::set(&mut config.callback.body, Body::from_name(text)),
        show: |config| config.callback.body.name().to_owned(),
    },
    Key {
        name: "log.level",
        flag: "log-level",
        placeholder: "LEVEL",
        help: "How much is logged to standard error",
        accepts: "off, error, warn, info, debug or trace",
        form: Form::Text,
        read: |config, text| value::set(&mut config.log.level, LogLevel::parse(text)),
        show: |config| config.log.level.name().to_owned(),
    },
    Key {
        name: "log.filter",
        flag: "log-filter",
        placeholder: "LIST",
        help: "Levels of single parts of the program, beside --log-level",
        accepts: "none, or parts and levels with commas, such as laneway::http=debug,async_nats=off",
        form: Form::Text,
        read: |config, text| value::set(&mut config.log.filter, LogFilter::parse(text)),
        show: |config| config.log.filter.show(),
    },
    Key {
        name: "log.format",
        flag: "log-format",
        placeholder: "FORMAT",
        help: "How log lines look: for people, or one JSON object a line",
        accepts: "human or json",
        form: Form::Text,
        read: |config, text| value::set(&mut config.log.format, LogFormat::parse(text)),
        show: |config| config.log.format.name().to_owned(),
    },
];
