use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use crate::error::Error;

/// How Redis is reached.
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisOptions {
    /// `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS (feature `tls`).
    pub url: String,
    /// It is a Redis Cluster, of which the URL names one node.
    pub is_cluster: bool,
    /// Certificates in PEM that the server's is checked against, instead of those of the system.
    pub authorities: Option<Vec<u8>>,
    /// The file that they are read from when the backup is opened, unless they are given.
    pub ca: Option<PathBuf>,
    /// How long a connection may take to be there.
    pub connect_within: Duration,
    /// How long a call may take. Nothing but the backup waits for it.
    pub answer_within: Duration,
    /// The most bytes of a shard that wait to be written. With more, they are dropped, and the shard is filled anew later.
    pub buffer_bytes: usize,
    /// An owner whose writes are refused for so long, because a later one has written, takes the copy all the same: it would have heard of a
    /// later one by now, and an epoch that is kept in Redis decides nothing.
    pub seize_after: Duration,
}

impl RedisOptions {
    /// From a URL. `redis+cluster://` and `rediss+cluster://` mean a Redis Cluster. `?ca=FILE` behind an address with TLS names the
    /// certificates that the server's is checked against.
    ///
    /// # Errors
    /// When it is no URL of Redis, or has another setting. The error does not show it, for it may have a password.
    pub fn new(url: &str) -> Result<Self, Error> {
        let (scheme, rest) = url.split_once("://").ok_or(Error::Url)?;
        let (scheme, is_cluster) = match scheme.split_once('+') {
            Some((scheme, "cluster")) => (scheme, true),
            Some(_) => return Err(Error::Url),
            None => (scheme, false),
        };
        match scheme {
            "redis" => {}
            "rediss" if cfg!(feature = "tls") => {}
            "rediss" => return Err(Error::NoTls),
            _ => return Err(Error::Url),
        }
        let mut parsed = Url::parse(&format!("{scheme}://{rest}")).map_err(|_| Error::Url)?;
        if parsed.host_str().is_none_or(str::is_empty) || parsed.fragment().is_some() {
            return Err(Error::Url);
        }
        let mut ca = None;
        for (name, value) in parsed.query_pairs() {
            match &*name {
                "ca" if scheme == "rediss" && !value.is_empty() => {
                    ca = Some(PathBuf::from(&*value));
                }
                "ca" => return Err(Error::Authorities),
                _ => return Err(Error::Setting(name.into_owned())),
            }
        }
        parsed.set_query(None);
        Ok(Self {
            url: parsed.into(),
            is_cluster,
            authorities: None,
            ca,
            connect_within: Duration::from_millis(500),
            answer_within: Duration::from_millis(500),
            buffer_bytes: 16 << 20,
            seize_after: Duration::from_mins(1),
        })
    }

    /// The URL without user and password.
    #[must_use]
    pub fn address(&self) -> String {
        let Ok(mut url) = Url::parse(&self.url) else {
            return "…".to_owned();
        };
        // Both fail only for URLs without a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_query(None);
        url.into()
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("url", &self.address())
            .field("is_cluster", &self.is_cluster)
            .field("answer_within", &self.answer_within)
            .field("buffer_bytes", &self.buffer_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let options = RedisOptions::new("redis://me:hidden@127.0.0.1:6379/2").unwrap();
        let shown = format!("{options:?}");
        assert!(!shown.contains("hidden"), "{shown}");
        assert!(shown.contains("redis://127.0.0.1:6379/2"), "{shown}");
        assert!(!options.is_cluster);
    }

    #[test]
    fn a_cluster_is_named_by_its_scheme() {
        let options = RedisOptions::new("redis+cluster://127.0.0.1:7000").unwrap();
        assert!(options.is_cluster);
        assert_eq!(options.address(), "redis://127.0.0.1:7000");
    }

    #[test]
    fn settings_are_taken_out_of_the_address() {
        let options = RedisOptions::new("rediss://me:hidden@a:1/2?ca=/tmp/c%20a.pem").unwrap();
        assert_eq!(options.url, "rediss://me:hidden@a:1/2");
        assert_eq!(options.ca.unwrap().to_str(), Some("/tmp/c a.pem"));
        for (url, said) in [
            ("redis://a?ca=x", "rediss://"),
            ("rediss://a?ca=", "rediss://"),
            ("redis://a?pool=hidden", "`pool`"),
        ] {
            let error = RedisOptions::new(url).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
            assert!(!error.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn other_urls_are_refused_without_being_shown() {
        for url in [
            "",
            "redis",
            "redis://",
            "http://me:hidden@host",
            "redis+sentinel://host",
        ] {
            let error = RedisOptions::new(url).unwrap_err();
            assert!(!error.to_string().contains("hidden"));
        }
    }
}
