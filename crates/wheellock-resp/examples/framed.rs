//! Example of a connection to a real server through tokio-util's `Framed`.
//!
//! It sends a hello, a key, an expiry, and a message to itself.
//!
//! ```text
//! cargo run -p wheellock-resp --features codec --example framed -- 127.0.0.1:6379
//! REDIS_ADDR=127.0.0.1:6379 cargo run -p wheellock-resp --features codec --example framed
//! ```

use anyhow::{Context as _, Result, bail};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::TcpStream;
use tokio_util::codec::Framed;
use wheellock_resp::codec::RespCodec;
use wheellock_resp::{Command, Frame, Value};

type Server = Framed<TcpStream, RespCodec>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let address = std::env::args()
        .nth(1)
        .or_else(|| std::env::var("REDIS_ADDR").ok())
        .unwrap_or_else(|| "127.0.0.1:6379".to_owned());
    let stream =
        TcpStream::connect(&address).await.with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true)?;
    let mut server = Framed::new(stream, RespCodec::default());

    let hello = call(&mut server, Command::new("HELLO").arg(3)).await?;
    let version = hello.get("version").and_then(Value::as_str).unwrap_or("unknown");
    println!("connected to {address}, version {version}");

    // Send three commands in one write; the replies arrive in the same order.
    let key = format!("wheellock:example:{}", std::process::id());
    server.feed(Command::new("SET").arg(&key).arg("hello").args(["PX", "60000"])).await?;
    server.feed(Command::new("PTTL").arg(&key)).await?;
    server.send(Command::new("DEL").arg(&key)).await?;
    for command in ["SET", "PTTL", "DEL"] {
        println!("{command:>10}: {:?}", reply(&mut server).await?);
    }

    // A push arrives on the same connection; only its type distinguishes it.
    server.send(Command::new("SUBSCRIBE").arg(&key)).await?;
    println!("{:>10}: {:?}", "subscribed", push(&mut server).await?);
    server.send(Command::new("PUBLISH").arg(&key).arg("0")).await?;
    println!("{:>10}: {:?}", "message", push(&mut server).await?);
    println!("{:>10}: {:?}", "PUBLISH", reply(&mut server).await?);
    Ok(())
}

async fn call(server: &mut Server, command: Command<'_>) -> Result<Value> {
    server.send(command).await?;
    reply(server).await
}

async fn reply(server: &mut Server) -> Result<Value> {
    match server.next().await.context("the server closed the connection")?? {
        Frame::Reply(value) => match value.as_error() {
            Some(error) => bail!("the server answered {}", error.escape_ascii()),
            None => Ok(value),
        },
        Frame::Push(push) => bail!("a push instead of a reply: {push:?}"),
    }
}

async fn push(server: &mut Server) -> Result<Vec<Value>> {
    match server.next().await.context("the server closed the connection")?? {
        Frame::Push(push) => Ok(push.into_elements()),
        Frame::Reply(value) => bail!("a reply instead of a push: {value:?}"),
    }
}
