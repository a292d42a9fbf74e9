//! Numbers, texts and bytes as the log carries them: LEB128 varints, and lengths before what can be long.

use bytes::Bytes;

/// What a record is not, if it cannot be read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

pub(crate) type Read<T> = Result<T, Broken>;

/// Takes a record apart. It never looks beyond its bytes, and never makes room for more than they can hold.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    whole: &'a Bytes,
}

impl<'a> Reader<'a> {
    /// Reads `part`, a part of `whole`. Long byte strings are handed out as slices of `whole`.
    pub(crate) fn new(whole: &'a Bytes, part: &'a [u8]) -> Self {
        Self { rest: part, whole }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(Broken("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| Broken("it ends too early"))
    }

    pub(crate) fn byte(&mut self) -> Read<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn flag(&mut self) -> Read<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Broken("a flag is neither 0 nor 1")),
        }
    }

    pub(crate) fn number(&mut self) -> Read<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Broken("a number has more than 64 bits"));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Broken("a number has more than 64 bits"))
    }

    pub(crate) fn small(&mut self) -> Read<u32> {
        u32::try_from(self.number()?).map_err(|_| Broken("a number has more than 32 bits"))
    }

    /// How many things follow, each of at least one byte.
    pub(crate) fn count(&mut self) -> Read<usize> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if count > self.rest.len() {
            return Err(Broken("it ends too early"));
        }
        Ok(count)
    }

    pub(crate) fn bytes(&mut self) -> Read<Bytes> {
        let count = self.count()?;
        let taken = self.take(count)?;
        Ok(self.whole.slice_ref(taken))
    }

    pub(crate) fn text(&mut self) -> Read<&'a str> {
        let count = self.count()?;
        std::str::from_utf8(self.take(count)?).map_err(|_| Broken("a text is not UTF-8"))
    }
}

pub(crate) fn put(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(low_bits(number) | 0x80);
        number >>= 7;
    }
    into.push(low_bits(number));
}

/// The last seven bits.
const fn low_bits(number: u64) -> u8 {
    number.to_le_bytes()[0] & 0x7f
}

pub(crate) fn put_bytes(into: &mut Vec<u8>, bytes: &[u8]) {
    put(into, bytes.len() as u64);
    into.extend_from_slice(bytes);
}
