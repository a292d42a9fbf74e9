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

/// Whether this is the run that decides if a change lands.
pub(crate) fn in_ci() -> bool {
    env::var("CI").is_ok_and(|value| value == "true")
}

/// The same cargo that runs this program, called at the workspace root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(root())
        .env("CARGO_TARGET_DIR", target_dir());
    if in_ci() {
        // Nobody compiles there a second time, and what would help with that takes more room on disk
        // than all else together.
        command.env("CARGO_INCREMENTAL", "0");
    }
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

/// What cargo printed besides that it is busy: hundreds of such lines would hide why it failed.
pub(crate) fn without_progress(mut printed: Vec<String>) -> Vec<String> {
    const BUSY: [&str; 7] = [
        "Blocking",
        "Checking",
        "Compiling",
        "Documenting",
        "Downloaded",
        "Downloading",
        "Fresh",
    ];
    printed.retain(|line| {
        let first = line.split_whitespace().next();
        !first.is_some_and(|word| BUSY.contains(&word))
    });
    printed
}

#[cfg(test)]
mod tests {
    use super::without_progress;

    #[test]
    fn why_a_build_failed_is_not_hidden_among_what_was_compiled() {
        let printed = [
            "   Compiling bytes v1.12.1",
            "    Checking laneway v0.1.0",
            "error: could not write output: No space left on device",
            "",
            "  --> src/lib.rs",
        ];
        let kept = without_progress(printed.map(str::to_owned).to_vec());
        assert_eq!(kept, printed[2..]);
    }
}
