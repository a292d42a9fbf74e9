//! What `laneway config` prints.

use std::fmt::Write;
use std::path::Path;

use super::Effective;
use super::keys::KEYS;
use super::secret::without_secrets;
use super::source::Origin;

impl Effective {
    /// A complete configuration file, with the origin of each value as a comment.
    pub(crate) fn show(&self) -> String {
        // Configurations are shown to others, and pasted.
        let mut config = self.config.clone();
        config.serve.bus = config.serve.bus.as_deref().map(without_secrets);
        config.serve.log = config.serve.log.as_deref().map(without_secrets);
        config.serve.backup = config.serve.backup.as_deref().map(without_secrets);
        config.serve.registry = config.serve.registry.without_secrets();
        let lines: Vec<(String, &Origin)> = KEYS
            .iter()
            .map(|key| {
                let line = format!("{} = {}", key.leaf(), key.show_toml(&config));
                (line, self.origin(key.name))
            })
            .collect();
        let width = lines.iter().map(|(line, _)| line.len()).max().unwrap_or(0);

        let mut text = String::new();
        let mut section = "";
        for (key, (line, origin)) in KEYS.iter().zip(lines) {
            if key.section() != section {
                let gap = if section.is_empty() { "" } else { "\n" };
                section = key.section();
                let _ = writeln!(text, "{gap}[{section}]");
            }
            let _ = writeln!(text, "{line:width$}  # {origin}");
        }
        text
    }

    /// What `config check` says when nothing is wrong.
    pub(crate) fn verdict(&self, file: Option<&Path>) -> String {
        let file = match file {
            Some(path) => path.display().to_string(),
            None => "no configuration file".to_owned(),
        };
        let set = self.origins.len();
        let keys = if set == 1 { "key" } else { "keys" };
        let mut text = format!("ok: {file}; {set} {keys} set, the others are defaults\n");
        let listen = self.config.serve.listen;
        if !listen.ip().is_loopback() {
            let _ = writeln!(
                text,
                "warning: other machines may reach {listen} (serve.listen, {}), and nothing asks for a password: \
                 keep it inside your network, or behind a proxy that asks",
                self.origin("serve.listen")
            );
        }
        text
    }
}
