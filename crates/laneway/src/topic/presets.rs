//! Starting points, named after what they are for. Everything can be changed afterwards.

use std::time::Duration;

use super::declaration::{Compression, FromPreset, Kind, TopicBuilder};
use super::retention::Retention;

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// Enough for a fleet of consumers to grow into: adding partitions later breaks the order of keys.
const DEFAULT_PARTITIONS: u32 = 16;

impl TopicBuilder {
    pub(super) fn new(name: &str, kind: Kind) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            storage: kind.default_storage(),
            partitions: DEFAULT_PARTITIONS,
            retention: default_retention(kind),
            compression: None,
            compression_from_preset: FromPreset(false),
            replicas: None,
        }
    }

    /// For many consumers and much traffic: 64 partitions, and LZ4 where the broker has it.
    pub fn high_throughput(self) -> Self {
        self.partitions(64).prefer(Compression::Lz4)
    }

    /// For events that are the record of what happened: kept forever, and Zstandard where the broker
    /// has it.
    pub fn audit_trail(self) -> Self {
        self.retention(Retention::FOREVER).prefer(Compression::Zstd)
    }

    fn prefer(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self.compression_from_preset = FromPreset(true);
        self
    }

    /// For messages that nobody wants after a few minutes: kept for 10 minutes, up to 64 MiB.
    pub fn short_lived(self) -> Self {
        let minutes = Duration::from_mins(10);
        self.retention(Retention::FOREVER.age(minutes).bytes(64 << 20))
    }

    /// For a developer's machine: one partition, kept for a day, up to 64 MiB.
    pub fn development(self) -> Self {
        self.partitions(1)
            .retention(Retention::FOREVER.age(DAY).bytes(64 << 20))
    }
}

/// Domain events outlive a long weekend; plain messages must not fill the memory.
pub(super) fn default_retention(kind: Kind) -> Retention {
    match kind {
        Kind::Domain => Retention::FOREVER.age(7 * DAY),
        Kind::Plain => Retention::FOREVER.age(HOUR).bytes(256 << 20),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Storage, Topic};
    use super::*;

    #[test]
    fn presets_change_what_they_say_and_nothing_else() {
        let topic = |builder: TopicBuilder| builder.build().expect("valid");
        let plain = topic(Topic::plain("t").high_throughput());
        assert_eq!(plain.partitions().get(), 64);
        assert_eq!(plain.compression(), Some(Compression::Lz4));
        assert_eq!(plain.retention(), default_retention(Kind::Plain));
        assert_eq!(plain.storage(), Storage::Memory);

        let audit = topic(Topic::domain("t").high_throughput().audit_trail());
        assert_eq!(audit.partitions().get(), 64);
        assert_eq!(audit.compression(), Some(Compression::Zstd));
        assert_eq!(audit.retention(), Retention::FOREVER);

        let short = topic(Topic::domain("t").short_lived());
        assert_eq!(short.retention().to_string(), "10m, 64MiB");
        assert_eq!(short.storage(), Storage::File);

        let development = topic(Topic::domain("t").development());
        assert_eq!(development.partitions().get(), 1);
        assert_eq!(development.retention().to_string(), "1d, 64MiB");
    }

    #[test]
    fn defaults_are_as_documented() {
        let domain = Topic::domain("t").build().expect("valid");
        assert_eq!(domain.partitions().get(), 16);
        assert_eq!(domain.retention().to_string(), "7d");
        let plain = Topic::plain("t").build().expect("valid");
        assert_eq!(plain.partitions().get(), 16);
        assert_eq!(plain.retention().to_string(), "1h, 256MiB");
    }
}
