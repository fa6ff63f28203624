//! The label of a manager and the starts of its old holds, for people.
//!
//! They appear in lists of a lock's holders. This module writes, keeps and deletes those of a manager, and finds those of holders.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use wheellock_client::{CallOptions, Command, Timer, Value};

use crate::base::join_all::join_all;
use crate::request::context::Context;
use crate::table::holds::Oldest;
use crate::wire;
use crate::wire::holder::{Holder, process_in};
use crate::wire::starts::{Starts, add_start};

/// Writes the label and the starts at intervals, until the manager is dropped or shut down. No lock depends on them, so a failed write is
/// only repeated at the next interval.
pub(crate) async fn keep(manager: Weak<Context>, timer: Timer, mut is_written: bool) {
    let mut has_starts = false;
    loop {
        if !std::mem::take(&mut is_written) {
            // Hold the manager only during the write. Otherwise this task would keep a dropped manager alive.
            let Some(context) = manager.upgrade() else { return };
            if !write(&context).await {
                return;
            }
            write_starts(&context, &mut has_starts).await;
        }
        timer.sleep(LEASE / 3).await;
    }
}

/// Writes the label, if there is one. Returns true if the label is to be written again later. A user without permission will not get it
/// later.
pub(crate) async fn write(context: &Context) -> bool {
    let Some(label) = context.label() else { return false };
    let key = wire::label_key(&context.uuid);
    let command = wire::set_told(&key, label.text(), LEASE);
    match context.client.call_with(&command, within(context, PATIENCE)).await {
        Err(error) => error.kind() != wheellock_client::ErrorKind::Permission,
        Ok(_) => true,
    }
}

/// Writes the starts of the old holds, or deletes the former ones if there are no old holds now. `has_starts` says if the server may have
/// starts.
async fn write_starts(context: &Context, has_starts: &mut bool) {
    let text = starts_of(context).await;
    // A shutdown during the search has deleted them already.
    if context.label().is_none() || (text.is_empty() && !*has_starts) {
        return;
    }
    let key = wire::starts_key(&context.uuid);
    let command = if text.is_empty() { wire::delete_told(&key) } else { wire::set_told(&key, &text, LEASE) };
    let reply = context.client.call_with(&command, within(context, PATIENCE)).await;
    *has_starts = !text.is_empty() || reply.is_err();
}

/// Returns the text of the starts of the oldest holds. Other tasks run between the parts of a long search.
async fn starts_of(context: &Context) -> String {
    let (mut oldest, mut place) = (Oldest::default(), Some(0));
    while let Some(from) = place {
        place = context.holds().find_oldest(from, context.clock.now(), &mut oldest);
        if place.is_some() {
            tokio::task::yield_now().await;
        }
    }
    let (now, mut text) = (context.clock.now(), String::new());
    for (since, name, owner) in oldest.iter() {
        let age = now.saturating_duration_since(since);
        let holder = context.holder_text(name, owner);
        add_start(&mut text, age, &String::from_utf8_lossy(holder.as_bytes()), name.text());
    }
    text
}

/// Deletes the label and the starts, because the manager ends. Without a reply they expire.
pub(crate) async fn delete(context: &Context, within_time: Duration) {
    if !context.end_label() {
        return;
    }
    // In a cluster, the keys may be on different nodes.
    let keys = [wire::label_key(&context.uuid), wire::starts_key(&context.uuid)];
    let delete = async |key: &String| {
        context.client.call_with(&wire::delete_told(key), within(context, within_time)).await
    };
    let _end_by_themselves = join_all(keys.iter().map(delete)).await;
}

/// The texts that a process tells about itself.
#[derive(Default)]
struct Told {
    label: Option<String>,
    starts: Starts,
}

/// Finds the labels of these holders' processes and the starts of their holds, in one round trip for all servers. Each holder comes with
/// the full name of its lock.
pub(crate) async fn find<'h>(
    context: &Context,
    holders: impl IntoIterator<Item = (&'h str, &'h mut Holder)>,
) {
    let holders: Vec<_> = holders.into_iter().collect();
    let told = told_by(context, holders.iter().map(|(_, holder)| holder.owner.as_str())).await;
    for (name, holder) in holders {
        let Some(told) = process_in(&holder.owner).and_then(|process| told.get(process)) else { continue };
        (holder.label, holder.held_for) = (told.label.clone(), told.starts.of(holder, name));
    }
}

/// Returns these holders of one lock, each with the lock's full name.
pub(crate) fn named<'h>(
    name: &'h str,
    holders: &'h mut [Holder],
) -> impl Iterator<Item = (&'h str, &'h mut Holder)> {
    holders.iter_mut().map(move |holder| (name, holder))
}

/// Finds the label of each owner's process, in one round trip for all servers.
pub(crate) async fn find_of_owners<'o>(
    context: &Context,
    owners: impl Iterator<Item = (&'o str, &'o mut Option<String>)>,
) {
    let owners: Vec<_> = owners.collect();
    let told = told_by(context, owners.iter().map(|(owner, _)| *owner)).await;
    for (owner, label) in owners {
        *label = process_in(owner).and_then(|process| told.get(process)?.label.clone());
    }
}

/// Returns the texts of each process of these owners.
async fn told_by<'o>(context: &Context, owners: impl Iterator<Item = &'o str>) -> HashMap<String, Told> {
    let mut processes: Vec<&str> = owners.filter_map(process_in).collect();
    processes.sort_unstable();
    processes.dedup();
    let told = join_all(processes.iter().map(|process| told_by_process(context, process))).await;
    processes.into_iter().map(str::to_owned).zip(told).collect()
}

async fn told_by_process(context: &Context, process: &str) -> Told {
    let is_own = process == &*context.uuid;
    // A manager without a label has no starts either.
    if is_own && context.label().is_none() {
        return Told::default();
    }
    let keys = [wire::starts_key(process), wire::label_key(process)];
    let [starts, label] = &keys;
    let asked = [wire::told(starts), wire::told_left(starts), wire::told(label)];
    let asked = if is_own { &asked[..2] } else { &asked[..] };
    let replies = join_all(asked.iter().map(|command| reply_to(context, command))).await;
    let read = |place: usize| replies.get(place)?.as_ref();
    let own = context.label().filter(|_| is_own).map(|label| label.text().to_owned());
    let written = || LEASE.checked_sub(Duration::from_millis(read(1)?.as_i64()?.try_into().ok()?));
    Told {
        label: own.or_else(|| wire::read_label(read(2)?)),
        starts: read(0).zip(written()).map(|(text, ago)| Starts::read(text, ago)).unwrap_or_default(),
    }
}

async fn reply_to(context: &Context, command: &Command<'_>) -> Option<Value> {
    context.client.call_with(command, within(context, PATIENCE)).await.ok()
}

fn within(context: &Context, time: Duration) -> CallOptions {
    let now = context.client.config().timer.now();
    CallOptions::by(now.checked_add(time).unwrap_or(now + LEASE))
}

/// Lease of a label, and so its life after the manager's death. It does not shrink with shorter leases, because people read it when a
/// service hangs.
const LEASE: Duration = Duration::from_secs(30);

/// Timeout of requests for labels. Labels are only for display, so no caller waits longer.
const PATIENCE: Duration = Duration::from_secs(1);
