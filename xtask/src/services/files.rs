//! `std::fs` with errors that name the file.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;

pub(crate) fn write(file: &Path, contents: impl AsRef<[u8]>) -> anyhow::Result<()> {
    fs::write(file, contents).with_context(|| format!("cannot write {}", file.display()))
}

/// Replaces a file as a whole, so that nobody reads half of it.
pub(crate) fn replace(file: &Path, contents: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let new = file.with_added_extension("new");
    write(&new, contents)?;
    rename(&new, file)
}

pub(crate) fn rename(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::rename(from, to).with_context(|| format!("cannot create {}", to.display()))
}

/// Makes a folder and those above it, unless they are there.
pub(crate) fn make_folder(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

/// Removes a folder with everything in it, if it is there.
pub(crate) fn remove_folder(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("missing").join("file");
        let error = write(&file, "text").unwrap_err();
        assert!(
            error.to_string().contains(&file.display().to_string()),
            "{error}"
        );
    }

    #[test]
    fn removing_what_is_not_there_is_fine() {
        let folder = tempfile::tempdir().unwrap();
        remove_folder(&folder.path().join("missing")).unwrap();
        make_folder(&folder.path().join("a/b")).unwrap();
        remove_folder(&folder.path().join("a")).unwrap();
        assert!(!folder.path().join("a").exists());
    }
}
