//! An object store: the token is in the object's metadata, and the write requires the version that was read.
//!
//! S3 and Azure Blob Storage have this condition (`If-Match`, or `If-None-Match: *` for a new object), as has Google Cloud Storage
//! (`ifGenerationMatch`). [`Double`] stands for such a store.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::Stale;

/// Writes the object, if it has no greater token. Reads again if a different writer came in between.
pub fn put(store: &Double, key: &str, token: u64, body: &str) -> Result<(), Stale> {
    loop {
        let read = store.head(key);
        if read.is_some_and(|(_, greatest)| greatest > token) {
            return Err(Stale);
        }
        if store.put_if(key, read.map(|(version, _)| version), token, body).is_ok() {
            return Ok(());
        }
    }
}

/// The reply of a store to a write whose version is not the object's (412 Precondition Failed).
#[derive(Debug)]
pub struct PreconditionFailed;

#[derive(Debug, Clone)]
struct Object {
    version: u64,
    token: u64,
    body: String,
}

/// A store in memory with conditional writes.
#[derive(Debug, Default)]
pub struct Double(Mutex<HashMap<String, Object>>);

impl Double {
    /// Returns the version and the token of an object.
    pub fn head(&self, key: &str) -> Option<(u64, u64)> {
        let objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let read = objects.get(key).map(|object| (object.version, object.token));
        drop(objects);
        // As over a network, other writers come in between.
        std::thread::sleep(Duration::from_micros(100));
        read
    }

    pub fn body(&self, key: &str) -> Option<String> {
        let objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        objects.get(key).map(|object| object.body.clone())
    }

    /// Writes an object that has this version, or that does not exist.
    pub fn put_if(
        &self,
        key: &str,
        version: Option<u64>,
        token: u64,
        body: &str,
    ) -> Result<(), PreconditionFailed> {
        let mut objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let present = objects.get(key).map(|object| object.version);
        if present != version {
            return Err(PreconditionFailed);
        }
        let object = Object { version: version.unwrap_or(0) + 1, token, body: body.to_owned() };
        objects.insert(key.to_owned(), object);
        Ok(())
    }
}
