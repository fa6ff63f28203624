//! Each recipe refuses a holder that paused for longer than its lease, and many writers at once keep the order of their tokens.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use wheellock::LockManager;
use wheellock_fencing::object_store::Double;
use wheellock_fencing::{Stale, file, object_store, sqlite};
use wheellock_tests::RedisServer;

/// A resource of a recipe. It may be used by several threads at a time.
trait Resource: Send + Sync {
    /// Writes the token as the content.
    fn write(&self, token: u64) -> Result<(), Stale>;
    fn read(&self) -> Option<u64>;
}

struct Database(PathBuf);

impl Database {
    /// Opens the database, as each process would.
    fn open(&self) -> Connection {
        let database = Connection::open(&self.0).unwrap();
        database.busy_timeout(Duration::from_secs(20)).unwrap();
        database.execute_batch(sqlite::SCHEMA).unwrap();
        database.execute_batch("CREATE TABLE IF NOT EXISTS ledger (total INTEGER)").unwrap();
        database
    }
}

impl Resource for Database {
    fn write(&self, token: u64) -> Result<(), Stale> {
        let work = |transaction: &rusqlite::Transaction<'_>| {
            transaction.execute("DELETE FROM ledger", ())?;
            transaction.execute("INSERT INTO ledger VALUES (?1)", [token.cast_signed()])?;
            Ok(())
        };
        sqlite::fenced(&mut self.open(), "ledger", token, work).unwrap()
    }

    fn read(&self) -> Option<u64> {
        let row = self.open().query_row("SELECT total FROM ledger", (), |row| row.get::<_, i64>(0));
        row.ok().map(i64::cast_unsigned)
    }
}

struct Text(PathBuf);

impl Resource for Text {
    fn write(&self, token: u64) -> Result<(), Stale> {
        file::write(&self.0, token, &token.to_string()).unwrap()
    }

    fn read(&self) -> Option<u64> {
        file::read(&self.0).unwrap().map(|(_, content)| content.parse().unwrap())
    }
}

impl Resource for Double {
    fn write(&self, token: u64) -> Result<(), Stale> {
        object_store::put(self, "ledger", token, &token.to_string())
    }

    fn read(&self) -> Option<u64> {
        self.body("ledger").map(|body| body.parse().unwrap())
    }
}

fn resources(server: &RedisServer) -> [Arc<dyn Resource>; 3] {
    let folder = server.directory();
    [
        Arc::new(Database(folder.join("ledger.sqlite"))),
        Arc::new(Text(folder.join("ledger.txt"))),
        Arc::new(Double::default()),
    ]
}

#[tokio::test]
async fn stale_holder_writes_nothing() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let lock = locks.fenced_lock("ledger");
    for resource in resources(&server) {
        // This holder pauses for longer than its lease.
        let paused = lock.with_lease(Duration::from_millis(100)).acquire().await.unwrap();
        assert_eq!(resource.write(paused.token()), Ok(()));
        paused.lost().await;
        let next = lock.acquire().await.unwrap();
        assert_eq!(resource.write(next.token()), Ok(()));
        assert_eq!(resource.write(paused.token()), Err(Stale));
        assert_eq!(resource.write(next.token()), Ok(()), "a holder may write again");
        assert_eq!(resource.read(), Some(next.token()));
        next.release().await.unwrap();
    }
}

#[test]
fn concurrent_writers_never_go_back() {
    let server = RedisServer::start();
    for resource in resources(&server) {
        std::thread::scope(|threads| {
            for writer in 0..4 {
                let resource = &resource;
                threads.spawn(move || {
                    let mut greatest = 0;
                    for step in 0..25 {
                        let token = 1 + step * 4 + writer;
                        let written = resource.write(token);
                        let found = resource.read().unwrap();
                        assert!(found >= greatest, "{found} came after {greatest}");
                        assert!(found >= token, "{found} came after {token}: {written:?}");
                        greatest = found;
                    }
                });
            }
        });
        assert_eq!(resource.read(), Some(100));
    }
}
