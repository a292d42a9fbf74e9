//! Debian packages, unpacked instead of installed.
//!
//! `apt-get` resolves and fetches what the system lacks, with lists and archives in our folder, and
//! `dpkg -x` unpacks it. No script of a package runs, so no daemon starts.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail};

use super::{on_path, output, run};
use crate::services::files;
use crate::services::place;
use crate::services::progress::Line;

/// Packages, and what they need and the system lacks, in a folder that looks like `/`.
#[derive(Debug, Clone)]
pub(crate) struct Unpacked {
    root: PathBuf,
    /// The file for whose sake they were fetched.
    pub(crate) file: PathBuf,
}

impl Unpacked {
    /// Fetches and unpacks packages for the sake of one file in them, unless that was done before.
    pub(crate) fn with(
        line: &Line,
        name: &str,
        packages: &[&str],
        file: &str,
    ) -> anyhow::Result<Self> {
        // apt-get works on one set of lists and archives.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

        let root = place::tools().join("debian").join(name);
        let unpacked = Self {
            file: root.join(file),
            root,
        };
        if unpacked.file.exists() {
            return Ok(unpacked);
        }
        if on_path("apt-get").is_none() || on_path("dpkg").is_none() {
            let package = packages.join(", ");
            bail!("{package} is not installed, and not to be had without apt-get and dpkg");
        }
        line.say("waiting for apt-get");
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);

        let apt = place::tools().join("apt");
        if !apt.join("lists").is_dir() {
            update(line, &apt, name)?;
        }
        if download(line, &apt, name, packages).is_err() {
            // The lists may be older than what the mirror still has.
            update(line, &apt, name)?;
            download(line, &apt, name, packages)?;
        }
        unpack(line, &apt, &unpacked.root)?;
        if !unpacked.file.exists() {
            bail!("apt-get takes it for installed, but /{file} is missing; reinstall it");
        }
        Ok(unpacked)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Where the shared libraries among it are: in the folders of the architecture, and one level
    /// below, where packages keep those that they alone use.
    pub(super) fn libraries(&self) -> Vec<PathBuf> {
        let common: Vec<PathBuf> = ["usr/lib", "lib"]
            .into_iter()
            .flat_map(|folder| folders(&self.root.join(folder)))
            .filter(|folder| folder.to_string_lossy().ends_with("-linux-gnu"))
            .collect();
        let private: Vec<PathBuf> = common
            .iter()
            .flat_map(|folder| folders(folder))
            .filter(|folder| has_libraries(folder))
            .collect();
        [common, private].concat()
    }
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect()
}

fn has_libraries(folder: &Path) -> bool {
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.any(|entry| entry.file_name().to_string_lossy().contains(".so"))
}

fn apt_get(apt: &Path) -> Command {
    let mut command = Command::new("apt-get");
    let option = |name: &str, path: &Path| format!("{name}={}", path.display());
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args([
            "-q",
            "-y",
            "-o",
            "Debug::NoLocking=1",
            "-o",
            "APT::Sandbox::User=",
        ])
        .args([
            "-o",
            "Acquire::Retries=2",
            "-o",
            "Acquire::http::Timeout=30",
        ])
        .args(["-o", &option("Dir::State::lists", &apt.join("lists"))])
        .args(["-o", &option("Dir::Cache", apt)])
        .args(["-o", &option("Dir::Cache::archives", &apt.join("archives"))]);
    command
}

fn update(line: &Line, apt: &Path, name: &str) -> anyhow::Result<()> {
    files::make_folder(&apt.join("lists/partial"))?;
    run(
        line,
        "apt-get update",
        &format!("{name}-update"),
        apt_get(apt).arg("update"),
    )
}

fn download(line: &Line, apt: &Path, name: &str, packages: &[&str]) -> anyhow::Result<()> {
    let archives = apt.join("archives");
    files::remove_folder(&archives)?;
    files::make_folder(&archives.join("partial"))?;
    let mut command = apt_get(apt);
    command
        .args(["--no-install-recommends", "--download-only", "install"])
        .args(packages);
    let what = format!("fetching Debian packages: {}", packages.join(", "));
    run(line, &what, &format!("{name}-download"), &mut command)
}

fn unpack(line: &Line, apt: &Path, root: &Path) -> anyhow::Result<()> {
    let archives = apt.join("archives");
    let partial = root.with_added_extension("partial");
    files::remove_folder(root)?;
    files::remove_folder(&partial)?;
    files::make_folder(&partial)?;
    line.say("unpacking");
    for archive in fs::read_dir(&archives)? {
        let archive = archive?.path();
        if archive
            .extension()
            .is_some_and(|extension| extension == "deb")
        {
            output(Command::new("dpkg").arg("-x").arg(&archive).arg(&partial))?;
        }
    }
    mend_links(&partial, &partial).context("mending links")?;
    // Last, so that the folder is either whole or not there.
    files::rename(&partial, root)?;
    files::remove_folder(&archives)
}

/// Points links at what they mean: a file among the unpacked ones, or else one of the system.
fn mend_links(folder: &Path, root: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_symlink() {
            let inside = path.strip_prefix(root)?;
            let meant = resolved(inside, &fs::read_link(&path)?);
            let target = if root.join(&meant).symlink_metadata().is_ok() {
                let up = inside.components().skip(1).map(|_| Component::ParentDir);
                // Relative, so that the whole folder can be moved.
                up.collect::<PathBuf>().join(&meant)
            } else {
                Path::new("/").join(&meant)
            };
            fs::remove_file(&path)?;
            std::os::unix::fs::symlink(target, &path)?;
        } else if path.is_dir() {
            mend_links(&path, root)?;
        }
    }
    Ok(())
}

/// What a link at `path` would mean if its package were installed, without the leading slash.
fn resolved(path: &Path, link: &Path) -> PathBuf {
    let mut meant = match path.parent() {
        Some(folder) if link.is_relative() => folder.to_owned(),
        _ => PathBuf::new(),
    };
    for component in link.components() {
        match component {
            Component::ParentDir => {
                meant.pop();
            }
            Component::Normal(name) => meant.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    meant
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_mean_what_they_would_mean_when_installed() {
        let resolve = |path: &str, link: &str| resolved(Path::new(path), Path::new(link));
        assert_eq!(
            resolve("usr/bin/server", "check"),
            Path::new("usr/bin/check")
        );
        assert_eq!(
            resolve("usr/share/m/lib/a.jar", "../../java/a.jar"),
            Path::new("usr/share/java/a.jar")
        );
        assert_eq!(
            resolve("usr/lib/jvm/conf", "/etc/java"),
            Path::new("etc/java")
        );
        assert_eq!(resolve("a", "../../../etc/x"), Path::new("etc/x"));
    }

    #[test]
    fn mended_links_lead_to_the_unpacked_files_or_the_system() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::create_dir_all(root.join("usr/bin")).unwrap();
        fs::write(root.join("etc/conf"), "text").unwrap();
        let link = |target: &str, path: &str| {
            std::os::unix::fs::symlink(target, root.join(path)).unwrap();
        };
        link("/etc/conf", "usr/bin/ours");
        link("ours", "usr/bin/chain");
        link("../../not-here", "usr/bin/theirs");
        mend_links(&root, &root).unwrap();
        let moved = folder.path().join("moved");
        fs::rename(&root, &moved).unwrap();
        assert_eq!(
            fs::read_to_string(moved.join("usr/bin/chain")).unwrap(),
            "text"
        );
        assert_eq!(
            fs::read_link(moved.join("usr/bin/theirs")).unwrap(),
            Path::new("/not-here")
        );
    }
}
