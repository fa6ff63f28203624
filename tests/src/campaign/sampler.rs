//! The holders of locks, as the server itself reports them.
//!
//! Reads them over a connection that shares no code with the library. Notices when the server replies slowly.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cli::{Cli, Reply};
use crate::history::{Fault, Recorder, What, now};

/// A thread that polls the server continuously.
pub(super) struct Sampler {
    asked: Arc<Asked>,
    thread: Option<JoinHandle<()>>,
}

/// The polled server, and the request to stop.
struct Asked {
    socket: Mutex<PathBuf>,
    stop: AtomicBool,
}

impl Sampler {
    pub(super) fn start(socket: PathBuf, recorder: Arc<Recorder>) -> Self {
        let asked = Arc::new(Asked { socket: Mutex::new(socket), stop: AtomicBool::new(false) });
        let asks = Arc::clone(&asked);
        let thread = std::thread::spawn(move || {
            while !asks.stop.load(Ordering::Relaxed) {
                // After any error, the next attempt opens a new connection.
                let _broken = asks.sample(&recorder);
                std::thread::sleep(SAMPLE_INTERVAL);
            }
        });
        Self { asked, thread: Some(thread) }
    }

    /// Polls another server from now on. Discards later replies of the previous server, because that server does not hold locks any more.
    pub(super) fn turn_to(&self, socket: PathBuf) {
        *self.asked.socket.lock().unwrap_or_else(PoisonError::into_inner) = socket;
    }
}

impl Asked {
    fn socket(&self) -> PathBuf {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Polls a server until an error occurs, or until the sampler turns to another server.
    fn sample(&self, recorder: &Recorder) -> std::io::Result<()> {
        let socket = self.socket();
        let mut cli = Cli::connect_unix(&socket)?;
        let is_asked = || !self.stop.load(Ordering::Relaxed) && self.socket() == socket;
        while is_asked() {
            let before = now();
            let sampled = sample_once(&mut cli, recorder, is_asked);
            let after = now();
            if after - before > SLOW {
                record_slow(recorder, before, after);
            }
            sampled?;
            std::thread::sleep(SAMPLE_INTERVAL);
        }
        Ok(())
    }
}

fn sample_once(cli: &mut Cli, recorder: &Recorder, is_asked: impl Fn() -> bool) -> std::io::Result<()> {
    let Reply::Array(keys) = cli.query(&["KEYS", "lock:*"])? else { return Ok(()) };
    for key in keys {
        let key = key.to_string();
        let holders = match cli.query(&["HKEYS", &key])? {
            Reply::Array(fields) => fields,
            // A lock of a single instance is a string.
            Reply::Error(error) if error.starts_with("WRONGTYPE") => vec![cli.query(&["GET", &key])?],
            // The node of a cluster does not own the key's slot (any more), or the slot moves.
            _ => Vec::new(),
        };
        for holder in holders.iter().filter(|holder| !matches!(holder, Reply::Nil | Reply::Error(_))) {
            let holder = holder.to_string();
            // A writer's field has a suffix. The field `mode` names the lock's mode and not a holder.
            let owner = holder.strip_suffix(":write").unwrap_or(&holder).to_owned();
            if owner != "mode" && is_asked() {
                recorder.now(0, 0, &key, What::Holder { owner });
            }
        }
    }
    Ok(())
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.asked.stop.store(true, Ordering::Relaxed);
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

fn record_slow(recorder: &Recorder, before: u64, after: u64) {
    recorder.at(before, 0, 0, "", What::Begins { fault: Fault::Slow, detail: "seen by the sampler".into() });
    recorder.at(after, 0, 0, "", What::Ends { fault: Fault::Slow });
}

const SAMPLE_INTERVAL: Duration = Duration::from_millis(15);
const SLOW: u64 = 50_000_000;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::{RedisServer, poll_until};

    /// A stopped primary executes pending requests after its replacement, before it learns its new role.
    #[test]
    fn replaced_server_reply_is_discarded() {
        let new = RedisServer::start();
        assert_eq!(new.cli(&["HSET", "lock:0", "in-time", "1"]), "1");
        let recorder = Recorder::create(new.directory(), 0).unwrap();
        let history = || fs::read_to_string(new.directory().join("0.history")).unwrap();
        let old = new.directory().join("old.sock");
        let listener = UnixListener::bind(&old).unwrap();
        let sampler = Sampler::start(old, Arc::new(recorder));
        let (mut stream, _) = listener.accept().unwrap();
        for answer in ["*1\r\n$6\r\nlock:0\r\n", "*1\r\n$8\r\ntoo-late\r\n"] {
            assert_ne!(stream.read(&mut [0; 256]).unwrap(), 0);
            sampler.turn_to(new.socket_path());
            stream.write_all(answer.as_bytes()).unwrap();
        }
        assert!(poll_until(Duration::from_secs(10), || history().contains("in-time")));
        assert!(!history().contains("too-late"));
    }
}
