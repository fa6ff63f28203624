//! New credentials for connections that are already open.
//!
//! This module gets the credentials once and sends them to every server. It does not authenticate new connections;
//! `handshake` does.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Instant;

use wheellock_resp::Command;

use crate::base::error::{Error, ErrorKind, Outcome, known_or_err, printable};
use crate::base::patience::Patience;
use crate::client::route::Route;
use crate::config::Credentials;
use crate::config::credentials::{self, SILENT};
use crate::connection::ConnectionState;
use crate::connection::link::Link;

/// Gets the credentials and sends them on every open connection. A connection that is down gets them itself when it
/// opens. A connection that is being opened gets them again.
pub(crate) async fn reauthenticate(route: &Route) -> Result<(), Error> {
    let config = route.config();
    if let ConnectionState::Closed(cause) = route.state() {
        return Err(cause.seen_by(AUTH, cause.kind(), Outcome::NotSent));
    }
    let failed = |detail: &str| route.error(ErrorKind::Connect, AUTH, detail);
    let mut patience = Patience::new(&config.timer, config.connect_timeout);
    let credentials = match patience.wait_for(credentials::get(config, failed)).await {
        Some(asked) => asked?,
        None => return Err(failed(&format!("{SILENT} within {:?}", config.connect_timeout))),
    };
    let by = config.timer.now() + config.response_timeout;
    let links: Vec<_> =
        route.servers().iter().filter(|server| server.credentials_renewed()).map(Link::to).collect();
    let mut under_way: Vec<_> =
        links.iter().map(|link| Box::pin(authenticate(link, &credentials, by))).collect();
    let mut errors = Vec::new();
    poll_fn(|cx| {
        under_way.retain_mut(|done| match done.as_mut().poll(cx) {
            Poll::Pending => true,
            Poll::Ready(done) => {
                errors.extend(done.err());
                false
            }
        });
        if under_way.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    combined(errors)
}

/// Sends the credentials to one server.
async fn authenticate(link: &Link, credentials: &Credentials, by: Instant) -> Result<(), Error> {
    // The credentials name no user. The handshake did not authenticate either.
    let Some((user, password)) = credentials.to_send() else { return Ok(()) };
    match link.call(&Command::new(AUTH).arg(user).arg(password), by).await {
        Ok(_) => Ok(()),
        // The connection has ended. The next connection gets the credentials from the provider itself.
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionLost | ErrorKind::Protocol) => Ok(()),
        Err(error) => Err(match error.code() {
            Some(code) => {
                let (user, code) = (printable(user.as_bytes()), known_or_err(code).to_owned());
                let detail = format!(
                    "user \"{user}\" was refused with {code}; what else the server said is left out, for it may repeat the password"
                );
                error.with_detail(detail).with_code(&code)
            }
            None => error,
        }),
    }
}

/// Returns the first error, with the servers of the other errors.
fn combined(errors: Vec<Error>) -> Result<(), Error> {
    let mut errors = errors.into_iter();
    let Some(first) = errors.next() else { return Ok(()) };
    let others: Vec<_> = errors.map(|error| error.server_address().to_owned()).collect();
    Err(if others.is_empty() {
        first
    } else {
        let detail = format!("{}; it has failed on {}, too", first.detail(), others.join(", "));
        first.with_detail(detail)
    })
}

const AUTH: &str = "AUTH";
