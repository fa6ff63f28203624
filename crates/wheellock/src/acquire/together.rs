//! Several locks of one server in one request: all of them or none. Every hold is an ordinary attempt.

use std::task::Waker;
use std::time::Instant;

use wheellock_client::Value;
use wheellock_client::layer::Retry;

use super::attempt::{Answer, Attempt, Begun, Request};
use crate::error::Error;
use crate::guard::Guard;
use crate::holds::{GrantReply, Terms};
use crate::retry::{RefusedWrite, Retried, retry_acknowledged, retry_since};
use crate::wire::{self, AllReply, Refusal};

/// Asks for one hold of each of several locks of one manager and one kind, all or none, in one request; what came of it, and the place of
/// the lock if one was refused. A server that takes no writes ends it at once: the caller may have locks elsewhere that it must not keep
/// meanwhile.
pub(crate) async fn ask_together(
    requests: Vec<Result<Request<'_>, Error>>,
    deadline: Option<Instant>,
) -> Result<Result<Vec<Guard>, (usize, Refusal)>, Error> {
    let asked: Vec<_> = requests.into_iter().collect::<Result<_, _>>()?;
    let Some(first) = asked.first() else { return Ok(Ok(Vec::new())) };
    let script = match &first.name.kind().acquire_all {
        Some(script) if asked.len() > 1 => script,
        // Those of a kind that is not asked for together come one by one.
        _ => return ask_alone(first, deadline).await,
    };
    let (context, operation) = (first.context, || first.operation_for(asked.len()));
    let (mut attempts, mut counts, mut until) = (Vec::new(), Vec::new(), deadline);
    for one in &asked {
        one.name.about_to_ask(false);
        match one.begin(until).await {
            Ok(Begun { attempt, count, answer_by, .. }) => {
                attempts.push(attempt);
                counts.push(count);
                until = answer_by;
            }
            Err(error) => {
                attempts.iter_mut().for_each(Attempt::refused);
                return Err(error);
            }
        }
    }
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
        None => {
            let now = context.clock.now();
            (retry_since(now, context, ask, until, RefusedWrite::Ends).await, None)
        }
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
    let Retried { result, sent, ambiguous, .. } = retried;
    let reply = match result {
        Ok(reply) => reply,
        Err(source) => {
            if !ambiguous {
                attempts.iter_mut().for_each(Attempt::refused);
            }
            if context.holds().is_shut() {
                return Err(first.name.shut_down(source.outcome()));
            }
            return Err(Error::of_lock(first.name.text(), operation(), source));
        }
    };
    match wire::read_acquire_all(&reply, asked.len()) {
        Some(AllReply::Granted(statuses)) => {
            let mut guards = Vec::with_capacity(asked.len());
            let granted = asked.iter().zip(&mut attempts).zip(statuses.into_iter().zip(fresh));
            for ((one, attempt), (status, fresh)) in granted {
                let terms = Terms { lease: one.lease, share: one.share, sent };
                // It was free when this was asked for the first time.
                let status = if fresh { GrantReply::Fresh } else { status };
                match shortfall {
                    None => guards.push(attempt.granted(terms, status)?),
                    Some(_) => attempt.not_acknowledged(terms, status),
                }
            }
            match shortfall {
                None => {
                    asked.iter().for_each(Request::let_owner_ask);
                    Ok(Ok(guards))
                }
                Some(shortfall) => {
                    let server = context.client.server_address();
                    Err(Error::not_replicated(first.name.text(), server, shortfall))
                }
            }
        }
        Some(AllReply::Refused(place, refusal)) => {
            for (at, attempt) in attempts.iter_mut().enumerate() {
                if at == place {
                    attempt.taken_by_other();
                    context.refused_unlistening(attempt.name());
                } else if !ambiguous {
                    attempt.refused();
                }
                // Otherwise they may all have been granted before that one was lost: what is left of it is taken back.
            }
            Ok(Err((place, refusal)))
        }
        Some(AllReply::OtherData(place)) => {
            if !ambiguous {
                attempts.iter_mut().for_each(Attempt::refused);
            }
            let lock = asked.get(place).unwrap_or(first).name.text().to_owned();
            Err(Error::OtherData { lock, server: context.client.server_address() })
        }
        None => Err(context.unexpected(first.name, operation(), &reply)),
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
