//! Structures of the protocol as bytes: integers in the order of the machine, one behind the other.
//!
//! Owns no state. Any thread. Invariant: `take` reads exactly the bytes that `put` writes.

/// Bytes of a request that have not been read yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Returns a reader of these bytes from their start.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Takes the next structure. `None` if there are too few bytes.
    pub(crate) fn take<S: Structure>(&mut self) -> Option<S> {
        S::take(self)
    }

    /// Takes the next `len` bytes. `None` if there are fewer.
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Takes the bytes before the next zero, and the zero. `None` if there is no zero.
    pub(crate) fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.0.iter().position(|byte| *byte == 0)?;
        let text = self.bytes(len)?;
        self.bytes(1)?;
        Some(text)
    }

    /// Takes all bytes that are left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

/// Something of fixed size in a request or reply.
pub(crate) trait Structure: Sized {
    /// Size of the structure in bytes.
    const LEN: usize;

    /// Takes the structure from the start of the bytes. `None` if there are too few bytes.
    fn take(from: &mut Reader<'_>) -> Option<Self>;

    /// Appends the structure to `out`.
    fn put(&self, out: &mut Vec<u8>);

    /// Bytes of the structure.
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::LEN);
        self.put(&mut out);
        out
    }
}

macro_rules! integers {
    ($($kind:ty),+) => {$(
        impl Structure for $kind {
            const LEN: usize = size_of::<Self>();

            fn take(from: &mut Reader<'_>) -> Option<Self> {
                let bytes = from.bytes(Self::LEN)?;
                Some(Self::from_ne_bytes(bytes.try_into().ok()?))
            }

            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_ne_bytes());
            }
        }
    )+};
}

integers!(u16, u32, i32, u64, i64);

/// Makes structures of lists of fields.
macro_rules! structures {
    ($($(#[$about:meta])* $name:ident { $($field:ident: $kind:ty),+ $(,)? })+) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub(crate) struct $name {
            $(pub(crate) $field: $kind),+
        }

        impl Structure for $name {
            const LEN: usize = 0 $(+ <$kind as Structure>::LEN)+;

            fn take(from: &mut Reader<'_>) -> Option<Self> {
                Some(Self { $($field: from.take()?),+ })
            }

            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)+
            }
        }
    )+};
}

pub(super) use structures;
