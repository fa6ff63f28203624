//! Several locks of one server in one request: all of them or none. Owns the request and its reply; every hold is an ordinary
//! attempt.

use std::task::Waker;
use std::time::Instant;

use wheellock_client::{Arg, Retry, Value};

use super::{Asked, Attempt, Refusal, unexpected};
use crate::durability::persist_kept;
use crate::error::Error;
use crate::guard::Guard;
use crate::holds::{GrantReply, Terms};
use crate::kind;
use crate::lock::Lock;
use crate::persist::{Persisted, persist};

/// Asks for one hold of each of several locks of one manager, all or none, in one request; what came of it, and the place of
/// the lock if one was refused.
pub(crate) async fn ask_together(
    locks: &[Lock],
    deadline: Option<Instant>,
) -> Result<Result<Vec<Guard>, (usize, Refusal)>, Error> {
    let asked: Vec<_> = locks.iter().map(Asked::new).collect::<Result<_, _>>()?;
    let Some(first) = asked.first() else { return Ok(Ok(Vec::new())) };
    let (inner, operation) = (first.inner, || first.operation_for(asked.len()));
    let (mut attempts, mut counts, mut until) = (Vec::new(), Vec::new(), deadline);
    for one in &asked {
        if let Some(waiters) = &mut *one.name.crowd() {
            waiters.about_to_ask();
        }
        match one.begin(until).await {
            Ok(((attempt, count), by)) => {
                attempts.push(attempt);
                counts.push(count);
                until = by;
            }
            Err(error) => {
                attempts.iter_mut().for_each(Attempt::refused);
                return Err(error);
            }
        }
    }
    let ask = |retry: &Retry, options, waker: &Waker| {
        let owners: Vec<_> = asked.iter().map(|one| inner.owner_text(one.owner)).collect();
        let keys = asked.iter().map(|one| Arg::from(one.name.key()));
        let args = asked.iter().zip(&owners).zip(&counts).flat_map(|((one, owner), count)| {
            [one.lease.millis().into(), owner.as_bytes().into(), (*count).into()]
        });
        let params: Vec<Arg<'_>> = keys.chain(args).collect();
        inner.client.start_eval(&kind::ACQUIRE_ALL, asked.len(), &params, retry, options, waker)
    };
    let mut fresh = vec![false; asked.len()];
    let (persisted, shortfall) = match inner.wanted {
        None => (persist(inner, ask, until, false).await, None),
        Some(wanted) => {
            let granted = |reply: &Value| match AllReply::parse(reply, asked.len()) {
                Some(AllReply::Granted(statuses)) => {
                    let told = statuses.iter().map(|status| *status == GrantReply::Fresh);
                    fresh.iter_mut().zip(told).for_each(|(fresh, told)| *fresh |= told);
                    true
                }
                _ => false,
            };
            Box::pin(persist_kept(inner, wanted, &ask, until, false, granted)).await
        }
    };
    let Persisted { result, sent, ambiguous, .. } = persisted;
    let reply = match result {
        Ok(reply) => reply,
        Err(source) => {
            if !ambiguous {
                attempts.iter_mut().for_each(Attempt::refused);
            }
            if inner.holds().is_shut() {
                return Err(first.name.shut_down(source.outcome()));
            }
            return Err(Error::of_lock(first.name.key(), operation(), source));
        }
    };
    match AllReply::parse(&reply, asked.len()) {
        Some(AllReply::Granted(statuses)) => {
            let mut guards = Vec::with_capacity(asked.len());
            let granted = asked.iter().zip(&mut attempts).zip(statuses.into_iter().zip(fresh));
            for ((one, attempt), (status, fresh)) in granted {
                let terms = Terms { lease: one.lease, renew: one.renew, sent };
                // It was free when this was asked for the first time.
                let status = if fresh { GrantReply::Fresh } else { status };
                match shortfall {
                    None => guards.push(attempt.granted(terms, status)?),
                    Some(_) => attempt.not_kept(terms, status),
                }
            }
            match shortfall {
                None => Ok(Ok(guards)),
                Some(shortfall) => Err(shortfall.error(first.name)),
            }
        }
        Some(AllReply::Refused(place, refusal)) => {
            for (at, attempt) in attempts.iter_mut().enumerate() {
                if at == place { attempt.taken_by_other() } else { attempt.refused() }
            }
            Ok(Err((place, refusal)))
        }
        Some(AllReply::OtherData(place)) => {
            attempts.iter_mut().for_each(Attempt::refused);
            let lock = asked.get(place).unwrap_or(first).name.key().to_owned();
            Err(Error::OtherData { lock, server: inner.client.server_address() })
        }
        None => Err(unexpected(inner, first.name, operation(), &reply)),
    }
}

/// What the script that takes several locks returns.
enum AllReply {
    Granted(Vec<GrantReply>),
    /// Another holder has the lock at this place.
    Refused(usize, Refusal),
    OtherData(usize),
}

impl AllReply {
    fn parse(reply: &Value, locks: usize) -> Option<Self> {
        let numbers: Vec<i64> = reply.as_array()?.iter().map(Value::as_i64).collect::<Option<_>>()?;
        let place = |place: i64| usize::try_from(place).ok()?.checked_sub(1).filter(|place| *place < locks);
        match *numbers {
            [1, ref statuses @ ..] if statuses.len() == locks => {
                let status = |status: &i64| match status {
                    1 => Some(GrantReply::Fresh),
                    2 => Some(GrantReply::Again),
                    _ => None,
                };
                statuses.iter().map(status).collect::<Option<_>>().map(Self::Granted)
            }
            [0, at, pttl] => Some(Self::Refused(place(at)?, Refusal::of(pttl))),
            [-1, at] => place(at).map(Self::OtherData),
            _ => None,
        }
    }
}
