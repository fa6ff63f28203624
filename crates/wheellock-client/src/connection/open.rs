//! One attempt to connect: socket, handshake and readiness.
//!
//! An attempt returns a connection that is ready to serve, or an error that names the remedy. It does not leave a
//! half-open connection behind.

use std::future::Future;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use bytes::BytesMut;
use wheellock_resp::{Decoder, Frame, Value};

use crate::base::address::Address;
use crate::base::backoff::Backoff;
#[cfg(not(feature = "tls"))]
use crate::base::disabled as tls;
use crate::base::error::{CONNECT, Error, ErrorKind, said};
use crate::base::patience::Patience;
use crate::base::read_buffer::READ_ROOM;
use crate::config::credentials;
#[cfg(feature = "tls")]
use crate::config::tls;
use crate::config::{Config, Credentials};
use crate::connection::Shared;
use crate::connection::finder::Finder;
use crate::connection::locator::Locator;
use crate::connection::stream::{self, Stream};
use crate::protocol::channels::LONGEST_PAYLOAD;
use crate::protocol::handshake::{Handshake, ServerInfo, Step};

/// Number of elements that are kept of a push in any case: a message's kind and channel. A payload may have any length
/// and come from any client, so only a short one is kept beside them.
const READ_OF_PUSHES: usize = 2;

/// A connection that has passed its handshake.
pub(crate) struct Open {
    pub(crate) address: Address,
    pub(crate) stream: Stream,
    pub(crate) decoder: Decoder,
    pub(crate) input: BytesMut,
    pub(crate) info: ServerInfo,
    /// Number of renewals before the credentials were read.
    pub(crate) renewals: u64,
}

/// Finds the server and connects within the connect timeout. The timeout includes DNS, TLS and the handshake.
pub(crate) async fn open(shared: &Shared, locator: &Locator) -> Result<Open, Error> {
    let mut patience = Patience::new(&shared.config.timer, shared.config.connect_timeout);
    match locator {
        Locator::At(address) => open_at(shared, address, None, &mut patience).await,
        Locator::Node { address, named_by } => open_at(shared, address, Some(named_by), &mut patience).await,
        Locator::Among(addresses) => open_the_primary(shared, addresses, &mut patience).await,
        Locator::Named(finder) => open_the_named(shared, finder, &mut patience).await,
    }
}

/// Connects to an address. `named_by` is the server that named the address, if the user did not.
async fn open_at(
    shared: &Shared,
    address: &Address,
    named_by: Option<&str>,
    patience: &mut Patience<'_>,
) -> Result<Open, Error> {
    let server = address.to_string();
    Opening { shared, address, server: &server, named_by }.run(patience).await
}

/// Connects to the one address whose server reports that it is the primary. Tries all addresses at once. Retries
/// servers that cannot be reached or are not a primary, with backoff. One of them may become the primary. Does not
/// retry a server that refuses this client.
async fn open_the_primary(
    shared: &Shared,
    addresses: &[Address],
    patience: &mut Patience<'_>,
) -> Result<Open, Error> {
    let last = Mutex::new(vec![None; addresses.len()]);
    let last_errors = || last.lock().unwrap_or_else(PoisonError::into_inner);
    let candidate = |(place, address): (usize, _)| {
        let failed = move |error| drop(last_errors().get_mut(place).map(|last| last.replace(error)));
        Box::pin(open_candidate(shared, address, failed))
    };
    let mut candidates: Vec<_> = addresses.iter().enumerate().map(candidate).collect();
    let first = std::future::poll_fn(|cx| {
        for candidate in &mut candidates {
            if let Poll::Ready(open) = candidate.as_mut().poll(cx) {
                return Poll::Ready(Some(open));
            }
        }
        if is_hopeless(&last_errors()) { Poll::Ready(None) } else { Poll::Pending }
    });
    let opened = patience.wait_for(first).await.flatten();
    opened.ok_or_else(|| none_is_primary(shared, &last_errors()))
}

/// Connects to one of several addresses, with repeated attempts. Passes the error of each attempt to `failed`. Does not
/// end after an error that another attempt would not change.
async fn open_candidate(shared: &Shared, address: &Address, failed: impl Fn(Error)) -> Open {
    let Config { timer, connect_timeout, reconnect: (min, max), random, .. } = &shared.config;
    let mut backoff = Backoff::new(*min, *max);
    loop {
        let error = match open_at(shared, address, None, &mut Patience::new(timer, *connect_timeout)).await {
            Ok(open) => return open,
            Err(error) => error,
        };
        // Servers log refusals and punish repeated ones, so only these failures are retried.
        let may_pass = matches!(error.kind(), ErrorKind::NotReady | ErrorKind::Connect);
        failed(error);
        if !may_pass {
            return std::future::pending().await;
        }
        timer.sleep(backoff.next(random())).await;
    }
}

/// Returns true if waiting within this attempt cannot help. In that case each address has failed, and no server is up
/// that may become the primary. If some servers cannot be reached and others refuse the client, a retry would only be
/// refused again.
fn is_hopeless(last: &[Option<Error>]) -> bool {
    let any = |of: fn(&Error) -> bool| last.iter().flatten().any(of);
    let unreachable = any(|error| error.kind() == ErrorKind::Connect);
    let answered = last.iter().all(Option::is_some);
    answered && !any(|error| error.kind() == ErrorKind::NotReady) && !(unreachable && any(Error::is_refusal))
}

/// Returns one error with the last error of each address. The error is a refusal only if every server refuses the
/// client. Any other server may be the primary.
fn none_is_primary(shared: &Shared, last: &[Option<Error>]) -> Error {
    let errors = || last.iter().flatten();
    let all_refuse = last.iter().all(|last| last.as_ref().is_some_and(Error::is_refusal));
    let kind = errors()
        .filter(|error| all_refuse || !error.is_refusal())
        // A server that is up may soon be the primary. After `NotReady` the driver pauses only briefly.
        .max_by_key(|error| error.kind() == ErrorKind::NotReady)
        .map_or(ErrorKind::Connect, Error::kind);
    let said: Vec<_> =
        errors().map(|error| format!("{}: {}", error.server_address(), error.detail())).collect();
    let said = if said.is_empty() { "no answer in time".to_owned() } else { said.join("; ") };
    let detail = format!("none of the servers is a primary that serves: {said}");
    shared.not_connected(kind, &detail)
}

/// Connects to the address that the Sentinels name. Switches to a new address as soon as the Sentinels name one.
async fn open_the_named(
    shared: &Shared,
    finder: &Finder,
    patience: &mut Patience<'_>,
) -> Result<Open, Error> {
    let timer = &shared.config.timer;
    loop {
        let found = patience.wait_for(finder.address(timer)).await;
        // Silent Sentinels are an outage and not a refusal, so calls wait for its end.
        let found = found.unwrap_or(Err(ErrorKind::Connect));
        let (address, version) =
            found.map_err(|kind| shared.not_connected(kind, &finder.no_primary_known()))?;
        // A connection to an outdated address must not win.
        let opened =
            finder.unless_renamed(version, open_at(shared, &address, Some(SENTINELS), patience)).await;
        match opened {
            None => {}
            Some(Err(error)) if error.kind() == ErrorKind::NotReady => {
                // The promotion may never happen, and the Sentinels give up only after minutes. The former primary
                // serves meanwhile.
                return match finder.turned_away(&address, timer.now()) {
                    Some(alternative) => open_at(shared, &alternative, Some(SENTINELS), patience).await,
                    None => Err(error),
                };
            }
            Some(opened) => return opened,
        }
    }
}

/// The source of a primary's address, for messages.
const SENTINELS: &str = "a Sentinel";

/// One attempt at one address.
struct Opening<'a> {
    shared: &'a Shared,
    address: &'a Address,
    /// The address for messages.
    server: &'a str,
    /// The server that named the address. `None` if the user did.
    named_by: Option<&'a str>,
}

impl Opening<'_> {
    async fn run(&self, patience: &mut Patience<'_>) -> Result<Open, Error> {
        let config = &self.shared.config;
        // The number is read before the credentials. A renewal in between would otherwise go unnoticed.
        let renewals = self.shared.lock().renewals;
        let asked = credentials::get(config, |detail| self.not_connected(ErrorKind::Connect, detail));
        let credentials = self.within(patience, credentials::SILENT, asked).await?;
        let socket = self.reach(patience);
        let stream = socket.await.map_err(|error| self.with_source_of_address(error));
        let stream = stream.map_err(|error| self.with_former_certificate(error))?;
        let shaken = self.shake_hands(stream, &credentials, renewals);
        let opened = self.within(patience, "connected, but the server gave no answer", shaken).await;
        opened.map_err(|error| self.with_former_certificate(error))
    }

    /// Adds to a connect error that the client presented a former certificate, if it did.
    fn with_former_certificate(&self, error: Error) -> Error {
        match self.shared.config.tls.as_ref().and_then(tls::TlsConfig::trouble) {
            Some(trouble) if error.kind() == ErrorKind::Connect => hinted(error, &format!("; {trouble}")),
            _ => error,
        }
    }

    /// Opens the socket. Encrypts it if TLS is configured.
    async fn reach(&self, patience: &mut Patience<'_>) -> Result<Stream, Error> {
        let config = &self.shared.config;
        let resolved =
            async { stream::resolve(config, self.address).await.map_err(|error| self.cannot_connect(error)) };
        let found = self.within(patience, "the name servers did not resolve the host name", resolved).await?;
        if let Some(tls) = &config.tls {
            tls.prepare().await.map_err(|error| {
                self.not_connected(ErrorKind::Config, error.detail()).with_cause_of(&error)
            })?;
        }
        let connected = async {
            let connected = stream::connect(config, self.address, &found, config.response_timeout).await;
            connected.map_err(|error| self.cannot_connect(error))
        };
        if config.is_encrypted() {
            let connected = self.within(patience, "no TLS connection", connected).await;
            // Only a timeout has no origin. The error of a socket or of TLS states its own cause.
            connected
                .map_err(|error| if error.origin().is_none() { hinted(error, PLAIN_PORT) } else { error })
        } else {
            self.within(patience, "no connection", connected).await
        }
    }

    /// Adds to a connect error which server named the address and how the user can fix it.
    fn with_source_of_address(&self, error: Error) -> Error {
        match self.named_by {
            Some(named_by) if error.kind() == ErrorKind::Connect => {
                let hint = format!(
                    "; {named_by} announces this address: if it leads nowhere from here, set `Config::translate`, \
                     or have the server announce a different address"
                );
                hinted(error, &hint)
            }
            _ => error,
        }
    }

    /// Runs one stage of connecting within the time limit. The error of a timeout begins with `silent`, which names
    /// the likely cause.
    async fn within<T>(
        &self,
        patience: &mut Patience<'_>,
        silent: &str,
        stage: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let config = &self.shared.config;
        match patience.wait_for(stage).await {
            Some(result) => result,
            None => {
                let detail = format!("{silent} within {:?}", config.connect_timeout);
                Err(self.not_connected(ErrorKind::Connect, &detail))
            }
        }
    }

    async fn shake_hands(
        &self,
        mut stream: Stream,
        credentials: &Credentials,
        renewals: u64,
    ) -> Result<Open, Error> {
        let config = &self.shared.config;
        let mut output = BytesMut::new();
        let mut input = BytesMut::with_capacity(READ_ROOM);
        let mut decoder =
            Decoder::new(config.limits).keeping_short_of_pushes(READ_OF_PUSHES, LONGEST_PAYLOAD);
        let mut handshake = Handshake::start(config, self.shared.role, credentials, self.server, &mut output);
        let mut answered = false;
        loop {
            if let Err(error) = write_all(&mut stream, &mut output).await {
                // A server at its connection limit sends an error and closes before it reads. That error can still be
                // read.
                let said = self.next_reply(&mut stream, &mut decoder, &mut input, answered).await;
                if let Some(said) = said.ok().filter(Value::is_error) {
                    handshake.on_reply(&said, &mut output)?;
                }
                return Err(self.broke(error, answered));
            }
            let step = loop {
                let reply = self.next_reply(&mut stream, &mut decoder, &mut input, answered).await?;
                answered = true;
                match handshake.on_reply(&reply, &mut output)? {
                    Step::Read => {}
                    step => break step,
                }
            };
            if step == Step::Done {
                // An extra reply would be taken for the reply to the first call.
                if !input.is_empty() || decoder.is_mid_frame() {
                    let detail = "the server sent more than the handshake asked for";
                    return Err(self.not_connected(ErrorKind::Protocol, detail));
                }
                let info = handshake.info;
                return Ok(Open { address: self.address.clone(), stream, decoder, input, info, renewals });
            }
        }
    }

    /// Reads the next reply. `answered` is true if the server has sent a reply before.
    async fn next_reply(
        &self,
        stream: &mut Stream,
        decoder: &mut Decoder,
        input: &mut BytesMut,
        answered: bool,
    ) -> Result<Value, Error> {
        loop {
            let frame = decoder.decode(input).map_err(|error| {
                let is_alert = error.kind() == wheellock_resp::ErrorKind::UnknownType(TLS_ALERT);
                let hint = if is_alert { "; it answers in TLS (rediss://)" } else { "" };
                let detail = format!("the server's answer is not RESP: {error}{hint}");
                self.not_connected(ErrorKind::Protocol, &detail).because_of(error)
            })?;
            match frame {
                Some(Frame::Reply(reply)) => return Ok(reply),
                // The client has not subscribed yet, but a server may send a push on its own.
                Some(Frame::Push(_)) => {}
                None => {
                    let read = std::future::poll_fn(|cx| stream.poll_read(cx, input)).await;
                    if read.map_err(|error| self.broke(error, answered))? == 0 {
                        return Err(self.broke(io::ErrorKind::UnexpectedEof.into(), answered));
                    }
                }
            }
        }
    }

    fn cannot_connect(&self, error: io::Error) -> Error {
        let detail = tls::certificate_trouble(&error).unwrap_or_else(|| said(&error));
        self.not_connected(ErrorKind::Connect, &detail).because_of_io(error)
    }

    /// Returns the error of a connection that broke during the handshake. The moment at which the server closes shows
    /// which protocol it expects (observed on Redis 7.0). A TLS port resets a plain client before any reply. With TLS
    /// 1.3, a missing client certificate shows only after the TLS handshake, as an end of the stream.
    fn broke(&self, error: io::Error, answered: bool) -> Error {
        // A server that has replied speaks this protocol, and a unix socket has no TLS. A hint would mislead.
        let local = matches!(self.address, Address::Unix(_));
        let hint = match (answered || local, self.shared.config.is_encrypted()) {
            (true, _) => "",
            (false, true) => {
                "; the server may require a client certificate (TlsBuilder::identity_pem, identity_files)"
            }
            (false, false) => {
                "; a server that requires TLS (rediss://) hangs up like this, and so does a proxy that has no server behind it or \
                 does not know HELLO"
            }
        };
        let detail = format!("the connection broke during the handshake: {}{hint}", said(&error));
        self.not_connected(ErrorKind::Connect, &detail).because_of_io(error)
    }

    fn not_connected(&self, kind: ErrorKind, detail: &str) -> Error {
        Error::step(kind, CONNECT, self.server, detail.to_owned())
    }
}

/// Appends a hint to an error's detail.
fn hinted(error: Error, hint: &str) -> Error {
    let detail = format!("{}{hint}", error.detail());
    error.with_detail(detail)
}

/// The hint for a TLS client whose server does not speak TLS.
const PLAIN_PORT: &str = "; a server that does not speak TLS on this port stays silent like this";

/// The first byte of a TLS record that carries an alert (RFC 8446, section 5.1).
const TLS_ALERT: u8 = 21;

async fn write_all(stream: &mut Stream, bytes: &mut BytesMut) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::future::poll_fn(|cx| stream.poll_write(cx, bytes)).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => drop(bytes.split_to(written)),
        }
    }
    // TLS keeps bytes that the socket does not take. Without this flush the server would wait for the rest of the
    // flight.
    std::future::poll_fn(|cx| stream.poll_flush(cx)).await
}
