//! The encoding of spill files: their headers and their records. Owns no state. Any thread.
//!
//! Decoded values are untrusted: lengths are checked before they are used, and only values that a
//! checksum covers are used.

use plasmon::wire::MAX_NAME_BYTES;
use plasmon::{ObjectId, Rights};
use twox_hash::XxHash3_64;

const FILE_MAGIC: [u8; 8] = *b"PLSPILL\0";
const FILE_VERSION: u32 = 1;
const RECORD_VERSION: u8 = 1;
const FLAG_PRIVATE: u8 = 1;
/// The flag of a record with terms behind the name: the number of nodes that are to keep the
/// object, and the time of its expiry.
const FLAG_TERMS: u8 = 2;
/// The flag of an object that every user may change.
const FLAG_OPEN: u8 = 4;
/// The flag of an object that ends with the client that created it.
const FLAG_OWNED: u8 = 8;

/// The state of a live record, which differs in many bits from [`DEAD`].
const LIVE: u64 = 0x4556_494c_d0c5_b7a9;
/// The state of a record that was forgotten.
pub(super) const DEAD: u64 = 0x4441_4544_2f3a_4856;

/// Length of a file's header in bytes.
pub(super) const FILE_HEADER_BYTES: usize = 32;
/// Offsets in bytes of the two copies of a file's header. There are two because no record can be
/// checked without the salt.
pub(super) const FILE_HEADERS_AT: [u64; 2] = [0, 2048];
/// Offset in bytes at which the first record of a file starts.
pub(super) const FIRST_RECORD_AT: u64 = 4096;
/// Number of bytes of which every record's offset is a multiple.
pub(super) const UNIT_BYTES: u64 = 8;

/// Length in bytes of a record's header before the name.
const FIXED_BYTES: usize = 96;
/// Maximum length in bytes of a record's header.
pub(super) const MAX_HEADER_BYTES: usize =
    FIXED_BYTES + (MAX_NAME_BYTES).next_multiple_of(UNIT_BYTES as usize) + TERMS_BYTES;
/// Length in bytes of the terms behind the name, where there are any.
const TERMS_BYTES: usize = 16;

/// The description of a sealed object: with its bytes, it is enough to restore the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The object's id.
    pub id: ObjectId,
    /// The name behind the id; empty when there is none.
    pub name: String,
    /// The life of the id.
    pub life: u64,
    /// The user who created the object.
    pub user: u32,
    /// The rights of other users.
    pub rights: Rights,
    /// Number of bytes of data.
    pub data_len: u64,
    /// Number of bytes of metadata, which lie behind the data.
    pub metadata_len: u32,
    /// The digest made at the seal; 0 when none was made.
    pub digest: u64,
    /// Time when the object was created, in milliseconds since 1970.
    pub created: u64,
    /// Number of nodes that are to keep the object; 0 and 1 both mean one.
    pub copies: u16,
    /// Time when the object is to be deleted, in milliseconds since 1970; 0 for never.
    pub expires: u64,
    /// Whether the object ends with the client that created it, and so with the daemon.
    pub owned: bool,
}

impl Header {
    fn has_terms(&self) -> bool {
        self.copies != 0 || self.expires != 0
    }

    /// Number of bytes of data and metadata; `None` if the sum overflows.
    pub(super) fn payload_len(&self) -> Option<u64> {
        self.data_len.checked_add(u64::from(self.metadata_len))
    }
}

/// The place of an object on disk. The place is valid from the moment when the object was written or
/// recovered until the object is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub(super) file: u32,
    /// Offset in the file, in units of 8 bytes.
    unit: u32,
}

impl Place {
    /// Makes the place of a record at an offset in bytes.
    ///
    /// # Panics
    /// If the offset is beyond 32 GiB: files that hold more than one record end long before.
    pub(super) fn new(file: u32, offset: u64) -> Place {
        let unit = u32::try_from(offset / UNIT_BYTES).expect("records start in the first 64 MiB of a file");
        Place { file, unit }
    }

    pub(super) fn offset(self) -> u64 {
        u64::from(self.unit) * UNIT_BYTES
    }
}

/// An object that a former daemon spilled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The description of the object.
    pub header: Header,
    /// The place of the object.
    pub place: Place,
}

/// Length in bytes of a record's header.
pub(super) fn header_len(head: &Header) -> usize {
    before_terms(head.name.len()) + if head.has_terms() { TERMS_BYTES } else { 0 }
}

fn before_terms(name: usize) -> usize {
    FIXED_BYTES + name.next_multiple_of(UNIT_BYTES as usize)
}

/// Number of bytes from a record's start to the next record's start; `None` if no file could hold the record.
pub(super) fn record_len(head: &Header) -> Option<u64> {
    let payload = head.payload_len()?.checked_next_multiple_of(UNIT_BYTES)?;
    payload.checked_add(header_len(head) as u64).filter(|len| *len <= i64::MAX as u64 / 2)
}

/// A record's header as it lies in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) head: Header,
    /// The sequence number, which grows from record to record.
    pub(super) sequence: u64,
    /// XXH3-64 of the payload.
    pub(super) payload_hash: u64,
    /// Number of bytes from the record's start to the next record's start.
    pub(super) len: u64,
    pub(super) live: bool,
}

impl Record {
    /// Whether `payload` has the bytes of the object.
    pub(super) fn holds(&self, payload: &[u8]) -> bool {
        XxHash3_64::oneshot(payload) == self.payload_hash
    }
}

/// The error for bytes that are not a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoRecord;

/// The seed of the checksum of a record at `offset`.
fn seed(salt: u64, offset: u64) -> u64 {
    salt ^ offset.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Writes a live record's header into `into`, which is [`header_len`] bytes long.
pub(super) fn encode(
    into: &mut [u8],
    head: &Header,
    sequence: u64,
    payload_hash: u64,
    salt: u64,
    offset: u64,
) {
    let (fixed, name) = into.split_at_mut(FIXED_BYTES);
    fixed[0..8].copy_from_slice(&LIVE.to_le_bytes());
    fixed[16] = RECORD_VERSION;
    let rights = match head.rights {
        Rights::Read => 0,
        Rights::Private => FLAG_PRIVATE,
        Rights::ReadWrite => FLAG_OPEN,
    };
    let flag = |flag, is_set| if is_set { flag } else { 0 };
    fixed[17] = rights | flag(FLAG_TERMS, head.has_terms()) | flag(FLAG_OWNED, head.owned);
    fixed[18..20].copy_from_slice(&(head.name.len() as u16).to_le_bytes());
    fixed[20..24].copy_from_slice(&head.metadata_len.to_le_bytes());
    let words = [head.data_len, payload_hash, sequence, head.life, head.created, head.digest];
    for (at, word) in (24..72).step_by(8).zip(words) {
        fixed[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    fixed[72..76].copy_from_slice(&head.user.to_le_bytes());
    fixed[76..96].copy_from_slice(head.id.as_bytes());
    name[..head.name.len()].copy_from_slice(head.name.as_bytes());
    name[head.name.len()..].fill(0);
    if head.has_terms() {
        let terms = name.len() - TERMS_BYTES;
        name[terms..terms + 2].copy_from_slice(&head.copies.to_le_bytes());
        name[terms + 8..].copy_from_slice(&head.expires.to_le_bytes());
    }
    let checksum = XxHash3_64::oneshot_with_seed(seed(salt, offset), &into[16..]);
    into[8..16].copy_from_slice(&checksum.to_le_bytes());
}

/// Decodes the header of a record at `offset`. `bytes` may go on beyond the header.
pub(super) fn decode(bytes: &[u8], salt: u64, offset: u64) -> Result<Record, NoRecord> {
    let fixed: &[u8; FIXED_BYTES] = bytes.first_chunk().ok_or(NoRecord)?;
    let word = |at: usize| u64::from_le_bytes(*fixed[at..].first_chunk().expect("all words lie before 96"));
    let live = match word(0) {
        LIVE => true,
        DEAD => false,
        _ => return Err(NoRecord),
    };
    let name_len = usize::from(u16::from_le_bytes([fixed[18], fixed[19]]));
    let terms = before_terms(name_len);
    let header = terms + if fixed[17] & FLAG_TERMS != 0 { TERMS_BYTES } else { 0 };
    let covered = bytes.get(16..header).ok_or(NoRecord)?;
    if XxHash3_64::oneshot_with_seed(seed(salt, offset), covered) != word(8) || fixed[16] != RECORD_VERSION {
        return Err(NoRecord);
    }
    let name = bytes.get(FIXED_BYTES..FIXED_BYTES + name_len).ok_or(NoRecord)?;
    let (copies, expires) =
        match bytes.get(terms..header).and_then(|terms| terms.first_chunk::<TERMS_BYTES>()) {
            Some(terms) => (
                u16::from_le_bytes([terms[0], terms[1]]),
                u64::from_le_bytes(*terms[8..].first_chunk().ok_or(NoRecord)?),
            ),
            None => (0, 0),
        };
    // Terms without content are not encoded.
    if header > terms && copies == 0 && expires == 0 {
        return Err(NoRecord);
    }
    let rights = match fixed[17] & (FLAG_PRIVATE | FLAG_OPEN) {
        0 => Rights::Read,
        FLAG_PRIVATE => Rights::Private,
        FLAG_OPEN => Rights::ReadWrite,
        _ => return Err(NoRecord),
    };
    let id = *fixed[76..].first_chunk().ok_or(NoRecord)?;
    let head = Header {
        id: ObjectId::from_bytes(id),
        name: str::from_utf8(name).map_err(|_| NoRecord)?.to_owned(),
        life: word(48),
        user: word(72) as u32,
        rights,
        data_len: word(24),
        metadata_len: (word(16) >> 32) as u32,
        digest: word(64),
        created: word(56),
        copies,
        expires,
        owned: fixed[17] & FLAG_OWNED != 0,
    };
    let len = record_len(&head).ok_or(NoRecord)?;
    Ok(Record { head, sequence: word(40), payload_hash: word(32), len, live })
}

/// Writes the matching checksum into bytes that may be a record's header.
#[cfg(feature = "fuzzing")]
pub(super) fn make_checksum_right(bytes: &mut [u8], salt: u64, offset: u64) {
    let Some(fixed) = bytes.first_chunk::<FIXED_BYTES>() else { return };
    let state = u64::from_le_bytes(*fixed.first_chunk().expect("96 bytes"));
    let name_len = usize::from(u16::from_le_bytes([fixed[18], fixed[19]]));
    let terms = if fixed[17] & FLAG_TERMS != 0 { TERMS_BYTES } else { 0 };
    if let (LIVE | DEAD, Some(covered)) = (state, bytes.get(16..before_terms(name_len) + terms)) {
        let checksum = XxHash3_64::oneshot_with_seed(seed(salt, offset), covered);
        bytes[8..16].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Encodes a file's header.
pub(super) fn encode_file(salt: u64) -> [u8; FILE_HEADER_BYTES] {
    let mut bytes = [0; FILE_HEADER_BYTES];
    bytes[0..8].copy_from_slice(&FILE_MAGIC);
    bytes[8..12].copy_from_slice(&FILE_VERSION.to_le_bytes());
    bytes[16..24].copy_from_slice(&salt.to_le_bytes());
    let checksum = XxHash3_64::oneshot(&bytes[..24]);
    bytes[24..32].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Returns the salt of a file, if the bytes are a header of this version.
pub(super) fn decode_file(bytes: &[u8; FILE_HEADER_BYTES]) -> Result<u64, NoRecord> {
    let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("all words lie before 32"));
    let version = word(8) as u32;
    if bytes[..8] != FILE_MAGIC || word(24) != XxHash3_64::oneshot(&bytes[..24]) || version != FILE_VERSION {
        return Err(NoRecord);
    }
    Ok(word(16))
}
