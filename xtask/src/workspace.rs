//! Where things are, and how cargo is called from here.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder with the workspace's `Cargo.toml`.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lives one folder below the workspace root")
}

/// Programs that were fetched or built for our own use. Not below `CARGO_TARGET_DIR`: whoever builds
/// elsewhere still has them.
pub(crate) fn tools_dir() -> PathBuf {
    root().join("target").join("tools")
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        // Cargo resolves a relative value against the folder it was called from.
        Some(dir) if !dir.is_empty() => env::current_dir()
            .unwrap_or_else(|_| root().to_owned())
            .join(dir),
        _ => root().join("target"),
    }
}

/// The same cargo that runs this program, called at the workspace root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(root())
        .env("CARGO_TARGET_DIR", target_dir());
    // `cargo run` describes xtask to us in these. Build scripts that watch them would run again
    // with every nested cargo, and everything above them would be compiled again.
    for (name, _) in env::vars_os() {
        let inherited = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        });
        if inherited {
            command.env_remove(name);
        }
    }
    command
}
