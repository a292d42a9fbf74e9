use std::time::Duration;

use crate::Tls;
use crate::proto::Hello;

/// Between two HTTP/2 pings.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(1);

/// For the answer to a ping.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// For the other end to say hello.
pub(crate) const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// The largest message without its payload.
const ROOM: usize = 8 << 20;

/// Who a process is, and how its connections behave.
///
/// ```
/// use laneway_rpc::Settings;
/// use laneway_rpc::proto::Hello;
///
/// let settings = Settings::new(Hello { cluster: "orders".into(), ..Hello::default() }).payload_limit(2 << 20);
/// assert_eq!(settings.max_message, 10 << 20);
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the process says about itself. Its cluster is the one that both sides must be of.
    pub hello: Hello,
    /// Certificates; without them nothing is encrypted, and every caller is served.
    pub tls: Option<Tls>,
    /// How many frames wait in each direction of a stream, at each end.
    pub frames: usize,
    /// The largest message, in bytes. Larger ones are refused.
    pub max_message: usize,
    /// How long a connect may take.
    pub connect_timeout: Duration,
    /// How long a call may take.
    pub call_timeout: Duration,
}

impl Settings {
    /// The defaults, for a process that says this about itself.
    #[must_use]
    pub fn new(hello: Hello) -> Self {
        Self {
            hello,
            tls: None,
            frames: 64,
            max_message: ROOM + (1 << 20),
            connect_timeout: Duration::from_millis(500),
            call_timeout: Duration::from_secs(5),
        }
    }

    /// With these certificates.
    #[must_use]
    pub fn tls(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    /// With room for payloads of this many bytes.
    #[must_use]
    pub fn payload_limit(self, bytes: usize) -> Self {
        Self {
            max_message: ROOM.saturating_add(bytes),
            ..self
        }
    }
}
