//! The traits that every public type has: `Send`, `Sync` and `Debug`, and both traits of unwind safety. Without the last two, a service
//! could not catch a panic of a handler that uses a lock.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};

use wheellock::*;

fn has_all<T: Send + Sync + Debug + UnwindSafe + RefUnwindSafe>() {}

#[test]
fn public_types_have_common_traits() {
    has_all::<LockManager>();
    has_all::<RedLockManager>();
    has_all::<Lock>();
    has_all::<FencedLock>();
    has_all::<ReadWriteLock>();
    has_all::<MultiLock>();
    has_all::<RedLock>();
    has_all::<Semaphore>();
    has_all::<PermitSemaphore>();
    has_all::<CountDownLatch>();
    has_all::<Election>();
    has_all::<Observer>();
    has_all::<Leader>();
    has_all::<Guard>();
    has_all::<FencedGuard>();
    has_all::<MultiGuard>();
    has_all::<RedLockGuard>();
    has_all::<RedLockMember>();
    has_all::<MemberState>();
    has_all::<Permit>();
    has_all::<Permits>();
    has_all::<PermitId>();
    has_all::<Leadership>();
    has_all::<Owner>();
    has_all::<Holder>();
    has_all::<Holders>();
    has_all::<Error>();
    has_all::<LostMember>();
    has_all::<MemberFailure>();
    has_all::<Finding>();
    has_all::<Health>();
    has_all::<Leftover>();
    has_all::<Metrics>();
    has_all::<Backoff>();
    has_all::<Durability>();
    has_all::<client::Client>();
    has_all::<client::Error>();
    has_all::<client::Subscription>();
    has_all::<blocking::LockManager>();
    has_all::<blocking::RedLockManager>();
    has_all::<blocking::Lock>();
    has_all::<blocking::Guard>();
    has_all::<blocking::MultiGuard>();
    has_all::<blocking::RedLockGuard>();
    has_all::<blocking::Permit>();
    has_all::<blocking::Permits>();
    has_all::<blocking::Leadership>();
    has_all::<blocking::Observer>();
}

/// Returns the message and the file of the panic of `misuse`.
fn panic_of(misuse: impl FnOnce()) -> (String, String) {
    use std::sync::{Arc, Mutex};
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let file = info.location().map_or("", |place| place.file()).to_owned();
        let payload = info.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        sink.lock().unwrap().push((text.unwrap_or_default().to_owned(), file));
    }));
    let ended = catch_unwind(AssertUnwindSafe(misuse));
    std::panic::set_hook(before);
    assert!(ended.is_err(), "it panics");
    let last = seen.lock().unwrap().pop();
    last.expect("a panic has a message")
}

/// The panic's place is the caller's line, and its message names the remedy. One test has both cases, because the hook belongs to the
/// process.
#[test]
fn misuse_panics_at_caller_with_remedy() {
    let double = testing::Double::new();
    let threads = double.blocking_manager().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let lock = threads.lock("orders");
    let (message, file) = panic_of(|| runtime.block_on(async { drop(lock.acquire()) }));
    assert!(message.contains("to_async()"), "{message}");
    assert!(file.ends_with("traits.rs"), "{file}");
    let (message, file) = panic_of(|| drop(LockManager::builder("redis://127.0.0.1:1").lazy()));
    assert!(message.contains("lazy_blocking()"), "{message}");
    assert!(file.ends_with("traits.rs"), "{file}");
    // A panic of the work itself stays as it is.
    let (message, _) = panic_of(|| drop(lock.run(|_guard| -> Result<(), Error> { panic!("of the work") })));
    assert_eq!(message, "of the work");
}
