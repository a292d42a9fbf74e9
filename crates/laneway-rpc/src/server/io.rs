use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// A connection on which nothing came for so long is closed. Every peer answers pings every second, so it is one that
/// has not even begun to speak HTTP/2.
const SILENCE: Duration = Duration::from_secs(5);

/// A connection that is cut when the server is closed, and when it is silent.
pub(super) struct Io {
    stream: TcpStream,
    closed: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_closed: bool,
    silence: Pin<Box<Sleep>>,
}

impl Io {
    pub(super) fn new(
        stream: TcpStream,
        closed: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        Self {
            stream,
            closed: Box::pin(closed),
            is_closed: false,
            silence: Box::pin(sleep(SILENCE)),
        }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.is_closed = self.is_closed || self.closed.as_mut().poll(cx).is_ready();
        if self.is_closed {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_ready() {
            let until = Instant::now() + SILENCE;
            self.silence.as_mut().reset(until);
        } else if self.silence.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connected for Io {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}
