//! A way to a broker that can be cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Forwards connections to a server until it is cut; refuses them after that.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    is_cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let is_cut = Arc::new(AtomicBool::new(false));
        let open = Arc::new(Mutex::new(Vec::new()));
        let (cut, connections) = (Arc::clone(&is_cut), Arc::clone(&open));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if cut.load(Ordering::SeqCst) {
                    // Dropping the listener refuses all that come later.
                    return;
                }
                let server = TcpStream::connect(server).expect("the server runs");
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                    let (from, to) = (clone(from), clone(to));
                    connections.lock().expect("not poisoned").push(clone(&from));
                    thread::spawn(move || copy(from, to));
                }
            }
        });
        Self {
            address,
            is_cut,
            open,
        }
    }

    /// Cuts what is open, and refuses what comes.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        for stream in self.open.lock().expect("not poisoned").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 16 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
