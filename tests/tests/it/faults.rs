//! Helpers for tests of broken connections.
//!
//! Provides a client that reconnects quickly and times out late, and calls that identify their replies.

use std::time::Duration;

use wheellock_client::{CallOptions, Client, Command, Config, Error};

/// A bound on hangs. All waits end much earlier.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// The time that a call waits for its reply.
pub(crate) const LONG: Duration = Duration::from_secs(10);

pub(crate) fn config(url: &str) -> Config {
    let mut config: Config = url.parse().expect("the support library makes valid URLs");
    // Hundreds of broken connections in a row must not wait for the backoff of a real outage.
    config.reconnect = (Duration::ZERO, Duration::from_millis(1));
    config.response_timeout = LONG;
    config
}

pub(crate) async fn connect(url: &str) -> Client {
    Client::connect(config(url)).await.expect("the server is up")
}

pub(crate) async fn echo(client: &Client, text: &str) -> Result<String, Error> {
    let reply = client.call(&Command::new("ECHO").arg(text)).await?;
    Ok(reply.as_str().unwrap_or("<not a string>").to_owned())
}

pub(crate) fn within(client: &Client, time: Duration) -> CallOptions {
    CallOptions::by(client.config().timer.now() + time)
}
