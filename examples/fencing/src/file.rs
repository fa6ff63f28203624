//! A file: the token is its first line, a lock file orders the writers, and a rename replaces both lines at once.

use std::fs::{self, File};
use std::io::{ErrorKind, Result, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::Stale;

/// Replaces the content, if the file has no greater token. A crash leaves either the old file or the new file.
pub fn write(path: &Path, token: u64, content: &str) -> Result<std::result::Result<(), Stale>> {
    // The rename replaces the file itself, so writers lock a file beside it. The lock ends when it is closed.
    let lock = File::create(path.with_extension("lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if read(path)?.is_some_and(|(greatest, _)| greatest > token) {
        return Ok(Err(Stale));
    }
    let next = path.with_extension("next");
    let mut file = File::create(&next)?;
    write!(file, "{token}\n{content}")?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    // Without this, a power cut may bring the old file back.
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(Ok(()))
}

/// Returns the token and the content.
pub fn read(path: &Path) -> Result<Option<(u64, String)>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let parts = text.split_once('\n').and_then(|(token, content)| Some((token.parse().ok()?, content)));
    let (token, content) = parts.ok_or(ErrorKind::InvalidData)?;
    Ok(Some((token, content.to_owned())))
}
