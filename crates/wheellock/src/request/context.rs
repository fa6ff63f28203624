//! The shared state of all locks of one manager.
//!
//! It contains the connection, the clock, this process' identity, and the tables of names and holds. [`Context::transact`] makes every
//! change of the table of holds that has effects.
//!
//! # Order of locks
//!
//! A thread that has locked one of these mutexes may only lock mutexes below it:
//!
//! 1. the servers of a majority, the members of a majority's guard (`redlock`), and the last report (`report`);
//! 2. the table of names;
//! 3. a name's wait queue;
//! 4. the table of holds;
//! 5. the client's mutexes: cluster, then connection.
//!
//! A thread that has locked a queue of a majority (`redlock::queue`) or the request slots (`request_slots`) locks no other mutex.
//!
//! No thread writes to a socket, wakes a task or logs while it has locked any of these mutexes. A change collects its effects, and they
//! are carried out after unlocking.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use wheellock_client::layer::{Flush, Retry};
use wheellock_client::{Arg, Change, Client, Script, Servers, Value};

use crate::base::clock::{BootInstant, Clock};
use crate::base::durability::Wanted;
use crate::base::error::Error;
use crate::base::fleet_key::FleetKey;
use crate::base::fleet_terms::Terms;
use crate::base::lease::Lease;
use crate::base::owner::{Owner, OwnerText, SPENT, as_number};
use crate::base::request_slots::RequestSlots;
use crate::base::request_tag::{About, RequestTag};
use crate::kind::{self, Holders, Kind, Wake};
use crate::request::events;
use crate::table::holds::{Effects, Failed, Holds, Reconcile, Rest, Want};
use crate::table::metrics::{Metrics, Waiting};
use crate::wait::families::{Classifier, Families, Family, UNCLASSIFIED};
use crate::wait::name::Name;
use crate::wire;
use crate::wire::holder::Label;

pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    /// Identity of this manager on the wire: the part of every owner before the colon.
    pub(crate) uuid: Arc<str>,
    /// The same identity as a number. The ids of permits count up from it.
    pub(crate) first_permit: u128,
    pub(crate) watchdog_lease: Lease,
    /// Time after a grant for which the lock may be handed over within this process.
    pub(crate) hand_over: Duration,
    /// Releases of this process are not announced by messages. Perhaps other processes' releases are not, either.
    pub(crate) releases_are_silent: bool,
    /// Acknowledgements that each grant and each renewal waits for.
    pub(crate) wanted: Option<Wanted>,
    /// Numbers of the fleet whose locks survive a failover.
    pub(crate) fleet: Option<Terms>,
    /// The keys of that fleet.
    pub(crate) fleet_keys: Box<[Arc<FleetKey>]>,
    /// Read while a refresh of this process's entries in the fleet is under way.
    pub(crate) refresh: tokio::sync::RwLock<()>,
    /// Label of this manager, for people.
    label: Option<Label>,
    /// The manager was shut down, and its label was deleted.
    label_has_ended: AtomicBool,
    /// Prefix of every lock's name on the server.
    pub(crate) prefix: Arc<str>,
    next_owner: AtomicU64,
    /// Tasks that wait for some lock.
    pub(crate) waiting: Waiting,
    classifier: Option<Classifier>,
    names: Mutex<Names>,
    /// Slots of requests that take effect once and are not holds.
    pub(crate) slots: Arc<Mutex<RequestSlots>>,
    holds: Mutex<Holds>,
}

// The state is behind mutexes that ignore poison. A user's code runs outside of them, so a panic of that code leaves the state whole.
impl UnwindSafe for Context {}
impl RefUnwindSafe for Context {}

/// Settings of a manager, apart from its connection.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) watchdog_lease: Lease,
    pub(crate) hand_over: Duration,
    pub(crate) releases_are_silent: bool,
    pub(crate) wanted: Option<Wanted>,
    pub(crate) fleet: Option<Terms>,
    pub(crate) label: Option<Label>,
    pub(crate) prefix: Arc<str>,
    pub(crate) classifier: Option<Classifier>,
}

/// The names in use. Locks with the same name share one wait queue, so handles to the same name share one `Name`. Each kind has its own
/// `Name`, because kinds differ in scripts and channels.
#[derive(Default)]
struct Names {
    known: Vec<(&'static Kind, HashSet<ByText>)>,
    families: Families,
    in_cluster: bool,
    purge_at: usize,
}

/// A name in a table, found by its text. If a name is not in use, the table has the last reference to it.
struct ByText(Arc<Name>);

impl Borrow<str> for ByText {
    fn borrow(&self) -> &str {
        self.0.text()
    }
}

impl PartialEq for ByText {
    fn eq(&self, other: &Self) -> bool {
        self.0.text() == other.0.text()
    }
}

impl Eq for ByText {}

impl Hash for ByText {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.text().hash(state);
    }
}

impl Names {
    fn find(&self, text: &str, kind: &'static Kind) -> Option<Arc<Name>> {
        let (_, names) = self.known.iter().find(|(known, _)| std::ptr::eq(*known, kind))?;
        names.get(text).map(|ByText(name)| Arc::clone(name))
    }

    /// Returns the name. A new name gets this family.
    fn get(&mut self, text: &str, kind: &'static Kind, family: Family) -> Arc<Name> {
        if self.len() >= self.purge_at {
            // Removing unused names in bulk keeps the cost per name constant.
            self.known
                .iter_mut()
                .for_each(|(_, names)| names.retain(|ByText(name)| Arc::strong_count(name) > 1));
            self.purge_at = 2 * self.len() + 64;
        }
        let place = match self.known.iter().position(|(known, _)| std::ptr::eq(*known, kind)) {
            Some(place) => place,
            None => {
                self.known.push((kind, HashSet::new()));
                self.known.len() - 1
            }
        };
        let name = || Arc::new(Name::new(text, kind, self.in_cluster).in_family(family));
        let Some((_, names)) = self.known.get_mut(place) else { return name() };
        if let Some(ByText(name)) = names.get(text) {
            return Arc::clone(name);
        }
        let name = name();
        names.insert(ByText(Arc::clone(&name)));
        name
    }

    fn len(&self) -> usize {
        self.known.iter().map(|(_, names)| names.len()).sum()
    }
}

/// The table of holds, locked for reads.
pub(crate) struct HoldsRead<'a>(MutexGuard<'a, Holds>);

impl Deref for HoldsRead<'_> {
    type Target = Holds;

    fn deref(&self) -> &Holds {
        &self.0
    }
}

impl Context {
    pub(crate) fn new(client: Client, uuid: Arc<str>, settings: Settings) -> Self {
        let Settings {
            watchdog_lease,
            hand_over,
            releases_are_silent,
            wanted,
            fleet,
            label,
            prefix,
            classifier,
        } = settings;
        let clock = Clock::beside(client.config());
        let may_take_over = !matches!(client.config().servers, Servers::One(_));
        let mut holds = Holds::new(clock.now(), watchdog_lease, may_take_over);
        // The connection may be up before the table is there to hear of it.
        if client.server_info().is_some_and(|info| info.tracks_keys) {
            holds.are_told_of_changes();
        }
        let in_cluster = matches!(client.config().servers, Servers::Cluster(_));
        let fleet_keys = fleet.map(|_| FleetKey::all(in_cluster)).unwrap_or_default();
        if let Some(terms) = fleet {
            let servers = client.clone();
            let node_of = move |key: &str| servers.node_of(key.as_bytes());
            holds.join_fleet(terms, fleet_keys.clone(), Box::new(node_of), clock.now());
        }
        Self {
            client,
            first_permit: as_number(&uuid),
            uuid,
            watchdog_lease,
            hand_over,
            releases_are_silent,
            wanted,
            fleet,
            fleet_keys,
            refresh: tokio::sync::RwLock::default(),
            label,
            label_has_ended: AtomicBool::new(false),
            prefix,
            next_owner: AtomicU64::new(1),
            waiting: Waiting::new(classifier.is_some()),
            classifier,
            slots: Arc::default(),
            names: Mutex::new(Names { in_cluster, ..Names::default() }),
            holds: Mutex::new(holds),
            clock,
        }
    }

    /// Locks the table of holds for reads. [`change`](Self::change) and [`transact`](Self::transact) change it.
    pub(crate) fn holds(&self) -> HoldsRead<'_> {
        HoldsRead(self.table())
    }

    fn table(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change of the table of holds that has no effects, and returns its result.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Holds, &Clock) -> T) -> T {
        let mut holds = self.table();
        // The clock is read under the lock, so the table sees instants in their order.
        let changed = change(&mut holds, &self.clock);
        let watchdog = holds.alarms.watchdog_to_wake();
        drop(holds);
        watchdog.into_iter().for_each(Waker::wake);
        changed
    }

    /// Changes the table of holds and carries out the effects. Queues the requests under the table's lock, so that no renewal is queued
    /// after them. Then unlocks, writes, wakes and logs.
    pub(crate) fn transact<T>(&self, change: impl FnOnce(&mut Holds, BootInstant, &mut Effects) -> T) -> T {
        let mut effects = Effects::default();
        let mut holds = self.table();
        // The clock is read under the lock, so the table sees instants in their order.
        let now = self.clock.now();
        let changed = change(&mut holds, now, &mut effects);
        let first = effects.next_request();
        let first = first.and_then(|request| self.queue_reconcile(&mut holds, &request, &mut effects));
        let more = effects.has_more_requests().then(|| self.queue_more(&mut holds, now, &mut effects));
        let watchdog = holds.alarms.watchdog_to_wake();
        // Flushes write to the socket when they are dropped, so the table is unlocked first.
        drop(holds);
        drop(first);
        drop(more);
        if let Some(watchdog) = watchdog {
            watchdog.wake();
        }
        effects.wake_all();
        // Most changes take no room, so they do not lock the table again. One flood must not retain much memory forever.
        if (1..=MOST_ROOM).contains(&effects.wake.capacity()) {
            self.table().room = effects.wake;
        }
        if let Some(rest) = effects.rest {
            self.log(&rest);
            // No message announces a lost hold. If the lock was handed over, no waiter of this process knows when its lease ends.
            let lost = rest.lost.iter().map(|(name, _)| name).filter(|name| name.is_waited_for());
            lost.for_each(|name| self.let_waiters_ask(name));
        }
        changed
    }

    /// Queues the other requests of a change. Then queues postponed requests while there is room. The returned flushes write when they
    /// are dropped.
    #[cold]
    fn queue_more(&self, holds: &mut Holds, now: BootInstant, effects: &mut Effects) -> Vec<Flush<'_>> {
        let mut flushes = Vec::new();
        while let Some(request) = effects.next_request() {
            flushes.extend(self.queue_reconcile(holds, &request, effects));
        }
        // A request without room joins the end of the backlog again. The loop ends there, or it would never end.
        while effects.is_backlog_to_be_looked_at()
            && let Some(request) = holds.next_postponed(now, effects)
            && let Some(flush) = self.queue_reconcile(holds, &request, effects)
        {
            flushes.push(flush);
        }
        flushes
    }

    #[cold]
    fn log(&self, Rest { lost, failed_renewals, renewed_again, jumps, .. }: &Rest) {
        // The failed renewals are logged first, because they are why locks are lost.
        if let Some((result, failing)) = failed_renewals {
            events::renewals_fail(&self.client.server_address(), result, *failing);
        }
        lost.iter().for_each(|(name, reason)| events::lost(name, *reason));
        if jumps.is_empty() && renewed_again.is_none() {
            return;
        }
        let server = self.client.server_address();
        if let Some(failing) = renewed_again {
            events::renewed_again(&server, *failing);
        }
        jumps.iter().for_each(|jump| events::server_clock_jumped(&server, *jump));
    }

    /// Queues a request that sets the server's count to the wanted count. Postpones the request if there is no room.
    fn queue_reconcile<'a>(
        &'a self,
        holds: &mut Holds,
        request: &Reconcile,
        effects: &mut Effects,
    ) -> Option<Flush<'a>> {
        let name = &request.name;
        let owner = self.holder_text(name, request.owner);
        // Only the release of the last share frees the lock for contenders.
        let hot = holds.handed_over_before(request.hold).filter(|_| request.count == 0);
        let publish = self.client.publish_verb();
        let retry = &request.retry;
        let token =
            RequestTag { about: About::Reconcile { hold: request.hold }, with_source: retry.is_in_full() };
        let queue = |script: &Script, params: &[Arg<'_>]| {
            self.client.queue_eval(script, wire::KEYS, params, retry, token.into(), false)
        };
        let kept = request.min.as_ref().and_then(|min| Some((min.spent, min.left(self.clock.now())?)));
        let kept = kept.zip(name.kind().retire.as_ref());
        let flush = match (kept, hot.zip(name.kind().hot_release.as_ref())) {
            (Some(((spent, left), script)), _) => {
                let spent = self.holder_text(name, spent);
                let holders = [owner.as_bytes(), spent.as_bytes()];
                queue(script, &wire::retire(name, holders, left, publish))
            }
            (None, Some(((_, opening), script))) => {
                queue(script, &wire::hot_release(name, owner.as_bytes(), publish, opening))
            }
            (None, None) => {
                let script = name.kind().release.as_ref()?;
                queue(script, &wire::release(name, owner.as_bytes(), request.count, publish))
            }
        };
        if !flush.as_ref().is_some_and(Flush::is_answered) {
            self.not_queued(holds, request, flush.is_some(), effects);
        }
        flush
    }

    /// Records that a caller without a subscription was refused. After repeated refusals a mark is sent to the server. A process that
    /// hands the lock over among its tasks then leaves the lock free for a while.
    pub(crate) fn refused_unlistening(&self, name: &Name) {
        if name.kind().may_meet_hand_over() && name.is_mark_due(self.clock.now()) {
            drop(self.queue_unanswered(&kind::MARK, &wire::mark(name)));
        }
    }

    /// Notifies the waiters for a lock that this process released without a message and does not want any more.
    pub(crate) fn tell(&self, name: &Name) {
        drop(self.queue_unanswered(&kind::TELL, &wire::tell(name, self.client.publish_verb())));
    }

    /// Queues a script whose reply is ignored. The script is sent with its source, because a NOSCRIPT error would not be handled.
    fn queue_unanswered(&self, script: &Script, params: &[Arg<'_>]) -> Option<Flush<'_>> {
        let token = RequestTag { about: About::Nothing, with_source: true };
        self.client.queue_eval(script, wire::KEYS, params, &Retry::in_full(), token.into(), false)
    }

    /// Returns the number of this process' other kinds of lock with the same key and channel that have waiters.
    pub(crate) fn waited_for_beside(&self, name: &Name) -> u32 {
        let names = self.lock_names();
        // The server counts this process once, although one subscription serves several kinds.
        let others = name.kind().others_of_its_channel().filter_map(|kind| names.find(name.text(), kind));
        others.map(|other| u32::from(other.is_waited_for())).sum()
    }

    /// Handles a request for which there was no room, or to which no reply will come.
    #[cold]
    fn not_queued(&self, holds: &mut Holds, request: &Reconcile, is_sent: bool, effects: &mut Effects) {
        let now = self.clock.now();
        if !is_sent {
            holds.postpone(request.hold, now, effects);
        }
        if !holds.is_awaited(request.hold) {
            return;
        }
        let Some(error) = self.client.refusal(request.name.key().as_bytes(), wire::verb(&request.retry))
        else {
            return;
        };
        // A failure that passes only explains a later timeout. Any other failure ends the wait now.
        if Retry::default().after(&error).is_some() {
            holds.remember_failure(request.hold, Want::Release, &error, now);
        } else {
            holds.tell_failure(request.hold, Want::Release, &Failed::Error(error), effects);
        }
    }

    /// Returns the label of this manager, until the manager is shut down.
    pub(crate) fn label(&self) -> Option<&Label> {
        self.label.as_ref().filter(|_| !self.label_has_ended.load(Ordering::Acquire))
    }

    /// Ends the label. Returns true if there was a label until now.
    pub(crate) fn end_label(&self) -> bool {
        self.label.is_some() && !self.label_has_ended.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn new_owner(&self) -> u64 {
        self.new_owners(1)
    }

    /// Returns the number of a new spent owner. It keeps a lock whose holder has ended, and no process renews its hold.
    pub(crate) fn new_spent_owner(&self) -> u64 {
        SPENT + self.new_owner()
    }

    /// Returns the first of `count` consecutive numbers.
    pub(crate) fn new_owners(&self, count: u16) -> u64 {
        // The numbers only have to be unique, and order no other memory access.
        self.next_owner.fetch_add(count.into(), Ordering::Relaxed)
    }

    pub(crate) fn owner(&self, number: u64) -> Owner {
        Owner { manager: Arc::clone(&self.uuid), number }
    }

    /// Returns the text of this owner as a holder of the lock `name`.
    pub(crate) fn holder_text(&self, name: &Name, number: u64) -> OwnerText {
        match name.kind().holders {
            Holders::Permits => OwnerText::permit(self.first_permit, number),
            Holders::Counted | Holders::Single | Holders::Beside => {
                OwnerText::new(&self.uuid, number, name.kind().holder_suffix)
            }
        }
    }

    /// Returns a number that identifies the lock's server.
    pub(crate) fn node_of(&self, name: &Name) -> u32 {
        self.client.node_of(name.key().as_bytes())
    }

    /// Returns the lock of this kind with the name `text` behind the manager's prefix.
    pub(crate) fn name(&self, text: &str, kind: &'static Kind) -> Arc<Name> {
        // An empty name is an error, with and without a prefix.
        if self.prefix.is_empty() || text.is_empty() {
            return self.full_name(text, text, kind);
        }
        self.full_name(&format!("{}{text}", self.prefix), text, kind)
    }

    /// Returns the lock of this kind with the name `text` on the server, as a ticket contains it.
    pub(crate) fn name_on_server(&self, text: &str, kind: &'static Kind) -> Arc<Name> {
        self.full_name(text, text.strip_prefix(&*self.prefix).unwrap_or(text), kind)
    }

    /// Returns the name with this text on the server. `unprefixed` is the name for the classifier.
    fn full_name(&self, text: &str, unprefixed: &str, kind: &'static Kind) -> Arc<Name> {
        if !Name::may_be(text) {
            // Every request for this name will be rejected, so the name is not kept.
            return Arc::new(Name::new(text, kind, false));
        }
        let Some(classifier) = &self.classifier else {
            return self.lock_names().get(text, kind, UNCLASSIFIED);
        };
        if let Some(known) = self.lock_names().find(text, kind) {
            return known;
        }
        // The classifier is the user's code, so it runs without the lock.
        let label = classifier.family_of(unprefixed);
        let mut names = self.lock_names();
        let family = names.families.number(label);
        names.get(text, kind, family)
    }

    /// Calls `with` on the other kinds' locks that are the same lock on the server. Holds the lock of the table of names, so that no
    /// further lock of another kind is created meanwhile.
    pub(crate) fn with_others_of_its_hash<T>(&self, name: &Name, with: impl FnOnce(&[Arc<Name>]) -> T) -> T {
        let names = self.lock_names();
        let find = |kind| names.find(name.text(), kind);
        let others: Vec<_> = name.kind().others_of_its_hash().filter_map(find).collect();
        with(&others)
    }

    /// Returns this process' locks whose holders are in these keys, each lock once.
    pub(crate) fn locks_of<'k>(&self, keys: impl Iterator<Item = &'k str>) -> Vec<Arc<Name>> {
        let names = self.lock_names();
        let mut locks = Vec::new();
        for key in keys {
            for (kind, names) in names.known.iter().filter(|(kind, _)| kind.has_holders_in_one_key()) {
                let found = wire::names_of(key, kind).filter_map(|name| names.get(name));
                locks.extend(found.map(|ByText(name)| Arc::clone(name)));
            }
        }
        // The locks keep the order of their keys. With an order by address, two simulations of one seed would differ.
        let mut seen = HashSet::new();
        locks.retain(|name| seen.insert(Arc::as_ptr(name)));
        locks
    }

    fn lock_names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the metrics of each family with its label. The first entry counts the locks without a family, which are all locks if there
    /// is no classifier.
    pub(crate) fn counted(&self) -> Vec<(Option<&'static str>, Metrics)> {
        // A family gets its number before its first event is counted, so the tallies are read first.
        let tallies = self.holds().tallies.clone();
        let names = self.lock_names();
        let labels = names.families.labels();
        let snapshots = tallies.snapshots(labels.len(), &self.waiting);
        std::iter::once(None).chain(labels.iter().copied().map(Some)).zip(snapshots).collect()
    }

    /// Returns the names that have waiters, in the order of their texts.
    pub(crate) fn names_waited_for(&self) -> Vec<Arc<Name>> {
        let names = self.lock_names();
        let in_use = names.known.iter().flat_map(|(_, names)| names).map(|ByText(name)| name);
        let mut found: Vec<_> = in_use.filter(|name| name.is_waited_for()).cloned().collect();
        drop(names);
        // A table's order is random. Waiters that wake in it would make two simulations of one seed differ.
        found.sort_by(|one, other| one.text().cmp(other.text()));
        found
    }

    /// Makes the watchdog check the holds of this lock at once. A message casts doubt on a hold of this process.
    pub(crate) fn verify(&self, name: &Arc<Name>) {
        self.change(|holds, clock| holds.verify(name, clock.now()));
    }

    /// Makes the head poll, because the lock may be free without a message. Takes the wait queue's lock.
    pub(crate) fn let_waiters_ask(&self, name: &Name) {
        // The queue is unlocked at the end of this statement, before the wake-up.
        let head = name.waiting().queue.as_mut().and_then(|waiters| waiters.poll_now());
        if let Some(head) = head {
            head.wake();
        }
    }

    /// Makes the heads for these locks poll soon, because other clients have changed the locks' keys.
    pub(crate) fn wake_after_change(&self, names: &[Arc<Name>]) {
        let now = self.client.config().timer.now();
        for name in names.iter().filter(|name| name.kind().has_holders_in_its_key()) {
            // The queue is unlocked at the end of this statement, before the wake-up.
            let head = name.waiting().queue.as_mut().and_then(|waiters| waiters.key_changed(now));
            if let Some(head) = head {
                head.wake();
            }
        }
    }

    /// Makes all heads poll soon whose locks may have been deleted with all other keys.
    pub(crate) fn wake_after_flush(&self, change: &Change) {
        // A process may hold a million locks, and usually waits for few.
        if self.waiting.is_empty() {
            return;
        }
        let now = self.client.config().timer.now();
        let mut names = self.names_waited_for();
        // Each waiter of a fair lock polls every few seconds anyway.
        names.retain(|name| name.kind().wake != Wake::OwnChannel && change.concerns(name.key().as_bytes()));
        let flushed =
            |name: &Arc<Name>| name.waiting().queue.as_mut().and_then(|waiters| waiters.keys_flushed(now));
        let woken: Vec<_> = names.iter().filter_map(flushed).collect();
        woken.into_iter().for_each(Waker::wake);
    }

    /// Returns the error for a script that was answered with a reply it never returns. The connection is closed, because it cannot be
    /// trusted any more.
    pub(crate) fn unexpected(&self, name: &Name, operation: String, reply: &Value) -> Error {
        self.distrust(name);
        Error::unexpected(operation, reply.type_name())
    }

    /// Closes the connection on which a script of this lock was answered with a reply it never returns.
    pub(crate) fn distrust(&self, name: &Name) {
        self.client.poison(name.key().as_bytes(), "a script was answered with what it never returns");
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A request that waits for a pending request is sent now. Later there is no table for the pending request's reply.
        let watchdog = self.transact(|holds, _, effects| {
            effects.request_all(holds.last_requests());
            holds.alarms.take_watchdog()
        });
        // The watchdog finds that its manager is gone, and ends.
        if let Some(watchdog) = watchdog {
            watchdog.wake();
        }
    }
}

/// Number of wakers for which room is kept between two batches of results.
const MOST_ROOM: usize = 4096;

#[cfg(test)]
mod tests;
