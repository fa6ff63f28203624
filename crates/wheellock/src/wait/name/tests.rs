//! Tests of `name`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Wake};
use std::time::Instant;

use super::*;
use crate::kind::{FENCED, REENTRANT};
use crate::wait::poll_schedule::Turn;
use crate::wait::wait_queue::Ending;

/// One caller outside the queue and two waiters check whether they may poll, and leave. The waiter that remains at the head may poll or is
/// woken, in every order of their steps. Each step is one critical section of the queue's lock.
#[test]
fn waiter_never_sleeps_behind_fast_poll() {
    #[derive(Default)]
    struct World {
        /// Number of steps that the caller and the waiters have taken.
        steps: [usize; 3],
        tickets: [Option<u64>; 2],
        /// Waiters that have left a waker and have not been woken since.
        asleep: [bool; 2],
        /// The caller found no waiter.
        asks: bool,
    }

    fn step(world: &mut World, name: &Name, actor: usize, wakers: &[Arc<Flag>; 2]) {
        let (at, waiter) = (world.steps[actor], actor.wrapping_sub(1));
        world.steps[actor] += 1;
        match (actor, at) {
            (0, 0) => {
                let somebody_waits = world.tickets.iter().any(Option::is_some);
                world.asks = name.begin_fast_poll(Instant::now).is_some();
                assert_ne!(world.asks, somebody_waits);
            }
            (0, _) if world.asks => name.end_fast_poll().into_iter().for_each(Waker::wake),
            (0, _) => {}
            (_, 0) => {
                world.tickets[waiter] = Some(name.waiters(|waiters| waiters.join(1)));
            }
            (_, 1) => {
                let waker = Waker::from(Arc::clone(&wakers[waiter]));
                let mut cx = Context::from_waker(&waker);
                let (ticket, now) = (world.tickets[waiter].unwrap(), Instant::now());
                let mut waiting = name.waiting();
                let is_polled = name.is_polled(&waiting);
                let turn = waiting.queue().turn(ticket, is_polled, now, &mut cx);
                world.asleep[waiter] = matches!(turn, Turn::Wait(_));
            }
            (_, _) => {
                let ticket = world.tickets[waiter].take().unwrap();
                let (next, _) = name.waiters(|waiters| waiters.leave(ticket, Ending::InVain, Instant::now()));
                next.into_iter().for_each(Waker::wake);
            }
        }
    }

    fn explore(order: &mut Vec<usize>, steps: [usize; 3], orders: &mut usize) {
        let mut is_over = true;
        for actor in 0..3 {
            if order.iter().filter(|done| **done == actor).count() < steps[actor] {
                is_over = false;
                order.push(actor);
                explore(order, steps, orders);
                order.pop();
            }
        }
        if !is_over {
            return;
        }
        *orders += 1;
        let (name, mut world) = (Name::new("n", &REENTRANT, false), World::default());
        let wakers: [Arc<Flag>; 2] = Default::default();
        order.iter().for_each(|actor| step(&mut world, &name, *actor, &wakers));
        assert!(!name.is_polled(&name.waiting()));
        let head = name.waiters(|waiters| {
            let is_head = |ticket: &Option<u64>| ticket.is_some_and(|ticket| waiters.is_head(ticket));
            world.tickets.iter().position(is_head)
        });
        if let Some(head) = head {
            let woken = wakers[head].0.load(Ordering::Relaxed);
            assert!(!world.asleep[head] || woken, "asleep after {order:?}");
        }
    }

    let mut orders = 0;
    for first in [2, 3] {
        for second in [2, 3] {
            explore(&mut Vec::new(), [2, first, second], &mut orders);
        }
    }
    assert_eq!(orders, 90 + 2 * 210 + 560);
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn name_derives_key_and_channel() {
    let with_prefix: &'static Kind = Box::leak(Box::new(Kind::counted("keys:", "told:")));
    for text in ["orders", "{a}b", "odd{", "blå lås", "ends}"] {
        let plain = Name::new(text, &REENTRANT, false);
        assert_eq!(
            (plain.text(), plain.key(), plain.channel()),
            (text, text, &*REENTRANT.channel(text, false).0)
        );
        assert_eq!(plain.channel(), format!("redisson_lock__channel:{}", plain.tag()));
        let other = Name::new(text, with_prefix, false);
        let (braced, channel) = (with_prefix.own_key(text).unwrap(), with_prefix.channel(text, false).0);
        assert_eq!((other.text(), other.key(), other.channel()), (text, &*braced, &*channel));
        assert_eq!(other.tag(), plain.tag());
    }
    assert_eq!(Name::new("orders", with_prefix, false).key(), "keys:{orders}");
    assert_eq!(Name::new("a:{b}", with_prefix, false).key(), "keys:a:{b}");
}

#[test]
fn incomplete_hash_tag_spans_slots() {
    for kind in [&*REENTRANT, &FENCED] {
        let in_one_slot = |text| Name::new(text, kind, true).is_in_one_slot();
        assert!(in_one_slot("orders") && in_one_slot("a:{b}:c"));
        assert!(!in_one_slot("odd{") && !in_one_slot("odd}"));
    }
}

/// A single refusal says nothing. A caller that comes again within a second polls.
#[test]
fn repeated_refusals_count_as_polling() {
    let (name, start) = (Name::new("orders:42", &FENCED, false), BootInstant::now());
    let after = |millis: u64| start.plus_nanos(millis * 1_000_000);
    let polls = |millis| name.waiting().is_polled_often(|| after(millis));
    assert!(!name.is_mark_due(after(1)) && !polls(1), "the first refusal");
    assert!(!name.is_mark_due(after(100)) && !polls(100), "it comes too soon after the first");
    assert!(name.is_mark_due(after(400)) && polls(400) && polls(1300));
    assert!(!polls(1500), "no caller has come for a second");
    assert!(!name.is_mark_due(after(3000)) && !polls(3000), "it counts as the first again");
}
