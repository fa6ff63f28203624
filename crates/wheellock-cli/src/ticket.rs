//! Locks that outlive this tool, as tickets.

use wheellock::{Error, Ticket};

use crate::arguments::{Acquire, Release};
use crate::end::{End, Failure, complain, say};

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
    let ticket: Ticket = options.ticket.parse().map_err(Error::from)?;
    let locks = options.server.builder().connect().await?;
    if locks.release_ticket(&ticket).await? {
        return Ok(End::Success);
    }
    complain(&format!("the ticket for {:?} has ended", ticket.lock()));
    Ok(End::No)
}
