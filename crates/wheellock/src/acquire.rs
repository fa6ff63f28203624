//! The one acquire loop. Only this module loops over attempts.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use wheellock_client::Retry;
use wheellock_client::Value;
use wheellock_client::planted::bug;
use wheellock_wheel::Sleep;

use crate::clock::BootInstant;
use crate::durability::persist_kept;
use crate::error::{Error, Outcome};
use crate::guard::Guard;
use crate::holds::{GrantReply, Granted, HoldIndex, Terms};
use crate::lease::Lease;
use crate::lock::Lock;
use crate::manager::Inner;
use crate::name::Name;
use crate::persist::{Persisted, persist};
use crate::waiters::{Turn, Waiters};

/// How long to wait for a lock that somebody else holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    No,
    Until(Instant),
    Forever,
}

impl Wait {
    pub(crate) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) => Some(deadline),
            Self::No | Self::Forever => None,
        }
    }

    pub(crate) fn is_over(self, inner: &Inner) -> bool {
        self.deadline().is_some_and(|deadline| inner.client.config().timer.now() >= deadline)
    }
}

/// Takes one hold of `lock`, or `None` if it is still held by somebody else when the wait is over.
pub(crate) async fn acquire(lock: &Lock, wait: Wait) -> Result<Option<Guard>, Error> {
    let asked = Asked::new(lock)?;
    let (mut alone, mut place) = (None, None);
    // Whoever comes while others wait or ask stands in line behind them, unless it holds the lock already.
    if wait != Wait::No && !(asked.presented && asked.inner.holds().is_held_by(asked.name, asked.owner)) {
        alone = Alone::begin(asked.name);
        if alone.is_none() {
            place = Some(Place::join(asked.inner, asked.name, Waiters::join));
        }
    }
    loop {
        match &mut place {
            None => {
                if let Some(waiters) = &mut *asked.name.crowd() {
                    waiters.about_to_ask();
                }
            }
            Some(place) => {
                if !place.turn(wait.deadline()).await? {
                    return Ok(None);
                }
            }
        }
        match asked.once(wait.deadline()).await {
            Ok(Answer::Granted(guard)) => {
                if let Some(place) = &mut place {
                    place.granted(asked.lease);
                }
                return Ok(Some(guard));
            }
            Ok(Answer::Held { lease_left }) => {
                if wait == Wait::No {
                    return Ok(None);
                }
                let place =
                    place.get_or_insert_with(|| Place::join(asked.inner, asked.name, Waiters::join_first));
                place.heard_held(lease_left);
                // From here on this is the first in line, who asks for all.
                alone = None;
            }
            // This one was granted and taken back, whatever the time; the next one in line may fare better.
            Err(error @ Error::NotReplicated { .. }) => return Err(error),
            // The wait is over. If the lock was held when last heard of, it still counts as held: a question asked in the
            // last moment cannot be answered in time. Not so if the one before it found no answer either, or if there is
            // no connection; a dead server is not a busy lock.
            Err(error) if wait.is_over(asked.inner) => {
                let known_held = place.as_ref().is_some_and(|place| place.heard_nothing(&error));
                if known_held
                    && error.outcome() != Outcome::NotSent
                    && asked.inner.client.is_ready_for(asked.name.key().as_bytes())
                {
                    return Ok(None);
                }
                return Err(error);
            }
            Err(error) => {
                // Whatever keeps us from the server keeps everybody in line from it.
                let asks_for_all = alone.is_some() || place.is_some();
                if let (true, Error::Server { .. }, Some(waiters)) =
                    (asks_for_all, &error, &mut *asked.name.crowd())
                {
                    waiters.fail_all(&error).into_iter().for_each(Waker::wake);
                }
                return Err(error);
            }
        }
    }
}

/// Asks for one hold of `lock`, once and without standing in line, until `deadline` or the response timeout: for those who
/// want several locks, and wait, if at all, for one of them.
pub(crate) async fn ask(lock: &Lock, deadline: Option<Instant>) -> Result<Answer, Error> {
    let asked = Asked::new(lock)?;
    if let Some(waiters) = &mut *asked.name.crowd() {
        waiters.about_to_ask();
    }
    asked.once(deadline).await
}

/// What every attempt of one acquire has in common.
struct Asked<'a> {
    inner: &'a Arc<Inner>,
    name: &'a Arc<Name>,
    owner: u64,
    /// Whether others can present this owner too.
    presented: bool,
    lease: Lease,
    renew: bool,
}

/// What the server said to one attempt.
pub(crate) enum Answer {
    Granted(Guard),
    /// Somebody else holds the lock, for so long unless it is renewed; `None`: for ever, by a foreign hand.
    Held {
        lease_left: Option<Duration>,
    },
}

impl<'a> Asked<'a> {
    fn new(lock: &'a Lock) -> Result<Self, Error> {
        lock.name.check()?;
        Ok(Self {
            inner: &lock.inner,
            name: &lock.name,
            owner: lock.owner_number()?,
            presented: lock.has_owner(),
            lease: lock.lease()?,
            renew: lock.renews(),
        })
    }

    /// Asks the server once; if the answer gets lost, asks again for the very same hold.
    async fn once(&self, deadline: Option<Instant>) -> Result<Answer, Error> {
        let Self { inner, name, owner, presented, lease, renew } = *self;
        let begin = |waker: &Waker| {
            let now = inner.clock.now();
            inner.holds().begin_attempt((name, owner), presented, lease, now, waker)
        };
        let began = at_gate(inner, name, deadline, begin).await;
        let (began, deadline) =
            began.map_err(|source| Error::Server { operation: self.operation(), source })?;
        let Some((hold, count)) = began else { return Err(name.shut_down(Outcome::NotSent)) };
        let mut attempt = Attempt { inner, hold: Some(hold) };
        let ask = move |retry: &Retry, options, waker: &Waker| {
            let text = inner.owner_text(owner);
            let params = [name.key().into(), lease.millis().into(), text.as_bytes().into(), count.into()];
            inner.client.start_eval(&name.kind().acquire, 1, &params, retry, options, waker)
        };
        let (mut fresh, mut shortfall) = (false, None);
        let persisted = match inner.wanted {
            None => persist(inner, ask, deadline, false).await,
            Some(wanted) => {
                let granted = |reply: &Value| {
                    fresh |= matches!(reply, Value::Null);
                    !matches!(reply, Value::Integer(_))
                };
                // Boxed, because every waiter's future has room for it, and few managers want it.
                let kept = Box::pin(persist_kept(inner, wanted, ask, deadline, false, granted)).await;
                shortfall = kept.1;
                kept.0
            }
        };
        let Persisted { result, sent, ambiguous, .. } = persisted;
        let reply = match result {
            Ok(Value::Null) => Ok(GrantReply::Fresh),
            Ok(Value::Integer(pttl)) => Err(pttl),
            // It was free when this was asked for the first time.
            Ok(_) if fresh => Ok(GrantReply::Fresh),
            Ok(reply) if reply.as_bytes() == Some(b"AGAIN") => Ok(GrantReply::Again),
            Ok(reply) => {
                return Err(unexpected(inner, name, self.operation(), &reply));
            }
            Err(source) => {
                if !ambiguous {
                    attempt.refused();
                }
                if inner.holds().is_shut() {
                    return Err(name.shut_down(source.outcome()));
                }
                return Err(Error::Server { operation: self.operation(), source });
            }
        };
        match reply {
            Ok(reply) => {
                let terms = Terms { lease, renew, sent };
                if let Some(shortfall) = shortfall {
                    attempt.not_kept(terms, reply);
                    return Err(shortfall.error(name));
                }
                attempt.granted(terms, reply).map(Answer::Granted)
            }
            Err(pttl) => {
                attempt.taken_by_other();
                // -1: held without a TTL, which only a foreign hand can have done.
                let lease_left = u64::try_from(pttl).ok().map(Duration::from_millis);
                Ok(Answer::Held { lease_left })
            }
        }
    }

    fn operation(&self) -> String {
        format!("acquire lock {:?}", self.name)
    }
}

/// An attempt under way. Dropped before it has ended, it takes back whatever the server may have granted: the release
/// is queued right behind the request, so it takes effect after it.
struct Attempt<'a> {
    inner: &'a Arc<Inner>,
    hold: Option<HoldIndex>,
}

impl Attempt<'_> {
    fn granted(&mut self, terms: Terms, reply: GrantReply) -> Result<Guard, Error> {
        let mut wake = Vec::new();
        let mut holds = self.inner.holds();
        let granted = self
            .hold
            .take()
            .and_then(|hold| holds.granted(hold, terms, reply, self.inner.clock.now(), &mut wake));
        match granted {
            Some(Granted::Held(hold, settle)) => {
                let name = holds.get(hold).map(|hold| Arc::clone(&hold.name));
                self.inner.finish(holds, settle, wake);
                match name {
                    Some(name) => Ok(Guard::new(Arc::clone(self.inner), name, hold, terms.renew)),
                    None => Err(Error::GrantedTooLate { lock: String::new(), lease: terms.lease.duration() }),
                }
            }
            Some(Granted::ShutDown(settle)) => {
                let error = settle.name.shut_down(Outcome::MaybeExecuted);
                self.inner.finish(holds, Some(settle), wake);
                Err(error)
            }
            Some(Granted::TooLate(settle)) => {
                let lock = settle.name.key().to_owned();
                self.inner.finish(holds, Some(settle), wake);
                Err(Error::GrantedTooLate { lock, lease: terms.lease.duration() })
            }
            None => Err(Error::GrantedTooLate { lock: String::new(), lease: terms.lease.duration() }),
        }
    }

    /// It was granted, and is taken back because too few servers know of it.
    fn not_kept(&mut self, terms: Terms, reply: GrantReply) {
        let mut wake = Vec::new();
        let mut holds = self.inner.holds();
        let now = self.inner.clock.now();
        let settle = self.hold.take().and_then(|hold| holds.take_back(hold, terms, reply, now, &mut wake));
        self.inner.finish(holds, settle, wake);
    }

    fn refused(&mut self) {
        let mut wake = Vec::new();
        let mut holds = self.inner.holds();
        let settle = self.hold.take().and_then(|hold| holds.refused(hold, &mut wake));
        self.inner.finish(holds, settle, wake);
    }

    fn taken_by_other(&mut self) {
        let mut wake = Vec::new();
        let mut holds = self.inner.holds();
        let settle = self.hold.take().and_then(|hold| {
            holds.taken_by_other(hold, self.inner.clock.now(), &mut wake);
            holds.refused(hold, &mut wake)
        });
        self.inner.finish(holds, settle, wake);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take().filter(|_| !bug("a dropped acquire is not taken back")) {
            let mut holds = self.inner.holds();
            let settle = holds.cancel_attempt(hold, self.inner.clock.now());
            self.inner.finish(holds, settle, Vec::new());
        }
    }
}

/// Asks without standing in line, because nobody else does: the way of a lock that nobody waits for.
struct Alone<'a> {
    name: &'a Name,
}

impl<'a> Alone<'a> {
    fn begin(name: &'a Name) -> Option<Self> {
        let nobody_waits = name.crowd().as_ref().is_none_or(|waiters| waiters.is_empty());
        (nobody_waits && name.begin_asking()).then(|| Self { name })
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        if let Some(next) = self.name.end_asking() {
            next.wake();
        }
    }
}

/// A place in the line of waiters; left when dropped.
struct Place<'a> {
    inner: &'a Arc<Inner>,
    name: &'a Arc<Name>,
    ticket: u64,
    since: BootInstant,
    /// The last question was asked because a release was heard.
    heard: bool,
    /// The lease of the grant that ended the wait.
    granted: Option<Duration>,
}

impl<'a> Place<'a> {
    fn join(inner: &'a Arc<Inner>, name: &'a Arc<Name>, join: fn(&mut Waiters) -> u64) -> Self {
        let ticket = name.waiters(join);
        inner.waiting.fetch_add(1, Ordering::Relaxed);
        Self { inner, name, ticket, since: inner.clock.now(), heard: false, granted: None }
    }

    fn granted(&mut self, lease: Lease) {
        self.granted = Some(lease.duration());
        let waited = self.inner.clock.now().saturating_duration_since(self.since);
        self.inner.holds().tally.waited(waited, self.heard);
    }

    /// Waits until it is time to ask; false if the deadline came first.
    async fn turn(&mut self, deadline: Option<Instant>) -> Result<bool, Error> {
        let timer = &self.inner.client.config().timer;
        let mut sleep = timer.sleep_until(timer.now());
        std::future::poll_fn(|cx| {
            loop {
                let now = timer.now();
                if deadline.is_some_and(|deadline| now >= deadline) {
                    return Poll::Ready(self.in_vain());
                }
                let turn = self.name.waiters(|waiters| {
                    // Looked at under the lock, under which whoever asks alone says that it has ended.
                    waiters.turn(self.ticket, self.name.is_asked_for(), now, cx)
                });
                let until = match turn {
                    Turn::Ask { heard } => {
                        self.heard = heard;
                        return Poll::Ready(Ok(true));
                    }
                    Turn::Failed(error) => return Poll::Ready(Err(error)),
                    // Looked at after the waker was left, which a shutdown wakes.
                    Turn::Wait(_) if self.inner.holds().is_shut() => {
                        return Poll::Ready(Err(self.name.shut_down(Outcome::NotSent)));
                    }
                    Turn::Wait(until) => until.into_iter().chain(deadline).min(),
                };
                let Some(until) = until else { return Poll::Pending };
                if sleep.deadline() != until {
                    sleep.reset(until);
                }
                if Pin::new(&mut sleep).poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// The wait is over. The lock is held, unless nobody could find out whether it is.
    fn in_vain(&self) -> Result<bool, Error> {
        let (known, trouble) = self.name.waiters(|waiters| (waiters.know_held(), waiters.trouble()));
        if known && trouble.is_none() {
            return Ok(false);
        }
        Err(trouble.unwrap_or_else(|| {
            let source = self.inner.client.timed_out(self.name.key().as_bytes(), "EVALSHA");
            Error::Server { operation: format!("acquire lock {:?}", self.name), source }
        }))
    }

    fn heard_held(&self, lease_left: Option<Duration>) {
        let now = self.inner.client.config().timer.now();
        self.name.waiters(|waiters| {
            if waiters.is_head(self.ticket) {
                waiters.heard_held(now, lease_left);
                waiters.listen(|| self.inner.client.subscribe(self.name.channel().as_bytes()));
            }
        });
    }

    /// The last question found no answer. Returns whether the one before it had found one.
    fn heard_nothing(&self, error: &Error) -> bool {
        self.name.waiters(|waiters| waiters.know_held() && !waiters.heard_nothing(error))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let now = self.inner.client.config().timer.now();
        let mut crowd = self.name.crowd();
        let (mut next, mut quiet) = (None, false);
        if let Some(waiters) = &mut *crowd {
            next = waiters.leave(self.ticket, self.granted, now);
            quiet = waiters.begin_lingering();
            if waiters.is_over() {
                *crowd = None;
            }
        }
        drop(crowd);
        if let Some(next) = next {
            next.wake();
        }
        self.inner.waiting.fetch_sub(1, Ordering::Relaxed);
        if self.granted.is_none() {
            self.inner.holds().tally.waits_given_up += 1;
        }
        if quiet {
            let mut holds = self.inner.holds();
            holds.quiet(Arc::clone(self.name), self.inner.clock.now());
            self.inner.finish(holds, None, Vec::new());
        }
    }
}

/// Waits until no request of the same owner is under way and `pass` lets through, but not for longer than a call may
/// take: what is under way may itself be waiting for a connection. Returns by when the call that follows has to end.
pub(crate) fn at_gate<T>(
    inner: &Inner,
    name: &Name,
    deadline: Option<Instant>,
    mut pass: impl FnMut(&Waker) -> Poll<T>,
) -> impl Future<Output = Result<(T, Option<Instant>), wheellock_client::Error>> {
    // Boxed, because hardly anybody has to wait here and every waiter's future has room for it.
    let mut sleep: Option<Pin<Box<Sleep>>> = None;
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(passed) = pass(cx.waker()) {
            let until = sleep.as_ref().map(|sleep| sleep.deadline()).or(deadline);
            return Poll::Ready(Ok((passed, until)));
        }
        let sleep = sleep.get_or_insert_with(|| {
            let config = inner.client.config();
            let patience = config.timer.now() + config.response_timeout;
            Box::pin(config.timer.sleep_until(deadline.map_or(patience, |deadline| deadline.min(patience))))
        });
        sleep.as_mut().poll(cx).map(|()| Err(inner.client.timed_out(name.key().as_bytes(), "EVALSHA")))
    })
}

/// A script was answered with what it never returns. The connection is not to be trusted any more.
pub(crate) fn unexpected(inner: &Inner, name: &Name, operation: String, reply: &Value) -> Error {
    inner.client.condemn(name.key().as_bytes(), "a script was answered with what it never returns");
    Error::UnexpectedReply { operation, reply: format!("reply of type {}", reply.type_name()) }
}
