//! A private `redis-server` (or Valkey) process.
//!
//! Tests start, kill, restart and pause the server, and never leave it running.
//!
//! The server's parent is a small shell, the guardian. The owning process holds a pipe to the guardian; when the pipe closes, the guardian
//! kills the server by pid. The kernel closes the pipe however the owner dies, even by SIGKILL. So a test run never leaves a server
//! running, and it needs no unsafe `pre_exec`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::certificates::Identity;
use crate::cli::{Cli, Reply};
use crate::monitor::Monitor;
use crate::network::Site;
use crate::port::Port;

/// A private server. Dropping it kills the process and removes its directory.
///
/// The server listens on a unix socket in its own directory, and with [`Builder::tcp`] also on a loopback TCP port. All methods block:
/// [`restart`](Self::restart) for about 50 ms, the others for much less.
#[derive(Debug)]
pub struct RedisServer {
    binary: PathBuf,
    plan: Builder,
    directory: PathBuf,
    port: Option<Port>,
    /// The port of the cluster's bus.
    bus_port: Option<Port>,
    process: Option<Process>,
    paused: AtomicBool,
}

impl RedisServer {
    /// Starts a server with the defaults: only a unix socket, and no persistence.
    ///
    /// # Panics
    ///
    /// If no server can be started; the message says why.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a builder with the default settings.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the URL for clients: [`tcp_url`](Self::tcp_url) if the server has a TCP port, otherwise `unix:///path`.
    #[must_use]
    pub fn url(&self) -> String {
        if self.port.is_some() { self.tcp_url() } else { self.unix_url() }
    }

    /// `unix:///path/of/the/socket`
    #[must_use]
    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.socket_path().display())
    }

    /// `redis://127.0.0.1:port`, or `rediss:` if the server speaks TLS
    ///
    /// # Panics
    ///
    /// If the server was not built with [`Builder::tcp`].
    #[must_use]
    pub fn tcp_url(&self) -> String {
        let scheme = if self.plan.tls.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{}", self.addr())
    }

    /// Returns the URL with a user that may do everything except `CLIENT TRACKING`. Its waiters and guards hear messages only.
    ///
    /// # Panics
    ///
    /// If the server refuses to create the user.
    #[must_use]
    pub fn untracked_url(&self) -> String {
        let user = ["ACL", "SETUSER", "untracked", "on", ">pw", "+@all", "-client|tracking", "~*", "&*"];
        assert_eq!(self.cli(&user), "OK");
        self.url().replacen("://", "://untracked:pw@", 1)
    }

    /// Returns the TCP address.
    ///
    /// # Panics
    ///
    /// If the server was not built with [`Builder::tcp`].
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        let port = self.port.as_ref().expect("this server was started without .tcp()");
        SocketAddr::from((self.plan.address(), port.number()))
    }

    /// Returns the port of the cluster's bus.
    pub(crate) fn bus_port(&self) -> u16 {
        self.bus_port.as_ref().map_or(0, Port::number)
    }

    /// Returns the path of the unix socket.
    #[must_use]
    pub fn socket_path(&self) -> PathBuf {
        socket_in(&self.directory)
    }

    /// Returns the server's own directory, with its socket, log and data.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the file with the certificate that clients have to trust.
    ///
    /// # Panics
    ///
    /// If the server was not built with [`Builder::tls`].
    #[must_use]
    pub fn trusted_file(&self) -> PathBuf {
        assert!(self.plan.tls.is_some(), "this server was started without .tls()");
        self.directory.join(TRUSTED)
    }

    /// Returns the process id.
    ///
    /// # Panics
    ///
    /// If the server was killed and not restarted.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process().pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Returns the server's log, over all its restarts.
    #[must_use]
    pub fn log(&self) -> String {
        log_in(&self.directory)
    }

    /// Kills the process with SIGKILL and waits until it is gone. Its data directory stays.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
        self.paused.store(false, Ordering::Relaxed);
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

    /// Starts the process again without its data and files, at the same addresses.
    ///
    /// # Panics
    ///
    /// If the server does not start, or its files cannot be removed.
    pub fn restart_clean(&mut self) {
        self.kill();
        let files = fs::read_dir(&self.directory).expect("a server has a directory");
        for file in files.map(|file| file.expect("its files can be listed")) {
            if file.file_name() == LOG {
                continue;
            }
            let is_directory = file.file_type().is_ok_and(|kind| kind.is_dir());
            let removed =
                if is_directory { fs::remove_dir_all(file.path()) } else { fs::remove_file(file.path()) };
            match removed {
                // The killed server's child was rewriting a file and has renamed its draft meanwhile. No server reads it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.unwrap_or_else(|error| panic!("{}: {error}", file.path().display())),
            }
        }
        self.restart();
    }

    /// Stops the process with SIGSTOP. Connections stay open, and the server does not reply.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        self.paused.store(true, Ordering::Relaxed);
    }

    /// Resumes a paused process (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
        self.paused.store(false, Ordering::Relaxed);
    }

    /// Undoes a kill or a pause.
    ///
    /// # Panics
    ///
    /// If the server does not start.
    pub fn revive(&mut self) {
        let goes_on =
            self.process.as_ref().is_some_and(|process| kill_process(process.pid, Signal::CONT).is_ok());
        if goes_on {
            self.paused.store(false, Ordering::Relaxed);
        } else {
            self.restart();
        }
    }

    /// Returns true if the process was neither killed nor paused.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.process.is_some() && !self.paused.load(Ordering::Relaxed)
    }

    /// Opens a new, independent connection to this server, and authenticates if the server has a password.
    ///
    /// # Errors
    ///
    /// Errors of `connect(2)`, or a refused AUTH.
    pub fn connect(&self) -> io::Result<Cli> {
        let mut cli = Cli::connect_unix(&self.socket_path())?;
        if let Some((_, password)) = self.plan.args.iter().find(|(name, _)| name == "requirepass")
            && let Reply::Error(refused) = cli.query(&["AUTH", password])?
        {
            return Err(io::Error::other(refused));
        }
        Ok(cli)
    }

    /// Runs a command over a separate connection, as `redis-cli` would.
    ///
    /// The text is bare. Nil is `(nil)`, an error reply is `(error) ...`, and each element of an array is a line.
    ///
    /// # Panics
    ///
    /// If the server cannot be reached or does not reply within ten seconds.
    #[must_use]
    pub fn cli(&self, args: &[&str]) -> String {
        match self.connect().and_then(|mut cli| cli.query(args)) {
            Ok(reply) => reply.to_string(),
            Err(error) => panic!("{args:?}: {error}\nserver log:\n{}", self.log()),
        }
    }

    /// Returns the server's version of Redis. For Valkey, it is the version that Valkey is compatible with (7.2.4).
    ///
    /// # Panics
    ///
    /// If the server cannot be reached, or does not report its version.
    #[must_use]
    pub fn redis_version(&self) -> (u32, u32, u32) {
        let info = self.cli(&["INFO", "server"]);
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        let version = version.unwrap_or_else(|| panic!("no version in {info}"));
        let numbers: Vec<u32> = version.split('.').map_while(|number| number.parse().ok()).collect();
        match numbers[..] {
            [major, minor, patch] => (major, minor, patch),
            _ => panic!("{version:?} is no version"),
        }
    }

    /// Returns the command that deletes a key on condition of its value, if this server has such a command. The server's own version
    /// decides, not the version that it is compatible with.
    ///
    /// # Panics
    ///
    /// As [`redis_version`](Self::redis_version).
    #[must_use]
    pub fn deletes_by(&self) -> Option<&'static str> {
        let info = self.cli(&["INFO", "server"]);
        let major = |line: &str| line.split('.').next()?.parse::<u32>().ok();
        match info.lines().find_map(|line| line.strip_prefix("valkey_version:")) {
            Some(version) => major(version).is_some_and(|major| major >= 9).then_some("delifeq"),
            None => (self.redis_version() >= (8, 4, 0)).then_some("delex"),
        }
    }

    /// Starts to observe all commands that the server executes.
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

    /// Starts the process and waits until it accepts connections.
    fn spawn(&mut self) -> Result<()> {
        self.write_certificates()?;
        // Only the server's process may see these variables, not the guardian. `env` replaces itself by the server.
        let enter = self.plan.site.iter().flat_map(Site::prefix);
        let mut command: Vec<OsString> = enter.chain(["env".to_owned()]).map(OsString::from).collect();
        command.extend(self.plan.environment.iter().map(|(name, value)| format!("{name}={value}").into()));
        command.push(self.binary.clone().into());
        if self.plan.config_file {
            command.push(self.config_file()?.into());
        } else {
            for (name, value) in self.own_directives().into_iter().chain(self.plan.args.iter().cloned()) {
                command.extend([format!("--{name}").into(), value.into()]);
            }
        }
        if self.plan.kind == Kind::Sentinel {
            command.push("--sentinel".into());
        }
        let mut process = Process::spawn(&command, &self.directory)?;

        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let state = match self.connect().and_then(|mut cli| cli.query(&["PING"])) {
                Ok(Reply::Status(pong)) if pong == "PONG" => {
                    self.process = Some(process);
                    return self.run_first_commands();
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

    /// Returns the directives that every server gets.
    fn own_directives(&self) -> Vec<(String, String)> {
        let path = |path: PathBuf| path.to_string_lossy().into_owned();
        let port = |port: &Option<Port>| port.as_ref().map_or(0, Port::number).to_string();
        let encrypted = self.plan.tls.as_ref();
        let mut directives = vec![
            ("dir", path(self.directory.clone())),
            ("unixsocket", path(self.socket_path())),
            ("bind", self.plan.address().to_string()),
            ("port", if encrypted.is_some() { "0".to_owned() } else { port(&self.port) }),
            ("save", String::new()),
        ];
        if encrypted.is_some() {
            directives.extend([
                ("tls-port", port(&self.port)),
                ("tls-cert-file", path(self.directory.join(CHAIN))),
                ("tls-key-file", path(self.directory.join(KEY))),
                ("tls-ca-cert-file", path(self.directory.join(TRUSTED))),
                ("tls-auth-clients", "optional".to_owned()),
            ]);
        }
        if self.plan.kind == Kind::Cluster {
            directives.push(("cluster-enabled", "yes".to_owned()));
            directives.push(("cluster-port", port(&self.bus_port)));
        }
        directives.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Writes the server's configuration file, unless it exists: the server may have rewritten it.
    fn config_file(&self) -> Result<PathBuf> {
        let path = self.directory.join("server.conf");
        if !path.exists() {
            let mut text = String::new();
            for (name, value) in self.own_directives() {
                let value = value.replace('\\', r"\\").replace('"', "\\\"");
                let _ = writeln!(text, "{name} \"{value}\"");
            }
            // The value of a directive may be several words, up to the end of the line.
            for (name, value) in &self.plan.args {
                let value = if value.is_empty() { "\"\"" } else { value };
                let _ = writeln!(text, "{name} {value}");
            }
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(path)
    }

    fn write_certificates(&self) -> Result<()> {
        if let Some(Tls { identity, trusted }) = &self.plan.tls {
            for (name, pem) in [(CHAIN, &identity.chain), (KEY, &identity.key), (TRUSTED, trusted)] {
                fs::write(self.directory.join(name), pem)?;
            }
        }
        Ok(())
    }

    fn run_first_commands(&self) -> Result<()> {
        for command in &self.plan.first_commands {
            let reply = self.connect()?.query(command)?;
            ensure!(!matches!(reply, Reply::Error(_)), "{}: {reply}", command.join(" "));
        }
        Ok(())
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        // Best effort: a leftover directory under `target/` does no harm.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The settings of a server.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    kind: Kind,
    tcp: bool,
    site: Option<Site>,
    tls: Option<Tls>,
    config_file: bool,
    environment: Vec<(String, String)>,
    args: Vec<(String, String)>,
    first_commands: Vec<Vec<String>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Standalone,
    Cluster,
    Sentinel,
}

#[derive(Clone, Debug)]
struct Tls {
    identity: Identity,
    trusted: String,
}

impl Builder {
    /// Listens on a free loopback TCP port as well.
    #[must_use]
    pub fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// Listens on a TCP port at this site instead of the loopback port. Processes of all namespaces reach the unix socket.
    #[must_use]
    pub fn at(mut self, site: &Site) -> Self {
        self.site = Some(site.clone());
        // Without a password, the server would refuse connections from other addresses.
        self.tcp().arg("protected-mode", "no")
    }

    fn address(&self) -> Ipv4Addr {
        self.site.as_ref().map_or(Ipv4Addr::LOCALHOST, Site::address)
    }

    /// Listens on the TCP port with TLS instead of plain text. `trusted` is the certificate, as PEM, of the authority for clients, replicas
    /// and other nodes. The server accepts clients without a certificate, unless a `tls-auth-clients` directive changes that.
    #[must_use]
    pub fn tls(mut self, identity: &Identity, trusted: &str) -> Self {
        self.tls = Some(Tls { identity: identity.clone(), trusted: trusted.to_owned() });
        self.tcp()
    }

    /// Starts a node of a cluster. The node does not know other nodes yet, and serves no slot. The bus has a separate port.
    ///
    /// Needs Redis 7 or later, or Valkey: earlier versions cannot choose the port of the bus.
    #[must_use]
    pub fn cluster(mut self) -> Self {
        self.kind = Kind::Cluster;
        self.tcp()
    }

    /// Starts a Sentinel. The Sentinel saves its state in its [configuration file](Self::config_file).
    #[must_use]
    pub fn sentinel(mut self) -> Self {
        self.kind = Kind::Sentinel;
        self.tcp().config_file()
    }

    /// Keeps the directives in a file that the server may rewrite. A role from REPLICAOF then survives a restart, for example. The file
    /// contains the values of [`arg`](Self::arg) verbatim; an empty value is `""`.
    #[must_use]
    pub fn config_file(mut self) -> Self {
        self.config_file = true;
        self
    }

    /// Adds a command that runs after every start and restart, before the server counts as started.
    #[must_use]
    pub fn first_command(mut self, command: &[&str]) -> Self {
        self.first_commands.push(command.iter().map(|word| (*word).to_owned()).collect());
        self
    }

    /// Adds a configuration directive: `.arg("appendonly", "yes")`. [`RedisServer::cli`] and similar methods use a `requirepass` as well.
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

    /// Starts the server and waits until it replies to PING.
    ///
    /// # Panics
    ///
    /// If no server can be started; the message says why.
    #[must_use]
    pub fn start(self) -> RedisServer {
        self.try_start().unwrap_or_else(|error| panic!("cannot start a redis-server: {error:#}"))
    }

    /// Starts the server like [`start`](Self::start), for tools that report errors instead of panicking.
    ///
    /// # Errors
    ///
    /// There is no server binary, or the server did not start. The message contains the server's log.
    pub fn try_start(self) -> Result<RedisServer> {
        let binary = find_server_binary().context(
            "found no redis-server or valkey-server on PATH, and REDIS_SERVER_BIN is not set \
             (`cargo xtask test` and `cargo xtask demo` install one)",
        )?;
        let mut attempts = PORT_ATTEMPTS;
        loop {
            let mut server = RedisServer {
                binary: binary.clone(),
                plan: self.clone(),
                directory: make_directory()?,
                port: if self.tcp { Some(Port::reserve()?) } else { None },
                bus_port: if self.kind == Kind::Cluster { Some(Port::reserve()?) } else { None },
                process: None,
                paused: AtomicBool::new(false),
            };
            attempts -= 1;
            match server.spawn() {
                Ok(()) => return Ok(server),
                // Another process took the port between our check and the server's bind.
                Err(error) if attempts > 0 && format!("{error}").contains("Address already in use") => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns the server binary: `REDIS_SERVER_BIN`, else `redis-server`, else `valkey-server` on `PATH`.
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

/// A process of the server, and its guardian.
#[derive(Debug)]
struct Process {
    pid: Pid,
    guardian: Child,
    /// The guardian kills the server when this pipe closes.
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
            // Ctrl-C is for the owner. The guardian follows when the owner is gone.
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

    /// Returns true if the server is gone. The guardian exits right after the server.
    fn has_exited(&mut self) -> bool {
        matches!(self.guardian.try_wait(), Ok(Some(_)))
    }

    fn kill(mut self) {
        // The guardian reaps the pid, so the system cannot reuse the pid while the guardian lives. If the server is already gone, no
        // process has to be killed.
        if !self.has_exited() {
            let _ = kill_process(self.pid, Signal::KILL);
        }
        // The guardian closes its stdout as its last act, after it has reaped the server.
        let _ = io::copy(&mut self.output, &mut io::sink());
        let _ = self.guardian.wait();
    }
}

/// Shell script that starts the server, prints its pid, and kills the server when stdin closes.
///
/// The stdin of a background command is /dev/null, hence the copy to descriptor 3. The script ignores the terminal's signals. Only the pipe
/// ends it, and the pipe closes however the owner ends.
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
    fs::read_to_string(directory.join(LOG)).unwrap_or_default()
}

/// Returns the folder of build output.
pub(crate) fn target_directory() -> io::Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target"), PathBuf::from);
    std::path::absolute(target)
}

/// Makes a fresh directory whose socket path is short enough for the kernel, under `target/` if possible.
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
            // A killed process that had our pid left it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).context(format!("cannot create {}", directory.display())),
        }
    }
}

/// The log's name in the guardian's script.
const LOG: &str = "log";
const CHAIN: &str = "chain.pem";
const KEY: &str = "key.pem";
const TRUSTED: &str = "trusted.pem";
const PORT_ATTEMPTS: usize = 10;
/// `sun_path` holds 108 bytes with its NUL on Linux, and 104 on macOS.
const MAX_SOCKET_PATH: usize = 103;
/// A start takes about 50 ms. A loaded machine, or a large append-only file, takes longer.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const READINESS_INTERVAL: Duration = Duration::from_millis(1);
