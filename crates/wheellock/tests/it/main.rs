//! The lock layer from outside, without a real server: one program with a module for each subject, because linking costs more than
//! most of them take.

mod double;
mod herds;
mod kinds;
mod losses;
mod lost_answers;
mod many_managers;
mod max_hold;
mod min_hold;
mod refusals;
mod tickets;
mod ticks;
mod traits;
mod virtual_permits;
mod virtual_sets;
mod virtual_time;
mod waiting;
mod worlds;
