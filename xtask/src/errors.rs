//! Generation of the page of error texts.
//!
//! The texts come from a test, which produces each error.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::run;

/// Writes `docs/tables/errors.md` and prints it.
pub(crate) fn run() -> Result<ExitCode> {
    let test = ["test", "--quiet", "-p", "wheellock-tests", "--test", "it", "--", "error_texts::"];
    run::run(run::cargo(test).env("WHEELLOCK_BLESS", "1"))?;
    let page = run::root().join("docs/tables/errors.md");
    print!("{}", std::fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?);
    Ok(ExitCode::SUCCESS)
}
