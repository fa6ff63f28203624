//! The compiler's warnings of forgotten results.
//!
//! Compiles the crate `wheellock-misuse`, in which a mark ends each line with a mistake.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// P1 to P3: the compiler warns of each statement that drops a refusal, a release, a guard or a handle, and of no other.
#[test]
fn compiler_warns_of_each_misuse() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("misuse");
    let source = std::fs::read_to_string(package.join("src/lib.rs")).unwrap();
    let marked = (1..).zip(source.lines()).filter(|(_, line)| line.ends_with("// warns"));
    let marked: BTreeSet<u64> = marked.map(|(number, _)| number).collect();
    assert!(marked.len() > 90, "the statements of every kind");
    let mut compile = Command::new(env!("CARGO"));
    compile.args(["rustc", "--lib", "--offline", "--message-format=json", "--", "--cfg=misuse"]);
    // A build that turns warnings into errors must not hide any.
    compile.arg("--cap-lints=warn").current_dir(&package);
    let output = compile.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).unwrap();
    let warned: BTreeSet<u64> = messages.lines().filter_map(warning).collect();
    let missing: Vec<_> = marked.difference(&warned).collect();
    let excess: Vec<_> = warned.difference(&marked).collect();
    assert!(
        missing.is_empty() && excess.is_empty(),
        "without a warning: {missing:?}; not marked: {excess:?}"
    );
}

/// Returns the line of a warning in the crate of misuses.
fn warning(message: &str) -> Option<u64> {
    let message: Value = serde_json::from_str(message).unwrap();
    if message["reason"] != "compiler-message" || message["target"]["name"] != "wheellock_misuse" {
        return None;
    }
    let message = &message["message"];
    // The last message counts the warnings.
    let span = message["spans"].as_array()?.iter().find(|span| span["is_primary"] == true)?;
    assert_eq!(message["code"]["code"], "unused_must_use", "{}", message["rendered"]);
    span["line_start"].as_u64()
}
