//! A way to servers that can be cut.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

use anyhow::{Context, Result};

/// Hands on what comes, to one server or several, until it is cut: then connections end, and new ones with them.
pub struct Way {
    /// `host:port` of the first server by this way.
    address: String,
    is_cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

/// An address that nobody hands on yet: servers have to be told where clients reach them before they are started.
pub(crate) struct Entrance(TcpListener);

/// An entrance, and `host:port` of what is behind it.
pub(crate) type Behind = (Entrance, String);

impl Entrance {
    pub(crate) fn new() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port")?;
        Ok(Self(listener))
    }

    pub(crate) fn port(&self) -> Result<u16> {
        Ok(self.0.local_addr()?.port())
    }
}

impl Way {
    /// Leads each entrance to a server, the first one first. There is at least one.
    pub(crate) fn open(entrances: Vec<Behind>) -> Result<Self> {
        let (first, _) = entrances.first().context("a way to nowhere")?;
        let way = Self {
            address: format!("127.0.0.1:{}", first.port()?),
            is_cut: Arc::default(),
            open: Arc::default(),
        };
        for (Entrance(listener), server) in entrances {
            let (cut, list) = (way.is_cut.clone(), way.open.clone());
            // It ends with the process.
            thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    if !cut.load(Ordering::SeqCst) {
                        // A server that is not there is as good as one that hangs up.
                        let _ = hand_on(&client, &server, &list);
                    }
                }
            });
        }
        Ok(way)
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn mend(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

fn hand_on(client: &TcpStream, server: &str, list: &Mutex<Vec<TcpStream>>) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    {
        let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have ended need not be cut.
        list.retain(|stream| stream.peer_addr().is_ok());
        list.extend([client.try_clone()?, server.try_clone()?]);
    }
    for (from, to) in [(client, &server), (&server, client)] {
        let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}
