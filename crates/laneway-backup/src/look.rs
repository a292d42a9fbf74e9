use crate::backup::Backup;
use crate::error::Error;

/// What a Redis says of itself, as far as a backup depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Look {
    /// Its version; `None` where this user may not ask, or it is a cluster.
    pub version: Option<String>,
    /// The most bytes that it takes; `None` for no bound, or as above.
    pub most_bytes: Option<u64>,
    /// What it does when that is too little, such as `noeviction`; `None` as above.
    pub eviction: Option<String>,
}

impl Look {
    fn read(info: &str) -> Self {
        let field = |name: &str| {
            let mut lines = info.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            Some(value.trim().to_owned())
        };
        let most_bytes = field("maxmemory").and_then(|bytes| bytes.parse().ok());
        Self {
            version: field("redis_version"),
            most_bytes: most_bytes.filter(|bytes| *bytes > 0),
            eviction: field("maxmemory_policy"),
        }
    }
}

impl Backup {
    /// Asks Redis what it is.
    ///
    /// # Errors
    /// When it does not answer, or does not let this user in.
    pub async fn look(&self) -> Result<Look, Error> {
        let _: String = self.redis.ask(&redis::cmd("PING")).await?;
        let info: Result<String, Error> = self.redis.ask(&redis::cmd("INFO")).await;
        Ok(Look::read(&info.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_found_among_the_rest() {
        let info = "# Server\r\nredis_version:7.0.15\r\n# Memory\r\nmaxmemory_human:1.00M\r\nmaxmemory:1048576\r\n\
                    maxmemory_policy:allkeys-lru\r\n";
        let look = Look::read(info);
        assert_eq!(look.version.as_deref(), Some("7.0.15"));
        assert_eq!(look.most_bytes, Some(1 << 20));
        assert_eq!(look.eviction.as_deref(), Some("allkeys-lru"));
        assert_eq!(Look::read("maxmemory:0\r\n"), Look::default());
    }
}
