//! The codec from outside: one program with a module for each subject.

mod catalogue;
mod properties;
mod splits;
mod support;
