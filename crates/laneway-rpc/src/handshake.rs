//! The hellos, checked.

use tonic::Status;

use crate::convert;
use crate::proto::{Hello, ToCenter, ToWorker, to_center, to_worker};

/// A frame that may be a hello.
pub(crate) trait Frame: Send + Sync + 'static {
    /// A hello as a frame.
    fn of_hello(hello: Hello) -> Self;

    /// The hello, if it is one.
    fn into_hello(self) -> Option<Hello>;
}

impl Frame for ToWorker {
    fn of_hello(hello: Hello) -> Self {
        Self {
            frame: Some(to_worker::Frame::Hello(hello)),
        }
    }

    fn into_hello(self) -> Option<Hello> {
        match self.frame {
            Some(to_worker::Frame::Hello(hello)) => Some(hello),
            _ => None,
        }
    }
}

impl Frame for ToCenter {
    fn of_hello(hello: Hello) -> Self {
        Self {
            frame: Some(to_center::Frame::Hello(hello)),
        }
    }

    fn into_hello(self) -> Option<Hello> {
        match self.frame {
            Some(to_center::Frame::Hello(hello)) => Some(hello),
            _ => None,
        }
    }
}

/// The hello of the other end, from its first frame (`None`: the stream ended).
pub(crate) fn check(first: Option<impl Frame>, own: &Hello) -> Result<Hello, Status> {
    let Some(first) = first else {
        return Err(Status::unavailable("the stream ended before a hello"));
    };
    let Some(hello) = first.into_hello() else {
        let text = "the first frame is not a hello";
        return Err(Status::failed_precondition(text));
    };
    same_cluster(&hello.cluster, own)?;
    convert::instance("hello.instance", &hello.instance)
        .map_err(|invalid| Status::invalid_argument(invalid.to_string()))?;
    Ok(hello)
}

/// Whether the other end is of the same cluster.
pub(crate) fn same_cluster(theirs: &str, own: &Hello) -> Result<(), Status> {
    if theirs == own.cluster {
        return Ok(());
    }
    let text = format!(
        "{} is of cluster {:?}, and the other end of cluster {theirs:?}; check the addresses and the cluster names",
        own.name, own.cluster
    );
    Err(Status::failed_precondition(text))
}
