//! Layout tables stay true: every module stands in the table of its parent, and every entry exists. So does every path in the
//! table "Where is…" of ARCHITECTURE.md.
//!
//! A *layout table* is a table in the documentation of a file whose first column is headed `file` or `module`:
//!
//! ```text
//! //! | module | what it is |
//! //! |---|---|
//! //! | [`clock`], `timer` | what time it is |
//! ```
//!
//! Crate roots that have modules must have one, and so must whatever has a heading `# Layout`. Modules for tests
//! alone need no entry. `mod` and `main` stand for the file itself.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::selection::Workspace;
use super::summary::Row;
use crate::workspace::root;

/// Reads all sources of the workspace; takes milliseconds.
pub(super) fn check(workspace: &Workspace) -> Row {
    let started = Instant::now();
    let problems = problems(workspace).unwrap_or_else(|error| vec![format!("{error:#}")]);
    Row {
        suite: "layout".to_owned(),
        passed: usize::from(problems.is_empty()),
        failed: problems.len(),
        failures: problems,
        took: started.elapsed(),
        ..Row::default()
    }
}

fn problems(workspace: &Workspace) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for folder in workspace.folders() {
        for file in sources(&folder.join("src"))? {
            let text = fs::read_to_string(&file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            let is_root = file.parent() == Some(&folder.join("src"))
                && (file.ends_with("lib.rs") || file.ends_with("main.rs"));
            let shown = file.strip_prefix(root()).unwrap_or(&file).display();
            let found = Source::read(&text).problems(is_root);
            problems.extend(
                found
                    .into_iter()
                    .map(|problem| format!("{shown}: {problem}")),
            );
        }
    }
    let guide = root().join(GUIDE);
    let text =
        fs::read_to_string(&guide).with_context(|| format!("cannot read {}", guide.display()))?;
    let missing = paths(&text).filter(|path| !root().join(path).exists());
    problems.extend(missing.map(|path| format!("{GUIDE}: `{path}` does not exist")));
    if paths(&text).next().is_none() {
        problems.push(format!("{GUIDE}: no table under {QUESTIONS:?}"));
    }
    Ok(problems)
}

/// Has a table of questions, each with the files that answer it.
const GUIDE: &str = "ARCHITECTURE.md";
const QUESTIONS: &str = "## Where is…";

/// The paths in the table of questions: what is between backticks and has a slash.
fn paths(guide: &str) -> impl Iterator<Item = &str> {
    let mut lines = guide.lines().skip_while(|line| *line != QUESTIONS).skip(1);
    let section = std::iter::from_fn(move || lines.next().filter(|line| !line.starts_with("## ")));
    let rows = section.filter(|line| line.starts_with('|'));
    let names = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    names.filter(|name| name.contains('/'))
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// What a file says about its modules, and which ones it has.
#[derive(Debug, Default, PartialEq, Eq)]
struct Source {
    /// A heading `# Layout` in its documentation.
    has_heading: bool,
    /// Names in the first column of its layout table; none if there is no table.
    listed: Option<BTreeSet<String>>,
    modules: BTreeSet<String>,
    /// Modules behind `#[cfg(test)]`, in this file, or of another crate that are shown here.
    exempt: BTreeSet<String>,
}

impl Source {
    fn read(text: &str) -> Self {
        let mut source = Self::default();
        let mut lines = text.lines().peekable();
        while let Some(doc) = lines.peek().and_then(|line| line.strip_prefix("//!")) {
            lines.next();
            source.has_heading |= doc.trim() == "# Layout";
            if cells(doc).is_some_and(|(first, _)| ["file", "module"].contains(&first)) {
                let names = source.listed.get_or_insert_default();
                while let Some((first, _)) = lines
                    .peek()
                    .and_then(|line| cells(line.strip_prefix("//!")?))
                {
                    names.extend(quoted(first));
                    lines.next();
                }
            }
        }
        let mut test_only = false;
        for line in lines {
            source.exempt.extend(shown(line).map(str::to_owned));
            if let Some((name, is_inline)) = module(line) {
                let set = if test_only || is_inline {
                    &mut source.exempt
                } else {
                    &mut source.modules
                };
                set.insert(name.to_owned());
            }
            // Other attributes and comments may stand between it and the module.
            let still = line.starts_with("#[") || line.starts_with("//");
            test_only = line.starts_with("#[cfg(") && line.contains("test)") || test_only && still;
        }
        source
    }

    fn problems(&self, is_root: bool) -> Vec<String> {
        let Some(listed) = &self.listed else {
            let wanted = self.has_heading || (is_root && !self.modules.is_empty());
            return Vec::from_iter(wanted.then(|| {
                "its documentation has no layout table (`//! | module | what it is |`)".to_owned()
            }));
        };
        let missing = self.modules.difference(listed);
        let unknown = listed.iter().filter(|name| {
            !["mod", "main"].contains(&name.as_str())
                && !self.modules.contains(*name)
                && !self.exempt.contains(*name)
        });
        missing
            .map(|name| format!("`mod {name}` is not in its layout table"))
            .chain(unknown.map(|name| format!("`{name}` in its layout table is no module of it")))
            .collect()
    }
}

/// The first cell of a row of a table, and the others.
fn cells(doc: &str) -> Option<(&str, &str)> {
    let (first, others) = doc.trim().strip_prefix('|')?.split_once('|')?;
    Some((first.trim(), others))
}

/// The names between backticks: `` [`a`], `b/`, [`mod@c`] ``.
fn quoted(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(|name| {
        let name = name.trim_end_matches('/');
        name.strip_prefix("mod@").unwrap_or(name).to_owned()
    })
}

/// The name under which a line takes in one thing: `pub use laneway_lanes as lanes;`.
fn shown(line: &str) -> Option<&str> {
    let path = line.trim_start_matches("pub ").strip_prefix("use ")?;
    path.strip_suffix(';')?.rsplit([':', ' ']).next()
}

/// The module that a line at the margin declares, and whether its body follows.
fn module(line: &str) -> Option<(&str, bool)> {
    let declared = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let rest = declared.strip_prefix("mod ")?;
    match rest.strip_suffix(';') {
        Some(name) => Some((name, false)),
        None => Some((rest.split_whitespace().next()?, true)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, paths};

    const TRUE: &str = "\
//! A clock.
//!
//! | module | what it is |
//! |---|---|
//! | [`hands`], `face/` | what is seen |
//! | [`mod@spring`] | what drives it |
//! | `mod`, `bell` | this, and that of another crate |
//!
//! | tone | when |
//! |---|---|
//! | `tick` | each second |

pub(crate) mod face;
mod hands;
pub mod spring;
#[cfg(test)]
#[path = \"elsewhere.rs\"]
mod tests;
pub use other_crate as bell;
mod inline {
}
";

    #[test]
    fn a_table_with_every_module_is_true() {
        assert!(Source::read(TRUE).problems(true).is_empty());
    }

    #[test]
    fn a_module_that_is_not_listed_is_found() {
        let text = format!("{TRUE}mod crown;\n");
        let problems = Source::read(&text).problems(false);
        assert_eq!(problems, ["`mod crown` is not in its layout table"]);
    }

    #[test]
    fn an_entry_without_a_module_is_found() {
        let text = TRUE.replace("mod hands;\n", "");
        let problems = Source::read(&text).problems(false);
        assert_eq!(problems, ["`hands` in its layout table is no module of it"]);
    }

    #[test]
    fn the_paths_of_the_table_of_questions_are_found_and_no_others() {
        let guide = "# A clock\n\n| `not/here.rs` |\n\n## Where is…\n\n| question | follow |\n|---|---|\n\
            | the tick | `src/hands.rs` (`tick`) → `src/face/` |\n\nIt goes `by/itself.rs`.\n\n## Springs\n\n\
            | `nor/here.rs` |\n";
        let found: Vec<_> = paths(guide).collect();
        assert_eq!(found, ["src/hands.rs", "src/face/"]);
    }

    #[test]
    fn a_root_with_modules_and_a_promised_layout_need_a_table() {
        let source = Source::read("//! A clock.\n\nmod hands;\n");
        assert!(source.problems(false).is_empty());
        assert_eq!(source.problems(true).len(), 1);
        let promised = Source::read("//! # Layout\n//!\n//! - `hands`: what is seen\n");
        assert_eq!(promised.problems(false).len(), 1);
        assert!(Source::read("//! Small.\n").problems(true).is_empty());
    }
}
