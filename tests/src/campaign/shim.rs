//! A preloaded library that fakes a test server's clock.
//!
//! It also records which bytes were synced to disk. Owns the library's two files. The plans decide about their use.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};

use crate::server::{Builder, RedisServer};

/// The preloaded library's files, in a directory of the campaign.
#[derive(Debug)]
pub struct Shim {
    library: PathBuf,
    clock: PathBuf,
    synced: PathBuf,
    /// Kept open, because the caller may remove the directory once the server has opened its files.
    offset: File,
}

impl Shim {
    /// Compiles the library with `cc`. Every machine that builds Rust programs has it.
    ///
    /// # Errors
    ///
    /// There is no compiler, or the files cannot be written.
    pub fn compile(directory: &Path) -> Result<Self> {
        let library = directory.join("shim.so");
        let source = directory.join("shim.c");
        fs::write(&source, include_str!("shim.c"))?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-Wall", "-Werror", "-fPIC", "-shared", "-o"]).arg(&library).arg(&source);
        let output = compiler.output().context("cannot run cc")?;
        ensure!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
        let (clock, synced) = (directory.join("clock"), directory.join("synced"));
        fs::write(&clock, 0_i64.to_le_bytes())?;
        fs::write(&synced, [0; 16])?;
        let offset = File::options().write(true).open(&clock)?;
        Ok(Self { library, clock, synced, offset })
    }

    /// Starts a server with the preloaded library. The server's clock is still right. No file of the library stays on the disk.
    ///
    /// # Errors
    ///
    /// As [`Shim::compile`].
    ///
    /// # Panics
    ///
    /// As the builder's `start`.
    pub fn preloaded(mut builder: Builder) -> Result<(RedisServer, Self)> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("wheellock-shim-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory)?;
        let shim = Self::compile(&directory)?;
        for (name, value) in shim.environment() {
            builder = builder.env(name, &value.to_string_lossy());
        }
        let server = builder.start();
        fs::remove_dir_all(directory)?;
        Ok((server, shim))
    }

    /// Returns the variables for the server's environment.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, &Path); 3] {
        [("LD_PRELOAD", &self.library), ("WHEELLOCK_CLOCK", &self.clock), ("WHEELLOCK_SYNCED", &self.synced)]
    }

    /// Sets the server's clock `micros` microseconds ahead of the true time, at once.
    ///
    /// # Errors
    ///
    /// Errors of the file.
    pub fn set_clock(&self, micros: i64) -> Result<()> {
        // Never truncated, because the server has mapped the file.
        Ok(self.offset.write_all_at(&micros.to_le_bytes(), 0)?)
    }

    /// Truncates the append-only file of a dead server in `directory` as a power cut would: unsynced bytes are lost. Returns the number of
    /// lost bytes.
    ///
    /// # Errors
    ///
    /// Errors of the files.
    pub fn cut_power(&self, directory: &Path) -> Result<u64> {
        let told = fs::read(&self.synced)?;
        let number = |place: usize| {
            told.get(place..place + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
        };
        let (inode, length) = (number(0), number(8));
        let mut lost = 0;
        for entry in fs::read_dir(directory.join("appendonlydir"))? {
            let path = entry?.path();
            let metadata = fs::metadata(&path)?;
            if metadata.ino() == inode && metadata.len() > length {
                lost += metadata.len() - length;
                File::options().write(true).open(&path)?.set_len(length)?;
            }
        }
        Ok(lost)
    }
}
