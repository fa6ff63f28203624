//! Who we are to be: what the configuration says, or the user's provider when it is asked. Sends nothing.

use crate::base::contain::finished;
use crate::base::error::Error;
use crate::config::{Config, Credentials};

/// Asks the provider, if there is one. `failed` makes an error of what went wrong there.
pub(crate) async fn ask(config: &Config, failed: impl Fn(&str) -> Error) -> Result<Credentials, Error> {
    let Some(provider) = &config.credentials else {
        return Ok(Credentials { username: config.username.clone(), password: config.password.clone() });
    };
    let provided =
        finished(|| provider()).await.ok_or_else(|| failed("the credentials provider panicked"))?;
    let mut provided = provided.map_err(|error| {
        let detail = format!("the credentials provider failed: {error}");
        failed(&detail).because_of(error)
    })?;
    if provided.username.is_none() {
        provided.username.clone_from(&config.username);
    }
    Ok(provided)
}

/// What is said of a provider that takes too long.
pub(crate) const SILENT: &str = "the credentials provider gave no answer";
