//! An HTTP server that does what it is told, also what no server should do.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::PATIENCE;

/// What a receiver does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Behaviour {
    /// Answers with a status line, further header lines, and a body of that length.
    Answer(&'static str, String, usize),
    /// Takes the request and says nothing.
    Never,
    /// Cuts the connection when the request is there.
    Reset,
    /// Answers with a head, and a body without end.
    Endless(&'static str),
    /// Sends the head of its answer byte by byte, and never comes to its end.
    Trickle,
    /// Answers with 200 after a while.
    Slow(Duration),
}

impl Behaviour {
    pub(crate) fn status(status: &'static str) -> Self {
        Self::Answer(status, String::new(), 2)
    }

    pub(crate) fn with_header(status: &'static str, header: impl Into<String>) -> Self {
        Self::Answer(status, format!("{}\r\n", header.into()), 0)
    }
}

/// A request as it came.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let headers = self.head.lines().skip(1);
        let mut headers = headers.filter_map(|line| line.split_once(": "));
        let found = headers.find(|(header, _)| header.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }
}

pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    behaviour: Arc<Mutex<Behaviour>>,
    connections: Arc<AtomicUsize>,
    requests: mpsc::UnboundedReceiver<Request>,
}

impl Receiver {
    pub(crate) async fn start(behaviour: Behaviour) -> Self {
        Self::start_on("127.0.0.1:0", behaviour).await
    }

    pub(crate) async fn start_on(address: &str, behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind(address).await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let behaviour = Arc::new(Mutex::new(behaviour));
        let connections = Arc::new(AtomicUsize::new(0));
        let (sender, requests) = mpsc::unbounded_channel();
        let (current, count) = (Arc::clone(&behaviour), Arc::clone(&connections));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, Arc::clone(&current), sender.clone()));
            }
        });
        Self {
            address,
            behaviour,
            connections,
            requests,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock().expect("not poisoned") = behaviour;
    }

    pub(crate) async fn request(&mut self) -> Request {
        let request = timeout(PATIENCE, self.requests.recv()).await;
        request
            .expect("a request in time")
            .expect("the receiver runs")
    }

    /// How many requests came that nobody has looked at.
    pub(crate) fn unseen(&self) -> usize {
        self.requests.len()
    }
}

/// Ends when the client hangs up, or when the test is over and its runtime is gone.
async fn serve(
    mut stream: TcpStream,
    behaviour: Arc<Mutex<Behaviour>>,
    requests: mpsc::UnboundedSender<Request>,
) -> Option<()> {
    loop {
        let request = read(&mut stream).await?;
        let _ = requests.send(request);
        let behaviour = behaviour.lock().expect("not poisoned").clone();
        match behaviour {
            Behaviour::Answer(status, headers, length) => {
                let body = "x".repeat(length);
                let answer =
                    format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).await.ok()?;
            }
            Behaviour::Slow(wait) => {
                sleep(wait).await;
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(answer).await.ok()?;
            }
            Behaviour::Never => hung_up(&mut stream).await,
            Behaviour::Reset => return None,
            Behaviour::Endless(status) => {
                let head = format!("HTTP/1.1 {status}\r\n\r\n");
                stream.write_all(head.as_bytes()).await.ok()?;
                loop {
                    stream.write_all(&[b'x'; 4096]).await.ok()?;
                }
            }
            Behaviour::Trickle => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nx: ").await.ok()?;
                loop {
                    stream.write_all(b"x").await.ok()?;
                    sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }
}

async fn hung_up(stream: &mut TcpStream) {
    let mut buffer = [0; 64];
    while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}

async fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).ok()?;
    let mut request = Request {
        head,
        body: bytes[end..].to_vec(),
    };
    let length = request
        .header("content-length")
        .and_then(|text| text.parse().ok());
    while request.body.len() < length.unwrap_or(0) {
        if stream.read_buf(&mut request.body).await.ok()? == 0 {
            return None;
        }
    }
    Some(request)
}
