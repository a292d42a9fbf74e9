//! A way to a server that can be cut.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Hands on what comes, until it is cut.
pub(crate) struct Proxy {
    cut: Arc<Cut>,
}

#[derive(Default)]
struct Cut {
    /// New connections lead nowhere.
    leads_nowhere: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
    /// So many bytes of clients get through before all connections end; nothing if any number does.
    left: Mutex<Option<usize>>,
}

impl Cut {
    fn end_all(&self) {
        for end in self.open.lock().expect("no panic").drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// How many of so many bytes get through.
    fn lets_through(&self, count: usize) -> usize {
        let mut left = self.left.lock().expect("no panic");
        match &mut *left {
            None => count,
            Some(most) if *most > count => {
                *most -= count;
                count
            }
            Some(most) => {
                let most = *most;
                *left = None;
                most
            }
        }
    }

    /// From a client to the server.
    fn hand_on(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 4096];
        while let Ok(count) = from.read(&mut bytes)
            && count > 0
        {
            let most = self.lets_through(count);
            if to.write_all(&bytes[..most]).is_err() {
                break;
            }
            if most < count {
                self.end_all();
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }
}

impl Proxy {
    /// To the server of an address; answers the address through it as well.
    pub(crate) fn to(address: &str) -> (Self, String) {
        let rest = address.trim_start_matches("nats://");
        let (server, settings) = rest.split_once('?').expect("settings");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let cut = Arc::<Cut>::default();
        let proxy = Self { cut: cut.clone() };
        let server = server.to_owned();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&server) else {
                    continue;
                };
                if cut.leads_nowhere.load(Ordering::SeqCst) {
                    continue;
                }
                let again = |stream: &TcpStream| stream.try_clone().expect("a socket");
                let ends = [again(&client), again(&server)];
                cut.open.lock().expect("no panic").extend(ends);
                let (cut, from, to) = (cut.clone(), again(&client), again(&server));
                std::thread::spawn(move || cut.hand_on(from, to));
                let (mut from, mut to) = (server, client);
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        });
        (proxy, format!("nats://127.0.0.1:{port}?{settings}"))
    }

    pub(crate) fn cut(&self) {
        self.cut.leads_nowhere.store(true, Ordering::SeqCst);
        self.cut.end_all();
    }

    pub(crate) fn mend(&self) {
        self.cut.leads_nowhere.store(false, Ordering::SeqCst);
    }

    /// Ends all connections after so many bytes more of clients; there can be new ones at once.
    pub(crate) fn break_after(&self, bytes: usize) {
        *self.cut.left.lock().expect("no panic") = Some(bytes);
    }
}
