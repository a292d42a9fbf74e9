use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// How many views are kept that were set aside, for people to look into.
const KEPT: usize = 2;

/// Renames the directory of a view that no process has open, so that an empty one can be made in its place. Of those
/// that were set aside before, only the latest is kept.
///
/// # Errors
/// When the system says no.
pub fn set_aside(directory: &Path, why: &dyn std::fmt::Display) -> Result<(), Error> {
    if !directory.exists() {
        return Ok(());
    }
    let doing = |doing: &str, path: &Path| {
        let doing = format!("{doing} {}", path.display());
        move |source: io::Error| laneway_disk::Error::Io { doing, source }
    };
    let mut earlier = earlier(directory).map_err(doing("listing what is beside", directory))?;
    let number = earlier.last().map_or(0, |(number, _)| *number) + 1;
    let aside = numbered(directory, number);
    tracing::warn!(
        directory = %directory.display(),
        aside = %aside.display(),
        %why,
        "setting aside the view of a shard, rebuilding it from the log"
    );
    fs::rename(directory, &aside).map_err(doing("setting aside", directory))?;
    earlier.truncate((earlier.len() + 1).saturating_sub(KEPT));
    for (_, path) in earlier {
        if let Err(error) = fs::remove_dir_all(&path) {
            tracing::warn!(directory = %path.display(), %error, "removing an old view failed");
        }
    }
    Ok(())
}

fn numbered(directory: &Path, number: u64) -> PathBuf {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    directory.with_file_name(format!("{name}.aside-{number}"))
}

/// What was set aside before, the earliest first.
fn earlier(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let prefix = format!("{name}.aside-");
    let beside = directory
        .parent()
        .filter(|path| !path.as_os_str().is_empty());
    let mut found = Vec::new();
    for entry in fs::read_dir(beside.unwrap_or(Path::new(".")))? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| {
            let number = name.to_str()?.strip_prefix(&prefix)?;
            number.parse::<u64>().ok()
        });
        found.extend(number.map(|number| (number, path.clone())));
    }
    found.sort();
    Ok(found)
}
