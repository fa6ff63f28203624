//! Installation of a server on a machine without one.
//!
//! This module finds a server. Otherwise it announces the installation, and installs one with the system's package manager.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use wheellock_tests::find_server_binary;

use crate::run;

/// Returns the server binary. Installs a server first if necessary.
pub(crate) fn ensure_server() -> Result<PathBuf> {
    if let Some(binary) = find_server_binary() {
        return Ok(binary);
    }
    let Some(manager) = MANAGERS.iter().find(|manager| run::which(manager.program).is_some()) else {
        bail!(
            "found no redis-server or valkey-server, and no package manager known here. \
             Install Redis 6 or later, or Valkey, or set REDIS_SERVER_BIN to its path"
        );
    };
    println!("Found no redis-server or valkey-server (and REDIS_SERVER_BIN is not set): installing one.");
    if let Some(refresh) = manager.refresh {
        // A stale index may suffice; the installation shows whether it does.
        if let Err(error) = run_shown(&mut manager.command(refresh)?) {
            println!("{error:#}");
        }
    }
    for package in manager.packages {
        let mut args = manager.install.to_vec();
        args.push(package);
        match run_shown(&mut manager.command(&args)?) {
            Ok(()) => {
                return find_server_binary()
                    .with_context(|| format!("{package} is installed, but has put no server on PATH"));
            }
            Err(error) => println!("{error:#}"),
        }
    }
    bail!(
        "{} could not install any of: {}. Install Redis 6 or later, or Valkey, or set REDIS_SERVER_BIN",
        manager.program,
        manager.packages.join(", ")
    )
}

struct Manager {
    program: &'static str,
    refresh: Option<&'static [&'static str]>,
    install: &'static [&'static str],
    /// In order of preference.
    packages: &'static [&'static str],
    needs_root: bool,
}

impl Manager {
    fn command(&self, args: &[&str]) -> Result<Command> {
        let mut command = if self.needs_root && !rustix::process::geteuid().is_root() {
            if run::which("sudo").is_none() {
                bail!("{} needs root, and there is no sudo: install redis-server yourself", self.program);
            }
            let mut sudo = Command::new("sudo");
            if std::env::var_os("CI").is_some() {
                // In CI there is no terminal for a password.
                sudo.arg("-n");
            }
            sudo.arg(self.program);
            sudo
        } else {
            Command::new(self.program)
        };
        command.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdin(std::process::Stdio::null());
        Ok(command)
    }
}

const MANAGERS: &[Manager] = &[
    Manager {
        program: "apt-get",
        refresh: Some(&["update"]),
        install: &["install", "-y", "--no-install-recommends"],
        packages: &["redis-server", "valkey-server"],
        needs_root: true,
    },
    Manager {
        program: "dnf",
        refresh: None,
        install: &["install", "-y"],
        packages: &["redis", "valkey"],
        needs_root: true,
    },
    Manager {
        program: "apk",
        refresh: None,
        install: &["add", "--no-cache"],
        packages: &["redis", "valkey"],
        needs_root: true,
    },
    Manager {
        program: "pacman",
        refresh: None,
        install: &["-S", "--noconfirm", "--needed"],
        packages: &["valkey", "redis"],
        needs_root: true,
    },
    Manager {
        program: "brew",
        refresh: None,
        install: &["install"],
        packages: &["redis", "valkey"],
        needs_root: false,
    },
];

fn run_shown(command: &mut Command) -> Result<()> {
    println!("$ {}", run::shown(command));
    run::run(command)
}
