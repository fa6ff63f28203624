//! One request for several locks of one server.
//!
//! The server grants all of them or none. Each hold is an ordinary attempt.

use std::task::Waker;
use std::time::Instant;

use wheellock_client::Value;
use wheellock_client::layer::{ConnectionId, Retry};

use super::attempt::{Answer, Begun, PendingHold, Request};
use crate::base::clock::BootInstant;
use crate::base::durability::Shortfall;
use crate::base::error::Error;
use crate::request::guard::Guard;
use crate::request::retry::{RefusedWrite, Retried, retry_acknowledged, retry_since};
use crate::table::holds::{GrantReply, Terms};
use crate::wire::{self, AllReply, Refusal};

/// Sends one request for one hold of each lock, all or none. The locks have one manager and one kind. Returns the guards, or the index of
/// a refused lock and its refusal.
///
/// A server that refuses writes ends the request at once. The caller may hold locks of other servers, and must not keep them meanwhile.
pub(crate) async fn ask_together(
    requests: Vec<Result<Request<'_>, Error>>,
    deadline: Option<Instant>,
) -> Result<Result<Vec<Guard>, (usize, Refusal)>, Error> {
    let asked: Vec<_> = requests.into_iter().collect::<Result<_, _>>()?;
    let Some(first) = asked.first() else { return Ok(Ok(Vec::new())) };
    let script = match &first.name.kind().acquire_all {
        Some(script) if asked.len() > 1 => script,
        // The locks of a kind without such a script are requested one by one.
        _ => return ask_alone(first, deadline).await,
    };
    let (context, operation) = (first.context, || first.operation_for(asked.len()));
    let Batch { mut attempts, counts, until } = Batch::begin(&asked, deadline).await?;
    let ask = |retry: &Retry, start, waker: &Waker| {
        let locks = asked.iter().zip(&counts).map(|(one, count)| wire::Part {
            name: one.name,
            lease: one.lease,
            owner: context.holder_text(one.name, one.owner),
            count: *count,
        });
        let locks: Vec<_> = locks.collect();
        let params = wire::acquire_all(&locks);
        context.client.start_eval(script, asked.len(), &params, retry, start, waker)
    };
    let mut fresh = vec![false; asked.len()];
    let (retried, shortfall) = match context.wanted {
        None => (retry_since(context.clock.now(), context, ask, until, RefusedWrite::Ends).await, None),
        Some(wanted) => {
            let granted = |reply: &Value| match wire::read_acquire_all(reply, asked.len()) {
                Some(AllReply::Granted(statuses)) => {
                    let told = statuses.iter().map(|status| *status == GrantReply::Fresh);
                    fresh.iter_mut().zip(told).for_each(|(fresh, told)| *fresh |= told);
                    true
                }
                _ => false,
            };
            Box::pin(retry_acknowledged(context, wanted, &ask, (until, RefusedWrite::Ends), granted)).await
        }
    };
    let Retried { result, sent, connection, ambiguous } = retried;
    let settled = Settled { asked: &asked, ambiguous, shortfall };
    let reply = match result {
        Ok(reply) => reply,
        Err(source) => {
            settled.not_granted(&mut attempts);
            if context.holds().is_shut() {
                return Err(first.name.shut_down(source.outcome()));
            }
            return Err(Error::of_lock(first.name.text(), operation(), source));
        }
    };
    match wire::read_acquire_all(&reply, asked.len()) {
        Some(AllReply::Granted(statuses)) => {
            // A lock is fresh if it was free when the request was first executed.
            let first_told = |(status, fresh)| if fresh { GrantReply::Fresh } else { status };
            let answer = (sent, connection);
            settled.granted(attempts, statuses.into_iter().zip(fresh).map(first_told), answer).map(Ok)
        }
        Some(AllReply::Refused(place, refusal)) => {
            settled.refused(&mut attempts, place, connection);
            Ok(Err((place, refusal)))
        }
        Some(AllReply::OtherData(place)) => {
            settled.not_granted(&mut attempts);
            let lock = asked.get(place).unwrap_or(first).name.text();
            Err(Error::OtherData { lock: lock.to_owned(), server: context.client.server_address() })
        }
        None => Err(context.unexpected(first.name, operation(), &reply)),
    }
}

/// The attempts of one request for several locks, begun in order.
struct Batch<'r, 'a> {
    attempts: Vec<PendingHold<'r, 'a>>,
    counts: Vec<u32>,
    until: Option<Instant>,
}

impl<'r, 'a> Batch<'r, 'a> {
    /// Begins an attempt for each lock. Ends all of them if one of them cannot begin.
    async fn begin(asked: &'r [Request<'a>], deadline: Option<Instant>) -> Result<Self, Error> {
        let mut batch = Self { attempts: Vec::new(), counts: Vec::new(), until: deadline };
        for one in asked {
            one.name.discard_old_messages();
            match one.begin(batch.until).await {
                Ok(Begun { attempt, count, answer_by, .. }) => {
                    batch.attempts.push(attempt);
                    batch.counts.push(count);
                    batch.until = answer_by;
                }
                Err(error) => {
                    batch.attempts.iter_mut().for_each(PendingHold::refused);
                    return Err(error);
                }
            }
        }
        Ok(batch)
    }
}

/// Facts about the reply to a batch.
struct Settled<'r, 'a> {
    asked: &'r [Request<'a>],
    ambiguous: bool,
    shortfall: Option<Shortfall>,
}

impl Settled<'_, '_> {
    /// Makes the guards of granted locks. Takes every grant back if there are too few acknowledgements.
    fn granted(
        self,
        mut attempts: Vec<PendingHold<'_, '_>>,
        statuses: impl Iterator<Item = GrantReply>,
        (sent, connection): (BootInstant, Option<ConnectionId>),
    ) -> Result<Vec<Guard>, Error> {
        let mut guards = Vec::with_capacity(self.asked.len());
        for ((one, attempt), status) in self.asked.iter().zip(&mut attempts).zip(statuses) {
            let terms = Terms { lease: one.lease, share: one.share, sent, connection };
            match self.shortfall {
                None => guards.push(attempt.granted(terms, status, None)?),
                Some(_) => attempt.not_acknowledged(terms, status),
            }
        }
        match (self.shortfall, self.asked.first()) {
            (Some(shortfall), Some(first)) => {
                let server = first.context.client.server_address();
                Err(Error::not_replicated(first.name.text(), server, shortfall))
            }
            _ => {
                self.asked.iter().for_each(Request::allow_owner_poll);
                Ok(guards)
            }
        }
    }

    /// Ends the attempts of a batch that certainly had no effect. Dropping an ambiguous attempt takes its grant back.
    fn not_granted(&self, attempts: &mut [PendingHold<'_, '_>]) {
        if !self.ambiguous {
            attempts.iter_mut().for_each(PendingHold::refused);
        }
    }

    /// Ends the attempts of a batch whose lock at index `place` is taken.
    fn refused(&self, attempts: &mut [PendingHold<'_, '_>], place: usize, connection: Option<ConnectionId>) {
        for (at, attempt) in attempts.iter_mut().enumerate() {
            if at == place {
                attempt.refused_by_other(connection);
                if let Some(one) = self.asked.get(place) {
                    one.context.refused_unlistening(attempt.name());
                }
            } else if !self.ambiguous {
                // After an ambiguous request all locks may have been granted. Dropping the attempt takes its grant back.
                attempt.refused();
            }
        }
    }
}

async fn ask_alone(
    request: &Request<'_>,
    deadline: Option<Instant>,
) -> Result<Result<Vec<Guard>, (usize, Refusal)>, Error> {
    Ok(match request.ask(deadline).await? {
        Answer::Granted(guard, _) => Ok(vec![guard]),
        Answer::Held(refusal) => Err((0, refusal)),
    })
}
