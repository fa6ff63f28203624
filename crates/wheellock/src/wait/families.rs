//! Families of locks, which the counters distinguish.
//!
//! A family has the user's label. Their number is limited.

use std::fmt;
use std::sync::Arc;

/// The user's function that returns the family of a lock's name.
#[derive(Clone)]
pub(crate) struct Classifier(Arc<dyn Fn(&str) -> &'static str + Send + Sync>);

impl Classifier {
    pub(crate) fn new(classify: impl Fn(&str) -> &'static str + Send + Sync + 'static) -> Self {
        Self(Arc::new(classify))
    }

    /// Returns the family of this name. Runs the user's code, so do not call it under a lock.
    pub(crate) fn family_of(&self, name: &str) -> &'static str {
        (self.0)(name)
    }
}

impl fmt::Debug for Classifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Classifier")
    }
}

/// Number of a family, or [`UNCLASSIFIED`] if there is no classifier.
pub(crate) type Family = u8;

/// Family of all locks without a classifier. With a classifier, the family of events that concern no lock.
pub(crate) const UNCLASSIFIED: Family = 0;

/// The families of one manager, numbered from 1 in the order of their first use.
#[derive(Default)]
pub(crate) struct Families(Vec<&'static str>);

impl Families {
    /// Returns the number of the family with this `label`. When all numbers are taken, the remaining labels share one family.
    pub(crate) fn number(&mut self, label: &'static str) -> Family {
        // A linear search is enough: a name is classified once, when it comes into use.
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

    /// Returns the labels in the order of their numbers, from 1.
    pub(crate) fn labels(&self) -> &[&'static str] {
        &self.0
    }
}

/// Largest number of families. The last number is that of the remaining labels.
const MOST: usize = 255;
/// Label of the remaining families, if a classifier returns more labels than there are numbers.
const THE_REST: &str = "other";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_numbers_are_stable_and_bounded() {
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
