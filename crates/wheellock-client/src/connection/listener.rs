//! What a connection tells about itself. Owns the words; what follows from them is known to the one who made the connection,
//! and the connection knows nothing of it.

use crate::base::contain::contained;
use crate::config::{Change, ChangeSink, Config};

/// What has become of a connection.
pub(crate) enum Event<'a> {
    /// It is up. `replaced`: another server than before answers.
    Up { replaced: bool },
    /// It has ended, or did not come about; it is tried again.
    Down,
    /// It has ended for good.
    Closed,
    /// The server is connected and does not answer: another one may have taken its place.
    Silent,
    /// The server said in `reply` that another node serves a slot; `host` is where it was reached itself.
    Redirected { reply: &'a [u8], host: Option<String> },
}

/// The one who is told. It is told on the connection's task, without any lock; it must be quick.
pub(crate) type Listener = Box<dyn Fn(Event<'_>) + Send + Sync>;

/// Those who want to know when another server answers than before: the user, then the layer above.
pub(crate) struct Audience([Option<ChangeSink>; 2]);

impl Audience {
    pub(crate) fn of(config: &Config) -> Self {
        Self([config.on_change.clone(), config.hooks.on_change.clone()])
    }

    pub(crate) fn tell(&self, change: &Change) {
        for tell in self.0.iter().flatten() {
            contained(|| tell(change));
        }
    }

    /// Tells of another server, where one server answers for every key.
    pub(crate) fn tell_of_replacement(&self, event: &Event<'_>) {
        if let Event::Up { replaced: true } = event {
            self.tell(&Change::everywhere());
        }
    }
}
