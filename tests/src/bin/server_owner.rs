//! A process that owns a server and does nothing else.
//!
//! A test kills this owner.

use std::io::{Read, Write};

use wheellock_tests::RedisServer;

fn main() -> anyhow::Result<()> {
    let server = RedisServer::builder().try_start()?;
    println!("{} {}", server.pid(), server.socket_path().display());
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
