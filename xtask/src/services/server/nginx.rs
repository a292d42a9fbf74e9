//! nginx with one page. What tests need more is the program: they start it on files of their own,
//! with every path set in them, for the built-in ones lie outside the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Built;
use crate::services::files;
use crate::services::install::{apt::Unpacked, find};
use crate::services::ports;
use crate::services::site::Site;

pub(super) fn build(site: &Site<'_>) -> anyhow::Result<Built> {
    let program = program(site)?;
    site.line.say("starting");
    let port = ports::free(1)?[0];
    for name in site.nodes() {
        let folder = site.folder(&name)?;
        let file = folder.join("nginx.conf");
        files::write(&file, config(port, &folder))?;
        let mut nginx = Command::new(&program);
        nginx
            .arg("-p")
            .arg(&folder)
            .args(["-e", "stderr", "-c"])
            .arg(&file);
        site.start(&name, &mut nginx)?;
    }
    Ok(Built {
        address: format!("http://127.0.0.1:{port}"),
        version: None,
        program: Some(program),
    })
}

fn program(site: &Site<'_>) -> anyhow::Result<PathBuf> {
    if let Some(program) = find(site.service, "nginx") {
        return Ok(program);
    }
    let package = Unpacked::with(site.line, "nginx", &["nginx"], "usr/sbin/nginx")?;
    package.wrapper("nginx", &package.file)
}

fn config(port: u16, folder: &Path) -> String {
    // One process, which is the one we know and stop.
    format!(
        "\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{ return 200 \"nginx for the tests of laneway\\n\"; }}
  }}
}}
",
        folder = folder.display(),
    )
}
