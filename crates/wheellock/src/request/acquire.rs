//! The acquire loop.
//!
//! The loop polls, waits for its turn, and polls again. It does not repeat an unanswered request (`retry` does). A
//! caller that wants several locks or servers runs the loop for each of them.

mod attempt;
mod many;
mod together;
mod wait;
mod waiter;

use std::task::Waker;
use std::time::{Duration, Instant};

use wheellock_client::Timer;

use crate::base::error::{Error, Outcome};
use crate::kind::Wake;
use crate::request::guard::Guard;
use crate::request::retry::RefusedWrite;
use crate::wait::name::Name;
use crate::wait::spans::{Held, acquiring};
use crate::wait::wait_queue::WaitQueue;
use crate::wire::{Precedence, Refusal};

use attempt::Form;
pub(crate) use attempt::{Answer, Request};
pub(crate) use many::Many;
pub(crate) use together::ask_together;
pub(crate) use wait::{Limit, Over, Wait};
pub(crate) use waiter::{AnswerBy, Next, SILENT_PART, Waiter, first_answer_by, is_only_late};

/// Takes one hold. `end` makes the caller's result from the hold. If the wait ended while the lock was held, `end` makes
/// the result from that end.
///
/// The loop polls the server at least once, however short the wait is. The server has at least `FIRST_ANSWER` for its
/// reply, because only a reply shows that the lock is held. `refused` is the server's refusal, if the server has just
/// refused this caller.
pub(crate) fn acquire<'a, L: Copy + Into<Limit>, E: Held, F: FnOnce(Result<Guard, Over<L>>) -> E>(
    request: Result<Request<'a>, Error>,
    wait: Wait<L>,
    refused: Option<Refusal>,
    end: F,
) -> impl Future<Output = Result<E, Error>> + use<'a, L, E, F> {
    let subject = request.as_ref().ok().map(|request| request.name.span_fields());
    // A caller that was refused before wants several locks. This lock is only one of them, so this wait is not final.
    let is_final = refused.is_none();
    // Boxed, because every waiter's future has room for it, and most callers were not refused before.
    let refused = refused.map(Box::new);
    acquiring(subject, is_final, move || acquire_until_granted(request, wait, refused, end))
}

async fn acquire_until_granted<'a, L: Copy + Into<Limit>, E, F: FnOnce(Result<Guard, Over<L>>) -> E>(
    request: Result<Request<'a>, Error>,
    wait: Wait<L>,
    mut refused: Option<Box<Refusal>>,
    end: F,
) -> Result<E, Error> {
    let mut request = request?;
    // The caller has had its time for a first reply.
    let mut is_anew = false;
    // The server has executed an earlier request, or may still do so. A grant is revoked, and the caller gets no guard.
    let mut may_have_run = false;
    loop {
        request.check_upgrade()?;
        {
            // In a block, because the caller borrows the request and must leave before the request begins anew.
            let refused = refused.take().map(|refused| *refused);
            let mut caller = Caller::begin(&request, wait.one_try().is_none(), refused)?;
            if let Some(waiter) = &mut caller.waiter {
                waiter.is_anew = is_anew;
            }
            loop {
                let by = match &mut caller.waiter {
                    None => {
                        if caller.fast_path.is_none() {
                            request.name.discard_old_messages();
                        }
                        let waited = if is_anew { Duration::MAX } else { Duration::ZERO };
                        AnswerBy::first(request.context, request.name, waited, wait.of_any())
                    }
                    Some(waiter) => match waiter.turn(wait).await.map_err(|it| it.after(may_have_run))? {
                        Next::Ask(by) => by,
                        Next::Over(limit) => return Ok(end(Err(caller.over(limit)))),
                        Next::Take(guard) => return Ok(end(Ok(guard))),
                    },
                };
                let (precedence, form) =
                    (request.precedence(wait.of_any()), caller.form(wait.one_try().is_none()));
                match request.attempt(precedence, by.instant(), wait.refused_write(), form).await {
                    Ok(Answer::Granted(guard, room)) => {
                        caller.granted(&guard, room);
                        return Ok(end(Ok(guard)));
                    }
                    Ok(Answer::Held(refusal)) => {
                        may_have_run |= refusal.may_arrive_late;
                        let lease_left = refusal.lease_left;
                        if let Some(limit) = caller.refused(refusal, wait) {
                            return Ok(end(Err(Over::new(limit, request.name.text(), lease_left))));
                        }
                    }
                    Err(error) => match caller.failed(error, &by, wait) {
                        Ok(limit) => return Ok(end(Err(caller.over(limit)))),
                        Err(error @ (Error::GrantedTooLate { .. } | Error::NotReady { .. }))
                            if wait.outlasts(&error, &request.context.client.config().timer) =>
                        {
                            may_have_run |= error.outcome() == Outcome::MaybeExecuted;
                            break;
                        }
                        Err(error) => return Err(error.after(may_have_run)),
                    },
                }
            }
        }
        // The grant came too late, or a failover is not over. The caller begins anew.
        request.begin_anew();
        is_anew = true;
    }
}

/// A caller of one acquire. It is a waiter in the queue, or it polls outside the queue, on the fast path or with its
/// only try.
pub(crate) struct Caller<'r, 'a> {
    request: &'r Request<'a>,
    // This field is dropped before `fast_path`, which wakes the next waiter.
    pub(crate) waiter: Option<Waiter<'r>>,
    fast_path: Option<FastPath<'r>>,
}

impl<'r, 'a> Caller<'r, 'a> {
    /// Returns a caller that is not in the queue.
    pub(crate) fn new(request: &'r Request<'a>) -> Self {
        Self { request, waiter: None, fast_path: None }
    }

    /// Joins the queue, or begins outside it if no waiter is there. `refused` is the server's last refusal of this caller.
    fn begin(request: &'r Request<'a>, waits: bool, refused: Option<Refusal>) -> Result<Self, Error> {
        let mut caller = Self::new(request);
        if let Some(refusal) = refused {
            let waiter = caller.waiter.insert(Waiter::join(request, WaitQueue::join));
            waiter.on_held(refusal, false);
        } else if waits && !request.is_reentrant() {
            // A caller joins the queue behind earlier waiters, unless its owner holds the lock.
            caller.fast_path = FastPath::begin(request.name, &request.context.client.config().timer);
            if caller.fast_path.is_none() {
                request.check_kind()?;
                caller.waiter = Some(Waiter::join(request, WaitQueue::join));
            }
        }
        if let Some(waiter) = caller.waiter.as_ref().filter(|_| request.is_reentrant()) {
            // The owner was granted the lock after this caller came. That grant woke the waiters of that moment, but
            // not this caller.
            waiter.may_poll();
        }
        Ok(caller)
    }

    /// Returns the form of the next attempt. A caller whose last attempt was refused expects another refusal.
    fn form(&self, waits: bool) -> Form {
        match &self.waiter {
            Some(waiter) if waiter.remembers() => Form::TrackedPoll,
            Some(_) => Form::Poll,
            None => {
                let was_refused = match &self.fast_path {
                    Some(path) => path.was_refused,
                    None => waits && self.request.name.was_refused(),
                };
                if was_refused { Form::Poll } else { Form::Alone }
            }
        }
    }

    /// Leaves the queue with a grant that has `room` for more holders.
    fn granted(&mut self, guard: &Guard, room: u32) {
        let name = self.request.name;
        match &self.waiter {
            None => name.was_free(|| self.request.context.client.config().timer.now()),
            Some(waiter) if !waiter.seen_held() => name.set_refused(false),
            Some(_) => {}
        }
        if let Some(waiter) = &mut self.waiter {
            waiter.granted(room);
            if waiter.may_arrive_late() {
                guard.may_arrive_late();
            }
        }
        // Leave the queue first, so that `allow_owner_poll` does not pick this waiter.
        drop(self.waiter.take());
        self.request.allow_owner_poll();
    }

    /// Joins the queue after a refusal, or returns the limit that ends the wait.
    fn refused<L: Copy + Into<Limit>>(&mut self, refusal: Refusal, wait: Wait<L>) -> Option<L> {
        let request = self.request;
        request.name.set_refused(true);
        // A waiter takes its entry on the server back when it leaves. A caller without an entry can return here.
        let leaves = self.waiter.is_none() && !request.name.kind().queues_on_server;
        let over = || wait.over(&request.context.client.config().timer).filter(|_| leaves);
        if let Some(limit) = wait.one_try().or_else(over) {
            request.context.refused_unlistening(request.name);
            if refusal.may_arrive_late {
                request.withdraw();
            }
            return Some(limit);
        }
        let was_counted = self.waiter.is_some() || self.fast_path.is_some();
        let waiter = self.waiter.get_or_insert_with(|| Waiter::join(request, WaitQueue::join_first));
        waiter.on_held(refusal, was_counted);
        // This waiter is the head now and polls for the whole queue.
        self.fast_path = None;
        None
    }

    /// Returns the end of a wait whose last request had no reply in time.
    fn over<L>(&self, limit: L) -> Over<L> {
        let lease_left = self.waiter.as_ref().and_then(Waiter::lease_left);
        Over::new(limit, self.request.name.text(), lease_left)
    }

    /// Returns the limit if the wait ended without a reply, or the error. An error of the head fails every waiter.
    pub(crate) fn failed<L: Copy + Into<Limit>>(
        &mut self,
        error: Error,
        by: &AnswerBy,
        wait: Wait<L>,
    ) -> Result<L, Error> {
        let request = self.request;
        // The request was retried until the wait ended, because the server refused writes.
        let is_waited_out = || {
            let is_refused = matches!(error, Error::Server { .. }) && error.may_pass();
            is_refused && wait.over(&request.context.client.config().timer).is_some()
        };
        if (by.is_over(request.context) || is_waited_out())
            && let Some(limit) = wait.limit()
        {
            let Some(waiter) = &mut self.waiter else { return Err(error) };
            return waiter.cut_short(&error).map(|()| limit);
        }
        if let Error::NotReplicated { .. } = error {
            // This grant was taken back. The next waiter may succeed.
            return Err(error);
        }
        // A failure of the head concerns every waiter behind it.
        let polls_for_all = self.fast_path.is_some() || self.waiter.as_ref().is_some_and(Waiter::is_head);
        if let (true, Error::Server { .. } | Error::OtherData { .. }, Some(waiters)) =
            (polls_for_all, &error, &mut request.name.waiting().queue)
        {
            waiters.fail_all(&error).into_iter().for_each(Waker::wake);
        }
        Err(error)
    }
}

/// Sends one request for one hold, without joining the queue. The request ends at `deadline` or after the response
/// timeout. Callers that want several locks use it. Such a caller waits for at most one of its locks.
pub(crate) async fn ask(
    request: Result<Request<'_>, Error>,
    deadline: Option<Instant>,
) -> Result<Answer, Error> {
    request?.ask(deadline).await
}

/// Takes the place of the owner that a ticket names, or returns an error if that owner does not hold the lock alone and once.
pub(crate) fn adopt<'a>(
    request: Result<Request<'a>, Error>,
) -> impl Future<Output = Result<Guard, Error>> + use<'a> {
    let subject = request.as_ref().ok().map(|request| request.name.span_fields());
    acquiring(subject, true, async move || {
        let request = request?;
        match request.attempt(Precedence::NONE, None, RefusedWrite::Ends, Form::Alone).await? {
            Answer::Granted(guard, _) => Ok(guard),
            Answer::Held(_) => Err(Error::TicketEnded {
                lock: request.name.text().to_owned(),
                server: request.context.client.server_address(),
            }),
        }
    })
}

/// A poll from outside the queue, while the queue is empty. A lock without waiters is taken this way. The number of
/// such callers is limited, unless each caller polls for itself.
struct FastPath<'a> {
    name: &'a Name,
    /// The last caller was refused, so this caller expects a refusal.
    was_refused: bool,
}

impl<'a> FastPath<'a> {
    fn begin(name: &'a Name, timer: &Timer) -> Option<Self> {
        let path = |was_refused| Self { name, was_refused };
        if Self::is_counted(name) {
            return name.begin_fast_poll(|| timer.now()).map(path);
        }
        // Where the server keeps the order, a caller that expects to wait subscribes first. Otherwise it would have to
        // poll again after subscribing.
        if !name.is_uncontended() {
            return None;
        }
        name.discard_old_messages();
        Some(path(false))
    }

    fn is_counted(name: &Name) -> bool {
        name.kind().wake == Wake::Channel
    }
}

impl Drop for FastPath<'_> {
    fn drop(&mut self) {
        if Self::is_counted(self.name)
            && let Some(next) = self.name.end_fast_poll()
        {
            next.wake();
        }
    }
}
