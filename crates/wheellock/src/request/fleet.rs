//! This process's entries in its fleet.
//!
//! A task for each key of the fleet refreshes an entry, and drives the grace after a failover. The tasks have connections of their own,
//! because `WAIT` blocks a connection. The rules are in `table::holds::membership`.

use std::collections::HashSet;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use wheellock_client::layer::{Acks, ConnectionId, Hooks, Retry, Start, Started};
use wheellock_client::{CallOptions, Client, Config, ErrorKind, Timer, Value};

use crate::base::error::Error;
use crate::base::fleet::Fleet;
use crate::base::fleet_key::FleetKey;
use crate::base::fleet_terms::Terms;
use crate::base::join_all::join_all;
use crate::kind;
use crate::request::context::Context;
use crate::request::diagnostics::Finding;
use crate::request::events;
use crate::table::holds::Refresh;
use crate::wire::{self, RefreshReply};

/// Returns the settings of the connection for refreshes.
pub(crate) fn config_of(config: &Config) -> Config {
    let mut config = config.clone();
    (config.hooks, config.on_change) = (Hooks::default(), None);
    config.scripts.clear();
    config
}

/// Starts to refresh the entries.
pub(crate) fn start(context: &Arc<Context>, refreshes: &Client) {
    let timer = &refreshes.config().timer;
    for number in 0..context.fleet_keys.len() {
        tokio::spawn(keep(Arc::downgrade(context), number, refreshes.clone(), timer.clone()));
    }
}

/// Refreshes the entry of the key with this number until the manager is dropped or shut down.
async fn keep(manager: Weak<Context>, number: usize, refreshes: Client, timer: Timer) {
    let Some(mut watch) = manager.upgrade().map(|context| context.client.watch()) else { return };
    let (mut due, mut other) = (timer.now(), None);
    loop {
        // Hold the manager only during the refresh. Otherwise this task would keep a dropped manager alive.
        let Some(context) = manager.upgrade() else { break };
        if timer.now() >= due || is_elsewhere(&context, number) {
            let Some(pause) = turn(&context, number, &refreshes, &mut other).await else { break };
            due = timer.now() + pause;
        } else {
            // In a cluster, the slot of an awaited lock may have reached a server that grants.
            context.transact(|holds, now, effects| holds.open_gate(now, effects));
        }
        drop(context);
        // Another connection may lead to another server.
        let mut changed = pin!(watch.changed());
        let mut sleep = pin!(timer.sleep_until(due));
        std::future::poll_fn(|cx| {
            let is_over = changed.as_mut().poll(cx).is_ready() || sleep.as_mut().poll(cx).is_ready();
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
    refreshes.close().await;
}

/// Returns true if the key has another connection than at its last refresh.
fn is_elsewhere(context: &Context, number: usize) -> bool {
    let key = context.fleet_keys.get(number);
    let present = key.and_then(|key| context.client.present_server(key.fleet.as_bytes()));
    context.holds().is_elsewhere(number, present.map(|(connection, _)| connection))
}

/// Makes one refresh, and returns the pause before the next. Returns `None` after a shutdown. `told` is the last fleet with other numbers
/// that was reported.
async fn turn(
    context: &Arc<Context>,
    number: usize,
    refreshes: &Client,
    told: &mut Option<Fleet>,
) -> Option<Duration> {
    let under_way = context.refresh.read().await;
    // After this check, a shutdown waits for the refresh. Otherwise the refresh could add the entry again that the shutdown removes.
    if context.holds().is_shut() {
        return None;
    }
    let sent = context.clock.now();
    let key = context.fleet_keys.get(number)?;
    let (refresh, terms) = context.holds().next_refresh(number, sent)?;
    let reply = ask(context, refreshes, key, &refresh, &terms).await;
    drop(under_way);
    let connection = reply.as_ref().ok().and_then(|(_, connection)| *connection);
    // A refresh that fails leaves everything as it is. The window then closes.
    match reply.ok().and_then(|(reply, _)| wire::read_refresh(&reply)) {
        Some(RefreshReply::Refreshed(reply)) => {
            let behind = context.client.present_server(key.fleet.as_bytes());
            let wanted =
                context.transact(|holds, now, effects| holds.refreshed(number, &reply, behind, now, effects));
            let acknowledged = acknowledgements(refreshes, connection, wanted, &terms).await;
            context.transact(|holds, now, effects| {
                holds.refresh_acknowledged(number, sent, acknowledged, now, effects);
            });
        }
        Some(RefreshReply::OtherFleet(fleet)) => {
            context.change(|holds, _| holds.refresh_failed(number));
            // The refreshes repeat several times a second.
            if told.as_ref() != Some(&fleet) {
                events::other_fleet(&context.client.server_address(), &fleet);
            }
            *told = Some(fleet);
        }
        None => context.change(|holds, _| holds.refresh_failed(number)),
    }
    let now = context.clock.now();
    Some(context.holds().pause_before_refresh(number, now))
}

async fn ask(
    context: &Context,
    refreshes: &Client,
    key: &FleetKey,
    refresh: &Refresh,
    terms: &Terms,
) -> Result<(Value, Option<ConnectionId>), wheellock_client::Error> {
    let params = wire::refresh(key, &context.uuid, refresh, terms);
    let timer = &refreshes.config().timer;
    // The script is sent with its source, because a NOSCRIPT error would only delay the refresh.
    let mut retry = Retry::in_full();
    loop {
        let start = Start { at: timer.now(), options: CallOptions::default(), remembers: false };
        let mut started: Option<Started<'_>> = None;
        let reply = std::future::poll_fn(|cx| {
            let call = started.get_or_insert_with(|| {
                refreshes.start_eval(&kind::REFRESH, REFRESH_KEYS, &params, &retry, start, cx.waker())
            });
            Pin::new(call).poll(cx)
        })
        .await;
        match reply {
            Ok(reply) => return Ok((reply, started.and_then(|call| call.connection()))),
            // The key's slot has moved to another server of the cluster.
            Err(error)
                if matches!(error.code(), Some("MOVED" | "ASK"))
                    && retry.after(&error).is_some_and(|pause| pause.is_zero()) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the number of replicas that acknowledge the last write of this connection in time.
async fn acknowledgements(
    refreshes: &Client,
    connection: Option<ConnectionId>,
    (wanted, within): (u32, Duration),
    terms: &Terms,
) -> u32 {
    let Some(connection) = connection.filter(|_| wanted > 0) else { return 0 };
    let (timer, acks) = (&refreshes.config().timer, Acks::Replicas(wanted));
    let deadline = timer.now() + terms.reply_within;
    let mut started: Option<Started<'_>> = None;
    let reply = std::future::poll_fn(|cx| {
        let call = started
            .get_or_insert_with(|| refreshes.start_wait(connection, acks, within, deadline, cx.waker()));
        Pin::new(call).poll(cx)
    })
    .await;
    reply.ok().and_then(|reply| acks.heard(&reply)).unwrap_or(0)
}

/// Returns an error if the processes of this server have other numbers.
pub(crate) async fn check(
    context: &Context,
    refreshes: &Client,
    fleet: &Fleet,
    findings: &[Finding],
) -> Result<(), Error> {
    let unsupported = |reason: String| Error::UnsupportedFleet { fleet: fleet.clone(), reason };
    let now = context.clock.now();
    if !has_key_on_each_server(context) {
        return Err(unsupported("a shard of the cluster has none of the 16 slots that it needs".to_owned()));
    }
    // Each process enters itself by all keys of the fleet, so one key tells the numbers of the others.
    let Some(key) = context.fleet_keys.first() else { return Ok(()) };
    let Some((refresh, terms)) = context.holds().next_refresh(0, now) else { return Ok(()) };
    let (reply, _) = match ask(context, refreshes, key, &refresh, &terms).await {
        Ok(reply) => reply,
        Err(source) if matches!(source.kind(), ErrorKind::Server | ErrorKind::Permission) => {
            let lacks = findings.iter().filter_map(Finding::missing_fleet_rule).collect::<Vec<_>>().join(" ");
            return Err(unsupported(match &*lacks {
                "" => format!("the server refuses to refresh an entry: {source}"),
                lacks => format!("the user lacks {lacks}"),
            }));
        }
        Err(source) => return Err(Error::Server { operation: "connect".to_owned(), source }),
    };
    match wire::read_refresh(&reply) {
        Some(RefreshReply::Refreshed(_)) => Ok(()),
        Some(RefreshReply::OtherFleet(other)) => {
            Err(unsupported(format!("the other processes of this server say: {other}")))
        }
        None => Err(Error::unexpected("refresh an entry in the fleet".to_owned(), reply.type_name())),
    }
}

/// Returns true if each server that serves locks has a key of the fleet. Without a key, the server's locks would not survive its failover.
fn has_key_on_each_server(context: &Context) -> bool {
    let with_key: HashSet<u32> =
        context.fleet_keys.iter().map(|key| context.client.node_of(key.fleet.as_bytes())).collect();
    context.client.serving_nodes().iter().all(|node| with_key.contains(node))
}

/// Removes this process from the fleet, because its holds were released. Without a reply an entry ends by itself.
pub(crate) async fn leave(context: &Context) {
    if context.fleet.is_some() {
        let _under_way = context.refresh.write().await;
        let leave = async |key: &FleetKey| {
            let params = wire::leave_fleet(key, &context.uuid);
            let _ends_by_itself = context.client.eval(&kind::LEAVE, &params).await;
        };
        let _all = join_all(context.fleet_keys.iter().map(|key| leave(key))).await;
    }
}

/// Number of keys of a refresh.
const REFRESH_KEYS: usize = 3;
