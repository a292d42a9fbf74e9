//! What `docs/promises.md` names is there: every test by its name, and every fault run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The texts of all Rust sources below a folder.
fn sources(folder: &Path, into: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                sources(&path, into);
            }
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            into.push(fs::read_to_string(path).expect("a source"));
        }
    }
}

/// What stands between backquotes in a column of the tables.
fn named(page: &str, column: usize) -> BTreeSet<&str> {
    page.lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| promise"))
        .filter_map(|line| line.split('|').nth(column))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect()
}

#[test]
fn every_promise_names_tests_and_fault_runs_that_exist() {
    let page = fs::read_to_string(workspace().join("docs/promises.md")).expect("the page");
    let mut code = Vec::new();
    for folder in ["crates", "faults", "xtask"] {
        sources(&workspace().join(folder), &mut code);
    }
    let functions: BTreeSet<&str> = code
        .iter()
        .flat_map(|text| text.split("fn ").skip(1))
        .filter_map(|rest| rest.split(['(', '<']).next())
        .collect();
    let mut tests = named(&page, 2);
    // The last column tells what happened; some name the test that shows it.
    tests.extend(named(&page, 4).into_iter().filter(|name| name.len() > 24));
    assert!(tests.len() > 80, "the tables were read: {}", tests.len());
    let missing: Vec<_> = tests.difference(&functions).collect();
    assert!(missing.is_empty(), "no such tests: {missing:#?}");

    let listed: BTreeSet<&str> = code
        .iter()
        .flat_map(|text| text.split("const NAME: &str = \"").skip(1))
        .chain(code.iter().flat_map(|text| text.split("name: \"").skip(1)))
        .filter_map(|rest| rest.split('"').next())
        .collect();
    let missing: Vec<_> = named(&page, 3)
        .into_iter()
        .filter(|name| !listed.contains(name))
        .collect();
    assert!(missing.is_empty(), "no such fault runs: {missing:#?}");
}
