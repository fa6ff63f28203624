//! Test programs of the workspace, and their runs.
//!
//! A single cargo command builds them. They run as under cargo, but several at a time, because most of them mostly wait. A program with
//! modules runs module by module, each in its own process. This module knows the requirements of each program, the order, and the
//! assignment of tests. `test` evaluates the results.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::run;

/// The slowest groups, the slowest first: a slow group that begins last would finish alone. `cargo xtask test --quick` leaves them out.
pub(crate) const LONGEST: [&str; 16] = [
    "campaigns",
    "virtual_time",
    "simulation",
    "interop",
    "interop_kinds",
    "topologies",
    "cluster",
    "virtual_permits",
    "cancellation",
    "redlock",
    "interop_fair",
    "interop_topologies",
    "interop_semaphores",
    "redisson_defects",
    "cli",
    "operations",
];

/// A program that cargo has built, for one target of one package.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) package: String,
    /// The name of a test, or `--lib`, or `--bin` and a name.
    pub(crate) target: String,
    executable: PathBuf,
    manifest: PathBuf,
    /// The package's binaries, by name.
    binaries: Vec<(String, PathBuf)>,
}

/// The result of a program.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) succeeded: bool,
    pub(crate) printed: String,
}

/// The programs that a cargo command has built.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) tests: Vec<Program>,
    pub(crate) examples: Vec<Program>,
}

/// Builds the tests of `command`, a `cargo test`, without running them.
pub(crate) fn build(command: &mut Command) -> Result<Built> {
    command.args(["--no-run", "--message-format=json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("cannot start {}", run::shown(command)))?;
    ensure!(output.status.success(), "{} failed ({})", run::shown(command), output.status);
    Ok(built(&String::from_utf8(output.stdout)?))
}

/// Returns the programs in cargo's messages, one message per line.
fn built(messages: &str) -> Built {
    let artifacts: Vec<_> = messages.lines().filter_map(Artifact::read).collect();
    let binaries = |package: &str| -> Vec<(String, PathBuf)> {
        let its = artifacts
            .iter()
            .filter(|artifact| !artifact.is_test && artifact.kind == "bin" && artifact.package == package);
        its.map(|binary| (binary.name.clone(), binary.executable.clone())).collect()
    };
    let program = |artifact: &Artifact| Program {
        package: artifact.package.clone(),
        target: artifact.target(),
        executable: artifact.executable.clone(),
        manifest: artifact.manifest.clone(),
        binaries: binaries(&artifact.package),
    };
    let tests = artifacts.iter().filter(|artifact| artifact.is_test);
    let examples = artifacts.iter().filter(|artifact| !artifact.is_test && artifact.kind == "example");
    Built { tests: tests.map(program).collect(), examples: examples.map(program).collect() }
}

/// A cargo message about an executable file.
struct Artifact {
    package: String,
    kind: String,
    name: String,
    is_test: bool,
    executable: PathBuf,
    manifest: PathBuf,
}

impl Artifact {
    /// Reads a message. Returns `None` if it is not about an executable file.
    fn read(message: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(message).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let target = &message["target"];
        Some(Self {
            package: package_name(message["package_id"].as_str()?)?.to_owned(),
            kind: text(&target["kind"][0])?,
            name: text(&target["name"])?,
            is_test: message["profile"]["test"].as_bool()?,
            executable: text(&message["executable"])?.into(),
            manifest: text(&message["manifest_path"])?.into(),
        })
    }

    fn target(&self) -> String {
        match self.kind.as_str() {
            "test" => self.name.clone(),
            kind @ ("bin" | "example" | "bench") => format!("--{kind} {}", self.name),
            _ => "--lib".to_owned(),
        }
    }
}

/// Returns the name in `path+file:///a/b#name@0.1.0` or `path+file:///a/name#0.1.0`.
fn package_name(id: &str) -> Option<&str> {
    let (path, version) = id.split_once('#')?;
    version.split_once('@').map(|(name, _)| name).or_else(|| path.rsplit('/').next())
}

impl Program {
    /// Creates a program without a file, for tests.
    #[cfg(test)]
    pub(crate) fn with_target(target: &str) -> Self {
        let (package, executable) = ("p".to_owned(), "/bin/tests".into());
        let manifest = "/w/p/Cargo.toml".into();
        Self { package, target: target.to_owned(), executable, manifest, binaries: Vec::new() }
    }

    /// Returns cargo's name of the program.
    pub(crate) fn shown(&self) -> String {
        format!("{} {}", self.package, self.target)
    }

    /// Returns the program as cargo would run it: in its package's directory, with cargo's variables for the directory and the binaries.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        let directory = self.manifest.parent().unwrap_or(Path::new("."));
        command.current_dir(directory).stdin(Stdio::null());
        command.env("CARGO_PKG_NAME", &self.package);
        command.env("CARGO_MANIFEST_PATH", &self.manifest).env("CARGO_MANIFEST_DIR", directory);
        for (name, path) in &self.binaries {
            command.env(format!("CARGO_BIN_EXE_{name}"), path);
        }
        command
    }

    /// Returns the program like [`Self::command`], after a command of the shell that sets limits.
    pub(crate) fn command_in_shell(&self, limits: &str) -> Command {
        let plain = self.command();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")])
            .arg(plain.get_program())
            .stdin(Stdio::null());
        plain.get_current_dir().into_iter().for_each(|directory| {
            shell.current_dir(directory);
        });
        shell.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell
    }

    /// Returns a binary of the package as a program.
    pub(crate) fn binary(&self, name: &str) -> Option<Self> {
        let (_, executable) = self.binaries.iter().find(|(binary, _)| binary == name)?;
        let (package, target) = (self.package.clone(), format!("--bin {name}"));
        let (executable, manifest) = (executable.clone(), self.manifest.clone());
        Some(Self { package, target, executable, manifest, binaries: self.binaries.clone() })
    }

    /// Returns the program's tests, by path.
    pub(crate) fn tests(&self) -> Result<Vec<String>> {
        let output = self.command().arg("--list").output();
        let output = output.with_context(|| format!("cannot start {}", self.shown()))?;
        ensure!(output.status.success(), "{} --list: {}", self.shown(), output.status);
        listed(&String::from_utf8(output.stdout)?).with_context(|| format!("{} --list", self.shown()))
    }
}

/// Returns the tests in a program's list, and checks that the program reports the same count.
fn listed(printed: &str) -> Result<Vec<String>> {
    let tests: Vec<_> =
        printed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect();
    let count = printed.lines().last().unwrap_or_default();
    let expected = if tests.len() == 1 { "1 test, ".to_owned() } else { format!("{} tests, ", tests.len()) };
    ensure!(count.starts_with(&expected), "{} tests are listed, and it says {count:?}", tests.len());
    Ok(tests)
}

/// Tests that run in one process: the tests of one module of a program, or all its tests.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    program: &'a Program,
    /// The module, if the program is run module by module.
    module: Option<String>,
    /// The paths of the tests.
    pub(crate) tests: Vec<String>,
    is_whole: bool,
}

/// Returns all tests of these programs, each in exactly one group. The slowest groups come first.
pub(crate) fn groups(programs: &[Program]) -> Result<Vec<Group<'_>>> {
    let mut groups = Vec::new();
    for program in programs {
        groups.extend(grouped(program, program.tests()?));
    }
    groups
        .sort_by_key(|group| LONGEST.iter().position(|long| *long == group.name()).unwrap_or(LONGEST.len()));
    Ok(groups)
}

/// Splits a program of integration tests by module if all its tests are in modules. Otherwise the program is one group.
pub(crate) fn grouped(program: &Program, tests: Vec<String>) -> Vec<Group<'_>> {
    let group = |module, tests| Group { program, module, tests, is_whole: true };
    let is_of_modules = !program.target.starts_with('-') && tests.iter().all(|test| test.contains("::"));
    if !is_of_modules {
        let some = (!tests.is_empty()).then(|| group(None, tests));
        return some.into_iter().collect();
    }
    let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for test in tests {
        let module = test.split("::").next().unwrap_or_default().to_owned();
        modules.entry(module).or_default().push(test);
    }
    modules.into_iter().map(|(module, tests)| group(Some(module), tests)).collect()
}

impl Group<'_> {
    pub(crate) fn package(&self) -> &str {
        &self.program.package
    }

    /// Returns the module, or cargo's name of the program.
    pub(crate) fn name(&self) -> &str {
        self.module.as_deref().unwrap_or(&self.program.target)
    }

    pub(crate) fn shown(&self) -> String {
        format!("{} {}", self.package(), self.name())
    }

    /// Returns the group with only the wanted tests. `is_wanted` gets their paths without the module.
    pub(crate) fn only(&self, is_wanted: impl Fn(&str) -> bool) -> Self {
        let within = |test: &str| match &self.module {
            Some(module) => {
                is_wanted(test.strip_prefix(module.as_str()).unwrap_or(test).trim_start_matches(':'))
            }
            None => is_wanted(test),
        };
        let tests = self.tests.iter().filter(|test| within(test)).cloned().collect();
        Self { program: self.program, module: self.module.clone(), tests, is_whole: false }
    }

    /// Returns the process that runs exactly these tests.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.program.command();
        if self.module.is_some() || !self.is_whole {
            // Use whole names: a part of a name could match a test of a different module.
            command.arg("--exact").args(&self.tests);
        }
        command
    }

    /// Runs the group to its end. The output goes to a file below `folder` and not to a pipe. A process that outlives the group could keep
    /// the pipe's end open.
    pub(crate) fn run(&self, mut command: Command, folder: &Path) -> Result<Ended> {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(format!("{}.txt", self.shown().replace(' ', "_")));
        let printed = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        command.stdout(printed.try_clone()?).stderr(printed);
        let status = command.status().with_context(|| format!("cannot start {}", self.shown()))?;
        let mut printed = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
        if !status.success() {
            let _infallible = writeln!(printed, "{} ended: {status}", self.shown());
        }
        Ok(Ended { succeeded: status.success(), printed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(package: &str, kind: &str, name: &str, is_test: bool) -> String {
        let executable = format!("/w/target/debug/deps/{name}-{is_test}");
        let (id, manifest) = (format!("path+file:///w/{package}"), "/w/it/Cargo.toml");
        serde_json::json!({
            "reason": "compiler-artifact", "package_id": id, "manifest_path": manifest,
            "target": { "kind": [kind], "name": name }, "profile": { "test": is_test }, "executable": executable,
        })
        .to_string()
    }

    #[test]
    fn test_programs_are_found_among_artifacts() {
        let library = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/it#0.1.0","manifest_path":"/w/it/Cargo.toml",
            "target":{"kind":["lib"],"name":"it"},"profile":{"test":false},"executable":null}"#;
        let messages = [
            library.replace('\n', ""),
            message("it#0.1.0", "lib", "it", true),
            message("tests#it-tests@0.1.0", "bin", "worker", false),
            message("tests#it-tests@0.1.0", "bin", "worker", true),
            message("tests#it-tests@0.1.0", "test", "locks", true),
            message("it#0.1.0", "example", "shown", false),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
            "not of cargo".to_owned(),
        ];
        let Built { tests, examples } = built(&messages.join("\n"));
        let shown = |programs: &[Program]| programs.iter().map(Program::shown).collect::<Vec<_>>();
        assert_eq!(shown(&tests), ["it --lib", "it-tests --bin worker", "it-tests locks"]);
        assert_eq!(shown(&examples), ["it --example shown"]);
        assert!(tests[0].binaries.is_empty(), "of another package");
        assert_eq!(tests[2].binaries, [("worker".to_owned(), "/w/target/debug/deps/worker-false".into())]);
    }

    #[test]
    fn program_runs_like_cargo_keeping_output() {
        let directory = run::target_directory().join("programs-test");
        fs::create_dir_all(&directory).unwrap();
        let run = |executable: &str| {
            let program = Program {
                package: "p".to_owned(),
                target: executable.replace('/', "-"),
                executable: executable.into(),
                manifest: directory.join("Cargo.toml"),
                binaries: vec![("worker".to_owned(), "/bin/worker".into())],
            };
            let whole = Group { program: &program, module: None, tests: Vec::new(), is_whole: true };
            whole.run(whole.command(), &directory).unwrap()
        };
        let at = fs::canonicalize(&directory).unwrap();
        assert_eq!(run("/bin/pwd").printed.trim_end(), at.to_str().unwrap());
        let told = run("/usr/bin/env").printed;
        let is_told = |line: &str| told.lines().any(|told| told == line);
        assert!(is_told("CARGO_BIN_EXE_worker=/bin/worker"), "{told}");
        assert!(is_told(&format!("CARGO_MANIFEST_DIR={}", directory.display())), "{told}");
        let failed = run("/bin/false");
        assert_eq!((failed.succeeded, &*failed.printed), (false, "p -bin-false ended: exit status: 1\n"));
    }

    fn names(tests: &[&str]) -> Vec<String> {
        tests.iter().map(|test| (*test).to_owned()).collect()
    }

    #[test]
    fn groups_partition_tests() {
        let it = Program::with_target("it");
        let tests = names(&["locks::a", "faults_locks::a", "locks::part::b", "waits::c"]);
        let groups = grouped(&it, tests.clone());
        let shown: Vec<_> = groups.iter().map(Group::shown).collect();
        assert_eq!(shown, ["p faults_locks", "p locks", "p waits"]);
        let mut all: Vec<_> = groups.iter().flat_map(|group| group.tests.clone()).collect();
        all.sort();
        let mut expected = tests;
        expected.sort();
        assert_eq!(all, expected);
        assert_eq!(run::shown(&groups[1].command()), "tests --exact locks::a locks::part::b");
        let part = groups[1].only(|test| test.starts_with("part") && !test.contains("locks"));
        assert_eq!(run::shown(&part.command()), "tests --exact locks::part::b");
    }

    #[test]
    fn program_without_modules_is_one_group() {
        let (units, alone) = (Program::with_target("--lib"), Program::with_target("memory"));
        for (program, tests) in [(&units, ["a::b", "c::d"]), (&alone, ["a::b", "c"])] {
            let groups = grouped(program, names(&tests));
            assert_eq!((groups.len(), groups[0].name()), (1, &*program.target));
            assert_eq!(groups[0].tests, tests);
            assert_eq!(run::shown(&groups[0].command()), "tests", "whatever it has");
            let some = groups[0].only(|test| test.starts_with('c'));
            assert_eq!(run::shown(&some.command()), format!("tests --exact {}", tests[1]));
        }
        assert!(grouped(&units, Vec::new()).is_empty());
    }

    #[test]
    fn malformed_test_list_is_refused() {
        assert_eq!(listed("a::b: test\nc: test\n\n2 tests, 0 benchmarks\n").unwrap(), ["a::b", "c"]);
        assert_eq!(listed("c: test\n\n1 test, 0 benchmarks\n").unwrap(), ["c"]);
        assert_eq!(listed("0 tests, 0 benchmarks\n").unwrap(), [""; 0]);
        for bad in ["a: test\n\n2 tests, 0 benchmarks\n", "a: test\n", "", "a: odd\n\n1 test, 0 benchmarks\n"]
        {
            assert!(listed(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn longest_groups_exist() {
        for name in LONGEST {
            let at = |folder: &str| run::root().join(folder).join(format!("{name}.rs")).is_file();
            assert!(at("tests/tests/it") || at("tests/tests") || at("crates/wheellock/tests/it"), "{name}");
        }
    }

    /// A file without a `mod` is not compiled, so its tests would be missing without notice.
    #[test]
    fn every_integration_file_is_module() {
        let crates = fs::read_dir(run::root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
        let mut read = 0;
        for folder in crates.chain([run::root().join("tests")]).map(|package| package.join("tests/it")) {
            let Ok(files) = fs::read_dir(&folder) else { continue };
            let main = fs::read_to_string(folder.join("main.rs")).unwrap();
            for file in files.map(|file| file.unwrap().path()) {
                let module = file.file_stem().unwrap().to_str().unwrap();
                let is_there = module == "main" || main.lines().any(|line| line == format!("mod {module};"));
                assert!(is_there, "{} is no module", file.display());
                read += 1;
            }
        }
        assert!(read > 60, "{read}");
    }
}
