//! Locks that outlive this tool, as tickets, and locks that are freed by force.

use std::io::IsTerminal;

use wheellock::{Error, LockManager, Mode, Ticket};

use crate::arguments::{Acquire, Release};
use crate::end::{End, Failure, complain, say};
use crate::holder;
use crate::kinds::Kind;

pub(crate) async fn acquire(options: &Acquire) -> Result<End, Failure> {
    let locks = options.server.builder().watchdog_lease(options.lease).connect().await?;
    let hold = options.kind.acquire(&locks, &options.name, options.wait, (None, None)).await?;
    let Some(hold) = hold else {
        complain(&format!("{:?} is taken", options.server.full_name(&options.name)));
        return Ok(End::No);
    };
    say(&format!("{}\n", hold.into_ticket().await?));
    Ok(End::Success)
}

pub(crate) async fn release(options: &Release) -> Result<End, Failure> {
    if options.force {
        return release_by_force(options).await;
    }
    let ticket = options.ticket.parse::<Ticket>().map_err(|error| {
        Failure::of(End::Usage, format!("{}; for a lock's name, use --force", Error::from(error)))
    })?;
    let locks = options.server.builder().connect().await?;
    if locks.release_ticket(&ticket).await? {
        return Ok(End::Success);
    }
    complain(&format!("the ticket for {:?} has ended", ticket.lock()));
    Ok(End::No)
}

/// Frees a lock whatever its holder, after a question on the terminal.
async fn release_by_force(options: &Release) -> Result<End, Failure> {
    let locks = options.server.builder().connect().await?;
    let name = &options.ticket;
    let found = holder::find(&locks, name, options.kind).await?;
    if found.is_empty() {
        complain(&format!("{:?} is free", options.server.full_name(name)));
        return Ok(End::No);
    }
    found.holders.iter().for_each(|holder| complain(&holder.to_string()));
    if !options.yes && !is_confirmed()? {
        complain("not freed, because the answer was not yes");
        return Ok(End::No);
    }
    let mode = found.holders.first().map_or(Mode::Exclusive, |holder| holder.mode);
    let was_held = match (options.kind, mode) {
        (Some(kind), _) => kind.lock(&locks, name).force_release().await?,
        (None, Mode::Read) => Kind::Read.lock(&locks, name).force_release().await?,
        (None, Mode::Write) => Kind::Write.lock(&locks, name).force_release().await?,
        (None, _) => release_exclusive(&locks, name).await?,
    };
    complain(if was_held { "freed" } else { "the holder has released it already" });
    Ok(if was_held { End::Success } else { End::No })
}

/// Frees a lock of a kind with one holder. If the server has a queue of waiters, it wakes the first of them.
async fn release_exclusive(locks: &LockManager, name: &str) -> Result<bool, Error> {
    let fair = Kind::Fair.lock(locks, name);
    let is_fair = fair.queue_length().await?.is_some_and(|waiters| waiters > 0);
    let lock = if is_fair { fair } else { Kind::Plain.lock(locks, name) };
    match lock.force_release().await {
        Err(Error::OtherData { .. }) => Kind::Simple.lock(locks, name).force_release().await,
        freed => freed,
    }
}

fn is_confirmed() -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::of(End::Usage, "the input is not a terminal: confirm with --yes"));
    }
    complain("the holder may still work: type yes to free the lock");
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.map_err(|error| Failure::of(End::Usage, format!("no answer: {error}")))?;
    Ok(answer.trim() == "yes")
}
