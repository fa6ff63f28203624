//! The test programs of the workspace: built by one cargo, and run as cargo would run them, but several at a time, for most of them
//! mostly wait. Owns what each needs, and their order; what their results count for is `test`'s.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::run;

/// Those that take longest, the longest first: one that begins last would be waited for alone.
const LONGEST: [&str; 9] = [
    "virtual_time",
    "campaigns",
    "cluster",
    "interop_kinds",
    "topologies",
    "interop",
    "redlock",
    "interop_topologies",
    "redisson_defects",
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

/// Builds tests as `command`, a `cargo test`, says, and runs none. Of several programs the longest come first.
pub(crate) fn build(command: &mut Command) -> Result<Vec<Program>> {
    command.args(["--no-run", "--message-format=json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("cannot start {}", run::shown(command)))?;
    ensure!(output.status.success(), "{} failed ({})", run::shown(command), output.status);
    let mut programs = built(&String::from_utf8(output.stdout)?);
    let place = |program: &Program| LONGEST.iter().position(|long| *long == program.target);
    programs.sort_by_key(|program| place(program).unwrap_or(LONGEST.len()));
    Ok(programs)
}

/// The test programs that cargo says it has built, one message a line.
fn built(messages: &str) -> Vec<Program> {
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
    artifacts.iter().filter(|artifact| artifact.is_test).map(program).collect()
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

    /// Runs it to its end. What it prints goes through a file below `folder`, and not through a pipe, whose end somebody who
    /// outlives it could keep open.
    pub(crate) fn run(&self, folder: &Path) -> Result<Ended> {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(format!("{}.txt", self.shown().replace(' ', "_")));
        let printed = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let mut command = self.command();
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
        let programs = built(&messages.join("\n"));
        let shown: Vec<_> = programs.iter().map(Program::shown).collect();
        assert_eq!(shown, ["it --lib", "it-tests --bin worker", "it-tests locks"]);
        assert!(programs[0].binaries.is_empty(), "of another package");
        assert_eq!(programs[2].binaries, [("worker".to_owned(), "/w/target/debug/deps/worker-false".into())]);
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
            program.run(&directory).unwrap()
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

    #[test]
    fn what_is_said_to_take_long_is_there() {
        for name in LONGEST {
            let at = |folder: &str| run::root().join(folder).join(format!("{name}.rs")).is_file();
            assert!(at("tests/tests") || at("crates/wheellock/tests"), "{name}");
        }
    }
}
