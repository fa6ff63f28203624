//! A process that stands still while others run.
//!
//! Nothing polls a task of such a process: its connections show no new bytes, its timer stands still, and its own tasks wait behind a
//! gate. Afterwards everything that was due happens at once.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, sleep};
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
                let (timer, clock) = Timer::manual(Duration::from_millis(1));
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
            clock.advance(elapsed.saturating_sub(clock.now().saturating_duration_since(*began)));
        }
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

/// Keeps the clocks of all processes until it is dropped.
pub(super) async fn keep_clocks(gates: Rc<RefCell<Vec<Rc<Gate>>>>) {
    loop {
        sleep(Duration::from_millis(1)).await;
        gates.borrow().iter().for_each(|gate| gate.keep_time());
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
