//! The one acquire loop: asks, waits for its turn, and asks again. One request that is repeated until it is answered is
//! `retry`'s; several locks, or servers, are taken by asking for each through here.

mod attempt;
mod many;
mod together;
mod wait;
mod waiter;

use std::task::Waker;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::guard::Guard;
use crate::kind::Wake;
use crate::name::Name;
use crate::spans::{Held, acquiring};
use crate::wait_queue::WaitQueue;
use crate::wire::Refusal;

use attempt::Said;
pub(crate) use attempt::{Answer, Request, Seen};
pub(crate) use many::Many;
pub(crate) use together::ask_together;
pub(crate) use wait::{Limit, Wait};
use waiter::{AnswerBy, Next, Waiter};
pub(crate) use waiter::{SILENT_PART, first_answer_by, is_only_late};

/// What a caller waits for: one hold of a lock, or only that a latch is open.
pub(crate) trait Awaited: Sized {
    /// One hold was granted.
    fn granted(guard: Guard) -> Self;

    /// There is nothing to hold, and nothing left to wait for; `None` for a caller who wants a hold.
    fn open() -> Option<Self>;
}

impl Awaited for Guard {
    fn granted(guard: Guard) -> Self {
        guard
    }

    fn open() -> Option<Self> {
        None
    }
}

/// A latch is open.
pub(crate) struct OpenLatch;

impl Held for OpenLatch {
    fn outcome(&self) -> &'static str {
        "open"
    }

    fn begin_span(&mut self) {}
}

impl Awaited for OpenLatch {
    fn granted(_: Guard) -> Self {
        Self
    }

    fn open() -> Option<Self> {
        Some(Self)
    }
}

/// Takes one hold, or waits until a latch is open. `end` makes of it what the caller is told, or of the limit that has ended the wait
/// while another holder still had the lock, or the latch was not open.
///
/// The server is asked at least once, and has `FIRST_ANSWER` to answer, however short the wait: a lock that was never asked
/// for is not known to be held. `refused` is what it said if it has just refused the lock to this caller.
pub(crate) fn acquire<'a, T: Awaited, L: Copy + Into<Limit>, E: Held, F: FnOnce(Result<T, L>) -> E>(
    request: Result<Request<'a>, Error>,
    wait: Wait<L>,
    refused: Option<Refusal>,
    end: F,
) -> impl Future<Output = Result<E, Error>> + use<'a, T, L, E, F> {
    let subject = request.as_ref().ok().map(|request| request.name.as_subject());
    // A caller who was refused before wants several locks, of which this one is only a part.
    let is_final = refused.is_none();
    // Boxed, because every waiter's future has room for it, and few have been refused before.
    let refused = refused.map(Box::new);
    acquiring(subject, is_final, move || ask_until_granted(request, wait, refused, end))
}

#[expect(clippy::manual_async_fn, reason = "which would keep its parameters twice, for every waiter")]
fn ask_until_granted<'a, T: Awaited, L: Copy + Into<Limit>, E, F: FnOnce(Result<T, L>) -> E>(
    request: Result<Request<'a>, Error>,
    wait: Wait<L>,
    refused: Option<Box<Refusal>>,
    end: F,
) -> impl Future<Output = Result<E, Error>> + use<'a, T, L, E, F> {
    async move {
        let (mut request, mut refused, mut waited) = (request?, refused, Duration::ZERO);
        loop {
            match ask_in_turn(&request, wait, refused.take(), waited).await {
                Err(error @ Error::GrantedTooLate { .. })
                    if wait.outlasts(&error, &request.context.client.config().timer) =>
                {
                    request.begin_anew();
                    // It has had its first answer.
                    waited = Duration::MAX;
                }
                result => return result.map(end),
            }
        }
    }
}

/// Asks until the lock is granted, in time or too late, or the wait is over. The caller has `waited` for its first answer before.
#[expect(clippy::manual_async_fn, reason = "which would keep its parameters twice, for every waiter")]
fn ask_in_turn<'r, 'a: 'r, T: Awaited, L: Copy + Into<Limit>>(
    request: &'r Request<'a>,
    wait: Wait<L>,
    refused: Option<Box<Refusal>>,
    waited: Duration,
) -> impl Future<Output = Result<Result<T, L>, Error>> + use<'r, 'a, T, L> {
    async move {
        // Moved out of its box in any case: a box that may be gone would cost every waiter a flag.
        let refused = refused.map(|refused| *refused);
        request.check_upgrade()?;
        if let Some(guard) = request.join() {
            return Ok(Ok(T::granted(guard)));
        }
        let (mut fast_path, mut waiter) = (None, None);
        if let Some(refusal) = refused {
            let waiter = waiter.insert(Waiter::join(request, WaitQueue::join));
            waiter.on_held(refusal);
            waiter.was_not_counted();
        } else if wait.one_try().is_none() && !request.is_reentrant() {
            // A caller joins the queue behind those who wait or ask already, unless its owner holds the lock.
            fast_path = FastPath::begin(request.name);
            if fast_path.is_none() {
                request.check_kind()?;
                waiter = Some(Waiter::join(request, WaitQueue::join));
            }
        }
        if let Some(waiter) = waiter.as_ref().filter(|_| request.is_reentrant()) {
            // Since it came, and those who waited by then were told.
            waiter.may_ask();
        }
        loop {
            let by = match &mut waiter {
                None => {
                    if fast_path.is_none() {
                        request.name.about_to_ask(false);
                    }
                    AnswerBy::first(request.context, request.name, waited, wait.of_any())
                }
                Some(waiter) => match waiter.turn(wait).await? {
                    Next::Ask(by) => by,
                    Next::Over(limit) => return Ok(Err(limit)),
                    Next::Take(guard) => return Ok(Ok(T::granted(guard))),
                    Next::Open => match T::open() {
                        Some(open) => return Ok(Ok(open)),
                        None => continue,
                    },
                },
            };
            if let Some(waiter) = &mut waiter
                && let Some(guard) = request.join()
            {
                waiter.granted(u32::MAX);
                return Ok(Ok(T::granted(guard)));
            }
            let said = match request.latch {
                None => {
                    // A caller that was refused lately expects the same again.
                    let expects_to_wait = wait.one_try().is_none() && request.name.was_refused();
                    let polls = waiter.is_some() || expects_to_wait;
                    let precedence = request.precedence(wait.of_any());
                    let attempt = request.attempt(precedence, by.instant(), wait.refused_write(), polls);
                    attempt.await.map(Said::Answer)
                }
                // Boxed, because every waiter's future has room for it.
                Some(seen) => Box::pin(request.look(seen, by.instant())).await,
            };
            match said {
                Ok(Said::Answer(Answer::Granted(guard, room))) => {
                    if !waiter.as_ref().is_some_and(Waiter::told_held) {
                        request.name.set_refused(false);
                    }
                    if waiter.is_none() {
                        request.name.was_free();
                    }
                    if let Some(waiter) = &mut waiter {
                        waiter.granted(room);
                        if waiter.may_come_late() {
                            guard.may_come_late();
                        }
                    }
                    // Who leaves does not wait in its owner's name any more.
                    drop(waiter.take());
                    request.let_owner_ask();
                    return Ok(Ok(T::granted(guard)));
                }
                Ok(Said::Open(opened)) => {
                    if let Some(waiter) = &mut waiter {
                        waiter.found_open(opened);
                    }
                    if let Some(open) = T::open() {
                        return Ok(Ok(open));
                    }
                }
                Ok(Said::Answer(Answer::Held(refusal))) => {
                    request.name.set_refused(true);
                    // What it has left on the server is taken back by a waiter who leaves.
                    let leaves = waiter.is_none() && !request.name.kind().leaves_mark;
                    let over = || wait.over(&request.context.client.config().timer).filter(|_| leaves);
                    if let Some(limit) = wait.one_try().or_else(over) {
                        request.context.refused_unlistening(request.name);
                        if refusal.may_come_late {
                            request.withdraw();
                        }
                        return Ok(Err(limit));
                    }
                    let was_counted = waiter.is_some() || fast_path.is_some();
                    let waiter = waiter.get_or_insert_with(|| Waiter::join(request, WaitQueue::join_first));
                    if let Some(ended) = request.latch.and_then(Seen::ended) {
                        waiter.saw(ended);
                    }
                    waiter.on_held(refusal);
                    if !was_counted {
                        waiter.was_not_counted();
                    }
                    // From here on this waiter is the head, which asks for all.
                    fast_path = None;
                }
                Err(error) => {
                    // A server that takes no writes was asked for as long as the wait lasts.
                    let is_waited_out = || {
                        let is_refused = matches!(error, Error::Server { .. }) && error.may_pass();
                        is_refused && wait.over(&request.context.client.config().timer).is_some()
                    };
                    if (by.is_over(request.context) || is_waited_out())
                        && let Some(limit) = wait.limit()
                    {
                        let Some(waiter) = &mut waiter else { return Err(error) };
                        return waiter.cut_short(&error).map(|()| Err(limit));
                    }
                    if let Error::NotReplicated { .. } = error {
                        // This one was granted and taken back; the next waiter may fare better.
                        return Err(error);
                    }
                    // What keeps the head from the server keeps every waiter from it.
                    let asks_for_all = fast_path.is_some() || waiter.as_ref().is_some_and(Waiter::is_head);
                    if let (true, Error::Server { .. } | Error::OtherData { .. }, Some(waiters)) =
                        (asks_for_all, &error, &mut *request.name.wait_queue())
                    {
                        waiters.fail_all(&error).into_iter().for_each(Waker::wake);
                    }
                    return Err(error);
                }
            }
        }
    }
}

/// Asks for one hold, once and without standing in the queue, until `deadline` or the response timeout: for those who want several
/// locks, and wait, if at all, for one of them.
pub(crate) async fn ask(
    request: Result<Request<'_>, Error>,
    deadline: Option<Instant>,
) -> Result<Answer, Error> {
    request?.ask(deadline).await
}

/// Asks from outside the queue while that is empty: the way of a lock without waiters. Only so many callers at once, unless each
/// asks for itself.
struct FastPath<'a> {
    name: &'a Name,
}

impl<'a> FastPath<'a> {
    fn begin(name: &'a Name) -> Option<Self> {
        // Where the server keeps the order, one who expects to wait listens first, so that it need not ask once more after that.
        // Who waits for a latch has to know what had ended when it came: from then on it counts.
        let only_waited_for = name.kind().is_only_waited_for();
        let is_uncontended = || !name.is_waited_for() && !name.was_refused();
        let may_ask = || if Self::is_counted(name) { name.begin_asking() } else { is_uncontended() };
        if !only_waited_for && !may_ask() {
            return None;
        }
        name.about_to_ask(Self::is_counted(name));
        Some(Self { name })
    }

    fn is_counted(name: &Name) -> bool {
        name.kind().wake == Wake::Channel && !name.kind().is_only_waited_for()
    }
}

impl Drop for FastPath<'_> {
    fn drop(&mut self) {
        if Self::is_counted(self.name)
            && let Some(next) = self.name.end_asking()
        {
            next.wake();
        }
    }
}
