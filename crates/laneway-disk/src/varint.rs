//! Numbers of variable length, and a reader that never runs past the end.

/// Appends a number, seven bits to a byte, the lowest first.
pub fn put(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    into.push((number & 0x7f) as u8);
}

/// The most bytes that a number takes.
pub const LONGEST: usize = 10;

/// How many bytes [`put`] appends.
#[must_use]
pub fn length(number: u64) -> usize {
    let bits = 64 - (number | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// How many bytes [`put_signed`] appends.
#[must_use]
pub fn length_signed(number: i64) -> usize {
    length(zigzag(number))
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

/// Appends a signed number such that small ones stay short, whatever their sign.
pub fn put_signed(into: &mut Vec<u8>, number: i64) {
    put(into, zigzag(number));
}

/// Appends bytes behind their length.
pub fn put_bytes(into: &mut Vec<u8>, bytes: &[u8]) {
    put(into, bytes.len() as u64);
    into.extend_from_slice(bytes);
}

/// The bytes end early, or are not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// How many bytes could be read.
    pub at: usize,
}

/// Reads what the functions above wrote.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Begins at the front.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Where it is.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// Ends reading.
    ///
    /// # Errors
    /// When anything is left.
    pub fn finish(&self) -> Result<(), Broken> {
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            Err(Broken { at: self.at })
        }
    }

    /// A number.
    ///
    /// # Errors
    /// When it is not there.
    pub fn number(&mut self) -> Result<u64, Broken> {
        let broken = Broken { at: self.at };
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or(broken)?;
            self.at += 1;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(broken);
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(broken)
    }

    /// A number that fits into a type.
    ///
    /// # Errors
    /// When it is not there.
    pub fn number_as<T: TryFrom<u64>>(&mut self) -> Result<T, Broken> {
        let broken = Broken { at: self.at };
        T::try_from(self.number()?).map_err(|_| broken)
    }

    /// A number with a sign.
    ///
    /// # Errors
    /// When it is not there.
    pub fn signed(&mut self) -> Result<i64, Broken> {
        let number = self.number()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// So many bytes.
    ///
    /// # Errors
    /// When it is not there.
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], Broken> {
        let broken = Broken { at: self.at };
        let end = self.at.checked_add(length).ok_or(broken)?;
        let bytes = self.bytes.get(self.at..end).ok_or(broken)?;
        self.at = end;
        Ok(bytes)
    }

    /// So many bytes, as an array.
    ///
    /// # Errors
    /// When it is not there.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        let broken = Broken { at: self.at };
        self.take(N)?.try_into().map_err(|_| broken)
    }

    /// Bytes behind their length.
    ///
    /// # Errors
    /// When it is not there.
    pub fn bytes(&mut self) -> Result<&'a [u8], Broken> {
        let length = self.number_as()?;
        self.take(length)
    }

    /// Whatever is left.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_read_back(number: u64, signed: i64, bytes: Vec<u8>) {
            let mut written = Vec::new();
            put(&mut written, number);
            prop_assert_eq!(written.len(), length(number));
            put_signed(&mut written, signed);
            prop_assert_eq!(written.len(), length(number) + length_signed(signed));
            put_bytes(&mut written, &bytes);
            let mut reader = Reader::new(&written);
            prop_assert_eq!(reader.number(), Ok(number));
            prop_assert_eq!(reader.signed(), Ok(signed));
            prop_assert_eq!(reader.bytes(), Ok(&bytes[..]));
            prop_assert_eq!(reader.finish(), Ok(()));
        }
    }

    #[test]
    fn too_long_and_too_short_are_told() {
        assert_eq!((length(0), length(u64::MAX)), (1, LONGEST));
        assert_eq!(Reader::new(&[0x80]).number(), Err(Broken { at: 0 }));
        assert_eq!(Reader::new(&[0xff; 11]).number(), Err(Broken { at: 0 }));
        assert_eq!(Reader::new(&[3, 1, 2]).bytes(), Err(Broken { at: 1 }));
        let mut reader = Reader::new(&[0xff, 0xff, 3]);
        assert_eq!(reader.number_as::<u8>(), Err(Broken { at: 0 }));
    }
}
