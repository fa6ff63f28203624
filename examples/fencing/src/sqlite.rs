//! A database: the token is a row, and its update is the first statement of the transaction.
//!
//! PostgreSQL and MySQL need the same statements. The locked row makes an older holder wait, until it reads the greater token.

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::Stale;

pub const SCHEMA: &str =
    "CREATE TABLE IF NOT EXISTS fences (name TEXT PRIMARY KEY, token INTEGER NOT NULL) STRICT";

/// Inserts the fence, or raises its token. Changes no row if the row has a greater token.
const RAISE: &str = "INSERT INTO fences (name, token) VALUES (?1, ?2)
    ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fences.token <= excluded.token";

/// Runs the work in a transaction that only the holder of the greatest token commits.
pub fn fenced<T>(
    database: &mut Connection,
    name: &str,
    token: u64,
    work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Result<T, Stale>> {
    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // A token is a time in microseconds, so it fits a signed column.
    if transaction.execute(RAISE, (name, token.cast_signed()))? == 0 {
        return Ok(Err(Stale));
    }
    let done = work(&transaction)?;
    transaction.commit()?;
    Ok(Ok(done))
}
