//! Placement of the server and this process on CPUs.
//!
//! This module uses the kernel's interface and does not know the measured work.

use std::process::{Child, Command};

use anyhow::{Context as _, Result};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use wheellock_tests::RedisServer;

/// The CPUs of this process.
pub(crate) struct Placement {
    all: CpuSet,
    first: CpuSet,
    last: CpuSet,
}

impl Placement {
    pub(crate) fn find() -> Result<Self> {
        let all = sched_getaffinity(None)?;
        let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
        let one = |cpu: Option<usize>| -> Result<CpuSet> {
            let mut set = CpuSet::new();
            set.set(cpu.context("no CPU at all")?);
            Ok(set)
        };
        Ok(Self { all, first: one(cpus.clone().min())?, last: one(cpus.max())? })
    }

    /// Puts client and server on one CPU.
    pub(crate) fn together(&self, server: &RedisServer) -> Result<()> {
        place(server, &self.first, &self.first)
    }

    /// Puts the server and the client on different CPUs, if there are two.
    pub(crate) fn apart(&self, server: &RedisServer) -> Result<()> {
        place(server, &self.first, &self.last)
    }

    /// Puts the server on one CPU, and lets the kernel place the client.
    pub(crate) fn free(&self, server: &RedisServer) -> Result<()> {
        place(server, &self.first, &self.all)
    }

    /// Keeps both CPUs awake. A virtual CPU takes tens of microseconds to wake, and the time depends on its previous work.
    pub(crate) fn keep_awake(&self) -> Result<Awake> {
        let mut awake = Awake(Vec::new());
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| self.first.is_set(*cpu) || self.last.is_set(*cpu)) {
            let cpu = cpu.to_string();
            // The idle policy runs this loop only while no other program needs the CPU.
            let idle = ["-c", &cpu, "chrt", "--idle", "0", "sh", "-c", "while :; do :; done"];
            awake.0.push(Command::new("taskset").args(idle).spawn().context("no taskset and chrt")?);
        }
        Ok(awake)
    }
}

/// CPUs that stay awake until this is dropped.
pub(crate) struct Awake(Vec<Child>);

impl Drop for Awake {
    fn drop(&mut self) {
        for idle in &mut self.0 {
            let _ = idle.kill();
            let _ = idle.wait();
        }
    }
}

/// Pins the server and this process. Threads of this process that start later inherit its CPUs.
fn place(server: &RedisServer, of_server: &CpuSet, of_client: &CpuSet) -> Result<()> {
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw).context("the server has no pid")?;
    sched_setaffinity(Some(pid), of_server).context("cannot pin the server")?;
    sched_setaffinity(None, of_client).context("cannot pin this process")
}
