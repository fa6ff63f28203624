//! Timing wheel benchmarks beside other timers.
//!
//! The others are tokio's timers, `DelayQueue`, `hierarchical_hash_wheel_timer`, `nexus-timer`, `bitwheel`, `pingora-timeout`, `async-io`,
//! and Netty itself on the JVM (`benches/netty`, if `mvn` and `java` are there).
//!
//! `wheel [--rounds N] [word]` runs the benches whose names contain the word. `wheel --plot [folder]` draws `target/bench/wheel.json`, and
//! `wheel --table [page]` writes it into a page.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::type_complexity,
    reason = "counts and figures, small and positive"
)]

#[path = "wheel/callbacks.rs"]
mod callbacks;
#[path = "wheel/core_wheels.rs"]
mod core_wheels;
#[path = "wheel/handles.rs"]
mod handles;
#[path = "wheel/netty.rs"]
mod netty;
#[path = "wheel/plot.rs"]
mod plot;
#[path = "wheel/wakeups.rs"]
mod wakeups;

use anyhow::Result;
use wheellock_benches::Report;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next().as_deref()) {
        (Some("--plot"), folder) => return plot::draw(folder.unwrap_or("docs/img")),
        (Some("--table"), page) => return plot::table(page.unwrap_or("docs/lab/tables/wheel.md")),
        _ => {}
    }
    let mut report = Report::new("wheel");
    core_wheels::run(&mut report)?;
    handles::run(&mut report)?;
    callbacks::run(&mut report)?;
    wakeups::run(&mut report)?;
    netty::run(&mut report)?;
    report.finish()
}
