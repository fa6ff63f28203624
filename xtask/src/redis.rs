//! Private servers in the foreground, gone with this process.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use wheellock_tests::RedisServer;

use crate::install::ensure_server;

#[derive(Debug, Subcommand)]
pub(crate) enum Topology {
    /// One server on a free loopback port and a unix socket, persisting nothing
    Standalone {
        /// A configuration directive, e.g. `--config appendonly=yes`; may be repeated
        #[arg(long, value_name = "NAME=VALUE", value_parser = directive)]
        config: Vec<(String, String)>,
    },
}

pub(crate) fn run(topology: &Topology) -> Result<ExitCode> {
    ensure_server()?;
    let Topology::Standalone { config } = topology;
    let builder =
        config.iter().fold(RedisServer::builder().tcp(), |builder, (name, value)| builder.arg(name, value));
    let server = builder.try_start()?;
    println!("{}\n{}", server.tcp_url(), server.unix_url());
    println!("pid {}; Ctrl-C ends it", server.pid());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(tokio::signal::ctrl_c())?;
    Ok(ExitCode::SUCCESS)
}

fn directive(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
