//! Spans of time with owners, and their overlaps. Pure.

/// Spans with their owners. A query costs a binary search.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans {
    /// The spans, ordered by their begins.
    spans: Vec<Span>,
    /// For each prefix of the spans: the span that ends last, and the span of another owner that ends last.
    last: Vec<(usize, Option<usize>)>,
}

/// A span that includes both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: u64,
    pub(super) to: u64,
    /// The owner.
    pub(super) whose: usize,
    /// The index of the operation or event.
    pub(super) of: usize,
}

impl Spans {
    pub(super) fn new(mut spans: Vec<Span>) -> Self {
        spans.sort_by_key(|span| (span.from, span.to));
        let mut last: Vec<(usize, Option<usize>)> = Vec::with_capacity(spans.len());
        for (index, span) in spans.iter().enumerate() {
            let Some(&(first, second)) = last.last() else {
                last.push((index, None));
                continue;
            };
            let later = |other: usize| span.to >= spans[other].to;
            let same = |other: usize| span.whose == spans[other].whose;
            last.push(match second {
                _ if later(first) && same(first) => (index, second),
                _ if later(first) => (index, Some(first)),
                _ if same(first) => (first, second),
                Some(second) if !later(second) => (first, Some(second)),
                _ => (first, Some(index)),
            });
        }
        Self { spans, last }
    }

    /// Returns a span that overlaps `from..=to` and does not belong to `whose`.
    pub(super) fn touching(&self, from: u64, to: u64, whose: Option<usize>) -> Option<Span> {
        let begun = self.spans.partition_point(|span| span.from <= to);
        let (first, second) = *self.last.get(begun.checked_sub(1)?)?;
        let found = if Some(self.spans[first].whose) == whose { second? } else { first };
        Some(self.spans[found]).filter(|span| span.to >= from)
    }

    /// Returns a span that has begun by `from` and continues beyond `to`.
    pub(super) fn covering(&self, from: u64, to: u64) -> Option<Span> {
        let begun = self.spans.partition_point(|span| span.from <= from);
        let (first, _) = *self.last.get(begun.checked_sub(1)?)?;
        Some(self.spans[first]).filter(|span| span.to > to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Random;

    #[test]
    fn indexed_spans_match_linear_search() {
        let mut random = Random::new(1);
        for _ in 0..300 {
            let spans: Vec<Span> = (0..random.below(12))
                .map(|_| {
                    let from = random.below(40);
                    let whose = usize::try_from(random.below(3)).unwrap();
                    Span { from, to: from + random.below(15), whose, of: 0 }
                })
                .collect();
            let indexed = Spans::new(spans.clone());
            for _ in 0..30 {
                let from = random.below(60);
                let to = from + random.below(10);
                let whose = (random.below(2) == 0).then(|| usize::try_from(random.below(3)).unwrap());
                let expected =
                    spans.iter().any(|span| span.from <= to && span.to >= from && Some(span.whose) != whose);
                let found = indexed.touching(from, to, whose);
                assert_eq!(found.is_some(), expected, "{spans:?} {from}..={to} {whose:?}");
                let expected = spans.iter().any(|span| span.from <= from && span.to > to);
                assert_eq!(indexed.covering(from, to).is_some(), expected, "{spans:?} {from}..={to}");
                if let Some(found) = found {
                    assert!(found.from <= to && found.to >= from && Some(found.whose) != whose);
                }
            }
        }
    }
}
