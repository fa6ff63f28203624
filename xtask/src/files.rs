//! Text files of the repository, shipped packages, and complaints.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A complaint about one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    pub(crate) place: String,
    pub(crate) what: String,
}

impl Complaint {
    pub(crate) fn of(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into() }
    }

    pub(crate) fn at(file: &File, line: usize, what: impl Into<String>) -> Self {
        Self::of(format!("{}:{}", file.path, line + 1), what)
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// Returns true if the package is shipped to users.
pub(crate) fn is_shipped(package: &str) -> bool {
    SHIPPED.iter().any(|(name, _)| *name == package)
}

/// The shipped packages, each with the project's crates that it may depend on.
pub(crate) const SHIPPED: &[(&str, &[&str])] = &[
    ("wheellock-resp", &[]),
    ("wheellock-wheel", &[]),
    ("wheellock-client", &["wheellock-resp", "wheellock-wheel"]),
    ("wheellock", &["wheellock-client", "wheellock-wheel", "wheellock-resp"]),
    ("wheellock-cli", &["wheellock"]),
];

/// A text file of the repository. `path` is relative to the root and uses `/`.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Returns the text files below `root`, by path.
pub(crate) fn text_files(root: &Path) -> Result<Vec<File>> {
    let mut folders = vec![root.to_path_buf()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path: PathBuf = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !["target", ".git", "artifacts", "corpus", "seeds"].contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if [".rs", ".md", ".toml", ".lua", ".yml", ".patch", ".api", "words.txt", "run"]
                .iter()
                .any(|end| name.ends_with(end))
            {
                let text =
                    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
                let path = path.strip_prefix(root)?.to_string_lossy().into_owned();
                files.push(File { path, text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
