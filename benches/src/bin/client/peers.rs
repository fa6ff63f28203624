//! Other clients, tuned as their own documentation and benchmarks advise.
//!
//! All use no delay on TCP, RESP3, and no timer per call. The `redis` crate is also shown with its defaults. Replies have the type that a
//! user would choose.

use anyhow::{Result, ensure};
use fred::interfaces::{ClientLike as _, KeysInterface as _, LuaInterface as _};
use fred::types::RespVersion;
use fred::types::config::TcpConfig;
use redis::aio::MultiplexedConnection;
use rustis::commands::{ScriptingCommands as _, StringCommands as _};

use crate::contenders::{BIG, BIG_KEY, Caller, KEY, LEASE, Names, Target, VALUE};

/// The `redis` crate's multiplexed connection.
pub(crate) struct Redis {
    connection: MultiplexedConnection,
    scripts: Shas,
    names: Names,
}

#[derive(Clone)]
struct Shas {
    acquire: String,
    release: String,
}

impl Shas {
    fn of(target: &Target) -> Self {
        Self { acquire: target.acquire_sha.clone(), release: target.release_sha.clone() }
    }
}

impl Redis {
    pub(crate) async fn tuned(target: &Target, sessions: usize) -> Result<Vec<Self>> {
        // As of 2.0, no delay on TCP is its default.
        let client = redis::Client::open(format!("{}/?protocol=resp3", target.server.tcp_url()))?;
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Self::sessions(target, &connection, sessions))
    }

    pub(crate) async fn default(target: &Target, sessions: usize) -> Result<Vec<Self>> {
        let client = redis::Client::open(target.server.tcp_url())?;
        let connection = client.get_multiplexed_async_connection().await?;
        Ok(Self::sessions(target, &connection, sessions))
    }

    fn sessions(target: &Target, connection: &MultiplexedConnection, sessions: usize) -> Vec<Self> {
        let scripts = Shas::of(target);
        let session = |index| Self {
            connection: connection.clone(),
            scripts: scripts.clone(),
            names: Names::new(index),
        };
        (0..sessions).map(session).collect()
    }

    async fn fetch(&mut self, key: &str) -> Option<String> {
        redis::cmd("GET").arg(key).query_async(&mut self.connection).await.ok()
    }
}

impl Caller for Redis {
    async fn get(&mut self) -> bool {
        self.fetch(KEY).await.is_some_and(|value| value == VALUE)
    }

    async fn pair(&mut self) -> bool {
        let Names { key, channel, owner } = &self.names;
        let acquired: Result<Option<i64>, _> = redis::cmd("EVALSHA")
            .arg(&self.scripts.acquire)
            .arg(1)
            .arg(key)
            .arg(LEASE)
            .arg(owner)
            .arg(1)
            .query_async(&mut self.connection)
            .await;
        let released: Result<Option<i64>, _> = redis::cmd("EVALSHA")
            .arg(&self.scripts.release)
            .arg(1)
            .arg(key)
            .arg(channel)
            .arg(owner)
            .arg(0)
            .arg("PUBLISH")
            .query_async(&mut self.connection)
            .await;
        matches!(acquired, Ok(None)) && matches!(released, Ok(Some(1)))
    }

    async fn big(&mut self) -> bool {
        self.fetch(BIG_KEY).await.is_some_and(|value| value.len() == BIG)
    }
}

/// The `fred` crate.
pub(crate) struct Fred {
    client: fred::clients::Client,
    scripts: Shas,
    names: Names,
}

impl Fred {
    pub(crate) async fn connect(target: &Target, sessions: usize) -> Result<Vec<Self>> {
        let config = fred::types::config::Config::from_url(&target.server.tcp_url())?;
        let client = fred::types::Builder::from_config(config)
            .with_config(|config| config.version = RespVersion::RESP3)
            .with_connection_config(|config| {
                config.tcp = TcpConfig { nodelay: Some(true), ..TcpConfig::default() };
            })
            .build()?;
        client.init().await?;
        let scripts = Shas::of(target);
        let session =
            |index| Self { client: client.clone(), scripts: scripts.clone(), names: Names::new(index) };
        Ok((0..sessions).map(session).collect())
    }

    async fn fetch(&self, key: &'static str) -> Option<String> {
        self.client.get(key).await.ok()
    }
}

impl Caller for Fred {
    async fn get(&mut self) -> bool {
        self.fetch(KEY).await.is_some_and(|value| value == VALUE)
    }

    async fn pair(&mut self) -> bool {
        use fred::types::Value;
        let Names { key, channel, owner } = &self.names;
        let args: Vec<Value> = vec![LEASE.into(), owner.as_str().into(), 1.into()];
        let acquired: Result<Option<i64>, _> =
            self.client.evalsha(self.scripts.acquire.as_str(), key.as_str(), args).await;
        let args: Vec<Value> =
            vec![channel.as_str().into(), owner.as_str().into(), 0.into(), "PUBLISH".into()];
        let released: Result<Option<i64>, _> =
            self.client.evalsha(self.scripts.release.as_str(), key.as_str(), args).await;
        matches!(acquired, Ok(None)) && matches!(released, Ok(Some(1)))
    }

    async fn big(&mut self) -> bool {
        self.fetch(BIG_KEY).await.is_some_and(|value| value.len() == BIG)
    }
}

/// The `rustis` crate. It always uses RESP3, and by default sets no delay and no timeout.
pub(crate) struct Rustis {
    client: rustis::client::Client,
    scripts: Shas,
    names: Names,
}

impl Rustis {
    pub(crate) async fn connect(target: &Target, sessions: usize) -> Result<Vec<Self>> {
        let client = rustis::client::Client::connect(target.server.tcp_url()).await?;
        ensure!(sessions > 0, "no sessions");
        let scripts = Shas::of(target);
        let session =
            |index| Self { client: client.clone(), scripts: scripts.clone(), names: Names::new(index) };
        Ok((0..sessions).map(session).collect())
    }
}

impl Caller for Rustis {
    async fn get(&mut self) -> bool {
        let value: Result<String, _> = self.client.get(KEY).await;
        value.is_ok_and(|value| value == VALUE)
    }

    async fn pair(&mut self) -> bool {
        let Names { key, channel, owner } = &self.names;
        let acquired: Result<Option<i64>, _> = self
            .client
            .evalsha(self.scripts.acquire.as_str(), key.as_str(), (LEASE, owner.as_str(), 1))
            .await;
        let released: Result<Option<i64>, _> = self
            .client
            .evalsha(
                self.scripts.release.as_str(),
                key.as_str(),
                (channel.as_str(), owner.as_str(), 0, "PUBLISH"),
            )
            .await;
        matches!(acquired, Ok(None)) && matches!(released, Ok(Some(1)))
    }

    async fn big(&mut self) -> bool {
        let value: Result<String, _> = self.client.get(BIG_KEY).await;
        value.is_ok_and(|value| value.len() == BIG)
    }
}
