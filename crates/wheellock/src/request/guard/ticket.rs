//! The way of a hold to another process.

use wheellock_client::layer::Retry;

use super::Guard;
use crate::base::error::Error;
use crate::base::lease::Lease;
use crate::base::owner::OwnerText;
use crate::base::ticket::Ticket;
use crate::request::retry::retry;
use crate::wire;

impl Guard {
    /// Renews the lease, and turns this guard into a ticket for another process. The lock stays held, and no process renews it. A process
    /// that [adopts](crate::LockManager::adopt) the ticket within the lease holds the lock without a gap. From then on it is the only holder:
    /// no late request of this process can renew or release the lock.
    ///
    /// An owner that other callers know, such as a thread of [`blocking`](crate::blocking), gives the lock to a fresh owner first. So it waits
    /// like others if it acquires the lock again. That costs one more round trip.
    ///
    /// If no process adopts the ticket, the lock is free at the end of the lease. The default lease is 30 s. Use
    /// [`with_lease`](crate::Lock::with_lease) for a longer journey.
    ///
    /// Plain, spin, fenced, fair, write and simple locks have tickets. Readers and permits have none: let the other process acquire its
    /// own before this one releases. Minimum and maximum times do not travel, but the maximum of this hold ends the ticket, too.
    ///
    /// # Cancel safety
    ///
    /// A dropped call releases the lock, as dropping the guard does.
    ///
    /// # Errors
    ///
    /// As [`renew`](Self::renew); [`Error::NoTicket`] if this hold cannot travel. After an error the lock is released.
    pub async fn into_ticket(self) -> Result<Ticket, Error> {
        let Some(mut travel) = self.travels() else { return Err(self.no_ticket()) };
        self.renew().await?;
        if travel.is_known {
            travel.owner = self.give_to_unknown(travel.owner).await?;
        }
        let (lock, kind) = (self.name.text().to_owned(), self.name.kind().label.to_owned());
        let owner = self.context.owner(travel.owner);
        self.forget();
        Ok(Ticket { kind, lock, owner, lease: travel.lease.duration() })
    }

    /// Returns the terms of the journey, if this kind has tickets. The owner of a hold with several guards is known, so the server refuses it.
    fn travels(&self) -> Option<Travel> {
        self.name.kind().adopt.as_ref()?;
        let holds = self.context.holds();
        let hold = holds.get(self.hold)?;
        Some(Travel { owner: hold.owner, is_known: hold.is_presented(), lease: hold.lease })
    }

    fn no_ticket(&self) -> Error {
        Error::NoTicket { lock: self.name.text().to_owned(), kind: self.name.kind().label.to_owned() }
    }

    /// Puts a fresh owner in the place of one that other callers know, and returns it. Otherwise such a caller, or the thread itself, could
    /// enter the lock again while it travels, and would hold it beside the process that adopts it.
    async fn give_to_unknown(&self, giver: u64) -> Result<u64, Error> {
        let Self { context, name, .. } = self;
        let Some(script) = &name.kind().adopt else { return Err(self.no_ticket()) };
        let mut heir = Heir { guard: self, owner: context.new_owner(), has_lock: false };
        let text = |owner| OwnerText::new(&context.uuid, owner, name.kind().holder_suffix);
        let (to, from) = (text(heir.owner), text(giver));
        let now = context.clock.now();
        let lease = context.holds().get(self.hold).map(|hold| hold.lease_to_renew(now));
        let lease = lease.ok_or_else(|| self.no_ticket())?;
        let params = wire::adopt(name, lease, to.as_bytes(), from.as_bytes());
        let ask = |learnt: &Retry, start, waker: &_| {
            context.client.start_eval(script, wire::KEYS, &params, learnt, start, waker)
        };
        let operation = || format!("give away {}", name.display_name());
        let reply = retry(context, ask, None).await.result;
        let reply = reply.map_err(|source| Error::of_lock(name.text(), operation(), source))?;
        match wire::read_acquire(name, &reply) {
            Some(Ok(_)) => heir.has_lock = true,
            Some(Err(_)) => {
                // The owner has entered more than once, unless the lock was lost since the renewal.
                self.confirm().await?;
                return Err(self.no_ticket());
            }
            None => return Err(context.unexpected(name, operation(), &reply)),
        }
        Ok(heir.owner)
    }
}

/// The terms of a journey.
struct Travel {
    owner: u64,
    /// Other callers can present this owner.
    is_known: bool,
    lease: Lease,
}

/// An owner that is to have the lock of a guard. If the call is dropped or fails, the lock is released.
struct Heir<'a> {
    guard: &'a Guard,
    owner: u64,
    has_lock: bool,
}

impl Drop for Heir<'_> {
    fn drop(&mut self) {
        if !self.has_lock {
            self.guard.context.transact(|holds, now, effects| {
                effects.request_all(holds.withdraw_heir(self.guard.hold, self.owner, now));
            });
        }
    }
}
