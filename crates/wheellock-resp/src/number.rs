//! Decimal digits of integers, without allocation.

/// The decimal text of an integer, on the stack.
#[derive(Clone, Copy)]
pub(crate) struct Decimal {
    text: [u8; DIGITS],
    start: usize,
}

impl Decimal {
    #[inline]
    pub(crate) fn new(number: i64) -> Self {
        let mut decimal = Self::unsigned(number.unsigned_abs());
        if number < 0 {
            decimal.prepend(b'-');
        }
        decimal
    }

    #[inline]
    pub(crate) fn unsigned(number: u64) -> Self {
        let mut decimal = Self { text: [0; DIGITS], start: DIGITS };
        let mut left = number;
        loop {
            // A remainder of ten fits a byte.
            decimal.prepend(b'0' + (left % 10) as u8);
            left /= 10;
            if left == 0 {
                return decimal;
            }
        }
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.text.get(self.start..).unwrap_or_default()
    }

    #[inline]
    fn prepend(&mut self, byte: u8) {
        self.start = self.start.saturating_sub(1);
        if let Some(place) = self.text.get_mut(self.start) {
            *place = byte;
        }
    }
}

/// Length of the longest texts, `-9223372036854775808` and `18446744073709551615`.
const DIGITS: usize = 20;

/// Returns the number of decimal digits of `number`.
#[inline]
pub(crate) fn digits(number: u64) -> usize {
    // Check small numbers first: most numbers are lengths of short strings.
    match number {
        0..10 => 1,
        10..100 => 2,
        100..1000 => 3,
        1000..10_000 => 4,
        10_000..100_000 => 5,
        _ => number.ilog10() as usize + 1,
    }
}

/// The two digits of every number below 100.
pub(crate) static PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut number = 0_u8;
    while number < 100 {
        pairs[number as usize] = [b'0' + number / 10, b'0' + number % 10];
        number += 1;
    }
    pairs
};

/// Writes the digits of `number` into `place`, which must have exactly the right length. Two digits at a time save divisions, which are the
/// largest cost.
#[inline]
pub(crate) fn write_digits(place: &mut [u8], number: u64) {
    let (mut left, mut rest) = (number, place);
    loop {
        rest = match rest {
            [front @ .., ten, one] => {
                [*ten, *one] = PAIRS[(left % 100) as usize];
                left /= 100;
                front
            }
            [one] => {
                *one = b'0' + (left % 10) as u8;
                return;
            }
            [] => return,
        };
    }
}

/// Returns the number of bytes of the decimal text of `number`.
#[inline]
pub(crate) fn signed_digits(number: i64) -> usize {
    digits(number.unsigned_abs()) + usize::from(number < 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_match_standard_library() {
        let mut numbers = vec![0, 1, -1, i64::MAX, i64::MIN, i64::MIN + 1];
        for power in 0..19 {
            let ten = 10_i64.pow(power);
            numbers.extend([ten - 1, ten, ten + 1, -ten, 1 - ten]);
        }
        for number in numbers {
            let text = number.to_string();
            assert_eq!(Decimal::new(number).as_bytes(), text.as_bytes());
            assert_eq!(signed_digits(number), text.len());
            let text = number.unsigned_abs().to_string();
            let mut written = vec![b'?'; text.len()];
            write_digits(&mut written, number.unsigned_abs());
            assert_eq!(written, text.as_bytes());
        }
        assert_eq!(Decimal::unsigned(u64::MAX).as_bytes(), u64::MAX.to_string().as_bytes());
        assert_eq!(digits(u64::MAX), 20);
    }
}
