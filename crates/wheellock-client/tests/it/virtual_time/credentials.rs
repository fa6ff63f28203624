//! Credentials that a provider renews while a connection lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wheellock_client::{Credentials, Error, ErrorKind, Outcome, Secret};

use super::{World, poll_once};
use crate::in_memory::virtual_time;

/// A client whose provider returns these passwords in order, and then the last password again. An empty password is a failure of the
/// provider.
fn world_of_tokens(tokens: &'static [&'static str]) -> World {
    let asked = AtomicUsize::new(0);
    World::with(|config| {
        config.credentials = Some(Arc::new(move || {
            let token = tokens[asked.fetch_add(1, Ordering::Relaxed).min(tokens.len() - 1)];
            Box::pin(async move {
                match token {
                    "" => Err("the vault is closed".into()),
                    "panic" => std::panic::resume_unwind(Box::new(())),
                    "never" => std::future::pending().await,
                    token => Ok(Credentials {
                        username: Some("app".to_owned()),
                        password: Some(Secret::new(token)),
                    }),
                }
            })
        }));
    })
}

impl World {
    /// Renews the credentials. Returns the result, and the AUTH commands that the server received.
    async fn reauthenticate(&mut self) -> (Result<(), Error>, Vec<Vec<String>>) {
        self.server.executed.clear();
        let client = self.client.clone();
        let renewal = tokio::spawn(async move { client.reauthenticate().await });
        self.until(|_| renewal.is_finished()).await;
        let told = self.server.executed.iter().filter(|words| words[0] == "AUTH").cloned().collect();
        (renewal.await.unwrap(), told)
    }
}

#[test]
fn live_connection_gets_new_credentials() {
    virtual_time(async {
        let mut world = world_of_tokens(&["first", "second", "third", "fourth"]);
        let (renewed, told) = world.reauthenticate().await;
        assert!(renewed.is_ok() && told.is_empty(), "what is not connected asks by itself: {told:?}");
        world.until(|world| world.client.is_ready()).await;
        let said = world.server.executed.iter().rfind(|words| words[0] == "HELLO").unwrap();
        assert_eq!(said[4], "third", "what had asked before asks once more");
        let (renewed, told) = world.reauthenticate().await;
        assert!(renewed.is_ok());
        assert_eq!(told, [["AUTH", "app", "fourth"]]);
        assert_eq!(world.client.stats().connections, 1);

        // The next connection will get credentials from the provider.
        world.server.budget = Some(0);
        let (renewed, told) = world.reauthenticate().await;
        assert!(renewed.is_ok() && told.len() == 1, "{renewed:?}, {told:?}");
        world.until(|world| world.client.stats().connections == 2).await;
        let client = world.client.clone();
        world.check("renewing credentials").await;
        let closed = client.reauthenticate().await.unwrap_err();
        assert_eq!((closed.kind(), closed.outcome()), (ErrorKind::Closed, Outcome::NotSent));
    });
    // A client that never had credentials does not send AUTH.
    virtual_time(async {
        let mut world = World::new();
        world.until(|world| world.client.is_ready()).await;
        let (renewed, told) = world.reauthenticate().await;
        assert!(renewed.is_ok() && told.is_empty());
        world.check("renewing nothing").await;
    });
}

#[test]
fn failed_provider_sends_no_credentials() {
    for (tokens, why) in [
        (&["first", ""], "the credentials provider failed: the vault is closed"),
        (&["first", "panic"], "the credentials provider panicked"),
        (&["first", "never"], "the credentials provider gave no answer within 3s"),
    ] {
        virtual_time(async move {
            let mut world = world_of_tokens(tokens);
            world.until(|world| world.client.is_ready()).await;
            let (renewed, told) = world.reauthenticate().await;
            let error = renewed.unwrap_err();
            assert_eq!((error.kind(), error.outcome()), (ErrorKind::Connect, Outcome::NotSent), "{error}");
            assert!(error.detail() == why && told.is_empty(), "{error}, {told:?}");
            assert_eq!(error.server_address(), "in.memory:6379");
            world.check(why).await;
        });
    }
}

/// A proxy without AUTH, or with error texts of its own, may repeat the credentials in its error.
#[test]
fn server_echoing_credentials_is_not_quoted() {
    for (token, kind) in [
        ("-ERR unknown command 'AUTH', with args beginning with: 'app' 's3cret'", ErrorKind::Server),
        ("-ERR s3cret is wrong", ErrorKind::Server),
        ("-WRONGPASS s3cret is wrong", ErrorKind::Auth),
    ] {
        for size in [1, 3000] {
            let token: &str = format!("{token}{}", "s3cret".repeat(size)).leak();
            let tokens: &[&str] = vec!["first", token].leak();
            virtual_time(async move {
                let mut world = world_of_tokens(tokens);
                world.until(|world| world.client.is_ready()).await;
                let (renewed, _) = world.reauthenticate().await;
                let error = renewed.unwrap_err();
                assert_eq!((error.kind(), error.outcome()), (kind, Outcome::Rejected), "{error}");
                let shown = format!("{error} {error:?} {:?}", world.client.state());
                assert!(!shown.contains("s3cret") && shown.contains("user \"app\""), "{shown}");
                assert_eq!(world.client.stats().connections, 1);
                world.check("a refusal").await;
            });
        }
    }
}

#[test]
fn dropped_reauthentication_leaves_nothing() {
    for polls in 0..6 {
        virtual_time(async move {
            let mut world = world_of_tokens(&["first", "second"]);
            world.until(|world| world.client.is_ready()).await;
            let client = world.client.clone();
            let mut renewal = Box::pin(async move { client.reauthenticate().await });
            for _ in 0..polls {
                if poll_once(renewal.as_mut()).is_ready() {
                    break;
                }
                world.settle().await;
            }
            drop(renewal);
            world.check("a dropped renewal").await;
        });
    }
}
