//! The client over in-memory connections and a clock that stands still: one program with a module for each subject.

mod in_memory;
mod virtual_addresses;
mod virtual_cluster;
mod virtual_surveys;
mod virtual_time;
