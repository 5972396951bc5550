//! What goes to a script and comes back, as bytes: big-endian, numbers as doubles.
//!
//! A double holds every integer below 2<sup>53</sup> exactly, it is what Lua counts with, and one call
//! of `struct.unpack` reads a row of them: text would be parsed one by one.

use crate::error::RedisStoreError;

/// Bytes in the making.
#[derive(Debug, Default)]
pub(crate) struct Blob(Vec<u8>);

/// The largest integer that goes to a script; larger ones are cut.
pub(crate) const NUMBER_MAX: u64 = (1 << 53) - 1;

impl Blob {
    /// With room for what most questions take.
    pub(crate) fn roomy() -> Self {
        Self(Vec::with_capacity(128))
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// Two bytes.
    pub(crate) fn count(&mut self, count: usize) {
        let count = u16::try_from(count).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&count.to_be_bytes());
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.double(number.min(NUMBER_MAX) as f64);
    }

    pub(crate) fn numbers<const N: usize>(&mut self, numbers: [u64; N]) {
        for number in numbers {
            self.number(number);
        }
    }

    /// A number that may be below zero, and whose size is below 2<sup>53</sup>.
    pub(crate) fn signed(&mut self, number: i64) {
        self.double(number as f64);
    }

    /// A cost: one that does not fit is larger than any number, as it is than any capacity.
    pub(crate) fn cost(&mut self, cost: u64) {
        self.double(if cost > NUMBER_MAX { f64::INFINITY } else { cost as f64 });
    }

    /// A stamp, which may pass 2<sup>53</sup>, as two numbers that add up to it.
    pub(crate) fn stamp(&mut self, stamp: u64) {
        let low = stamp & ((1 << 26) - 1);
        // The high part is a multiple of 2^26, so that it fits however large it is.
        self.double((stamp - low) as f64);
        self.double(low as f64);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Bytes of any length, behind it in four bytes.
    pub(crate) fn long_bytes(&mut self, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.0.extend_from_slice(&len.to_be_bytes());
        self.0.extend_from_slice(bytes);
    }

    /// What `write` appends, behind its length in two bytes.
    pub(crate) fn sized<E>(
        &mut self,
        write: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let at = self.0.len();
        self.count(0);
        write(self)?;
        let len = (self.0.len() - at - 2) as u16;
        self.0[at..at + 2].copy_from_slice(&len.to_be_bytes());
        Ok(())
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn double(&mut self, double: f64) {
        self.0.extend_from_slice(&double.to_be_bytes());
    }
}

/// Bytes that came back, read from the front.
#[derive(Debug)]
pub(crate) struct Reader<'b>(pub(crate) &'b [u8]);

impl<'b> Reader<'b> {
    pub(crate) fn byte(&mut self) -> Result<u8, RedisStoreError> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(crate) fn number(&mut self) -> Result<u64, RedisStoreError> {
        let double = f64::from_be_bytes(self.take()?);
        // Not a number, negative, or too large: nothing a script of ours would say.
        if !(0.0..=NUMBER_MAX as f64).contains(&double) {
            return Err(RedisStoreError::Garbled);
        }
        #[expect(clippy::cast_sign_loss, reason = "the line above has seen to it")]
        Ok(double as u64)
    }

    /// Two bytes.
    pub(crate) fn count(&mut self) -> Result<usize, RedisStoreError> {
        self.take().map(|bytes| u16::from_be_bytes(bytes).into())
    }

    /// Bytes behind their length in four bytes.
    pub(crate) fn long_bytes(&mut self) -> Result<&'b [u8], RedisStoreError> {
        let len = u32::from_be_bytes(self.take()?) as usize;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(RedisStoreError::Garbled)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn finish(&self) -> Result<(), RedisStoreError> {
        if self.0.is_empty() { Ok(()) } else { Err(RedisStoreError::Garbled) }
    }

    /// As many bytes as are asked for.
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], RedisStoreError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(RedisStoreError::Garbled)?;
        self.0 = rest;
        Ok(*bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_below_2_to_the_53rd_come_back_as_they_were() {
        let mut blob = Blob::default();
        blob.numbers([0, 1, NUMBER_MAX - 1, NUMBER_MAX, u64::MAX]);
        let bytes = blob.into_bytes();
        let mut reader = Reader(&bytes);
        let read: Vec<u64> = (0..5).map(|_| reader.number().unwrap()).collect();
        assert_eq!(read, [0, 1, NUMBER_MAX - 1, NUMBER_MAX, NUMBER_MAX]);
        reader.finish().unwrap();
    }

    #[test]
    fn what_no_script_says_is_an_error() {
        for double in [f64::NAN, f64::INFINITY, -1.0, 9_007_199_254_740_992.0] {
            assert!(Reader(&double.to_be_bytes()).number().is_err(), "{double}");
        }
        assert!(Reader(&[0; 7]).number().is_err());
        assert!(Reader(&[]).byte().is_err());
        assert!(Reader(&[0]).finish().is_err());
    }

    #[test]
    fn a_stamp_is_the_sum_of_two_numbers() {
        for stamp in [0, 1, (1 << 26) - 1, 1 << 26, (1 << 54) - 1] {
            let mut blob = Blob::default();
            blob.stamp(stamp);
            let bytes = blob.into_bytes();
            let (high, low) = bytes.split_at(8);
            let number = |bytes: &[u8]| {
                let double = f64::from_be_bytes(bytes.try_into().unwrap());
                format!("{double:.0}").parse::<u64>().unwrap()
            };
            assert_eq!(number(high) + number(low), stamp);
        }
    }
}
