//! Integration tests of the codec, one module per subject.

mod catalogue;
mod properties;
mod pushes;
mod splits;
mod support;
