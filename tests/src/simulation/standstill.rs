//! A process that stands still while others run.
//!
//! Nothing polls a task of such a process: its connections show no new bytes, its timer stands still, and its own tasks wait behind a
//! gate. Afterwards everything that was due happens at once.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use wheellock::client::Timer;
use wheellock_wheel::ManualClock;

use super::machine::Way;

/// The gate before all tasks of a process.
pub(super) struct Gate {
    way: Way,
    /// The process's own clock, if it can stand still.
    clock: Option<OwnClock>,
    is_closed: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

/// A clock, with its time at an instant of the world.
struct OwnClock {
    clock: ManualClock,
    began: std::time::Instant,
    start: Instant,
}

impl Gate {
    /// Creates an open gate, and the timer of the process. A process that never stands still uses the timer of the world.
    pub(super) fn new(way: Way, own_timer: bool, world: &Timer) -> (Rc<Self>, Timer) {
        let (timer, clock) = match own_timer {
            true => {
                let (timer, clock) = Timer::manual(MILLISECOND);
                let began = clock.now();
                (timer, Some(OwnClock { clock, began, start: Instant::now() }))
            }
            false => (world.clone(), None),
        };
        (Rc::new(Self { way, clock, is_closed: Cell::new(false), waiting: RefCell::default() }), timer)
    }

    /// Moves the process's clock to the present, unless the process stands still.
    pub(super) fn keep_time(&self) {
        if let Some(OwnClock { clock, began, start }) = self.clock.as_ref().filter(|_| !self.is_closed.get())
        {
            let elapsed = Instant::now().saturating_duration_since(*start);
            let behind = elapsed.saturating_sub(clock.now().saturating_duration_since(*began));
            if !behind.is_zero() {
                clock.advance(behind);
            }
        }
    }

    /// Returns the time before which the process's clock has nothing to do, if it runs and has anything to do.
    fn next_turn(&self) -> Option<Instant> {
        let OwnClock { clock, began, start } = self.clock.as_ref().filter(|_| !self.is_closed.get())?;
        Some(*start + clock.next_turn()?.saturating_duration_since(*began))
    }

    /// Returns true unless the process stands still.
    pub(super) fn is_open(&self) -> bool {
        !self.is_closed.get()
    }

    /// Stops the process.
    pub(super) fn close(&self) {
        self.keep_time();
        self.is_closed.set(true);
        self.way.hold_back(true);
    }

    /// Lets the process run again.
    pub(super) fn open(&self) {
        self.is_closed.set(false);
        // A late clock would show the process a time that has passed.
        self.keep_time();
        self.way.hold_back(false);
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
    }

    /// Returns the future behind the gate.
    pub(super) fn behind<F: Future>(self: &Rc<Self>, future: F) -> Gated<F> {
        Gated { gate: Rc::clone(self), future: Box::pin(future) }
    }
}

/// The clocks of all processes of a world.
///
/// A clock follows the world's clock whenever that moves, before any task runs. A due timer of a process fires later, in its turn among the
/// world's timers. The world need not stop at each millisecond for the clocks.
#[derive(Default)]
pub(super) struct Clocks {
    gates: RefCell<Vec<Rc<Gate>>>,
    /// The next time at which [`keep`](Self::keep) runs.
    planned: Cell<Option<Instant>>,
    /// Notified when `planned` becomes earlier.
    sooner: Notify,
}

impl Clocks {
    /// Creates the clocks of the world that runs on this thread.
    pub(super) fn new() -> Rc<Self> {
        let clocks = Rc::new(Self::default());
        CLOCKS.set(Rc::downgrade(&clocks));
        clocks
    }

    /// Keeps the clock of a process behind this gate.
    pub(super) fn add(&self, gate: &Rc<Gate>) {
        self.gates.borrow_mut().push(Rc::clone(gate));
    }

    /// Fires the due timers of all processes until it is dropped.
    pub(super) async fn keep(self: Rc<Self>) {
        loop {
            self.planned.set(self.next_turn());
            let due = async {
                match self.planned.get() {
                    Some(planned) => {
                        // Timers of one time fire in the order in which they were set. This timer is set late, as if the clocks were kept
                        // each millisecond. Otherwise it would fire before a reply or a fault of the same time.
                        sleep_until(planned - MILLISECOND).await;
                        sleep_until(planned).await;
                    }
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.sooner.notified() => {}
                () = due => self.keep_time(),
            }
        }
    }

    fn keep_time(&self) {
        self.gates.borrow().iter().for_each(|gate| gate.keep_time());
    }

    fn next_turn(&self) -> Option<Instant> {
        self.gates.borrow().iter().filter_map(|gate| gate.next_turn()).min()
    }
}

thread_local! {
    static CLOCKS: RefCell<Weak<Clocks>> = RefCell::default();
}

/// Runs before the thread of a world sleeps. A timer may have been armed that is due before the planned time.
pub(super) fn before_sleep() {
    let Some(clocks) = CLOCKS.with_borrow(Weak::upgrade) else { return };
    let next = clocks.next_turn();
    if next.is_some_and(|next| clocks.planned.get().is_none_or(|planned| next < planned)) {
        clocks.planned.set(next);
        clocks.sooner.notify_one();
    }
}

/// Runs after the thread of a world has slept. The world's clock may have moved.
pub(super) fn after_sleep() {
    let Some(clocks) = CLOCKS.with_borrow(Weak::upgrade) else { return };
    if clocks.planned.get().is_none_or(|planned| Instant::now() < planned) {
        clocks.keep_time();
    }
}

/// A future that is not polled while its process stands still.
pub(super) struct Gated<F> {
    gate: Rc<Gate>,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Gated<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if self.gate.is_closed.get() {
            self.gate.waiting.borrow_mut().push(cx.waker().clone());
            return Poll::Pending;
        }
        self.gate.keep_time();
        self.future.as_mut().poll(cx)
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);
