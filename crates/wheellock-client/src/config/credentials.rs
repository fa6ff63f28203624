//! Credentials of the next handshake.
//!
//! They come from the configuration or from the user's provider. This module sends nothing.

use crate::base::error::Error;
use crate::base::panics::catch_panic_of;
use crate::config::{Config, Credentials};

/// Returns the provider's credentials, or those of the configuration without a provider. `failed` makes an error from
/// the description of a failure.
pub(crate) async fn get(config: &Config, failed: impl Fn(&str) -> Error) -> Result<Credentials, Error> {
    let Some(provider) = &config.credentials else {
        return Ok(Credentials { username: config.username.clone(), password: config.password.clone() });
    };
    let provided =
        catch_panic_of(|| provider()).await.ok_or_else(|| failed("the credentials provider panicked"))?;
    let mut provided = provided.map_err(|error| {
        let detail = format!("the credentials provider failed: {error}");
        failed(&detail).because_of(error)
    })?;
    if provided.username.is_none() {
        provided.username.clone_from(&config.username);
    }
    Ok(provided)
}

/// The error text for a provider that takes too long.
pub(crate) const SILENT: &str = "the credentials provider gave no answer";
