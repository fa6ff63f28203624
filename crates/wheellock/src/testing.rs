//! What stands in for a server in tests. Owns nothing of the locks: what is tested is the library as it is shipped.

#[doc(hidden)]
pub mod server;
