//! Placeholders for TLS and in-memory connections.
//!
//! They replace disabled features by types without values. The code that connects, reads and writes is therefore
//! independent of the features.
#![allow(dead_code, reason = "where one of the features is on, what the other needs is left")]

use std::io;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};

use tokio::io::ReadBuf;
use tokio::net::TcpStream;

use crate::base::error::Error;

/// A type without values, because its feature is disabled.
#[derive(Clone, Debug)]
pub enum Disabled {}

pub(crate) type TlsConfig = Disabled;
pub(crate) type Encrypted = Disabled;
pub(crate) type Connector = Disabled;
pub(crate) type Pipe = Disabled;

/// Opens nothing, because a connector cannot exist.
pub(crate) fn open(connector: &Connector) -> io::Result<(Pipe, Pipe)> {
    match *connector {}
}

/// Returns `None`, because there are no certificates.
pub(crate) fn certificate_trouble(_error: &io::Error) -> Option<String> {
    None
}

impl Disabled {
    pub(crate) fn read_later(_ca_file: Option<PathBuf>) -> Result<Self, String> {
        Err("it asks for TLS, which was not built in: switch on the feature `tls` of `wheellock`, or of `wheellock-client` where that \
             is used alone"
            .to_owned())
    }

    pub(crate) fn ca_file(&self) -> Option<&Path> {
        match *self {}
    }

    pub(crate) async fn prepare(&self) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        match *self {}
    }

    pub(crate) async fn connect(tls: &Self, _host: &str, _socket: TcpStream) -> io::Result<(Self, Self)> {
        match *tls {}
    }

    pub(crate) fn poll_read(&self, _cx: &mut Context<'_>, _buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }

    pub(crate) fn try_read(&self, _bytes: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn try_write(&self, _bytes: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn try_flush(&self) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn forget_undelivered(&self) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn poll_writable(&self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }
}

#[cfg(all(test, not(feature = "tls")))]
mod tests;
