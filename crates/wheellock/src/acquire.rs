//! The one acquire loop: asks, waits for its turn, and asks again. One request that is repeated until it is answered is
//! `persist`'s; several locks, or servers, are taken by asking for each through here.

mod together;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use wheellock_client::{Client, ErrorKind, Retry, Timer, Value};
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
use crate::waiters::{Known, Turn, Waiters};

pub(crate) use together::ask_together;

/// How long to wait for a lock that somebody else holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    No,
    Until(Instant),
    Forever,
}

impl Wait {
    /// Counted from now.
    pub(crate) fn up_to(wait: Duration, timer: &Timer) -> Self {
        timer.now().checked_add(wait).map_or(Self::Forever, Self::Until)
    }

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
///
/// The server is asked at least once, and has [`FIRST_ANSWER`] to answer, however short the wait: a lock that nobody has asked
/// for is not known to be held. `refused` is what it said if it has just refused the lock to this caller.
pub(crate) async fn acquire(
    lock: &Lock,
    wait: Wait,
    refused: Option<Refusal>,
) -> Result<Option<Guard>, Error> {
    let asked = Asked::new(lock)?;
    let (mut alone, mut place) = (None, None);
    if let Some(refusal) = refused {
        let joined = Place::join(asked.inner, asked.name, Waiters::join);
        place.insert(joined).heard_held(refusal);
    } else if wait != Wait::No
        && !(asked.presented && asked.inner.holds().is_held_by(asked.name, asked.owner))
    {
        // A waiter stands in line behind those who wait or ask already, unless its owner holds the lock.
        alone = Alone::begin(asked.name);
        if alone.is_none() {
            place = Some(Place::join(asked.inner, asked.name, Waiters::join));
        }
    }
    loop {
        let by = match &mut place {
            None => {
                if let Some(waiters) = &mut *asked.name.crowd() {
                    waiters.about_to_ask();
                }
                AnswerBy::first(asked.inner, asked.name, wait.deadline())
            }
            Some(place) => match place.turn(wait.deadline()).await? {
                Some(by) => by,
                None => return Ok(None),
            },
        };
        match asked.once(by.instant()).await {
            Ok(Answer::Granted(guard)) => {
                if let Some(place) = &mut place {
                    place.granted(asked.lease);
                }
                return Ok(Some(guard));
            }
            Ok(Answer::Held(refusal)) => {
                if wait == Wait::No || (place.is_none() && wait.is_over(asked.inner)) {
                    return Ok(None);
                }
                let place =
                    place.get_or_insert_with(|| Place::join(asked.inner, asked.name, Waiters::join_first));
                place.heard_held(refusal);
                // From here on this is the first in line, who asks for all.
                alone = None;
            }
            // This one was granted and taken back, whatever the time; the next one in line may fare better.
            Err(error @ Error::NotReplicated { .. }) => return Err(error),
            Err(error) => {
                if by.is_over(asked.inner) {
                    return place.as_ref().map_or(Err(error.clone()), |place| place.cut_short(&error));
                }
                // Whatever keeps us from the server keeps everybody in line from it.
                let asks_for_all = alone.is_some() || place.as_ref().is_some_and(Place::is_head);
                if let (true, Error::Server { .. } | Error::OtherData { .. }, Some(waiters)) =
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
    Held(Refusal),
}

/// Somebody else holds the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    /// For so long, unless the lease is renewed; `None`: for ever, by a foreign hand.
    pub(crate) lease_left: Option<Duration>,
}

impl Refusal {
    /// By the PTTL that the server told; -1: held without a TTL, which only a foreign hand can have done.
    fn of(pttl: i64) -> Self {
        Self { lease_left: u64::try_from(pttl).ok().map(Duration::from_millis) }
    }
}

impl<'a> Asked<'a> {
    fn new(lock: &'a Lock) -> Result<Self, Error> {
        lock.check_name()?;
        Ok(Self {
            inner: &lock.inner,
            name: &lock.name,
            owner: lock.owner_number()?,
            presented: lock.has_owner(),
            lease: lock.lease()?,
            renew: lock.renews(),
        })
    }

    /// Enters an attempt into the table. Returns it, the count to ask for, and by when the server has to answer.
    async fn begin(&self, deadline: Option<Instant>) -> Result<((Attempt<'a>, u32), Option<Instant>), Error> {
        let Self { inner, name, owner, presented, lease, .. } = *self;
        let begin = |waker: &Waker| {
            let now = inner.clock.now();
            inner.holds().begin_attempt((name, owner), presented, lease, now, waker)
        };
        let began = at_gate(inner, name, deadline, begin).await;
        let (began, deadline) =
            began.map_err(|source| Error::Server { operation: self.operation(), source })?;
        let Some((hold, count)) = began else { return Err(name.shut_down(Outcome::NotSent)) };
        Ok(((Attempt { inner, hold: Some(hold) }, count), deadline))
    }

    /// Asks the server once; if the answer gets lost, asks again for the very same hold.
    async fn once(&self, deadline: Option<Instant>) -> Result<Answer, Error> {
        let Self { inner, name, owner, lease, renew, .. } = *self;
        let ((mut attempt, count), deadline) = self.begin(deadline).await?;
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
                return Err(Error::of_lock(name.key(), self.operation(), source));
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
                Ok(Answer::Held(Refusal::of(pttl)))
            }
        }
    }

    fn operation(&self) -> String {
        format!("acquire lock {:?}", self.name)
    }

    /// For several locks, of which this is the first.
    fn operation_for(&self, locks: usize) -> String {
        format!("acquire {locks} locks at once, {:?} among them", self.name)
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
        if let Some(hold) = self.hold.take() {
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
    /// The server has told this waiter that the lock is held.
    told_held: bool,
    /// The lease of the grant that ended the wait.
    granted: Option<Duration>,
}

impl<'a> Place<'a> {
    fn join(inner: &'a Arc<Inner>, name: &'a Arc<Name>, join: fn(&mut Waiters) -> u64) -> Self {
        let ticket = name.waiters(join);
        inner.waiting.fetch_add(1, Ordering::Relaxed);
        Self { inner, name, ticket, since: inner.clock.now(), heard: false, told_held: false, granted: None }
    }

    fn granted(&mut self, lease: Lease) {
        self.granted = Some(lease.duration());
        let waited = self.inner.clock.now().saturating_duration_since(self.since);
        self.inner.holds().tally.waited(waited, self.heard);
    }

    /// Waits until it is time to ask; `None` if the wait was over before that, and the lock is known to be held.
    async fn turn(&mut self, deadline: Option<Instant>) -> Result<Option<AnswerBy>, Error> {
        let timer = &self.inner.client.config().timer;
        let mut sleep = timer.sleep_until(timer.now());
        std::future::poll_fn(|cx| {
            loop {
                let now = timer.now();
                if deadline.is_some_and(|deadline| now >= deadline) {
                    return Poll::Ready(self.wait_is_over(now, deadline));
                }
                let turn = self.name.waiters(|waiters| {
                    // Looked at under the lock, under which whoever asks alone says that it has ended.
                    waiters.turn(self.ticket, self.name.is_asked_for(), now, cx)
                });
                let until = match turn {
                    Turn::Ask { heard, since } => {
                        self.heard = heard;
                        if heard {
                            // Nobody but a holder sends messages: what we hold has been given away by force.
                            self.inner.verify(self.name);
                        }
                        return Poll::Ready(Ok(Some(self.answer_by(since, deadline))));
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

    /// By when a question needs its answer. All questions that find none share one patience.
    fn answer_by(&self, since: Instant, deadline: Option<Instant>) -> AnswerBy {
        let patience = since + self.inner.client.config().response_timeout;
        let own = match deadline {
            Some(deadline) if self.knows_held() => AnswerBy::EndOfWait(deadline),
            deadline => AnswerBy::first(self.inner, self.name, deadline),
        };
        match own {
            AnswerBy::EndOfWait(until) if until < patience => own,
            _ => AnswerBy::Patience(Some(patience)),
        }
    }

    fn knows_held(&self) -> bool {
        self.told_held || !matches!(self.name.waiters(|waiters| waiters.known()), Known::Nothing)
    }

    fn is_head(&self) -> bool {
        self.name.waiters(|waiters| waiters.is_head(self.ticket))
    }

    /// The wait is over while others asked: a lock of which nothing is known is asked for all the same. Otherwise it is held
    /// as far as anybody can know, unless the server has stopped answering: a dead server is not a busy lock.
    fn wait_is_over(&self, now: Instant, deadline: Option<Instant>) -> Result<Option<AnswerBy>, Error> {
        let config = self.inner.client.config();
        let unanswered_since = match self.name.waiters(|waiters| waiters.known()) {
            Known::Trouble(error) => return Err(error),
            Known::Held { unanswered_since } => unanswered_since,
            Known::Nothing if self.told_held => None,
            Known::Nothing => return Ok(Some(AnswerBy::first(self.inner, self.name, deadline))),
        };
        let silent = |since| now.saturating_duration_since(since) >= config.response_timeout / SILENT_PART;
        let key = self.name.key().as_bytes();
        if unanswered_since.is_some_and(silent) || !self.inner.client.is_ready_for(key) {
            let source = self.inner.client.timed_out(key, "EVALSHA");
            return Err(Error::Server { operation: format!("acquire lock {:?}", self.name), source });
        }
        Ok(None)
    }

    /// The wait has ended in the middle of a question. That its answer could not come in time says nothing about the server;
    /// any other failure does.
    fn cut_short(&self, error: &Error) -> Result<Option<Guard>, Error> {
        if !is_only_late(error) {
            self.name.waiters(|waiters| waiters.heard_nothing(error));
        }
        match self.wait_is_over(self.inner.client.config().timer.now(), None)? {
            None => Ok(None),
            Some(_) => Err(error.clone()),
        }
    }

    fn heard_held(&mut self, refusal: Refusal) {
        self.told_held = true;
        let now = self.inner.client.config().timer.now();
        self.name.waiters(|waiters| {
            if waiters.is_head(self.ticket) {
                waiters.heard_held(now, refusal.lease_left);
                waiters.listen(|| self.inner.client.subscribe(self.name.channel().as_bytes()));
            }
        });
    }
}

/// Whether a question failed only because its time was over.
pub(crate) fn is_only_late(error: &Error) -> bool {
    matches!(error, Error::Server { source, .. } if source.kind() == ErrorKind::Timeout)
}

/// What ends the wait for an answer.
#[derive(Clone, Copy)]
enum AnswerBy {
    /// The wait of the one who asks, which is nobody else's trouble.
    EndOfWait(Instant),
    /// The time for which anybody waits for an answer: the response timeout from now on, or until this instant.
    Patience(Option<Instant>),
}

impl AnswerBy {
    /// For the first question about a lock.
    fn first(inner: &Inner, name: &Name, deadline: Option<Instant>) -> Self {
        match deadline {
            Some(deadline) => Self::EndOfWait(first_answer_by(&inner.client, name.key(), deadline)),
            None => Self::Patience(None),
        }
    }

    fn instant(self) -> Option<Instant> {
        match self {
            Self::EndOfWait(until) => Some(until),
            Self::Patience(until) => until,
        }
    }

    /// Whether the wait of the one who asks has ended.
    fn is_over(self, inner: &Inner) -> bool {
        matches!(self, Self::EndOfWait(until) if inner.client.config().timer.now() >= until)
    }
}

/// By when the first question about `key` has to be answered, for a caller who waits until `deadline`.
pub(crate) fn first_answer_by(client: &Client, key: &str, deadline: Instant) -> Instant {
    if !client.is_ready_for(key.as_bytes()) {
        // No answer is under way that a little more time would bring.
        return deadline;
    }
    let config = client.config();
    deadline.max(config.timer.now() + FIRST_ANSWER.min(config.response_timeout))
}

/// How long the first question may take, however short the wait: more than any round trip on Earth, and still short for those
/// who wanted to wait for less.
const FIRST_ANSWER: Duration = Duration::from_millis(300);

/// A server is taken for silent when it has owed an answer for this part of the response timeout: long beside any round trip,
/// short beside the time after which its connection is given up.
pub(crate) const SILENT_PART: u32 = 3;

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
