//! The test programs of the workspace: built by one cargo, and run as cargo would run them, but several at a time, for most of them
//! mostly wait, and module by module where they have modules, each in a process of its own. Owns what each needs, who runs which
//! test, and in which order; what their results count for is `test`'s.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::run;

/// The groups that take longest, the longest first: one that begins last would be waited for alone. `cargo xtask test --quick`
/// leaves them out.
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

/// A program that cargo has built, of one target of one package.
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

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) succeeded: bool,
    pub(crate) printed: String,
}

/// What one cargo has built.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) tests: Vec<Program>,
    pub(crate) examples: Vec<Program>,
}

/// Builds tests as `command`, a `cargo test`, says, and runs none.
pub(crate) fn build(command: &mut Command) -> Result<Built> {
    command.args(["--no-run", "--message-format=json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("cannot start {}", run::shown(command)))?;
    ensure!(output.status.success(), "{} failed ({})", run::shown(command), output.status);
    Ok(built(&String::from_utf8(output.stdout)?))
}

/// The programs that cargo says it has built, one message a line.
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

/// What cargo says of an executable file.
struct Artifact {
    package: String,
    kind: String,
    name: String,
    is_test: bool,
    executable: PathBuf,
    manifest: PathBuf,
}

impl Artifact {
    /// `None` if the message is about something else.
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

/// `path+file:///a/b#name@0.1.0`, or `path+file:///a/name#0.1.0`.
fn package_name(id: &str) -> Option<&str> {
    let (path, version) = id.split_once('#')?;
    version.split_once('@').map(|(name, _)| name).or_else(|| path.rsplit('/').next())
}

impl Program {
    /// One that is nowhere, for tests.
    #[cfg(test)]
    pub(crate) fn with_target(target: &str) -> Self {
        let (package, executable) = ("p".to_owned(), "/bin/tests".into());
        let manifest = "/w/p/Cargo.toml".into();
        Self { package, target: target.to_owned(), executable, manifest, binaries: Vec::new() }
    }

    /// What cargo calls it.
    pub(crate) fn shown(&self) -> String {
        format!("{} {}", self.package, self.target)
    }

    /// The program as cargo would run it: in its package's directory, which it and its binaries are told.
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

    /// The tests that it has, by their paths.
    pub(crate) fn tests(&self) -> Result<Vec<String>> {
        let output = self.command().arg("--list").output();
        let output = output.with_context(|| format!("cannot start {}", self.shown()))?;
        ensure!(output.status.success(), "{} --list: {}", self.shown(), output.status);
        listed(&String::from_utf8(output.stdout)?).with_context(|| format!("{} --list", self.shown()))
    }
}

/// The tests that a program lists, which has to count them as we do.
fn listed(printed: &str) -> Result<Vec<String>> {
    let tests: Vec<_> =
        printed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect();
    let count = printed.lines().last().unwrap_or_default();
    let expected = if tests.len() == 1 { "1 test, ".to_owned() } else { format!("{} tests, ", tests.len()) };
    ensure!(count.starts_with(&expected), "{} tests are listed, and it says {count:?}", tests.len());
    Ok(tests)
}

/// Tests that run in one process: those of one module of a program, or all that it has.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    program: &'a Program,
    /// The module, if the program is run module by module.
    module: Option<String>,
    /// By their paths.
    pub(crate) tests: Vec<String>,
    is_whole: bool,
}

/// All tests of these programs, each in exactly one group; the groups that take longest come first.
pub(crate) fn groups(programs: &[Program]) -> Result<Vec<Group<'_>>> {
    let mut groups = Vec::new();
    for program in programs {
        groups.extend(grouped(program, program.tests()?));
    }
    groups
        .sort_by_key(|group| LONGEST.iter().position(|long| *long == group.name()).unwrap_or(LONGEST.len()));
    Ok(groups)
}

/// A program of integration tests that all stand in modules is run module by module; another as it is.
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

    /// The module, or what cargo calls the program.
    pub(crate) fn name(&self) -> &str {
        self.module.as_deref().unwrap_or(&self.program.target)
    }

    pub(crate) fn shown(&self) -> String {
        format!("{} {}", self.package(), self.name())
    }

    /// Of its tests those whose paths, without the module, are wanted.
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

    /// The process that runs these tests and no others.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.program.command();
        if self.module.is_some() || !self.is_whole {
            // By their whole names: part of one could be part of another module's.
            command.arg("--exact").args(&self.tests);
        }
        command
    }

    /// Runs it to its end. What it prints goes through a file below `folder`, and not through a pipe, whose end somebody who
    /// outlives it could keep open.
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
    fn of_what_cargo_has_built_the_test_programs_are_run() {
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
    fn a_program_runs_as_cargo_would_run_it_and_all_that_it_prints_is_kept() {
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
    fn every_test_is_in_one_group_and_a_group_runs_no_other() {
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
    fn a_program_without_modules_is_one_group() {
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
    fn a_list_that_is_not_understood_is_refused() {
        assert_eq!(listed("a::b: test\nc: test\n\n2 tests, 0 benchmarks\n").unwrap(), ["a::b", "c"]);
        assert_eq!(listed("c: test\n\n1 test, 0 benchmarks\n").unwrap(), ["c"]);
        assert_eq!(listed("0 tests, 0 benchmarks\n").unwrap(), [""; 0]);
        for bad in ["a: test\n\n2 tests, 0 benchmarks\n", "a: test\n", "", "a: odd\n\n1 test, 0 benchmarks\n"]
        {
            assert!(listed(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_said_to_take_long_is_there() {
        for name in LONGEST {
            let at = |folder: &str| run::root().join(folder).join(format!("{name}.rs")).is_file();
            assert!(at("tests/tests/it") || at("tests/tests") || at("crates/wheellock/tests/it"), "{name}");
        }
    }

    /// A file that no `mod` names would be compiled by nobody, and its tests would be missed by nobody.
    #[test]
    fn every_file_of_integration_tests_is_a_module() {
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
