//! Values that know no connection.

pub(crate) mod address;
pub(crate) mod backoff;
pub(crate) mod connection_id;
pub(crate) mod detached;
#[cfg(not(all(feature = "tls", feature = "testing")))]
pub(crate) mod disabled;
pub(crate) mod endpoint;
pub(crate) mod error;
pub(crate) mod histogram;
#[cfg(feature = "testing")]
pub mod memory;
pub(crate) mod outages;
pub(crate) mod pace;
pub(crate) mod panics;
pub(crate) mod patience;
pub(crate) mod pauses;
pub(crate) mod read_buffer;
pub(crate) mod redirect;
pub(crate) mod retry;
pub(crate) mod script;
pub(crate) mod silence;
pub(crate) mod slots;
pub(crate) mod waiting;

#[cfg(not(feature = "testing"))]
pub(crate) use disabled as memory;
