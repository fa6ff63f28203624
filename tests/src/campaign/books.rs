//! The server's queues of fair locks, read from MONITOR.
//!
//! Records which waiters joined and which waiters were served. Knows the names of the keys, and shares no code with the library.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cli::Cli;
use crate::history::{Recorder, What};
use crate::monitor::Observed;

/// A reader of MONITOR. After the server's death it continues when the server is back.
pub(super) struct Books {
    socket: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Books {
    pub(super) fn read(socket: PathBuf, recorder: Arc<Recorder>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (path, stopped) = (socket.clone(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while follow(&path, &recorder).is_err() && !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(PAUSE);
            }
        });
        Self { socket, stop, thread: Some(thread) }
    }
}

impl Drop for Books {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Waits until the thread has read everything up to this command. Without a server, reading fails.
        let _dead = Cli::connect_unix(&self.socket).and_then(|mut cli| cli.query(&["ECHO", LAST]));
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

fn follow(socket: &Path, recorder: &Recorder) -> io::Result<()> {
    let mut feed = Cli::connect_unix(socket)?;
    feed.query(&["MONITOR"])?;
    recorder.now(0, 0, "", What::Watched);
    loop {
        let line = feed.read_reply()?.to_string();
        if line.contains(LAST) {
            return Ok(());
        }
        if let Some((lock, what)) = Observed::parse(&line).as_ref().and_then(entry) {
            recorder.now(0, 0, &lock, what);
        }
    }
}

fn entry(observed: &Observed) -> Option<(String, What)> {
    let [verb, key, owner, ..] = &observed.args[..] else { return None };
    match (observed.from_script(), verb.as_str()) {
        (true, "rpush") => {
            let lock = key.strip_prefix(QUEUE)?.strip_suffix('}')?.to_owned();
            Some((lock, What::Queued { owner: owner.clone() }))
        }
        (true, "hset") => Some((key.clone(), What::Served { owner: owner.clone() })),
        _ => None,
    }
}

const QUEUE: &str = "redisson_lock_queue:{";
const LAST: &str = "wheellock-tests: the books are closed";
const PAUSE: Duration = Duration::from_millis(1);
