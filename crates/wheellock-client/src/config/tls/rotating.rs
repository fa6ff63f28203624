//! A client certificate in files that another program replaces.
//!
//! This module does not watch the files: each connection reads them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::client::ClientConfig;

use super::{client_config, read_file};
use crate::base::error::Error;

/// A certificate chain and its private key, both in PEM form.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) chain: Vec<u8>,
    pub(super) key: Vec<u8>,
}

/// The files, and the certificate that the client presents now.
pub(super) struct Rotating {
    roots: Arc<RootCertStore>,
    chain: PathBuf,
    key: PathBuf,
    state: Mutex<State>,
}

struct State {
    /// The last usable pair.
    pair: Pair,
    config: Arc<ClientConfig>,
    /// The reason why the last read produced no usable pair.
    trouble: Option<String>,
}

impl Rotating {
    pub(super) fn new(roots: Arc<RootCertStore>, chain: PathBuf, key: PathBuf) -> Result<Self, Error> {
        let pair = read_pair(&chain, &key)?;
        let config = client_config(Arc::clone(&roots), Some(&pair))?;
        Ok(Self { roots, chain, key, state: Mutex::new(State { pair, config, trouble: None }) })
    }

    /// Reads the files again. A certificate and a key that do not match change nothing. A program that rotates them
    /// replaces one file after the other.
    pub(super) fn read_again(&self) {
        let read = read_pair(&self.chain, &self.key).and_then(|pair| {
            let is_known = self.lock().pair == pair;
            // Unchanged settings are kept, because a new configuration could not resume sessions.
            let config =
                if is_known { None } else { Some(client_config(Arc::clone(&self.roots), Some(&pair))?) };
            Ok((pair, config))
        });
        let mut state = self.lock();
        match read {
            Ok((pair, Some(config))) => *state = State { pair, config, trouble: None },
            Ok((_, None)) => state.trouble = None,
            Err(error) => {
                let detail = error.detail();
                state.trouble = Some(format!(
                    "the client presented a former certificate, because those in {} and {} cannot be used now: {detail}",
                    self.chain.display(),
                    self.key.display()
                ));
            }
        }
    }

    pub(super) fn present(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.lock().config)
    }

    pub(super) fn trouble(&self) -> Option<String> {
        self.lock().trouble.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_pair(chain: &Path, key: &Path) -> Result<Pair, Error> {
    Ok(Pair { chain: read_file("file", chain)?, key: read_file("file", key)? })
}
