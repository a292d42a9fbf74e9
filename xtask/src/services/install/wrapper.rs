//! Scripts that start unpacked programs, which do not find by themselves what was unpacked with them.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::apt::Unpacked;
use crate::services::files;
use crate::services::place;

impl Unpacked {
    /// A script that runs one of its programs with its libraries and, where the system has none,
    /// its fonts. The program takes the place of the script, so their process is the same.
    pub(crate) fn wrapper(&self, name: &str, program: &Path) -> anyhow::Result<PathBuf> {
        let libraries = env::join_paths(self.libraries())?;
        let fonts = self.root().join("usr/share/fonts");
        let fonts = if fonts.is_dir() && !Path::new("/etc/fonts").exists() {
            let file = self.root().join("fonts.conf");
            files::write(&file, fonts_config(&fonts, &place::scratch()))?;
            Some(file)
        } else {
            None
        };
        let script = script(program, &libraries.to_string_lossy(), fonts.as_deref());

        let folder = place::tools().join("bin");
        files::make_folder(&folder)?;
        let file = folder.join(name);
        if fs::read_to_string(&file).is_ok_and(|found| found == script) {
            return Ok(file);
        }
        // Put in place as a whole: somebody may be about to run it.
        let new = folder.join(format!("{name}.new"));
        files::write(&new, script)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        files::rename(&new, &file)?;
        Ok(file)
    }
}

fn script(program: &Path, libraries: &str, fonts: Option<&Path>) -> String {
    let fonts = fonts.map_or_else(String::new, |file| {
        format!(
            "export FONTCONFIG_FILE={}\n",
            quoted(&file.to_string_lossy())
        )
    });
    format!(
        "#!/bin/sh\nexport LD_LIBRARY_PATH={}\"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\"\n{fonts}exec {} \"$@\"\n",
        quoted(libraries),
        quoted(&program.to_string_lossy()),
    )
}

/// The built-in configuration of fontconfig names folders of the system.
fn fonts_config(fonts: &Path, cache: &Path) -> String {
    let text = |path: &Path| {
        let path = path.to_string_lossy();
        path.replace('&', "&amp;").replace('<', "&lt;")
    };
    format!(
        "<?xml version=\"1.0\"?>\n<fontconfig><dir>{}</dir><cachedir>{}</cachedir></fontconfig>\n",
        text(fonts),
        text(cache),
    )
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn odd_paths_survive_the_shell() {
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join("it's $HOME");
        fs::create_dir(&odd).unwrap();
        let program = odd.join("show");
        fs::write(
            &program,
            "#!/bin/sh\necho \"$LD_LIBRARY_PATH|$FONTCONFIG_FILE|$1\"\n",
        )
        .unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();

        let script = script(&program, "/its 'own'", Some(&odd));
        let output = Command::new("sh")
            .args(["-c", &script, "sh", "an argument"])
            .env_remove("LD_LIBRARY_PATH")
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said, format!("/its 'own'|{}|an argument\n", odd.display()));
    }
}
