//! Safety of the workflows on GitHub: permissions, secrets, pinned actions, and the crates that a release publishes.
//!
//! `cargo xtask gates workflows` checks the syntax.

use std::collections::BTreeMap;

use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

use crate::files::{Complaint, File, SHIPPED};

const FOLDER: &str = ".github/workflows/";
const RELEASE: &str = ".github/workflows/release.yml";

/// The jobs that may do more than read the repository: workflow, job and permissions.
const WRITERS: [(&str, &str, &[&str]); 2] = [
    (RELEASE, "publish", &["id-token: write"]),
    (RELEASE, "page", &["contents: write", "id-token: write", "attestations: write"]),
];

/// Returns a complaint for each unsafe part of a workflow.
pub(crate) fn unsafe_parts(files: &[File], metadata: &Value) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut pins = BTreeMap::new();
    for file in files.iter().filter(|file| file.path.starts_with(FOLDER)) {
        complaints.extend(permissions(file));
        complaints.extend(secrets(file));
        complaints.extend(actions(file, &mut pins));
    }
    if let Some(release) = files.iter().find(|file| file.path == RELEASE) {
        complaints.extend(published(release, metadata));
    }
    complaints
}

/// Checks that a workflow may only read, except for the jobs in [`WRITERS`].
fn permissions(file: &File) -> Vec<Complaint> {
    let document = match YamlLoader::load_from_str(&file.text) {
        Ok(documents) if documents.len() == 1 => documents.into_iter().next().unwrap_or(Yaml::Null),
        Ok(_) => return vec![Complaint::of(&*file.path, "must be one document")],
        Err(error) => return vec![Complaint::of(&*file.path, error.to_string())],
    };
    let mut complaints = Vec::new();
    if granted(&document["permissions"]) != ["contents: read"] {
        complaints.push(Complaint::of(&*file.path, "must begin with the permission `contents: read` only"));
    }
    for (name, job) in document["jobs"].as_hash().into_iter().flatten() {
        let name = name.as_str().unwrap_or_default();
        let writer = WRITERS.iter().find(|(path, job, _)| *path == file.path && *job == name);
        let allowed = writer.map_or(&[][..], |(_, _, permissions)| permissions);
        for permission in granted(&job["permissions"]) {
            if permission != "contents: read" && !allowed.contains(&permission.as_str()) {
                let what = format!("the job {name} must not have the permission `{permission}`");
                complaints.push(Complaint::of(&*file.path, what));
            }
        }
    }
    complaints
}

/// Returns the permissions, each as `scope: level`. A form other than a list of scopes is returned as text.
fn granted(permissions: &Yaml) -> Vec<String> {
    match permissions {
        Yaml::BadValue => Vec::new(),
        Yaml::Hash(scopes) => {
            let text = |value: &Yaml| value.as_str().unwrap_or_default().to_owned();
            scopes.iter().map(|(scope, level)| format!("{}: {}", text(scope), text(level))).collect()
        }
        other => vec![other.as_str().unwrap_or_default().to_owned()],
    }
}

/// Checks that the only secret is the token of the run, which ends with the run.
fn secrets(file: &File) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        let expressions = line.split("${{").skip(1).filter_map(|rest| rest.split_once("}}"));
        for (expression, _) in expressions {
            if expression.contains("secrets") && expression.trim() != "secrets.GITHUB_TOKEN" {
                complaints.push(Complaint::at(file, number, format!("uses `{}`", expression.trim())));
            }
        }
        if line.trim() == "secrets: inherit" {
            complaints.push(Complaint::at(file, number, "passes all secrets on"));
        }
    }
    complaints
}

/// Checks that each action is pinned to a commit, and to the same commit everywhere. No checkout leaves its token behind.
fn actions<'a>(file: &'a File, pins: &mut BTreeMap<&'a str, &'a str>) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut lines = file.text.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        let step = line.trim_start().trim_start_matches("- ");
        let Some(used) = step.strip_prefix("uses: ") else { continue };
        let (action, pin) = used.split_once('@').unwrap_or((used, ""));
        let (commit, version) = pin.split_once(" # v").unwrap_or((pin, ""));
        if commit.len() != 40 || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) || version.is_empty() {
            let what = format!("{action} must be pinned, as in `{action}@<commit> # v1.2.3`");
            complaints.push(Complaint::at(file, number, what));
        } else if *pins.entry(action).or_insert(pin) != pin {
            complaints.push(Complaint::at(file, number, format!("{action} has another commit elsewhere")));
        }
        if action == "actions/checkout" {
            let mut next = lines.clone().skip(1).map(|(_, line)| line.trim());
            if next.next() != Some("persist-credentials: false") {
                complaints.push(Complaint::at(file, number, "a checkout must not keep its credentials"));
            }
        }
    }
    complaints
}

/// Checks that a release publishes every package that may be published, each after its dependencies.
fn published(release: &File, metadata: &Value) -> Vec<Complaint> {
    let text = release.text.replace('\n', " ");
    let (_, command) = text.split_once("cargo publish --package ").unwrap_or_default();
    let mut words = command.split_whitespace();
    let mut listed: Vec<&str> = words.next().into_iter().collect();
    while words.next() == Some("--package") {
        listed.extend(words.next());
    }
    let mut complaints = Vec::new();
    for (place, name) in listed.iter().enumerate() {
        let needed =
            SHIPPED.iter().find(|(shipped, _)| shipped == name).map_or(&[][..], |(_, needed)| needed);
        if !needed.iter().all(|needed| listed[..place].contains(needed)) {
            complaints.push(Complaint::of(RELEASE, format!("publishes {name} before its dependencies")));
        }
    }
    let packages = metadata["packages"].as_array().into_iter().flatten();
    for package in packages.filter(|package| package["publish"].is_null()) {
        let name = package["name"].as_str().unwrap_or_default();
        if !listed.contains(&name) {
            complaints.push(Complaint::of(RELEASE, format!("does not publish {name}")));
        }
    }
    if listed.len() != SHIPPED.len() {
        complaints
            .push(Complaint::of(RELEASE, format!("publishes {} of {} crates", listed.len(), SHIPPED.len())));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const COMMIT: &str = "11bd71901bbe5b1630ceea73d27597364c9af683";

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    fn whats(complaints: Vec<Complaint>) -> Vec<String> {
        complaints.into_iter().map(|complaint| complaint.what).collect()
    }

    #[test]
    fn excess_permissions_are_found() {
        let workflow = |path: &str, top: &str, job: &str| {
            let text = format!("permissions:\n  {top}\njobs:\n  publish:\n    permissions:\n      {job}\n");
            permissions(&file(path, &text)).len()
        };
        assert_eq!(workflow(RELEASE, "contents: read", "id-token: write"), 0);
        assert_eq!(workflow(RELEASE, "contents: write", "id-token: write"), 1);
        assert_eq!(workflow(RELEASE, "contents: read", "packages: write"), 1);
        assert_eq!(workflow(".github/workflows/ci.yml", "contents: read", "id-token: write"), 1);
        assert_eq!(permissions(&file(RELEASE, "permissions: write-all\njobs: {}\n")).len(), 1);
        assert_eq!(permissions(&file(RELEASE, "jobs: {}\n")).len(), 1, "the default may be more");
        assert_eq!(permissions(&file(RELEASE, "jobs: {\n")).len(), 1, "not YAML");
    }

    #[test]
    fn lasting_secrets_are_found() {
        let used = |expression: &str| secrets(&file(RELEASE, &format!("env:\n  A: {expression}\n"))).len();
        assert_eq!(used("${{ secrets.GITHUB_TOKEN }}"), 0);
        assert_eq!(used("${{ steps.auth.outputs.token }}"), 0);
        assert_eq!(used("${{ secrets.CARGO_REGISTRY_TOKEN }}"), 1);
        assert_eq!(used("${{ toJSON(secrets) }}"), 1);
    }

    #[test]
    fn unpinned_actions_are_found() {
        let mut pins = BTreeMap::new();
        let text = format!(
            "- uses: actions/checkout@{COMMIT} # v4.2.2\n  with:\n    persist-credentials: false\n\
             - uses: a/b@v1\n- uses: a/c@{COMMIT}\n- uses: a/d@{COMMIT} # v1.0.0\n- uses: actions/checkout@{COMMIT} # v4.2.2\n"
        );
        let file = file(RELEASE, &text);
        let found = whats(actions(&file, &mut pins));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("a/b") && found[1].contains("a/c") && found[2].contains("credentials"));
        let other = file_of(&"0".repeat(40));
        assert_eq!(whats(actions(&other, &mut pins)), ["a/d has another commit elsewhere"]);
    }

    fn file_of(commit: &str) -> File {
        file(".github/workflows/ci.yml", &format!("- uses: a/d@{commit} # v1.0.0\n"))
    }

    #[test]
    fn unpublished_or_misplaced_crates_are_found() {
        let packages = |names: &[&str]| {
            let packages: Vec<_> =
                names.iter().map(|name| json!({ "name": name, "publish": null })).collect();
            json!({ "packages": packages })
        };
        let all: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
        let release = |names: &[&str]| {
            let listed: Vec<_> = names.iter().map(|name| format!("--package {name}")).collect();
            file(RELEASE, &format!("run: >-\n  cargo publish {}\nenv:\n", listed.join("\n  ")))
        };
        assert_eq!(published(&release(&all), &packages(&all)), []);
        let misplaced: Vec<_> = all.iter().rev().copied().collect();
        assert!(!published(&release(&misplaced), &packages(&all)).is_empty());
        assert_eq!(published(&release(&all[..4]), &packages(&all)).len(), 2);
        let more = [all.clone(), vec!["wheellock-new"]].concat();
        assert_eq!(whats(published(&release(&all), &packages(&more))), ["does not publish wheellock-new"]);
    }
}
