//! The label of a manager, for people.
//!
//! The label appears in lists of a lock's holders. This module writes, keeps and deletes a manager's label, and finds the labels of
//! holders.

use std::sync::Weak;
use std::time::Duration;

use wheellock_client::{CallOptions, Timer};

use crate::base::join_all::join_all;
use crate::request::context::Context;
use crate::wire;
use crate::wire::holder::{Holder, process_in};

/// Writes the label at intervals, until the manager is dropped or shut down. No lock depends on the label, so a failed write is only
/// repeated at the next interval.
pub(crate) async fn keep(manager: Weak<Context>, timer: Timer, mut is_written: bool) {
    loop {
        if !std::mem::take(&mut is_written) {
            // Hold the manager only during the write. Otherwise this task would keep a dropped manager alive.
            let Some(context) = manager.upgrade() else { return };
            if !write(&context).await {
                return;
            }
        }
        timer.sleep(LEASE / 3).await;
    }
}

/// Writes the label, if there is one. Returns true if the label is to be written again later. A user without permission will not get it
/// later.
pub(crate) async fn write(context: &Context) -> bool {
    let Some(label) = context.label() else { return false };
    let key = wire::label_key(&context.uuid);
    let command = wire::set_label(&key, label, LEASE);
    match context.client.call_with(&command, within(context, PATIENCE)).await {
        Err(error) => error.kind() != wheellock_client::ErrorKind::Permission,
        Ok(_) => true,
    }
}

/// Deletes the label, because the manager ends. Without a reply the label expires.
pub(crate) async fn delete(context: &Context, within_time: Duration) {
    if !context.end_label() {
        return;
    }
    let key = wire::label_key(&context.uuid);
    let command = wire::delete_label(&key);
    let _ends_by_itself = context.client.call_with(&command, within(context, within_time)).await;
}

/// Finds the labels of these holders' processes, in one round trip for all servers.
pub(crate) async fn find<'h>(context: &Context, holders: impl IntoIterator<Item = &'h mut Holder>) {
    let owners = holders.into_iter().map(|Holder { owner, label, .. }| (owner.as_str(), label));
    find_of_owners(context, owners).await;
}

/// Finds the label of each owner's process, in one round trip for all servers.
pub(crate) async fn find_of_owners<'o>(
    context: &Context,
    owners: impl Iterator<Item = (&'o str, &'o mut Option<String>)>,
) {
    let owners: Vec<_> = owners.map(|(owner, label)| (process_in(owner), label)).collect();
    let mut processes: Vec<&str> = owners.iter().filter_map(|(process, _)| *process).collect();
    processes.sort_unstable();
    processes.dedup();
    let labels = join_all(processes.iter().map(|process| label_of(context, process))).await;
    for (process, label) in owners {
        let place = process.and_then(|process| processes.iter().position(|known| *known == process));
        *label = place.and_then(|place| labels.get(place).cloned()).flatten();
    }
}

async fn label_of(context: &Context, process: &str) -> Option<String> {
    if process == &*context.uuid {
        return context.label().map(|label| label.text().to_owned());
    }
    let key = wire::label_key(process);
    let reply = context.client.call_with(&wire::label(&key), within(context, PATIENCE)).await;
    reply.ok().as_ref().and_then(wire::read_label)
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
