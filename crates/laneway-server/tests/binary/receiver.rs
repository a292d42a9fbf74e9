//! Somebody who takes callbacks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::SystemTime;

use super::harness::PATIENCE;

/// A callback as it came.
#[derive(Debug)]
pub(crate) struct Callback {
    pub(crate) line: String,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
    pub(crate) came: SystemTime,
}

impl Callback {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(header, _)| header.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// A server on loopback that records callbacks and answers with one status.
pub(crate) struct Receivers {
    pub(crate) address: SocketAddr,
    callbacks: Receiver<Callback>,
    status: Arc<Mutex<&'static str>>,
}

impl Receivers {
    pub(crate) fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let (sender, callbacks) = mpsc::channel();
        let status = Arc::new(Mutex::new(status));
        let shared = Arc::clone(&status);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (sender, status) = (sender.clone(), Arc::clone(&shared));
                thread::spawn(move || serve(&stream, &sender, &status));
            }
        });
        Self {
            address,
            callbacks,
            status,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub(crate) fn answer(&self, status: &'static str) {
        *self.status.lock().expect("not poisoned") = status;
    }

    pub(crate) fn next(&self) -> Callback {
        self.callbacks
            .recv_timeout(PATIENCE)
            .expect("a callback in time")
    }

    /// What came and was not looked at.
    pub(crate) fn pending(&self) -> Vec<Callback> {
        self.callbacks.try_iter().collect()
    }
}

/// Ends when the caller hangs up.
fn serve(
    stream: &TcpStream,
    sender: &Sender<Callback>,
    status: &Mutex<&'static str>,
) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let mut headers = Vec::new();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            let Some((name, value)) = header.trim_end().split_once(": ") else {
                break;
            };
            headers.push((name.to_owned(), value.to_owned()));
        }
        let mut callback = Callback {
            line: line.trim_end().to_owned(),
            headers,
            body: String::new(),
            came: SystemTime::now(),
        };
        let length = callback
            .header("content-length")
            .and_then(|text| text.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        callback.body = String::from_utf8(body).expect("UTF-8");
        let status = *status.lock().expect("not poisoned");
        let _ = sender.send(callback);
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        (&mut &*stream).write_all(answer.as_bytes()).ok()?;
    }
}
