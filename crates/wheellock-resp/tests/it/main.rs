//! The codec from outside: one program with a module for each subject.

mod catalogue;
mod properties;
mod pushes;
mod splits;
mod support;
