//! The current thread's log, recorded by a test. Other tests of the program do not disturb the recording.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, NoSubscriber, Subscriber};
use tracing::{Dispatch, Event, Metadata, dispatcher};

/// Passes everything that this thread logs to `subscriber`, until the guard is dropped.
pub(crate) fn listen(subscriber: impl Subscriber + Send + Sync + 'static) -> DefaultGuard {
    // With a single subscriber, `tracing` asks only the first thread that logs an event whether the event is wanted. It then remembers the
    // reply. A thread of another test, which does not record, would decide for this thread. A second subscriber prevents that.
    static OTHER: OnceLock<Dispatch> = OnceLock::new();
    OTHER.get_or_init(|| Dispatch::new(NoSubscriber::new()));
    dispatcher::set_default(&Dispatch::new(subscriber))
}

#[derive(Clone, Default)]
struct Count(Arc<AtomicU32>);

impl Subscriber for Count {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn event_logged_elsewhere_first_is_recorded() {
    let heard = Count::default();
    let _listening = listen(heard.clone());
    let say = || tracing::info!("said");
    std::thread::spawn(say).join().unwrap();
    say();
    assert_eq!(heard.0.load(Ordering::SeqCst), 1);
}
