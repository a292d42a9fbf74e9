use std::path::{Path, PathBuf};
use std::process::Command;

use super::apt::Unpacked;
use super::java::Java;
use super::{on_path, run};
use crate::services::files;
use crate::services::place;
use crate::services::progress::Line;

/// Copies what a pom depends on into `folder`, unless that was done before.
pub(crate) fn fetch(
    line: &Line,
    java: &Java,
    pom: &str,
    properties: &[(&str, &str)],
    folder: &Path,
) -> anyhow::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let project = place::tools().join("maven");
    let partial = folder.with_added_extension("partial");
    files::make_folder(&project)?;
    files::write(&project.join("pom.xml"), pom)?;
    let mut maven = Command::new(program(line)?);
    java.tell(&mut maven)
        .current_dir(&project)
        .args(["--batch-mode", "--no-transfer-progress"])
        // The user's own repository is left alone.
        .arg(format!(
            "-Dmaven.repo.local={}",
            project.join("repository").display()
        ))
        .arg(format!("-DoutputDirectory={}", partial.display()))
        .args(
            properties
                .iter()
                .map(|(name, value)| format!("-D{name}={value}")),
        )
        .arg("dependency:copy-dependencies");
    run(line, "fetching jars with Maven", "maven", &mut maven)?;
    files::rename(&partial, folder)?;
    // All that is needed of it has been copied.
    files::remove_folder(&project)
}

fn program(line: &Line) -> anyhow::Result<PathBuf> {
    if let Some(program) = on_path("mvn") {
        return Ok(program);
    }
    let file = "usr/share/maven/bin/mvn";
    Ok(Unpacked::with(line, "maven", &["maven"], file)?.file)
}
