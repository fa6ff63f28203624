//! One attempt at a connection: socket, handshake, readiness. Either a connection that serves comes out, or an error
//! that says what to do about it; nothing half-open survives.

use std::future::Future;
use std::io;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use wheellock_resp::{Decoder, Frame, Value};

use crate::config::{Address, Credentials, Servers};
use crate::connection::Shared;
use crate::driver::READ_ROOM;
use crate::error::{Error, ErrorKind, Outcome};
use crate::handshake::{Handshake, ServerInfo, Step};
use crate::stream::{self, Stream};

/// A connection that has passed its handshake.
pub(crate) struct Open {
    pub(crate) stream: Stream,
    pub(crate) decoder: Decoder,
    pub(crate) input: BytesMut,
    pub(crate) info: ServerInfo,
}

/// Connects within the connect timeout, DNS, TLS and handshake included.
pub(crate) async fn open(shared: &Shared) -> Result<Open, Error> {
    let config = &shared.config;
    let deadline = config.timer.now() + config.connect_timeout;
    let credentials =
        within(shared, deadline, "the credentials provider gave no answer", credentials(shared)).await?;
    let Servers::One(address) = &config.servers else {
        return Err(not_sent(shared, ErrorKind::Unsupported, "this topology is not there yet"));
    };
    let liveness = config.response_timeout.max(Duration::from_secs(1));
    let socket = async {
        stream::connect(config, address, liveness).await.map_err(|error| cannot_connect(shared, error))
    };
    let silent = if config.is_encrypted() {
        "no TLS connection; a server that does not speak TLS on this port stays silent like this"
    } else {
        "no connection"
    };
    let stream = within(shared, deadline, silent, socket).await?;
    let shaken = shake_hands(shared, stream, &credentials);
    within(shared, deadline, "connected, but the server gave no answer", shaken).await
}

/// One stage of connecting; what it says if it comes no further is what to look into.
async fn within<T>(
    shared: &Shared,
    deadline: Instant,
    silent: &str,
    stage: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match shared.config.timer.timeout_at(deadline, stage).await {
        Ok(result) => result,
        Err(_elapsed) => {
            let detail = format!("{silent} within {:?}", shared.config.connect_timeout);
            Err(not_sent(shared, ErrorKind::Connect, &detail))
        }
    }
}

async fn credentials(shared: &Shared) -> Result<Credentials, Error> {
    let config = &shared.config;
    match &config.credentials {
        None => Ok(Credentials { username: config.username.clone(), password: config.password.clone() }),
        Some(provider) => provider().await.map_err(|error| {
            not_sent(shared, ErrorKind::Connect, &format!("the credentials provider failed: {error}"))
        }),
    }
}

async fn shake_hands(shared: &Shared, mut stream: Stream, credentials: &Credentials) -> Result<Open, Error> {
    let config = &shared.config;
    let mut output = BytesMut::new();
    let mut input = BytesMut::with_capacity(READ_ROOM);
    let mut decoder = Decoder::new(config.limits);
    let server = shared.server();
    let mut handshake = Handshake::start(config, credentials, &server, &mut output);
    let mut answered = false;
    loop {
        if let Err(error) = write_all(&mut stream, &mut output).await {
            // A server that has no room says so and hangs up before it reads; what it said can still be read.
            let said = last_words(&mut stream, &mut decoder, &mut input).await;
            if let Some(said) = said.filter(Value::is_error) {
                handshake.on_reply(&said, &mut output)?;
            }
            return Err(broke(shared, error, answered));
        }
        let step = loop {
            let frame = decoder.decode(&mut input).map_err(|error| {
                let detail = format!("the server's answer is not RESP: {error}");
                not_sent(shared, ErrorKind::Protocol, &detail).with_source(error)
            })?;
            match frame {
                Some(Frame::Reply(reply)) => {
                    answered = true;
                    match handshake.on_reply(&reply, &mut output)? {
                        Step::Read => {}
                        step => break step,
                    }
                }
                // Nothing was subscribed to, but a server may announce itself.
                Some(Frame::Push(_)) => {}
                None => {
                    let read = std::future::poll_fn(|cx| stream.poll_read(cx, &mut input)).await;
                    if read.map_err(|error| broke(shared, error, answered))? == 0 {
                        return Err(broke(shared, io::ErrorKind::UnexpectedEof.into(), answered));
                    }
                }
            }
        };
        if step == Step::Done {
            // A reply too many would be taken for the first call's.
            if !input.is_empty() || decoder.is_mid_frame() {
                let detail = "the server sent more than the handshake asked for";
                return Err(not_sent(shared, ErrorKind::Protocol, detail));
            }
            let info = handshake.info;
            return Ok(Open { stream, decoder, input, info });
        }
    }
}

/// The first reply among what a broken connection still holds.
async fn last_words(stream: &mut Stream, decoder: &mut Decoder, input: &mut BytesMut) -> Option<Value> {
    loop {
        match decoder.decode(input) {
            Ok(Some(Frame::Reply(reply))) => return Some(reply),
            Ok(Some(Frame::Push(_))) => {}
            Ok(None) => match std::future::poll_fn(|cx| stream.poll_read(cx, input)).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            },
            Err(_) => return None,
        }
    }
}

async fn write_all(stream: &mut Stream, bytes: &mut BytesMut) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::future::poll_fn(|cx| stream.poll_write(cx, bytes)).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => drop(bytes.split_to(written)),
        }
    }
    std::future::poll_fn(|cx| stream.poll_flush(cx)).await
}

fn cannot_connect(shared: &Shared, error: io::Error) -> Error {
    not_sent(shared, ErrorKind::Connect, &format!("cannot connect: {error}")).with_source(error)
}

/// The connection broke in the handshake. What a server does that expects something else is told apart by when it hangs
/// up (observed on Redis 7.0): a TLS port resets a plain client before any answer, and with TLS 1.3 a missing client
/// certificate shows only after the TLS handshake, as an end of the stream.
fn broke(shared: &Shared, error: io::Error, answered: bool) -> Error {
    let local = matches!(shared.config.servers, Servers::One(Address::Unix(_)));
    let hint = match (answered || local, shared.config.is_encrypted()) {
        (true, _) => "",
        (false, true) => "; the server may require a client certificate",
        (false, false) => "; the server may require TLS (rediss://)",
    };
    let detail = format!("the connection broke during the handshake: {error}{hint}");
    not_sent(shared, ErrorKind::Connect, &detail).with_source(error)
}

fn not_sent(shared: &Shared, kind: ErrorKind, detail: &str) -> Error {
    shared.error(kind, Outcome::NotSent, "connecting", detail)
}
