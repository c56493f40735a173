//! The fuzzer's target for spill files, and its seeds.

use std::io::Write;

use plasmon::{ObjectId, Rights};

use super::MAX_FILE_BYTES;
use super::record::{self, FILE_HEADERS_AT, FIRST_RECORD_AT, Header, UNIT_BYTES};
use super::scan::scan;

const SALT: u64 = 0x5a17;

/// Scans a file whose records are these bytes. All records found must lie in the file, one after the other.
pub(crate) fn file(bytes: &[u8]) {
    let mut content = vec![0; FIRST_RECORD_AT as usize];
    for at in FILE_HEADERS_AT {
        let header = record::encode_file(SALT);
        content[at as usize..][..header.len()].copy_from_slice(&header);
    }
    content.extend_from_slice(bytes);
    for at in (FIRST_RECORD_AT..content.len() as u64).step_by(UNIT_BYTES as usize) {
        record::make_checksum_right(&mut content[at as usize..], SALT, at);
    }
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file =
        std::fs::File::from(rustix::fs::memfd_create("plasmon-fuzz", flags).expect("a file in memory"));
    file.write_all(&content).expect("memory for a small file");

    let found = scan(&file).expect("its headers are right");
    assert_eq!((found.salt, found.end), (SALT, content.len() as u64));
    let mut end = FIRST_RECORD_AT;
    for (start, record) in &found.live {
        assert!(record.live && *start >= end && start % UNIT_BYTES == 0 && *start < MAX_FILE_BYTES);
        end = start + record.len;
        assert!(end <= found.end, "a record from {start} to {end} in a file of {}", found.end);
        let payload = record.head.payload_len().expect("a record has a length");
        assert!(record::header_len(&record.head) as u64 + payload <= record.len);
    }
    if let Some((start, record)) = &found.cut_off {
        assert!(
            record.live && *start >= end && start % UNIT_BYTES == 0 && *start < MAX_FILE_BYTES.min(found.end)
        );
        assert!(record.len > found.end - start, "a record from {start} that is whole");
    }
}

/// Returns files of some records, and of none.
pub(crate) fn files() -> Vec<Vec<u8>> {
    let record = |name: &str, data: &[u8], at: u64| {
        let head = Header {
            id: ObjectId::from_bytes([7; 20]),
            name: name.to_owned(),
            life: 3,
            user: 1000,
            rights: if name.is_empty() { Rights::ReadWrite } else { Rights::Private },
            data_len: data.len() as u64,
            metadata_len: 0,
            digest: 9,
            created: 1 << 40,
            copies: name.len() as u16 / 3,
            expires: 0,
            owned: name.is_empty(),
        };
        let mut bytes = vec![0; record::header_len(&head)];
        record::encode(&mut bytes, &head, 5, 6, SALT, FIRST_RECORD_AT + at);
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(UNIT_BYTES as usize), 0);
        bytes
    };
    let first = record("flights", &[1; 20], 0);
    let second = record("", &[], first.len() as u64);
    let mut dead = second.clone();
    dead[..8].copy_from_slice(&record::DEAD.to_le_bytes());
    vec![
        Vec::new(),
        first.clone(),
        [first.clone(), second.clone()].concat(),
        [&[0; 64], &first[..]].concat(),
        [&first[..], &[0xff; 24], &second].concat(),
        [first, dead, second].concat(),
    ]
}
