use std::path::PathBuf;

/// Why the backup cannot be used, or did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is no address of Redis.
    #[error(
        "it is no address of Redis; write redis://host:6379, rediss:// for TLS, or redis+cluster:// for a cluster"
    )]
    Url,
    /// It has a setting that there is not.
    #[error("there is no setting `{0}`: the one that there is, is ca=FILE")]
    Setting(String),
    /// Certificates are named where they are of no use, or none are.
    #[error(
        "ca=FILE names the certificates of an address with TLS: write rediss://host:6379?ca=FILE"
    )]
    Authorities,
    /// The file of the certificates cannot be read.
    #[error("the certificates in {} cannot be read: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// TLS is not compiled in.
    #[error("rediss:// needs a build with the feature `tls`")]
    NoTls,
    /// Redis did not answer in time.
    #[error("Redis does not answer in time")]
    TimedOut,
    /// Redis answered with an error, or cannot be reached.
    #[error("Redis: {0}")]
    Redis(#[from] redis::RedisError),
    /// What is there was not written by this version of Laneway.
    #[error("what Redis has cannot be read: {0}")]
    Unreadable(&'static str),
}
