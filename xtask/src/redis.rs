//! Private servers in the foreground, which end with this process.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use wheellock_tests::RedisServer;
use wheellock_tests::certificates::{Authority, leaf};
use wheellock_tests::topology::{Cluster, Replicas, SentinelSet, Settings};

use crate::install::ensure_server;

#[derive(Debug, Subcommand)]
pub(crate) enum Topology {
    /// One server on a free loopback port and a unix socket, without persistence
    Standalone {
        #[command(flatten)]
        config: Config,
    },
    /// The same with TLS on that port, for `127.0.0.1` and `localhost`; prints the path of the certificate that clients must trust
    Tls {
        #[command(flatten)]
        config: Config,
    },
    /// A primary and its replicas, without failover
    Replicas {
        /// Number of replicas
        #[arg(long, default_value_t = 2)]
        replicas: usize,
        #[command(flatten)]
        options: Options,
    },
    /// A primary, two replicas, and three Sentinels; a dead primary is replaced about 1.5 s later
    Sentinel {
        #[command(flatten)]
        options: Options,
    },
    /// Masters with replicas; a dead master is replaced about 2.5 s later
    Cluster {
        /// Number of masters
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
        masters: u16,
        /// Number of replicas of each master
        #[arg(long, default_value_t = 1)]
        replicas: usize,
        #[command(flatten)]
        options: Options,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Config {
    /// A configuration directive for every server, e.g. `--config appendonly=yes`; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = directive)]
    config: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    config: Config,
    /// All servers use TLS
    #[arg(long)]
    tls: bool,
    /// The password of the servers' default user
    #[arg(long)]
    password: Option<String>,
}

impl Options {
    fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        for (name, value) in &self.config.config {
            settings = settings.arg(name, value);
        }
        if let Some(password) = &self.password {
            settings = settings.password(password);
        }
        if self.tls { settings.tls() } else { settings }
    }
}

pub(crate) fn run(topology: &Topology) -> Result<ExitCode> {
    ensure_server()?;
    match topology {
        Topology::Standalone { config } => {
            let server = single(RedisServer::builder().tcp(), config)?;
            println!("{}\n{}", server.tcp_url(), server.unix_url());
            println!("pid {}", server.pid());
            until_interrupted(server)
        }
        Topology::Tls { config } => {
            let authority = Authority::new("cargo xtask redis tls");
            let identity = authority.issue(&leaf(&["127.0.0.1", "localhost"]));
            let server = single(RedisServer::builder().tls(&identity, authority.pem()), config)?;
            println!("{}\n{}", server.tcp_url(), server.unix_url());
            show_trusted(&server);
            println!("pid {}", server.pid());
            until_interrupted(server)
        }
        Topology::Replicas { replicas, options } => {
            let set = Replicas::try_start(*replicas, &options.settings())?;
            println!("{}", set.url());
            show("server", set.servers(), options.tls);
            until_interrupted(set)
        }
        Topology::Sentinel { options } => {
            let set = SentinelSet::try_start(&options.settings())?;
            println!("{}", set.url());
            show("server", set.servers(), options.tls);
            show("sentinel", set.sentinels(), false);
            until_interrupted(set)
        }
        Topology::Cluster { masters, replicas, options } => {
            let set = Cluster::try_start(usize::from(*masters), *replicas, &options.settings())?;
            println!("{}", set.url());
            show("node", set.nodes(), options.tls);
            until_interrupted(set)
        }
    }
}

fn single(builder: wheellock_tests::Builder, config: &Config) -> Result<RedisServer> {
    config.config.iter().fold(builder, |builder, (name, value)| builder.arg(name, value)).try_start()
}

/// Prints the addresses for inspecting the servers, and the process ids for killing them.
fn show(what: &str, servers: &[RedisServer], tls: bool) {
    if let Some(server) = servers.first().filter(|_| tls) {
        show_trusted(server);
    }
    for server in servers {
        println!("{what} {} pid {} {}", server.addr(), server.pid(), server.unix_url());
    }
}

fn show_trusted(server: &RedisServer) {
    println!("trust {}", server.trusted_file().display());
}

/// Keeps `started` until Ctrl-C, and drops it then.
fn until_interrupted<T>(started: T) -> Result<ExitCode> {
    println!("Ctrl-C ends it");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(tokio::signal::ctrl_c())?;
    drop(started);
    Ok(ExitCode::SUCCESS)
}

fn directive(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
