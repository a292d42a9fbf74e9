//! Tells the binary how it was built. Nothing here looks at version control: the same sources give
//! the same binary, from an archive as well as from a clone.

use std::env;
use std::path::Path;
use std::process::Command;

// IMPORTANT: `cargo run` hands these variables on to the server, so their names must not begin with
// `LANEWAY_`, the prefix of its settings.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    set("BUILD_TARGET", &variable("TARGET"));
    set("BUILD_PROFILE", &profile());
    set("BUILD_RUSTC", &compiler());
}

fn set(name: &str, value: &str) {
    println!("cargo::rustc-env={name}={value}");
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| "unknown".to_owned())
}

/// The name of the profile. `PROFILE` tells only `release` and `debug` apart, so it is read from the folder that
/// cargo builds in: `target/dist/build/…/out`.
fn profile() -> String {
    let folder = variable("OUT_DIR");
    let mut parents = Path::new(&folder).ancestors();
    let build = parents.find(|parent| parent.ends_with("build"));
    let named = build.and_then(Path::parent).and_then(Path::file_name);
    named
        .and_then(|name| name.to_str())
        .map_or_else(|| variable("PROFILE"), str::to_owned)
}

/// The release of the compiler, such as `1.95.0`.
fn compiler() -> String {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output();
    output
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .and_then(|text| text.split_whitespace().nth(1).map(str::to_owned))
        .unwrap_or_else(|| "unknown".to_owned())
}
