//! One private `redis-server` (or Valkey) process: started, killed, restarted, paused, and never left behind.
//!
//! The server's parent is a small shell, the guardian, which kills the server by pid as soon as a pipe held
//! by the owning process closes. The kernel closes it however the owner dies, SIGKILL included, so no test
//! run, aborted or not, leaves a server behind; and no unsafe `pre_exec` is needed for it.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::cli::{Cli, Reply};
use crate::monitor::Monitor;
use crate::port::Port;

/// A private server; dropping it kills the process and removes its directory.
///
/// It listens on a unix socket in a directory of its own, and on a loopback TCP port if [`Builder::tcp`] asked.
/// All methods block; [`restart`](Self::restart) for about 50 ms, the others for well under one.
#[derive(Debug)]
pub struct RedisServer {
    binary: PathBuf,
    environment: Vec<(String, String)>,
    args: Vec<(String, String)>,
    directory: PathBuf,
    port: Option<Port>,
    process: Option<Process>,
}

impl RedisServer {
    /// Starts a server with the defaults: unix socket only, nothing persisted.
    ///
    /// # Panics
    ///
    /// If no server can be started; the message says why.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Chooses what to start.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Where clients connect: `redis://127.0.0.1:port` if TCP was asked for, otherwise `unix:///path`.
    #[must_use]
    pub fn url(&self) -> String {
        if self.port.is_some() { self.tcp_url() } else { self.unix_url() }
    }

    /// `unix:///path/of/the/socket`
    #[must_use]
    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.socket_path().display())
    }

    /// `redis://127.0.0.1:port`
    ///
    /// # Panics
    ///
    /// If the server was not built with [`Builder::tcp`].
    #[must_use]
    pub fn tcp_url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// The TCP address.
    ///
    /// # Panics
    ///
    /// If the server was not built with [`Builder::tcp`].
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        let port = self.port.as_ref().expect("this server was started without .tcp()");
        SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()))
    }

    /// The unix socket.
    #[must_use]
    pub fn socket_path(&self) -> PathBuf {
        socket_in(&self.directory)
    }

    /// The server's own directory: its socket, its log, its data.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The process id.
    ///
    /// # Panics
    ///
    /// If the server was killed and not restarted.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process().pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// What the server has logged, over all its restarts.
    #[must_use]
    pub fn log(&self) -> String {
        log_in(&self.directory)
    }

    /// Kills the process with SIGKILL and waits until it is gone. Its data directory stays.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Starts the process again (killing it first if it runs), on the same addresses and data directory.
    ///
    /// # Panics
    ///
    /// If the server does not start.
    pub fn restart(&mut self) {
        self.kill();
        if let Err(error) = self.spawn() {
            panic!("cannot restart the server: {error:#}");
        }
    }

    /// Stops the process in its tracks (SIGSTOP): connections stay open and nothing answers.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a paused process go on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// A new, independent connection to this server, authenticated if it has a password.
    ///
    /// # Errors
    ///
    /// Those of `connect(2)`, or a refused AUTH.
    pub fn connect(&self) -> io::Result<Cli> {
        let mut cli = Cli::connect_unix(&self.socket_path())?;
        if let Some((_, password)) = self.args.iter().find(|(name, _)| name == "requirepass")
            && let Reply::Error(refused) = cli.query(&["AUTH", password])?
        {
            return Err(io::Error::other(refused));
        }
        Ok(cli)
    }

    /// Runs one command over a connection of its own, as `redis-cli` would.
    ///
    /// The text is bare; nil is `(nil)`, an error reply `(error) ...`, array elements are lines.
    ///
    /// # Panics
    ///
    /// If the server cannot be reached or does not answer within ten seconds.
    #[must_use]
    pub fn cli(&self, args: &[&str]) -> String {
        match self.connect().and_then(|mut cli| cli.query(args)) {
            Ok(reply) => reply.to_string(),
            Err(error) => panic!("{args:?}: {error}\nserver log:\n{}", self.log()),
        }
    }

    /// Starts to observe every command the server executes.
    ///
    /// # Panics
    ///
    /// If the server cannot be reached.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        let monitor = self.connect().and_then(|feed| Monitor::start(feed, self.connect()?));
        monitor.unwrap_or_else(|error| panic!("MONITOR: {error}"))
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("the server was killed and not restarted")
    }

    fn signal(&self, signal: Signal) {
        let pid = self.process().pid;
        kill_process(pid, signal).unwrap_or_else(|error| panic!("signal {signal:?} to {pid:?}: {error}"));
    }

    /// Starts the process and waits until it serves.
    fn spawn(&mut self) -> Result<()> {
        let socket = self.socket_path();
        // Only the server's own process is to see these, not the guardian: `env` becomes the server.
        let mut command: Vec<OsString> = vec!["env".into()];
        command.extend(self.environment.iter().map(|(name, value)| format!("{name}={value}").into()));
        command.push(self.binary.clone().into());
        let own = [
            ("dir", self.directory.clone().into_os_string()),
            ("unixsocket", socket.into_os_string()),
            ("bind", "127.0.0.1".into()),
            ("port", self.port.as_ref().map_or(0, Port::number).to_string().into()),
            ("save", "".into()),
        ];
        for (name, value) in own {
            command.extend([format!("--{name}").into(), value]);
        }
        for (name, value) in &self.args {
            command.extend([format!("--{name}").into(), value.into()]);
        }
        let mut process = Process::spawn(&command, &self.directory)?;

        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let state = match self.connect().and_then(|mut cli| cli.query(&["PING"])) {
                Ok(Reply::Status(pong)) if pong == "PONG" => {
                    self.process = Some(process);
                    return Ok(());
                }
                Ok(reply) => reply.to_string(),
                Err(error) => error.to_string(),
            };
            if process.has_exited() {
                bail!("the server exited at once; its log:\n{}", log_in(&self.directory));
            }
            if Instant::now() >= deadline {
                process.kill();
                bail!("not ready after {START_TIMEOUT:?} ({state}); its log:\n{}", log_in(&self.directory));
            }
            std::thread::sleep(READINESS_INTERVAL);
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        // Best effort: a leftover directory under `target/` harms nobody.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// What server to start.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    tcp: bool,
    environment: Vec<(String, String)>,
    args: Vec<(String, String)>,
}

impl Builder {
    /// Listens on a free loopback TCP port too.
    #[must_use]
    pub fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// Adds one configuration directive: `.arg("appendonly", "yes")`. A `requirepass` is used by
    /// [`RedisServer::cli`] and its sisters as well.
    #[must_use]
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets a variable in the environment of the server's process.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the server and waits until it answers PING.
    ///
    /// # Panics
    ///
    /// If no server can be started; the message says why.
    #[must_use]
    pub fn start(self) -> RedisServer {
        self.try_start().unwrap_or_else(|error| panic!("cannot start a redis-server: {error:#}"))
    }

    /// As [`start`](Self::start), for tools that report errors instead of panicking.
    ///
    /// # Errors
    ///
    /// No server binary was found, or it did not start; the message carries the server's log.
    pub fn try_start(self) -> Result<RedisServer> {
        let binary = find_server_binary().context(
            "found no redis-server or valkey-server on PATH, and REDIS_SERVER_BIN is not set \
             (`cargo xtask test` and `cargo xtask demo` install one)",
        )?;
        let mut attempts = PORT_ATTEMPTS;
        loop {
            let mut server = RedisServer {
                binary: binary.clone(),
                environment: self.environment.clone(),
                args: self.args.clone(),
                directory: make_directory()?,
                port: if self.tcp { Some(Port::reserve()?) } else { None },
                process: None,
            };
            attempts -= 1;
            match server.spawn() {
                Ok(()) => return Ok(server),
                // Somebody else took the port between our look and the server's bind.
                Err(error) if attempts > 0 && format!("{error}").contains("Address already in use") => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The server binary to use: `REDIS_SERVER_BIN`, else `redis-server`, else `valkey-server` on `PATH`.
#[must_use]
pub fn find_server_binary() -> Option<PathBuf> {
    if let Some(chosen) = std::env::var_os("REDIS_SERVER_BIN") {
        return Some(chosen.into());
    }
    let path = std::env::var_os("PATH")?;
    ["redis-server", "valkey-server"]
        .iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)))
        .find(|candidate| candidate.is_file())
}

/// One incarnation of the server, and its guardian.
#[derive(Debug)]
struct Process {
    pid: Pid,
    guardian: Child,
    /// The guardian kills the server when this closes.
    _lifeline: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn spawn(command: &[OsString], directory: &Path) -> Result<Self> {
        let mut guardian = Command::new("sh")
            .args(["-c", GUARDIAN, "guardian"])
            .args(command)
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C is for the owner; the guardian follows when the owner is gone.
            .process_group(0)
            .spawn()
            .context("cannot start sh")?;
        let lifeline = guardian.stdin.take().context("the guardian has no stdin")?;
        let mut output = BufReader::new(guardian.stdout.take().context("the guardian has no stdout")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let pid = line.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("the guardian said {line:?} instead of a pid"))?;
        Ok(Self { pid, guardian, _lifeline: lifeline, output })
    }

    /// Whether the server is gone; the guardian leaves right after it.
    fn has_exited(&mut self) -> bool {
        matches!(self.guardian.try_wait(), Ok(Some(_)))
    }

    fn kill(mut self) {
        // The pid cannot have been reused while the guardian lives, for the guardian reaps it. If the server
        // is gone already there is nothing to kill.
        if !self.has_exited() {
            let _ = kill_process(self.pid, Signal::KILL);
        }
        // The guardian's last act, after it has reaped the server, is to close its stdout.
        let _ = io::copy(&mut self.output, &mut io::sink());
        let _ = self.guardian.wait();
    }
}

/// Starts the server, prints its pid, and kills it when stdin closes.
///
/// A background command's stdin is /dev/null, hence the copy to descriptor 3. Terminal signals are ignored:
/// only the pipe decides, and it closes however the owner ends.
const GUARDIAN: &str = r#"
trap '' HUP INT QUIT TERM
"$@" </dev/null >>log 2>&1 &
server=$!
exec 3<&0
{ read -r _ <&3; kill -9 "$server"; } >/dev/null 2>&1 &
watch=$!
echo "$server"
wait "$server"
kill -9 "$watch"
"#;

fn socket_in(directory: &Path) -> PathBuf {
    directory.join("redis.sock")
}

fn log_in(directory: &Path) -> String {
    fs::read_to_string(directory.join("log")).unwrap_or_default()
}

/// Where build output goes.
pub(crate) fn target_directory() -> io::Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target"), PathBuf::from);
    std::path::absolute(target)
}

/// A fresh directory whose socket path the kernel accepts: under `target/` if that is short enough.
fn make_directory() -> Result<PathBuf> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let under_target = target_directory()?.join("servers");
    loop {
        let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut directory = under_target.join(&name);
        if socket_in(&directory).as_os_str().len() > MAX_SOCKET_PATH {
            directory = std::env::temp_dir().join(format!("wheellock-{name}"));
        }
        let parent = directory.parent().context("a server directory has a parent")?;
        fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        match fs::create_dir(&directory) {
            Ok(()) => return Ok(directory),
            // Left by a killed process that had our pid.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).context(format!("cannot create {}", directory.display())),
        }
    }
}

const PORT_ATTEMPTS: usize = 10;
/// `sun_path` holds 108 bytes with its NUL on Linux, 104 on macOS.
const MAX_SOCKET_PATH: usize = 103;
/// A start takes about 50 ms; a loaded machine, or loading a large append-only file, takes longer.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const READINESS_INTERVAL: Duration = Duration::from_millis(1);
