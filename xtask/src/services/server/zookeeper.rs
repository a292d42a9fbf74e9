//! One `ZooKeeper` server.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::Built;
use crate::services::files;
use crate::services::install::{apt::Unpacked, java::Java};
use crate::services::place;
use crate::services::ports;
use crate::services::site::Site;

/// The package with the server, and the one with a logger for it.
const PACKAGES: [&str; 2] = ["libzookeeper-java", "libslf4j-java"];

/// The server's jar and what it loads; its administration page and shell are not used.
const JARS: [&str; 11] = [
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "slf4j-simple",
    "metrics-core",
    "snappy-java",
    "commons-io",
    "netty-buffer",
    "netty-common",
    "netty-handler",
    "netty-transport",
];

pub(super) fn build(site: &Site<'_>) -> anyhow::Result<Built> {
    let java = Java::find(site.line)?;
    let class_path = class_path(site)?;
    site.line.say("starting");
    let port = ports::free(1)?[0];
    for name in site.nodes() {
        let folder = site.folder(&name)?;
        let file = folder.join("zoo.cfg");
        files::write(&file, config(port, &folder))?;
        let mut server = java.command(&class_path);
        server
            .current_dir(&folder)
            .args([
                "-Xmx256m",
                "-XX:+UseSerialGC",
                "-Dorg.slf4j.simpleLogger.showDateTime=true",
            ])
            .arg("org.apache.zookeeper.server.ZooKeeperServerMain")
            .arg(&file);
        site.start(&name, &mut server)?;
    }
    let settings = "-Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1";
    let bin = place::tools().join("bin");
    files::make_folder(&bin)?;
    let program = java.launcher(&bin.join("zookeeper"), &class_path, settings)?;
    Ok(Built {
        address: format!("127.0.0.1:{port}"),
        version: None,
        program: Some(program),
    })
}

/// The jars, fetched or installed. A fetched package may need an installed one.
fn class_path(site: &Site<'_>) -> anyhow::Result<String> {
    let installed = PathBuf::from("/usr/share/java");
    let mut folders = vec![installed];
    if !folders[0].join("zookeeper.jar").exists() {
        let file = "usr/share/java/zookeeper.jar";
        let package = Unpacked::with(site.line, "zookeeper", &PACKAGES, file)?;
        let folder = package.file.parent().map(Path::to_owned);
        folders = folder.into_iter().chain(folders).collect();
    }
    let jars = JARS.map(|name| {
        let file = format!("{name}.jar");
        let found = folders
            .iter()
            .map(|folder| folder.join(&file))
            .find(|jar| jar.exists());
        found
            .map(|jar| jar.display().to_string())
            .with_context(|| format!("{file} is missing"))
    });
    Ok(jars
        .into_iter()
        .collect::<anyhow::Result<Vec<_>>>()?
        .join(":"))
}

fn config(port: u16, folder: &Path) -> String {
    format!(
        "\
dataDir={folder}
clientPort={port}
clientPortAddress=127.0.0.1
# Lets tests have sessions of a second, and long ones too.
tickTime=500
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
",
        folder = folder.display(),
    )
}
