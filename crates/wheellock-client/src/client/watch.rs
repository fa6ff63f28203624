//! Changes of a client's connection state, one after the other.

use std::fmt;
use std::sync::Arc;

use crate::client::route::Route;
use crate::connection::{ConnectionState, Shared};
use crate::topology::cluster::Cluster;

/// Reports changes of a client's [`ConnectionState`]. Created by [`Client::watch`](crate::Client::watch). It does not
/// keep the client alive.
///
/// ```no_run
/// use wheellock_client::ConnectionState;
///
/// # async fn example(client: wheellock_client::Client) -> Result<(), wheellock_client::Error> {
/// let mut watch = client.watch();
/// loop {
///     match watch.changed().await {
///         ConnectionState::Closed(_) => break,
///         state => println!("{state:?}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Watch {
    on: Watched,
    seen: u64,
    /// True after the watch has reported the client's close. In a cluster, the nodes' connections end later, and each
    /// end is a change.
    is_over: bool,
}

enum Watched {
    One(Arc<Shared>),
    Cluster(Arc<Cluster>),
}

impl Watch {
    pub(crate) fn new(route: &Route) -> Self {
        let (seen, on) = match route {
            Route::One(link) => (link.changes(), Watched::One(Arc::clone(link))),
            Route::Cluster(cluster) => (cluster.changes(), Watched::Cluster(Arc::clone(cluster))),
        };
        Self { on, seen, is_over: false }
    }

    /// Waits for the next state and returns it. Never resolves after [`ConnectionState::Closed`], because no state
    /// follows.
    ///
    /// # Cancel safety
    ///
    /// Safe. No change is lost: the next call resolves at once.
    pub async fn changed(&mut self) -> ConnectionState {
        if self.is_over {
            return std::future::pending().await;
        }
        let (changes, state) = match &self.on {
            Watched::One(shared) => shared.changed(self.seen).await,
            Watched::Cluster(cluster) => (cluster.changed(self.seen).await, cluster.state()),
        };
        (self.seen, self.is_over) = (changes, matches!(state, ConnectionState::Closed(_)));
        state
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}
