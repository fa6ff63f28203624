//! Connections to a server that it has not accepted yet.
//!
//! This module owns the waker of the server.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use wheellock_client::memory::{Connector, Pipe};

/// The network in front of one server.
#[derive(Debug, Default)]
pub struct Network {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    opened: VecDeque<Pipe>,
    is_down: bool,
    /// Woken whenever the server has work.
    server: Option<Waker>,
}

impl Network {
    /// Creates a network on which every new connection and every written byte wakes `server`.
    pub fn waking(server: Waker) -> Self {
        Self { state: Mutex::new(State { server: Some(server), ..State::default() }) }
    }

    /// Sets whether new connections are refused.
    pub fn set_down(&self, down: bool) {
        self.lock().is_down = down;
    }

    /// Returns the function that opens connections to the server.
    pub fn connector(self: &Arc<Self>) -> Connector {
        let network = Arc::clone(self);
        Arc::new(move || network.open())
    }

    fn open(&self) -> io::Result<Pipe> {
        let mut state = self.lock();
        if state.is_down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let pipe = Pipe::new();
        let server = state.server.clone();
        if let Some(server) = &server {
            pipe.wake_when_written(server.clone());
        }
        state.opened.push_back(pipe.clone());
        drop(state);
        if let Some(server) = server {
            server.wake();
        }
        Ok(pipe)
    }

    pub(super) fn take_opened(&self) -> VecDeque<Pipe> {
        std::mem::take(&mut self.lock().opened)
    }

    /// Refuses new connections, and ends those that the server has not accepted yet.
    pub(super) fn shut(&self) {
        self.set_down(true);
        self.take_opened().iter().for_each(Pipe::fin);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
