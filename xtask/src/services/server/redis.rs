//! Redis that has every write on the disk before it answers.

use std::path::PathBuf;
use std::process::Command;

use super::Built;
use crate::services::install::{apt::Unpacked, find};
use crate::services::ports;
use crate::services::site::Site;

pub(super) fn build(site: &Site<'_>) -> anyhow::Result<Built> {
    let program = program(site)?;
    site.line.say("starting");
    let port = ports::free(1)?[0];
    for name in site.nodes() {
        let folder = site.folder(&name)?;
        let mut redis = Command::new(&program);
        redis
            .current_dir(&folder)
            .args([
                "--bind",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--daemonize",
                "no",
            ])
            .args([
                "--appendonly",
                "yes",
                "--appendfsync",
                "always",
                "--save",
                "",
                "--dir",
            ])
            .arg(&folder);
        site.start(&name, &mut redis)?;
    }
    Ok(Built {
        address: format!("redis://127.0.0.1:{port}"),
        version: None,
        program: Some(program),
    })
}

fn program(site: &Site<'_>) -> anyhow::Result<PathBuf> {
    if let Some(program) = find(site.service, "redis-server") {
        return Ok(program);
    }
    let file = "usr/bin/redis-server";
    let package = Unpacked::with(site.line, "redis", &["redis-server"], file)?;
    package.wrapper("redis-server", &package.file)
}
