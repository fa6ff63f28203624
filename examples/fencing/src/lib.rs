//! Recipes for resources that refuse the token of a former holder.
//!
//! A holder that paused for longer than its lease may write after the next holder. Only the resource can prevent that. Each recipe
//! compares tokens and writes in one step, so no write can come in between. The recipes do not know locks: a token is a number.

#![allow(missing_docs, reason = "an example")]

pub mod file;
pub mod object_store;
pub mod sqlite;

/// A greater token has written, so this holder has lost its lock. The resource did not change.
#[derive(Debug, PartialEq, Eq)]
pub struct Stale;
