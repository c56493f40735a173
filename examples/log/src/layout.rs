//! Places of everything in a log: words of its regions, and the bytes of a transaction.
//!
//! Owns no state. Any thread. Everything that is read from a region was written by others. Invariants: bytes
//! are checked before they are used, and nothing is allocated by a number of theirs without a limit.

use plasmon::{Error, ErrorKind, NodeId};

/// Most copies that a log has.
pub const MAX_COPIES: usize = 8;
/// Most bytes of the name of a log.
pub(crate) const MAX_NAME_BYTES: usize = 200;
/// Number of segments that make up the capacity of a log.
pub(crate) const SEGMENTS: u64 = 8;

/// First word of a root: the format and its version.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"PLSMLOG1");
/// Size in bytes of a root.
pub(crate) const ROOT_LEN: u64 = 4096;
/// Size in bytes of the region that stands in the place of a lost copy.
pub(crate) const TOMBSTONE_LEN: u64 = 8;

/// Words of a root: offsets in bytes.
pub(crate) mod root {
    pub(crate) const MAGIC: u64 = 0;
    pub(crate) const TRIMMED: u64 = 40;
    pub(crate) const LAST: u64 = 48;
    pub(crate) const NODES: u64 = 64;
}

/// Words of a copy of a segment: offsets in bytes.
pub(crate) mod word {
    /// Number drawn when the segment was made, the same in all its copies.
    pub(crate) const BIRTH: u64 = 0;
    /// Whether all copies were there once. In the first copy alone.
    pub(crate) const OPEN: u64 = 8;
    /// Word of what is reserved: number of transactions and their units. In the first copy alone.
    pub(crate) const TAIL: u64 = 16;
    /// Whether the first copy is gone, so that nothing more is reserved.
    pub(crate) const CLOSED: u64 = 24;
    /// Number of transactions of a closed segment, and 1. 0 if it is not known yet.
    pub(crate) const END: u64 = 32;
    /// Number of transactions that were trimmed.
    pub(crate) const TRIMMED: u64 = 40;
    /// Number of readers that wait, so that whoever has the copy mapped has to notify.
    pub(crate) const WAITERS: u64 = 48;
}

/// Size in bytes of the words before the index.
const HEADER: u64 = 4096;
/// Size in bytes of what stands before the records of a transaction.
pub(crate) const ENTRY_HEADER: usize = 24;
/// Bytes in a unit. Transactions lie at multiples of it.
const UNIT: u64 = 8;
/// Bits of the tail word that count transactions. The bits above count units.
const COUNT_BITS: u32 = 24;
/// Bits of an index word that say where a transaction lies, and as many say how long it is.
const PLACE_BITS: u32 = 29;

/// Shape of a log: chosen when it is made, and never changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a segment for transactions.
    pub data: u64,
    /// Most transactions of a segment.
    pub entries: u64,
    /// Most segments at a time.
    pub segments: u64,
    /// Number of copies.
    pub copies: u64,
}

impl Shape {
    /// Shape of a log of a capacity in bytes.
    pub(crate) fn of(capacity: u64, copies: usize) -> Result<Self, Error> {
        let data = capacity / SEGMENTS / 4096 * 4096;
        let shape = Self { data, entries: entries_of(data), segments: SEGMENTS, copies: copies as u64 };
        shape.check().map_err(|text| Error::new(ErrorKind::Invalid, text))
    }

    /// Refuses a shape that no log has.
    fn check(self) -> Result<Self, String> {
        if !(1..=MAX_COPIES as u64).contains(&self.copies) {
            return Err(format!(
                "a log has 1 to {MAX_COPIES} copies, each on a node of its own, not {}",
                self.copies
            ));
        }
        let most = UNIT << PLACE_BITS;
        if !(4096..most).contains(&self.data) || !(1..1 << (COUNT_BITS - 2)).contains(&self.entries) {
            let (least, most) = (4096 * SEGMENTS, (most - 4096) * SEGMENTS);
            return Err(format!("the capacity of a log is {least} bytes to {most} bytes"));
        }
        if self.segments < 2 {
            return Err("a log has at least 2 segments".into());
        }
        Ok(self)
    }

    /// Size in bytes of a copy of a segment.
    pub(crate) fn region_len(self) -> u64 {
        self.data_at(self.data)
    }

    /// Offset of the index word of a transaction.
    pub(crate) fn index_at(self, number: u64) -> u64 {
        HEADER + 8 * number
    }

    /// Offset of a byte of the transactions.
    pub(crate) fn data_at(self, offset: u64) -> u64 {
        self.index_at(self.entries) + offset
    }

    /// Segment of a position, and the number of the transaction there.
    pub(crate) fn place_of(self, position: u64) -> (u64, u64) {
        (position / self.entries, position % self.entries)
    }

    /// Root of a log: its first bytes.
    pub(crate) fn to_root(self, nodes: &[NodeId]) -> Vec<u8> {
        let words = [MAGIC, self.data, self.entries, self.segments, self.copies, 0, 0, 0];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        nodes.iter().for_each(|node| bytes.extend_from_slice(node.as_bytes()));
        bytes
    }

    /// Reads a root. `None` if it is not whole yet.
    pub(crate) fn from_root(bytes: &[u8]) -> Result<Option<(Self, Vec<NodeId>)>, String> {
        let word =
            |at: usize| bytes.get(at..at + 8).and_then(|it| it.try_into().ok()).map(u64::from_le_bytes);
        match word(0) {
            Some(0) => return Ok(None),
            Some(MAGIC) => {}
            _ => return Err("its first word is not that of a log of this version".into()),
        }
        let field = |at| word(at).ok_or_else(|| "it is too short".to_owned());
        let shape = Self { data: field(8)?, entries: field(16)?, segments: field(24)?, copies: field(32)? };
        let shape = shape.check()?;
        let ids = bytes.get(root::NODES as usize..).unwrap_or_default().chunks_exact(NodeId::LEN);
        let nodes =
            ids.take(shape.copies as usize).filter_map(|id| id.try_into().ok().map(NodeId::from_bytes));
        let nodes: Vec<_> = nodes.collect();
        if nodes.len() as u64 == shape.copies {
            Ok(Some((shape, nodes)))
        } else {
            Err("it is too short".into())
        }
    }
}

/// Number of transactions for which a segment of so many bytes has index words.
fn entries_of(data: u64) -> u64 {
    (data / 64).next_power_of_two().clamp(64, 1 << 20)
}

/// Amount that is added to the tail word to reserve a place for so many bytes.
pub(crate) fn reservation(len: u64) -> u64 {
    (len / UNIT) << COUNT_BITS | 1
}

/// Transactions and bytes that a tail word says are reserved.
pub(crate) fn reserved(tail: u64) -> (u64, u64) {
    (tail & ((1 << COUNT_BITS) - 1), (tail >> COUNT_BITS) * UNIT)
}

/// State of a transaction, as its index word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Nothing is decided.
    Open,
    /// The transaction lies at an offset of the segment's bytes, and has a length.
    Committed { offset: u64, len: u64 },
    /// No transaction is at the place, and none ever will be.
    Void,
    /// No transaction is at the place, and the segment has no room for more.
    End,
}

impl Entry {
    pub(crate) fn to_word(self) -> u64 {
        match self {
            Self::Open => 0,
            Self::Committed { offset, len } => 1 | (offset / UNIT) << 3 | (len / UNIT) << 32,
            Self::Void => 2,
            Self::End => 4,
        }
    }

    /// Meaning of a word. A word that is not one of these may have been read while it was written.
    pub(crate) fn from_word(word: u64) -> Self {
        let field = |shift: u32| (word >> shift & ((1 << PLACE_BITS) - 1)) * UNIT;
        match word & 7 {
            1 => Self::Committed { offset: field(3), len: field(32) },
            2 => Self::Void,
            4 => Self::End,
            _ => Self::Open,
        }
    }
}

/// Transaction that a log has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Position of the transaction. Positions grow, and some are left out.
    pub position: u64,
    /// Number that the writer drew.
    pub writer: u64,
    /// Records of the transaction, in their order.
    pub records: Vec<Vec<u8>>,
}

/// Bytes of a transaction whose position is not known yet.
pub(crate) fn encode<R: AsRef<[u8]>>(writer: u64, records: &[R]) -> Option<Vec<u8>> {
    let len: usize = records.iter().map(|record| 4 + record.as_ref().len()).sum();
    let (count, len32) = (u32::try_from(records.len()).ok()?, u32::try_from(len).ok()?);
    let mut bytes = Vec::with_capacity((ENTRY_HEADER + len).next_multiple_of(8));
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&writer.to_le_bytes());
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&len32.to_le_bytes());
    for record in records {
        bytes.extend_from_slice(&(record.as_ref().len() as u32).to_le_bytes());
        bytes.extend_from_slice(record.as_ref());
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    Some(bytes)
}

/// Writes the checksum, which has the position in it, into the bytes of a transaction.
pub(crate) fn seal(position: u64, bytes: &mut [u8]) {
    let sum = checksum(position, &bytes[8..]);
    bytes[..8].copy_from_slice(&u64::from(sum).to_le_bytes());
}

/// Reads a transaction. `None` if the bytes are not those of one at this position.
pub(crate) fn decode(position: u64, bytes: &[u8]) -> Option<Transaction> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    if word(0)? != u64::from(checksum(position, bytes.get(8..)?)) {
        return None;
    }
    let (writer, sizes) = (word(8)?, word(16)?);
    let mut rest = bytes.get(ENTRY_HEADER..)?.get(..(sizes >> 32) as usize)?;
    let mut records = Vec::new();
    for _ in 0..sizes as u32 {
        let (len, tail) = rest.split_first_chunk::<4>()?;
        let (record, tail) = tail.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        records.push(record.to_vec());
        rest = tail;
    }
    rest.is_empty().then_some(Transaction { position, writer, records })
}

/// CRC-32 as in zlib and Ethernet (IEEE 802.3), of the position and then the bytes.
fn checksum(position: u64, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    let step = |sum: u32, byte: &u8| TABLE[(sum as u8 ^ byte) as usize] ^ sum >> 8;
    !bytes.iter().fold(position.to_le_bytes().iter().fold(u32::MAX, step), step)
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut value = at as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { 0xedb8_8320 ^ value >> 1 } else { value >> 1 };
            bit += 1;
        }
        table[at] = value;
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_come_back_as_they_were() {
        for records in [vec![], vec![&b""[..]], vec![b"one", b"", b"three and more"]] {
            let mut bytes = encode(7, &records).expect("they are few");
            seal(99, &mut bytes);
            assert!(bytes.len().is_multiple_of(8));
            let back = decode(99, &bytes).expect("they are whole");
            assert_eq!((back.position, back.writer), (99, 7));
            assert_eq!(back.records, records);
            assert_eq!(decode(98, &bytes), None, "another position");
        }
    }

    #[test]
    fn damaged_transactions_are_refused() {
        let mut bytes = encode(7, &[b"0123456789"]).expect("it is one");
        seal(3, &mut bytes);
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_eq!(decode(3, &bytes), None, "byte {at}");
            bytes[at] ^= 1;
            assert_eq!(decode(3, &bytes[..at]), None, "{at} bytes");
        }
        // A length that no bytes are behind, with the right checksum.
        bytes[20] = 0xff;
        seal(3, &mut bytes);
        assert_eq!(decode(3, &bytes), None);
    }

    #[test]
    fn the_format_is_that_of_the_module_in_python() {
        // python/tests/test_log.py has the same bytes.
        let mut bytes = encode(7, &[&b"one"[..], b""]).expect("they are few");
        seal(99, &mut bytes);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "9dff2f81000000000700000000000000020000000b000000030000006f6e65000000000000000000");
    }

    #[test]
    fn the_checksum_is_that_of_zlib() {
        // zlib.crc32(bytes(8) + b"123456789")
        assert_eq!(checksum(0, b"123456789"), 0xe412_dc35);
    }

    #[test]
    fn words_say_what_was_put_into_them() {
        let most = Entry::Committed { offset: (8 << 29) - 8, len: (8 << 29) - 8 };
        for entry in [Entry::Open, Entry::Void, Entry::End, most, Entry::Committed { offset: 8, len: 48 }] {
            assert_eq!(Entry::from_word(entry.to_word()), entry);
        }
        assert_eq!(reserved(reservation(48) + reservation(64)), (2, 112));
    }

    #[test]
    fn a_root_comes_back() {
        let nodes = [NodeId::from_bytes([3; 16]), NodeId::from_bytes([4; 16])];
        let shape = Shape::of(64 << 20, 2).expect("that is a capacity");
        let bytes = shape.to_root(&nodes);
        assert_eq!(Shape::from_root(&bytes), Ok(Some((shape, nodes.to_vec()))));
        assert_eq!(Shape::from_root(&[0; 4096]), Ok(None));
        assert!(Shape::from_root(&[1; 4096]).is_err() && Shape::from_root(&bytes[..70]).is_err());
        assert!(
            Shape::of(100, 0).is_err() && Shape::of(64 << 30, 9).is_err() && Shape::of(1 << 40, 1).is_err()
        );
        assert!(Shape::of(1, 1).is_err());
    }
}
