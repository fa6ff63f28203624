//! Netty itself, in a JVM, right after the other timers.
//!
//! It is left out if there is no `mvn` or `java`.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use wheellock_benches::Report;

pub(crate) fn run(report: &mut Report) -> Result<()> {
    if !report.wants("netty") && !report.wants("1M timers over 1 s") {
        return Ok(());
    }
    match figures(report.rounds()) {
        Some(figures) => {
            for line in figures.lines() {
                let mut fields = line.split('|');
                let (Some(bench), Some(metric), Some(unit)) = (fields.next(), fields.next(), fields.next())
                else {
                    continue;
                };
                let samples: Vec<f64> = fields.filter_map(|sample| sample.parse().ok()).collect();
                report.row(bench, SUBJECT, metric, unit, &samples);
            }
        }
        None => println!("{SUBJECT}: left out, needs mvn and java"),
    }
    Ok(())
}

fn figures(rounds: usize) -> Option<String> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let built = root.join("target/netty");
    let classpath = built.join("classpath");
    let compiled = Command::new("mvn")
        .args(["-q", "-f"])
        .arg(root.join("benches/netty/pom.xml"))
        .args(["compile", "dependency:build-classpath"])
        .arg(format!("-Dmdep.outputFile={}", classpath.display()))
        .status();
    compiled.ok().filter(|status| status.success())?;
    let jars = std::fs::read_to_string(&classpath).ok()?;
    let java = Command::new("java")
        .args(["-Xmx2g", "-cp", &format!("{}:{}", built.join("classes").display(), jars.trim())])
        .args(["WheelBench", &rounds.to_string()])
        .output();
    let output = java.ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

const SUBJECT: &str = "Netty 4.1 on the JVM";
