//! Families of locks, by which numbers are told apart: what the user calls each, and how many there may be.

use std::fmt;
use std::sync::Arc;

/// Says to which family a lock of this name belongs.
#[derive(Clone)]
pub(crate) struct Classifier(Arc<dyn Fn(&str) -> &'static str + Send + Sync>);

impl Classifier {
    pub(crate) fn new(classify: impl Fn(&str) -> &'static str + Send + Sync + 'static) -> Self {
        Self(Arc::new(classify))
    }

    /// The user's code runs: not under any lock.
    pub(crate) fn family_of(&self, name: &str) -> &'static str {
        (self.0)(name)
    }
}

impl fmt::Debug for Classifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Classifier")
    }
}

/// The number of a family. [`UNCLASSIFIED`] if nobody classifies.
pub(crate) type Family = u8;

/// All locks, where nobody classifies; what concerns no lock, where somebody does.
pub(crate) const UNCLASSIFIED: Family = 0;

/// The families of one manager, numbered from 1 in the order in which they were first seen.
#[derive(Default)]
pub(crate) struct Families(Vec<&'static str>);

impl Families {
    /// The number of the family that is called `label`. When all numbers are taken, the rest is one family.
    pub(crate) fn number(&mut self, label: &'static str) -> Family {
        let place = self.0.iter().position(|known| *known == label).unwrap_or_else(|| {
            if self.0.len() + 1 < MOST {
                self.0.push(label);
            } else if self.0.len() + 1 == MOST {
                self.0.push(THE_REST);
            }
            self.0.len() - 1
        });
        Family::try_from(place + 1).unwrap_or(Family::MAX)
    }

    /// What each is called, in the order of their numbers, from 1.
    pub(crate) fn labels(&self) -> &[&'static str] {
        &self.0
    }
}

/// As many as have a number, the last of which is that of the rest.
const MOST: usize = 255;
/// What a classifier that makes more families than that calls the others.
const THE_REST: &str = "other";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_keeps_its_number_and_there_are_never_more_than_255() {
        let mut families = Families::default();
        let labels: Vec<&'static str> =
            (0..1000).map(|n| &*Box::leak(n.to_string().into_boxed_str())).collect();
        for _ in 0..2 {
            for (place, label) in labels.iter().enumerate() {
                assert_eq!(usize::from(families.number(label)), (place + 1).min(MOST));
            }
        }
        assert_eq!(families.labels().len(), MOST);
        assert_eq!((families.labels()[253], families.labels()[254]), ("253", THE_REST));
    }
}
