//! Bugs on purpose, to see that the tests catch them. Compiled only under `cfg(planted)`; otherwise every question is
//! answered with no, and nothing is left of it.
//!
//! `cargo xtask test` builds once with the flag and then runs one test per bug, which has to fail.

/// Whether the bug `name` is to be had: `WHEELLOCK_PLANTED` names it.
#[cfg(planted)]
pub fn bug(name: &str) -> bool {
    static PLANTED: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    PLANTED.get_or_init(|| std::env::var("WHEELLOCK_PLANTED").unwrap_or_default()) == name
}

/// Never, in a build that anybody uses.
#[cfg(not(planted))]
#[inline(always)]
pub const fn bug(_name: &str) -> bool {
    false
}
