//! One question to the server for one hold. Owns the attempt, which takes back what the server may have granted if its
//! caller is gone before the answer.

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use wheellock_client::{Retry, Value};

use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::guard::Guard;
use crate::holds::{GrantReply, Granted, HoldIndex, Terms};
use crate::lease::Lease;
use crate::name::Name;
use crate::retry::{Retried, retry, retry_acknowledged, wait_for_owner};
use crate::wire::{self, Refusal};

/// What every attempt of one acquire has in common.
pub(crate) struct Request<'a> {
    pub(crate) context: &'a Arc<Context>,
    pub(crate) name: &'a Arc<Name>,
    pub(crate) owner: u64,
    /// Whether others can present this owner too.
    pub(crate) presented: bool,
    pub(crate) lease: Lease,
    pub(crate) renew: bool,
}

/// What the server said to one attempt.
pub(crate) enum Answer {
    Granted(Guard),
    Held(Refusal),
}

impl<'a> Request<'a> {
    /// Enters an attempt into the table. Returns it, the count to ask for, and by when the server has to answer.
    pub(super) async fn begin(
        &self,
        deadline: Option<Instant>,
    ) -> Result<((Attempt<'a>, u32), Option<Instant>), Error> {
        let Self { context, name, owner, presented, lease, .. } = *self;
        let begin = |waker: &Waker| {
            let now = context.clock.now();
            context.holds().begin_attempt((name, owner), presented, lease, now, waker)
        };
        let began = wait_for_owner(context, name, deadline, begin).await;
        let (began, deadline) =
            began.map_err(|source| Error::Server { operation: self.operation(), source })?;
        let Some((hold, count)) = began else { return Err(name.shut_down(Outcome::NotSent)) };
        Ok(((Attempt { context, name, hold: Some(hold) }, count), deadline))
    }

    /// Asks the server once; if the answer gets lost, asks again for the very same hold.
    pub(super) async fn once(&self, deadline: Option<Instant>) -> Result<Answer, Error> {
        let Self { context, name, owner, lease, renew, .. } = *self;
        let ((mut attempt, count), deadline) = self.begin(deadline).await?;
        let ask = move |retry: &Retry, options, waker: &Waker| {
            let text = context.owner_text(owner);
            let params = wire::acquire(name, lease, text.as_bytes(), count);
            context.client.start_eval(&name.kind().acquire, wire::KEYS, &params, retry, options, waker)
        };
        let (mut fresh, mut shortfall) = (false, None);
        let retried = match context.wanted {
            None => retry(context, ask, deadline, false).await,
            Some(wanted) => {
                let granted = |reply: &Value| {
                    let granted = wire::read_acquire(reply).and_then(Result::ok);
                    fresh |= granted == Some(GrantReply::Fresh);
                    granted.is_some()
                };
                // Boxed, because every waiter's future has room for it, and few managers want it.
                let acknowledged =
                    Box::pin(retry_acknowledged(context, wanted, ask, deadline, false, granted)).await;
                shortfall = acknowledged.1;
                acknowledged.0
            }
        };
        let Retried { result, sent, ambiguous, .. } = retried;
        let reply = match result {
            Ok(reply) => reply,
            Err(source) => {
                if !ambiguous {
                    attempt.refused();
                }
                if context.holds().is_shut() {
                    return Err(name.shut_down(source.outcome()));
                }
                return Err(Error::of_lock(name.text(), self.operation(), source));
            }
        };
        match wire::read_acquire(&reply) {
            Some(Ok(reply)) => {
                // It was free when this was asked for the first time.
                let reply = if fresh { GrantReply::Fresh } else { reply };
                let terms = Terms { lease, renew, sent };
                if let Some(shortfall) = shortfall {
                    attempt.not_acknowledged(terms, reply);
                    return Err(Error::not_replicated(name.text(), shortfall));
                }
                attempt.granted(terms, reply).map(Answer::Granted)
            }
            Some(Err(refusal)) => {
                attempt.taken_by_other();
                Ok(Answer::Held(refusal))
            }
            None => Err(context.unexpected(name, self.operation(), &reply)),
        }
    }

    fn operation(&self) -> String {
        format!("acquire lock {:?}", self.name)
    }

    /// For several locks, of which this is the first.
    pub(super) fn operation_for(&self, locks: usize) -> String {
        format!("acquire {locks} locks at once, {:?} among them", self.name)
    }
}

/// An attempt under way. Dropped before it has ended, it takes back whatever the server may have granted: the release
/// is queued right behind the request, so it takes effect after it.
pub(super) struct Attempt<'a> {
    context: &'a Arc<Context>,
    name: &'a Arc<Name>,
    hold: Option<HoldIndex>,
}

impl Attempt<'_> {
    pub(super) fn granted(&mut self, terms: Terms, reply: GrantReply) -> Result<Guard, Error> {
        let hold = self.hold.take();
        let granted = self.context.transact(|holds, now, effects| {
            let (granted, request) = match holds.granted(hold?, terms, reply, now, effects)? {
                Granted::Held(hold, request) => (Ok(hold), request),
                Granted::ShutDown(request) => {
                    (Err(self.name.shut_down(Outcome::MaybeExecuted)), Some(request))
                }
                Granted::TooLate(request) => (Err(self.too_late(terms)), Some(request)),
            };
            effects.request_all(request);
            Some(granted)
        });
        let hold = granted.unwrap_or_else(|| Err(self.too_late(terms)))?;
        Ok(Guard::new(Arc::clone(self.context), Arc::clone(self.name), hold, terms.renew))
    }

    fn too_late(&self, terms: Terms) -> Error {
        Error::GrantedTooLate { lock: self.name.text().to_owned(), lease: terms.lease.duration() }
    }

    /// It was granted, and is taken back because too few servers know of it.
    pub(super) fn not_acknowledged(&mut self, terms: Terms, reply: GrantReply) {
        if let Some(hold) = self.hold.take() {
            self.context.transact(|holds, now, effects| {
                let request = holds.take_back(hold, terms, reply, now, effects);
                effects.request_all(request);
            });
        }
    }

    pub(super) fn refused(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.context.transact(|holds, _, effects| {
                let request = holds.refused(hold, effects);
                effects.request_all(request);
            });
        }
    }

    pub(super) fn taken_by_other(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.context.transact(|holds, now, effects| {
                holds.taken_by_other(hold, now, effects);
                let request = holds.refused(hold, effects);
                effects.request_all(request);
            });
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.context.transact(|holds, now, effects| effects.request_all(holds.cancel_attempt(hold, now)));
        }
    }
}
