//! Stands between a client and a server on the loopback, and holds or loses what they say.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// What happens to what is said from now on, on every connection that is there; on later ones everything passes, but for
/// [`StopRequests`](Relay::StopRequests).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relay {
    /// It is passed on.
    Pass,
    /// Requests are held until something else is set; they arrive then, even if the client has gone.
    HoldRequests,
    /// The same, and on later connections too.
    StopRequests,
    /// Answers are held until something else is set.
    HoldAnswers,
    /// The first answer is thrown away, and its connection cut.
    LoseAnswers,
}

#[derive(Debug)]
struct State {
    /// With how many connections there were when it was set.
    relay: Mutex<(Relay, usize)>,
    held: AtomicUsize,
    let_go: AtomicUsize,
    connections: AtomicUsize,
}

impl State {
    fn relay(&self, connection: usize) -> Relay {
        let (relay, connections) = *self.relay.lock().unwrap_or_else(PoisonError::into_inner);
        if connection < connections || relay == Relay::StopRequests { relay } else { Relay::Pass }
    }
}

/// See the module's documentation. Its threads end with the test's process.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

impl Proxy {
    /// Before the server at `port`.
    ///
    /// # Panics
    /// When there is no port to listen on.
    #[must_use]
    pub fn before(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let own = listener.local_addr().expect("the listener's address").port();
        let (held, let_go, connections) = <(AtomicUsize, AtomicUsize, AtomicUsize)>::default();
        let state = Arc::new(State { relay: Mutex::new((Relay::Pass, 0)), held, let_go, connections });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // A server that does not run takes no connection: neither does this.
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
                let number = shared.connections.fetch_add(1, Ordering::SeqCst);
                for stream in [&client, &server] {
                    stream.set_nodelay(true).expect("a socket option");
                }
                let back = (server.try_clone().expect("a socket"), client.try_clone().expect("a socket"));
                let (one, other) = (Arc::clone(&shared), Arc::clone(&shared));
                thread::spawn(move || relay(back, (&one, number), Relay::HoldAnswers));
                thread::spawn(move || relay((client, server), (&other, number), Relay::HoldRequests));
            }
        });
        Self { port: own, state }
    }

    /// Where it listens, on the loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on.
    pub fn set(&self, relay: Relay) {
        *self.state.relay.lock().unwrap_or_else(PoisonError::into_inner) = (relay, self.connections());
    }

    /// How many messages were held or lost so far.
    #[must_use]
    pub fn held(&self) -> usize {
        self.state.held.load(Ordering::SeqCst)
    }

    /// How many messages that were held have been passed on since.
    #[must_use]
    pub fn let_go(&self) -> usize {
        self.state.let_go.load(Ordering::SeqCst)
    }

    /// How many connections were made so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

/// One direction, in which `hold` is what may hold it.
fn relay((mut from, mut to): (TcpStream, TcpStream), (state, number): (&State, usize), hold: Relay) {
    let mut buffer = [0; 65536];
    let is = |relay: Relay| {
        let set = state.relay(number);
        set == relay || set == Relay::StopRequests && relay == Relay::HoldRequests
    };
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if hold == Relay::HoldAnswers && is(Relay::LoseAnswers) {
            state.held.fetch_add(1, Ordering::SeqCst);
            // An error means that somebody cut it before.
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
        let held = is(hold);
        if held {
            state.held.fetch_add(1, Ordering::SeqCst);
            while is(hold) {
                thread::sleep(Duration::from_millis(2));
            }
        }
        let passed = to.write_all(&buffer[..length]);
        if held {
            state.let_go.fetch_add(1, Ordering::SeqCst);
        }
        if passed.is_err() {
            return;
        }
    }
    // What was held arrives although its sender has gone: the server's side stays open until the server closes it.
    if hold == Relay::HoldAnswers {
        let _ = to.shutdown(Shutdown::Both);
    }
}
