//! Private networks whose sites can be separated.
//!
//! A site is a network namespace with an address of its own. A bridge in a further namespace joins all sites.
//!
//! The namespaces and links have no names outside of the network. The kernel removes a namespace and its links when its last process ends.
//! So nothing remains, however the owner ends. This needs Linux, root, `ip`, `nsenter` and `unshare`.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::geteuid;

/// Sites that reach each other until they are separated.
#[derive(Debug)]
pub struct Network {
    switch: Namespace,
    sites: Vec<Site>,
}

/// A network namespace of a [`Network`]. The namespace exists as long as one of the clones.
#[derive(Clone, Debug)]
pub struct Site {
    namespace: Arc<Namespace>,
    address: Ipv4Addr,
}

/// The reason why this machine has no private network.
#[derive(Debug)]
pub enum NoNetwork {
    /// Only root may make network namespaces.
    NotRoot,
    /// A tool cannot be run.
    Tool(&'static str, io::Error),
    /// A tool failed, with this message.
    Refused(String),
}

impl Network {
    /// Makes a network of at most 250 sites.
    ///
    /// # Errors
    ///
    /// This process is not root, lacks a tool, or may not make namespaces.
    pub fn make(sites: u8) -> Result<Self, NoNetwork> {
        if !geteuid().is_root() {
            return Err(NoNetwork::NotRoot);
        }
        let switch = Namespace::make()?;
        switch.ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        switch.ip(&["link", "set", BRIDGE, "up"])?;
        let sites = (0..sites).map(|number| join(&switch, number)).collect::<Result<_, _>>()?;
        Ok(Self { switch, sites })
    }

    /// Returns the sites.
    #[must_use]
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// Cuts a site off. Packets to and from the site vanish without an error.
    ///
    /// # Errors
    ///
    /// `ip` fails.
    pub fn cut(&self, site: usize) -> Result<(), NoNetwork> {
        self.switch.ip(&["link", "set", &port(site), "down"])
    }

    /// Joins a site again that was [cut](Self::cut) off.
    ///
    /// # Errors
    ///
    /// `ip` fails.
    pub fn join(&self, site: usize) -> Result<(), NoNetwork> {
        self.switch.ip(&["link", "set", &port(site), "up"])
    }

    /// Separates two sites from each other. Both reach the other sites.
    ///
    /// # Errors
    ///
    /// `ip` fails.
    pub fn separate(&self, one: usize, other: usize) -> Result<(), NoNetwork> {
        self.route(one, other, "add")
    }

    /// Ends [`separate`](Self::separate).
    ///
    /// # Errors
    ///
    /// `ip` fails.
    pub fn unite(&self, one: usize, other: usize) -> Result<(), NoNetwork> {
        self.route(one, other, "del")
    }

    /// Changes the route to the other site. Without packets in one direction, no connection works in either.
    fn route(&self, one: usize, other: usize, verb: &str) -> Result<(), NoNetwork> {
        let (one, other) = (&self.sites[one], &self.sites[other]);
        one.namespace.ip(&["route", verb, "blackhole", &other.address.to_string()])
    }
}

impl Site {
    /// Returns the site's address.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns the words that run a command at this site if they precede it. The process of the command keeps its id.
    #[must_use]
    pub fn prefix(&self) -> [String; 2] {
        self.namespace.prefix()
    }

    /// Returns the command with the same arguments, to be run at this site.
    #[must_use]
    pub fn command(&self, command: &Command) -> Command {
        self.namespace.command(command.get_program(), command.get_args())
    }
}

/// Makes a site with a link to the bridge.
fn join(switch: &Namespace, number: u8) -> Result<Site, NoNetwork> {
    // The range is for isolated tests (RFC 2544), so no other machine should have such an address.
    let (namespace, address) = (Namespace::make()?, Ipv4Addr::new(198, 18, 0, number + 1));
    let (port, pid) = (port(number.into()), namespace.keeper.id().to_string());
    switch.ip(&["link", "add", &port, "type", "veth", "peer", "name", LINK, "netns", &pid])?;
    switch.ip(&["link", "set", &port, "master", BRIDGE, "up"])?;
    namespace.ip(&["link", "set", "lo", "up"])?;
    namespace.ip(&["address", "add", &format!("{address}/24"), "dev", LINK])?;
    namespace.ip(&["link", "set", LINK, "up"])?;
    Ok(Site { namespace: Arc::new(namespace), address })
}

/// The process that keeps a network namespace while no other process is in it. It ends when this value is dropped, or this process ends.
#[derive(Debug)]
struct Namespace {
    keeper: Child,
}

impl Namespace {
    fn make() -> Result<Self, NoNetwork> {
        let mut keeper = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for the owner.
            .process_group(0)
            .spawn()
            .map_err(|error| NoNetwork::Tool("unshare", error))?;
        // `cat` repeats a byte, so the namespace exists.
        let mut byte = [0];
        let sent = keeper.stdin.as_mut().is_some_and(|pipe| pipe.write_all(&byte).is_ok());
        let repeated = keeper.stdout.as_mut().is_some_and(|pipe| pipe.read_exact(&mut byte).is_ok());
        if sent && repeated {
            return Ok(Self { keeper });
        }
        let mut why = String::new();
        let _empty = keeper.stderr.as_mut().map(|pipe| pipe.read_to_string(&mut why));
        let _gone = keeper.wait();
        Err(NoNetwork::Refused(why))
    }

    fn prefix(&self) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net=/proc/{}/ns/net", self.keeper.id())]
    }

    fn command(&self, program: &OsStr, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let [enter, namespace] = self.prefix();
        let mut command = Command::new(enter);
        command.arg(namespace).arg(program).args(args);
        command
    }

    /// Runs `ip` in this namespace.
    fn ip(&self, args: &[&str]) -> Result<(), NoNetwork> {
        let done = self.command("ip".as_ref(), args).output();
        let done = done.map_err(|error| NoNetwork::Tool("nsenter", error))?;
        if done.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&done.stderr);
        Err(NoNetwork::Refused(format!("ip {}: {}", args.join(" "), why.trim())))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _gone = self.keeper.kill();
        let _gone = self.keeper.wait();
    }
}

impl fmt::Display for NoNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRoot => f.write_str("only root may make network namespaces"),
            Self::Tool(tool, error) => write!(f, "cannot run {tool}: {error}"),
            Self::Refused(why) => write!(f, "cannot make network namespaces: {}", why.trim()),
        }
    }
}

impl std::error::Error for NoNetwork {}

/// Returns the name of a site's link in the namespace of the bridge.
fn port(site: usize) -> String {
    format!("site{site}")
}

const BRIDGE: &str = "bridge";
/// The name of a site's only link to other sites.
const LINK: &str = "net";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{RedisServer, poll_until};

    const PATIENCE: Duration = Duration::from_secs(10);

    fn at(site: &Site) -> RedisServer {
        RedisServer::builder().at(site).start()
    }

    /// Returns true if a site gets a reply from a server within a second.
    fn reaches(site: &Site, server: &RedisServer) -> bool {
        let (address, port) = (server.addr().ip(), server.addr().port());
        let ping = format!("exec 3<>/dev/tcp/{address}/{port}; printf 'PING\\r\\n' >&3; head -c5 <&3");
        let mut command = Command::new("timeout");
        let output = site.command(command.args(["1", "bash", "-c", &ping])).output().unwrap();
        output.stdout == b"+PONG"
    }

    #[test]
    fn separated_sites_do_not_connect() {
        let network = match Network::make(3) {
            Ok(network) => network,
            Err(why) => return println!("skipped: {why}"),
        };
        let [zero, one, two] = network.sites() else { panic!("there are three") };
        let server = at(zero);
        let all = || [zero, one, two].map(|site| reaches(site, &server));
        // The kernel forwards over a link up to a second after the link is up.
        let all_connect = || poll_until(PATIENCE, || all() == [true; 3]);
        assert!(all_connect());
        network.cut(0).unwrap();
        assert_eq!(all(), [true, false, false]);
        network.join(0).unwrap();
        assert!(all_connect());
        network.separate(0, 1).unwrap();
        assert_eq!(all(), [true, false, true]);
        network.unite(0, 1).unwrap();
        assert!(all_connect());
    }

    #[test]
    fn namespace_ends_with_owner() {
        let Ok(network) = Network::make(1) else { return };
        let path = format!("/proc/{}", network.switch.keeper.id());
        assert!(std::path::Path::new(&path).exists());
        drop(network);
        assert!(!std::path::Path::new(&path).exists());
    }
}
