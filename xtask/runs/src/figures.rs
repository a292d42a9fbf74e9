//! What a run comes to, for other programs to read.

use serde_json::{Map, Value, json};

/// The figures of `--json`, by name.
#[derive(Debug, Default)]
pub struct Figures(Map<String, Value>);

impl Figures {
    /// Sets a figure, with four significant digits. One that could not be measured is `null`.
    pub fn set(&mut self, name: &str, value: Option<f64>) {
        self.0
            .insert(name.to_owned(), value.map_or(Value::Null, number));
    }

    /// Sets a figure that was counted.
    pub fn set_count(&mut self, name: &str, count: Option<u64>) {
        self.0.insert(name.to_owned(), count.into());
    }

    /// `{KIND: NAME, "figures": {...}}`, on one line.
    #[must_use]
    pub fn json(&self, kind: &str, name: &str) -> String {
        json!({kind: name, "figures": self.0}).to_string()
    }

    /// Names and values, as text.
    pub fn iter(&self) -> impl Iterator<Item = (&str, String)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_string()))
    }
}

/// Four significant digits: the rest is noise.
fn number(value: f64) -> Value {
    let rounded: f64 = format!("{value:.3e}").parse().unwrap_or(value);
    json!(rounded)
}

#[cfg(test)]
mod tests {
    use super::Figures;

    #[test]
    fn figures_have_four_digits() {
        let mut figures = Figures::default();
        figures.set("rate", Some(8_312_345.678));
        figures.set("ratio", Some(1.032_17));
        figures.set("small", Some(0.000_123_456));
        figures.set("zero", Some(0.0));
        figures.set("missing", None);
        figures.set_count("violations", Some(0));
        let text: Vec<String> = figures
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            text,
            [
                "missing=null",
                "rate=8312000.0",
                "ratio=1.032",
                "small=0.0001235",
                "violations=0",
                "zero=0.0",
            ]
        );
    }

    #[test]
    fn figures_are_one_line_of_json() {
        let mut figures = Figures::default();
        figures.set_count("lost", Some(0));
        let line = r#"{"bench":"bus","figures":{"lost":0}}"#;
        assert_eq!(figures.json("bench", "bus"), line);
    }
}
