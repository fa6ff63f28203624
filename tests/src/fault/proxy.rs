//! A proxy that breaks the stream between client and server.
//!
//! Faults and their places are the test's choice.
//!
//! A single thread polls all sockets and never blocks, so a stalled connection does not delay another connection.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::random::Random;
use super::scanner::{Scanned, Scanner};
use crate::port::Port;
use crate::server::RedisServer;

/// A fault proxy on a loopback port. Dropping it closes all connections.
///
/// Every method that changes a setting returns after the change is in force.
pub struct Proxy {
    addr: SocketAddr,
    /// The reserved port, so that clients do not reach another program while the proxy does not listen.
    _port: Port,
    orders: mpsc::Sender<(Order, mpsc::Sender<()>)>,
    wake: UnixStream,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The server behind a proxy.
#[derive(Clone, Debug)]
pub enum Upstream {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// The place in a direction's stream where a fault strikes. Counts begin at 0 when the rule comes into force, or with the connection if
/// that is later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// After this many bytes.
    Byte(u64),
    /// At the n-th complete frame.
    Frame(u64),
    /// At the n-th frame other than a push.
    Reply(u64),
    /// At the n-th push.
    Push(u64),
    /// At the n-th command of this name.
    Command(&'static str, u64),
}

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// From here on, the proxy delays every chunk by the first duration, plus a random time up to the second duration.
    Delay(Duration, Duration),
    /// From here on, the proxy sends at most this many bytes at a time, with this pause between them.
    Slice(usize, Duration),
    /// From here on, the proxy does not read or forward bytes, so that the sender's socket buffers fill.
    Stall,
    /// From here on, the proxy reads and discards all bytes of this direction, and does not forward an end.
    Blackhole,
    /// From here on, the proxy drops pushes with messages of a channel. Confirmations pass.
    Deafen,
    /// The proxy delivers earlier bytes, then ends this direction (FIN). The other direction ends when the peer closes.
    Fin,
    /// The proxy delivers earlier bytes, then resets the connection.
    Rst,
    /// The proxy changes the next byte with this mask (exclusive or).
    Corrupt(u8),
    /// The proxy inserts these bytes. At a frame, it inserts them before the frame.
    Inject(Vec<u8>),
    /// The proxy drops the frame.
    Swallow,
    /// The proxy sends the frame twice.
    Duplicate,
    /// The proxy replaces the frame.
    Replace(Vec<u8>),
    /// The proxy swaps the frame with the following frame.
    Reorder,
}

/// A fault, its place and its connections. It strikes once per connection.
#[derive(Clone, Debug)]
pub struct Rule {
    direction: Direction,
    at: At,
    fault: Fault,
    connection: Option<u64>,
}

impl Rule {
    /// Makes a rule for all present and future connections.
    #[must_use]
    pub fn new(direction: Direction, at: At, fault: Fault) -> Self {
        Self { direction, at, fault, connection: None }
    }

    /// Limits the rule to a single connection. The first connection that the proxy accepted has number 0.
    #[must_use]
    pub fn only_on(self, connection: u64) -> Self {
        Self { connection: Some(connection), ..self }
    }
}

/// The treatment of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The proxy forwards them.
    Open,
    /// The proxy refuses them, because it does not listen.
    Refuse,
    /// The proxy accepts them and then stays silent.
    Silent,
}

/// The counts of a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// Bytes that arrived from clients.
    pub from_clients: u64,
    /// Bytes that arrived from the server.
    pub from_server: u64,
    /// Complete commands that arrived from clients.
    pub commands: u64,
    /// Complete frames, pushes included, that arrived from the server.
    pub replies: u64,
    /// Faults that have struck.
    pub faults: u64,
}

impl Proxy {
    /// Starts a proxy before `upstream`; `seed` determines the random choices.
    ///
    /// # Panics
    ///
    /// If no loopback port is free.
    #[must_use]
    pub fn start(upstream: Upstream, seed: u64) -> Self {
        let (port, listener) = super::listen().expect("a free loopback port");
        let addr = listener.local_addr().expect("a bound socket has an address");
        listener.set_nonblocking(true).expect("a listener can be non-blocking");
        let (wake, woken) = UnixStream::pair().expect("a socket pair");
        woken.set_nonblocking(true).expect("a socket can be non-blocking");
        let (orders, inbox) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let engine = Engine {
            addr,
            listener: Some(listener),
            upstream,
            gate: Gate::Open,
            rules: Vec::new(),
            connections: Vec::new(),
            accepted: 0,
            inbox,
            woken,
            random: Random::new(seed),
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::spawn(move || engine.run());
        Self { addr, _port: port, orders, wake, shared, thread: Some(thread) }
    }

    /// Starts a proxy before a real server's unix socket.
    #[must_use]
    pub fn before(server: &RedisServer) -> Self {
        Self::start(Upstream::Unix(server.socket_path()), 1)
    }

    /// Returns the address for clients.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `redis://127.0.0.1:port`
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Adds a rule.
    pub fn rule(&self, rule: Rule) {
        self.order(Order::Rule(rule));
    }

    /// Strikes every open connection at once.
    pub fn strike(&self, direction: Direction, fault: Fault) {
        self.order(Order::Strike(direction, fault));
    }

    /// Removes all rules and ends all lasting faults (stall, blackhole, delay, slicing) on every connection. Discarded bytes stay lost.
    pub fn heal(&self) {
        self.order(Order::Heal);
    }

    /// Sets the treatment of connections from now on.
    pub fn gate(&self, gate: Gate) {
        self.order(Order::Gate(gate));
    }

    /// Forwards new connections to another server.
    pub fn move_upstream(&self, upstream: Upstream) {
        self.order(Order::Upstream(upstream));
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let load = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        let shared = &self.shared;
        Counts {
            accepted: load(&shared.accepted),
            open: load(&shared.open),
            from_clients: load(&shared.from_clients),
            from_server: load(&shared.from_server),
            commands: load(&shared.commands),
            replies: load(&shared.replies),
            faults: load(&shared.faults),
        }
    }

    /// Returns all actions with their times since the start of the proxy. A failing test also prints them.
    #[must_use]
    pub fn history(&self) -> Vec<String> {
        self.shared.history.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn order(&self, order: Order) {
        let (done, wait) = mpsc::channel();
        if self.orders.send((order, done)).is_ok() {
            let _best_effort = (&self.wake).write(&[0]);
            let _ended = wait.recv();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the proxy's history:\n{}", self.history().join("\n"));
        }
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("addr", &self.addr)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Order {
    Rule(Rule),
    Strike(Direction, Fault),
    Heal,
    Gate(Gate),
    Upstream(Upstream),
    Stop,
}

#[derive(Default)]
struct Shared {
    accepted: AtomicU64,
    open: AtomicU64,
    from_clients: AtomicU64,
    from_server: AtomicU64,
    commands: AtomicU64,
    replies: AtomicU64,
    faults: AtomicU64,
    history: Mutex<Vec<String>>,
}

impl Shared {
    fn note(&self, connection: u64, direction: Direction, fault: &Fault) {
        self.faults.fetch_add(1, Ordering::SeqCst);
        let at = crate::worker::monotonic().as_micros();
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if history.len() < HISTORY_LENGTH {
            history.push(format!("{at} us: connection {connection} {direction:?}: {fault:?}"));
        }
    }
}

/// Long enough to see why a test failed. A run with millions of faults must not fill memory.
const HISTORY_LENGTH: usize = 1000;

/// The proxy's thread.
struct Engine {
    addr: SocketAddr,
    listener: Option<TcpListener>,
    upstream: Upstream,
    gate: Gate,
    rules: Vec<Rule>,
    connections: Vec<Connection>,
    accepted: u64,
    inbox: mpsc::Receiver<(Order, mpsc::Sender<()>)>,
    woken: UnixStream,
    random: Random,
    shared: Arc<Shared>,
}

impl Engine {
    fn run(mut self) {
        loop {
            let ready = self.wait();
            let mut scrap = [0; 64];
            while matches!((&self.woken).read(&mut scrap), Ok(1..)) {}
            while let Ok((order, done)) = self.inbox.try_recv() {
                if matches!(order, Order::Stop) {
                    return;
                }
                self.obey(order);
                let _gone = done.send(());
            }
            if ready {
                self.accept();
            }
            let now = Instant::now();
            for connection in &mut self.connections {
                connection.turn(now, &self.shared, &mut self.random);
            }
            self.connections.retain(|connection| !connection.ended);
            self.shared.open.store(self.connections.len() as u64, Ordering::SeqCst);
        }
    }

    /// Waits for work. Returns true if a connection may be ready to accept.
    fn wait(&self) -> bool {
        let mut polled = vec![PollFd::new(&self.woken, PollFlags::IN)];
        if let Some(listener) = &self.listener {
            polled.push(PollFd::new(listener, PollFlags::IN));
        }
        let mut due = None::<Instant>;
        for connection in &self.connections {
            connection.interests(&mut polled, &mut due);
        }
        let timeout = due.map(|due| {
            let left = due.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let _interrupted = poll(&mut polled, timeout.as_ref());
        self.listener.is_some() && polled.get(1).is_some_and(|listener| !listener.revents().is_empty())
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Rule(rule) => {
                for connection in &mut self.connections {
                    connection.arm(&rule, &self.shared, &mut self.random);
                }
                self.rules.push(rule);
            }
            Order::Strike(direction, fault) => {
                let rule = Rule::new(direction, At::Byte(0), fault);
                for connection in &mut self.connections {
                    connection.arm(&rule, &self.shared, &mut self.random);
                }
            }
            Order::Heal => {
                self.rules.clear();
                for connection in &mut self.connections {
                    connection.to_server.heal();
                    connection.to_client.heal();
                }
            }
            Order::Gate(gate) => {
                self.gate = gate;
                if gate == Gate::Refuse {
                    self.listener = None;
                } else if self.listener.is_none() {
                    let listener = TcpListener::bind(self.addr).expect("the port is reserved");
                    listener.set_nonblocking(true).expect("a listener can be non-blocking");
                    self.listener = Some(listener);
                }
            }
            Order::Upstream(upstream) => self.upstream = upstream,
            Order::Stop => {}
        }
    }

    fn accept(&mut self) {
        while let Some(Ok((client, _))) = self.listener.as_ref().map(TcpListener::accept) {
            let number = self.accepted;
            self.accepted += 1;
            self.shared.accepted.fetch_add(1, Ordering::SeqCst);
            let silent = self.gate == Gate::Silent;
            // Without a server, the client's connection closes at once.
            let Ok(server) = (if silent { Ok(None) } else { Socket::connect(&self.upstream).map(Some) })
            else {
                continue;
            };
            let _best_effort = client.set_nodelay(true);
            if client.set_nonblocking(true).is_err() {
                continue;
            }
            let mut connection = Connection {
                number,
                client: Socket::Tcp(client),
                server,
                to_server: Pump::new(Direction::ToServer),
                to_client: Pump::new(Direction::ToClient),
                ended: false,
            };
            for rule in &self.rules {
                connection.arm(rule, &self.shared, &mut self.random);
            }
            self.connections.push(connection);
        }
    }
}

struct Connection {
    number: u64,
    client: Socket,
    /// `None` for an accepted connection that stays silent.
    server: Option<Socket>,
    to_server: Pump,
    to_client: Pump,
    ended: bool,
}

impl Connection {
    fn arm(&mut self, rule: &Rule, shared: &Shared, random: &mut Random) {
        if rule.connection.is_some_and(|only| only != self.number) {
            return;
        }
        let pump = match rule.direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        };
        pump.armed.push((rule.at.clone(), rule.fault.clone()));
        pump.strike_bytes(self.number, shared, random);
    }

    fn interests<'a>(&'a self, polled: &mut Vec<PollFd<'a>>, due: &mut Option<Instant>) {
        let Some(server) = &self.server else {
            polled.push(PollFd::new(&self.client, PollFlags::IN));
            return;
        };
        let now = Instant::now();
        for (pump, from, to) in
            [(&self.to_server, &self.client, server), (&self.to_client, server, &self.client)]
        {
            if pump.wants_bytes() {
                polled.push(PollFd::from_borrowed_fd(from.as_fd(), PollFlags::IN));
            }
            if let Some(next) = pump.next_due() {
                if next <= now {
                    polled.push(PollFd::from_borrowed_fd(to.as_fd(), PollFlags::OUT));
                } else {
                    *due = Some(due.map_or(next, |due| due.min(next)));
                }
            }
        }
    }

    fn turn(&mut self, now: Instant, shared: &Shared, random: &mut Random) {
        let Self { number, client, server: Some(server), to_server, to_client, ended } = self else {
            // A silent connection only notices when the client leaves.
            let mut scrap = [0; 4096];
            self.ended = matches!(self.client.read(&mut scrap), Ok(0))
                || matches!(self.client.read(&mut scrap), Err(error) if error.kind() != io::ErrorKind::WouldBlock);
            return;
        };
        to_server.pull(*number, client, shared, random);
        to_server.push(now, server);
        to_client.pull(*number, server, shared, random);
        to_client.push(now, client);
        for (pump, to) in [(&*to_server, &*server), (to_client, client)] {
            if pump.reset_due() {
                let _best_effort = to.linger_zero();
            }
            *ended |= pump.reset_due() || pump.broken;
        }
        *ended |= to_server.finished && to_client.finished;
    }
}

/// A direction of a connection.
struct Pump {
    direction: Direction,
    armed: Vec<(At, Fault)>,
    scanner: Scanner,
    /// The incomplete frame, kept back while a rule may change it.
    held: Vec<u8>,
    /// A frame that lets its successor pass first.
    overtaken: Option<Vec<u8>>,
    pending: VecDeque<(Instant, Vec<u8>)>,
    late: Option<(Duration, Duration)>,
    slice: Option<(usize, Duration)>,
    corrupt: Option<u8>,
    stalled: bool,
    blackhole: bool,
    deaf: bool,
    end: Option<End>,
    /// True after the sender has closed.
    eof: bool,
    /// True after the proxy has forwarded the end.
    finished: bool,
    /// True after a socket failed.
    broken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Fin,
    Rst,
}

impl Pump {
    fn new(direction: Direction) -> Self {
        Self {
            direction,
            armed: Vec::new(),
            scanner: Scanner::default(),
            held: Vec::new(),
            overtaken: None,
            pending: VecDeque::new(),
            late: None,
            slice: None,
            corrupt: None,
            stalled: false,
            blackhole: false,
            deaf: false,
            end: None,
            eof: false,
            finished: false,
            broken: false,
        }
    }

    fn heal(&mut self) {
        self.armed.clear();
        self.late = None;
        self.slice = None;
        self.corrupt = None;
        self.stalled = false;
        self.blackhole = false;
        self.deaf = false;
        for piece in &mut self.pending {
            piece.0 = Instant::now();
        }
    }

    fn wants_bytes(&self) -> bool {
        let backlog: usize = self.pending.iter().map(|(_, bytes)| bytes.len()).sum();
        !self.eof && !self.stalled && self.end != Some(End::Rst) && backlog < MAX_BACKLOG
    }

    /// Returns the time at which bytes or an end can be sent next.
    fn next_due(&self) -> Option<Instant> {
        if self.stalled {
            return None;
        }
        self.pending.front().map(|(due, _)| *due)
    }

    fn reset_due(&self) -> bool {
        self.end == Some(End::Rst) && (self.pending.is_empty() || self.stalled)
    }

    fn pull(&mut self, connection: u64, from: &mut Socket, shared: &Shared, random: &mut Random) {
        let mut chunk = [0; 64 << 10];
        while self.wants_bytes() {
            match from.read(&mut chunk) {
                Ok(0) => self.eof = true,
                Ok(read) => {
                    let arrived = match self.direction {
                        Direction::ToServer => &shared.from_clients,
                        Direction::ToClient => &shared.from_server,
                    };
                    arrived.fetch_add(read as u64, Ordering::SeqCst);
                    self.take(connection, &chunk[..read], shared, random);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // The peer sent a reset, and the other side gets a reset, too.
                    self.eof = true;
                    self.end = Some(if self.blackhole { End::Fin } else { End::Rst });
                }
            }
        }
    }

    fn take(&mut self, connection: u64, mut bytes: &[u8], shared: &Shared, random: &mut Random) {
        while !bytes.is_empty() {
            let until_strike = self.armed.iter().filter_map(|(at, _)| match at {
                At::Byte(left) => usize::try_from(*left).ok(),
                _ => None,
            });
            let length = until_strike.min().unwrap_or(usize::MAX).clamp(1, bytes.len());
            let hold = !self.held.is_empty()
                || self.scanner.at_boundary()
                    && (self.overtaken.is_some()
                        || self.deaf
                        || self.armed.iter().any(|(at, _)| !matches!(at, At::Byte(_))));
            let (taken, frame) = self.scanner.advance(&bytes[..length]);
            let mut passed = bytes[..taken].to_vec();
            bytes = &bytes[taken..];
            if let Some(first) = passed.first_mut()
                && let Some(mask) = self.corrupt.take()
            {
                *first ^= mask;
            }
            if hold {
                self.held.extend_from_slice(&passed);
            } else {
                self.emit(passed, random);
            }
            if let Some(frame) = &frame {
                self.on_frame(connection, frame, hold, shared, random);
            }
            for (at, _) in &mut self.armed {
                if let At::Byte(left) = at {
                    *left = left.saturating_sub(taken as u64);
                }
            }
            self.strike_bytes(connection, shared, random);
        }
    }

    /// Strikes with all faults that are due at this byte.
    fn strike_bytes(&mut self, connection: u64, shared: &Shared, random: &mut Random) {
        while let Some(place) = self.armed.iter().position(|(at, _)| *at == At::Byte(0)) {
            let (_, fault) = self.armed.remove(place);
            let held = std::mem::take(&mut self.held);
            self.emit(held, random);
            shared.note(connection, self.direction, &fault);
            self.strike(fault, None, random);
        }
    }

    /// Handles a complete frame. A frame that was `held` from its beginning can still be changed.
    fn on_frame(
        &mut self,
        connection: u64,
        frame: &Scanned,
        held: bool,
        shared: &Shared,
        random: &mut Random,
    ) {
        let seen = match self.direction {
            Direction::ToServer => &shared.commands,
            Direction::ToClient => &shared.replies,
        };
        seen.fetch_add(1, Ordering::SeqCst);
        if !held {
            return;
        }
        let mut fired = None;
        for (place, (at, _)) in self.armed.iter_mut().enumerate() {
            let left = match at {
                At::Frame(left) => left,
                At::Reply(left) if frame.kind != b'>' => left,
                At::Push(left) if frame.kind == b'>' => left,
                At::Command(name, left) if frame.name.eq_ignore_ascii_case(name.as_bytes()) => left,
                _ => continue,
            };
            if *left == 0 {
                fired.get_or_insert(place);
            } else {
                *left -= 1;
            }
        }
        let whole = std::mem::take(&mut self.held);
        if self.deaf && fired.is_none() && frame.kind == b'>' && frame.name == b"message" {
            return;
        }
        match fired.map(|place| self.armed.remove(place)) {
            Some((_, fault)) => {
                shared.note(connection, self.direction, &fault);
                self.strike(fault, Some(whole), random);
            }
            None => {
                let overtaken = self.overtaken.take();
                self.emit(whole, random);
                self.emit(overtaken.unwrap_or_default(), random);
            }
        }
    }

    fn strike(&mut self, fault: Fault, frame: Option<Vec<u8>>, random: &mut Random) {
        let mut frame = frame.unwrap_or_default();
        match fault {
            Fault::Delay(base, jitter) => self.late = Some((base, jitter)),
            Fault::Slice(length, pause) => self.slice = Some((length.max(1), pause)),
            Fault::Stall => self.stalled = true,
            Fault::Blackhole => self.blackhole = true,
            Fault::Deafen => self.deaf = true,
            Fault::Fin => self.end = Some(End::Fin),
            Fault::Rst => self.end = Some(End::Rst),
            Fault::Corrupt(mask) => match frame.first_mut() {
                Some(first) => *first ^= mask,
                None => self.corrupt = Some(mask),
            },
            Fault::Inject(bytes) => self.emit(bytes, random),
            Fault::Swallow => frame.clear(),
            Fault::Duplicate => self.emit(frame.clone(), random),
            Fault::Replace(bytes) => frame = bytes,
            Fault::Reorder => self.overtaken = Some(std::mem::take(&mut frame)),
        }
        self.emit(frame, random);
    }

    /// Queues bytes for sending, unless the direction has ended.
    fn emit(&mut self, bytes: Vec<u8>, random: &mut Random) {
        if bytes.is_empty() || self.blackhole || self.end.is_some() {
            return;
        }
        let late = self.late.map_or(Duration::ZERO, |(base, jitter)| {
            base + Duration::from_nanos(random.below(u64::try_from(jitter.as_nanos()).unwrap_or(u64::MAX)))
        });
        // Random delays must not change the order of the bytes.
        let last = self.pending.back().map(|(due, _)| *due);
        let mut due = (Instant::now() + late).max(last.unwrap_or_else(Instant::now));
        match self.slice {
            None => self.pending.push_back((due, bytes)),
            Some((length, pause)) => {
                for piece in bytes.chunks(length) {
                    due += pause;
                    self.pending.push_back((due, piece.to_vec()));
                }
            }
        }
    }

    fn push(&mut self, now: Instant, to: &mut Socket) {
        if self.stalled {
            return;
        }
        while let Some((due, bytes)) = self.pending.front_mut() {
            if *due > now {
                return;
            }
            match to.write(bytes) {
                Ok(written) if written == bytes.len() => drop(self.pending.pop_front()),
                Ok(written) => drop(bytes.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.broken = true;
                    return;
                }
            }
        }
        if self.end == Some(End::Fin) || self.eof && self.end.is_none() {
            if !self.finished && !self.blackhole {
                let _gone = to.shutdown();
            }
            self.finished = self.eof;
            // The peer gets an end only once.
            self.end.get_or_insert(End::Fin);
        }
    }
}

/// Above this backlog the proxy stops reading, as a slow network would.
const MAX_BACKLOG: usize = 1 << 20;

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn connect(upstream: &Upstream) -> io::Result<Self> {
        Ok(match upstream {
            Upstream::Tcp(addr) => {
                let stream = TcpStream::connect_timeout(addr, UPSTREAM_TIMEOUT)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Self::Tcp(stream)
            }
            Upstream::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Self::Unix(stream)
            }
        })
    }

    fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(chunk),
            Self::Unix(stream) => stream.read(chunk),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    /// Makes the next close a reset.
    fn linger_zero(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)),
            Self::Unix(_) => Ok(()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(2);
