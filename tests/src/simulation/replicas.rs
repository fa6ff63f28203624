//! The servers of one fleet: a primary and its replicas, with failovers.
//!
//! A replica has an older state of the server that it follows. Each process has a path of its own to the servers, so a process may use a
//! replaced primary for a while.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep};
use wheellock::testing::server::How;

use super::machine::{Machine, Way};
use super::standstill::{Clocks, Gate};
use super::survival::{End, Survival, Switch};

/// The servers, and the paths of all processes to them.
pub(super) struct Replicas {
    pub(super) machines: Vec<Arc<Machine>>,
    nodes: RefCell<Vec<Node>>,
    primary: Cell<usize>,
    ways: RefCell<Vec<Way>>,
    /// Notified when a server follows another server, or can be reached again.
    changed: Notify,
    switching: Mutex<()>,
    links: RefCell<Vec<JoinHandle<()>>>,
    /// Time for which a demoted server with open connections stays a replica.
    rest: Duration,
    clocks: Rc<Clocks>,
}

/// A server, and its link to the server that it follows.
struct Node {
    follows: Option<usize>,
    is_up: bool,
    is_stopped: bool,
    /// The link is interrupted.
    is_cut: bool,
    /// Number of starts and promotions.
    generation: u64,
    /// The server, its generation and its number of writes of which this replica has the data.
    synced: Option<(usize, u64, u64)>,
    /// Earliest time of a promotion.
    rests_until: Option<Instant>,
    /// Milliseconds that data takes to this replica, and an acknowledgement back.
    lag: u64,
}

impl Replicas {
    /// Creates the servers with their links. The first server is the primary.
    pub(super) fn start(machines: Vec<Arc<Machine>>, survival: &Survival) -> Rc<Self> {
        let nodes = machines.iter().enumerate().map(|(number, _)| Node {
            follows: (number > 0).then_some(0),
            is_up: true,
            is_stopped: false,
            is_cut: false,
            generation: 0,
            synced: None,
            rests_until: None,
            lag: survival.lags.get(number).copied().unwrap_or(1),
        });
        let replicas = Rc::new(Self {
            nodes: RefCell::new(nodes.collect()),
            primary: Cell::new(0),
            ways: RefCell::default(),
            changed: Notify::new(),
            switching: Mutex::new(()),
            links: RefCell::default(),
            rest: Duration::from_millis(survival.window + survival.patience),
            machines,
            clocks: Clocks::new(),
        });
        let clocks = spawn_local(Rc::clone(&replicas.clocks).keep());
        replicas.links.borrow_mut().push(clocks);
        for (number, machine) in replicas.machines.iter().enumerate() {
            machine.change(|server| {
                server.replicates = true;
                if number > 0 {
                    server.demote();
                }
            });
            let link = spawn_local(Rc::clone(&replicas).link(number));
            replicas.links.borrow_mut().push(link);
        }
        replicas.links_changed();
        replicas
    }

    pub(super) fn primary(&self) -> &Arc<Machine> {
        &self.machines[self.primary.get()]
    }

    /// Returns a new process's path to the present primary.
    pub(super) fn new_way(&self) -> Way {
        let way = Way::new();
        way.go_to(self.primary.get(), false);
        self.ways.borrow_mut().push(way.clone());
        way
    }

    /// Keeps the clock of a process behind this gate.
    pub(super) fn keep_time_of(&self, gate: &Rc<Gate>) {
        self.clocks.add(gate);
    }

    /// Interrupts the link of a replica, or restores it.
    pub(super) fn cut(&self, number: usize, is_cut: bool) {
        if let Some(node) = self.nodes.borrow_mut().get_mut(number) {
            node.is_cut = is_cut;
        }
        self.links_changed();
    }

    fn change(&self, number: usize, change: impl FnOnce(&mut Node)) {
        change(&mut self.nodes.borrow_mut()[number]);
        self.links_changed();
    }

    /// Notifies the links of a change, and the servers of their replicas.
    fn links_changed(&self) {
        for (number, machine) in self.machines.iter().enumerate() {
            let follow = |other: &usize| self.source_of(*other).is_some_and(|(source, _)| source == number);
            let replicas = (0..self.machines.len()).filter(follow).count();
            machine.change(|server| server.store.replicas = i64::try_from(replicas).unwrap_or(i64::MAX));
        }
        self.changed.notify_waiters();
    }

    /// Returns the server that this replica receives data from now, and that server's generation.
    fn source_of(&self, number: usize) -> Option<(usize, u64)> {
        let nodes = self.nodes.borrow();
        let node = nodes.get(number)?;
        let source = node.follows.filter(|_| node.is_up && !node.is_stopped && !node.is_cut)?;
        let from =
            nodes.get(source).filter(|from| from.is_up && !from.is_stopped && from.follows.is_none())?;
        Some((source, from.generation))
    }

    /// Brings the data of its primary to a replica, again and again.
    async fn link(self: Rc<Self>, number: usize) {
        loop {
            let source = self.source_of(number);
            let Some((from, generation)) = source else {
                self.changed.notified().await;
                continue;
            };
            let state = self.machines[from].change(|server| server.replicated_state());
            let synced = (from, generation, state.offset());
            if self.nodes.borrow()[number].synced == Some(synced) {
                tokio::select! {
                    () = self.changed.notified() => {}
                    () = self.machines[from].changed.notified() => {}
                }
                continue;
            }
            let lag = Duration::from_millis(self.nodes.borrow()[number].lag);
            sleep(lag).await;
            if self.source_of(number) != source {
                continue;
            }
            self.machines[number].change(|server| server.follow(&state));
            self.nodes.borrow_mut()[number].synced = Some(synced);
            sleep(lag).await;
            if self.source_of(number) == source {
                self.machines[from].change(|server| server.acknowledge(number, &state));
            }
        }
    }

    /// Replaces the primary, or restarts it. Returns when all servers and processes have noticed.
    pub(super) async fn switch(self: &Rc<Self>, switch: &Switch) {
        let begun = self.switching.lock().await;
        let old = self.primary.get();
        if switch.behind > 0 {
            (0..self.machines.len()).for_each(|number| self.cut(number, true));
            sleep(Duration::from_millis(switch.behind)).await;
        }
        match switch.end {
            End::Crash | End::Restart { .. } => self.crash(old),
            End::Stop => self.stop(old, true),
            End::Split => {}
        }
        sleep(Duration::from_millis(switch.promoted_after)).await;
        (0..self.machines.len()).for_each(|number| self.cut(number, false));
        if let End::Restart { forgets } = switch.end {
            return self.restart(old, forgets);
        }
        let Some(new) = self.candidate(switch.to) else {
            match switch.end {
                End::Crash => self.restart(old, false),
                _ => self.stop(old, false),
            }
            return;
        };
        self.machines[new].change(|server| server.promote());
        self.change(new, |node| {
            node.follows = None;
            node.generation += 1;
        });
        self.primary.set(new);
        drop(begun);
        let mut tails = Vec::new();
        for number in (0..self.machines.len()).filter(|number| *number != new && *number != old) {
            let (replicas, after) = (Rc::clone(self), switch.followed[number % switch.followed.len()]);
            tails.push(spawn_local(async move {
                sleep(Duration::from_millis(after)).await;
                replicas.follow_primary(number);
            }));
        }
        for (place, way) in self.ways.borrow().iter().cloned().enumerate() {
            let (replicas, after) = (Rc::clone(self), switch.noticed[place % switch.noticed.len()]);
            tails.push(spawn_local(async move {
                sleep(Duration::from_millis(after)).await;
                way.go_to(replicas.primary.get(), true);
            }));
        }
        let (replicas, switch) = (Rc::clone(self), switch.clone());
        tails.push(spawn_local(async move { replicas.demote_later(old, &switch).await }));
        for tail in tails {
            tail.await.expect("a failover ends");
        }
        // New processes may have come meanwhile.
        self.ways.borrow().iter().for_each(|way| way.go_to(self.primary.get(), true));
    }

    /// Lets a replaced primary come back, and makes it a replica.
    async fn demote_later(&self, old: usize, switch: &Switch) {
        sleep(Duration::from_millis(switch.resumes_after)).await;
        match switch.end {
            End::Crash => self.restart(old, switch.returns_empty),
            _ => self.stop(old, false),
        }
        sleep(Duration::from_millis(switch.demoted_after)).await;
        if self.primary.get() == old || self.nodes.borrow()[old].follows.is_some() {
            return;
        }
        let keeps = switch.keeps_connections;
        self.machines[old].change(|server| {
            server.demote();
            if !keeps {
                server.end(How::Fin);
            }
        });
        let rest = if keeps { self.rest } else { Duration::ZERO };
        self.change(old, |node| {
            node.follows = Some(self.primary.get());
            node.synced = None;
            node.rests_until = Some(Instant::now() + rest);
        });
    }

    fn follow_primary(&self, number: usize) {
        let primary = self.primary.get();
        self.change(number, |node| {
            if node.follows.is_some() && number != primary {
                node.follows = Some(primary);
            }
        });
    }

    /// Returns a replica that may be promoted, from `to` on.
    fn candidate(&self, to: usize) -> Option<usize> {
        let (nodes, now) = (self.nodes.borrow(), Instant::now());
        let is_fit = |number: &usize| {
            let node = &nodes[*number];
            let rested = node.rests_until.is_none_or(|until| until <= now);
            node.follows.is_some() && node.is_up && !node.is_stopped && node.synced.is_some() && rested
        };
        (to..to + nodes.len()).map(|number| number % nodes.len()).find(is_fit)
    }

    fn crash(&self, number: usize) {
        let machine = &self.machines[number];
        machine.host.network().set_down(true);
        machine.change(|server| server.end(How::Rst));
        self.change(number, |node| node.is_up = false);
    }

    /// Starts a server that has crashed. It begins as a primary.
    fn restart(&self, number: usize, forgets: bool) {
        let machine = &self.machines[number];
        machine.change(|server| server.restart(forgets));
        machine.host.network().set_down(false);
        self.change(number, |node| {
            node.is_up = true;
            node.generation += 1;
        });
    }

    fn stop(&self, number: usize, is_stopped: bool) {
        self.machines[number].change(|server| server.faults.is_silent = is_stopped);
        self.change(number, |node| node.is_stopped = is_stopped);
    }
}
