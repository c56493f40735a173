//! Tests with files that another program has altered.

use proptest::prelude::*;

use super::*;
use crate::spill::record::{
    FILE_HEADER_BYTES, FIRST_RECORD_AT, decode, decode_file, encode, header_len, record_len,
};

/// The reason that a read gave for the loss of an object.
fn lost(result: Result<Vec<u8>, SpillError>, head: &Header, path: &Path) -> &'static str {
    let error = result.unwrap_err();
    let message = error.to_string();
    assert!(message.contains(&head.id.to_string()) && message.contains(path.to_str().unwrap()), "{message}");
    let SpillError::Damaged { reason, .. } = error else { panic!("{error}") };
    reason
}

#[test]
fn damage_costs_the_object_it_hits() {
    let mut bench = Bench::new();
    let objects: Vec<Object> =
        [3000, 70_000, 400_000, 50].into_iter().zip(0..).map(|(len, n)| object(n, len)).collect();
    let places = bench.write(&objects);
    let path = files(&bench.dir)[0].canonicalize().unwrap();
    for hit in 0..objects.len() {
        let header = places[hit].offset();
        let payload = header + header_len(&objects[hit].head) as u64;
        for at in [header, header + 9, header + 90, payload, payload + objects[hit].bytes.len() as u64 - 1] {
            flip(&path, at);
            for (number, object) in objects.iter().enumerate() {
                if number == hit {
                    let reason = lost(bench.read(places[number], &object.head), &object.head, &path);
                    assert!(reason.contains("damaged"), "{reason}");
                    // What is promised is known from a whole header, and the bytes do not keep it.
                    match bench.promised(places[number], &object.head) {
                        Ok(promised) => assert!(at >= payload && promised == digest(object)),
                        damaged => assert_eq!(lost(damaged.map(|_| Vec::new()), &object.head, &path), reason),
                    }
                } else {
                    bench.assert_reads(places[number], object);
                }
            }
            flip(&path, at);
        }
        bench.assert_reads(places[hit], &objects[hit]);
    }
    // A damaged header fails both.
    assert_eq!(bench.store().usage().failures, (5 + 3) * objects.len() as u64);
}

#[test]
fn a_file_cut_off_or_gone_costs_what_was_in_it() {
    let mut bench = Bench::new();
    let objects = [object(0, 300_000), object(1, 300_000), object(2, 20 << 20)];
    let places = bench.write(&objects);
    let paths: Vec<PathBuf> = files(&bench.dir).iter().map(|path| path.canonicalize().unwrap()).collect();
    truncate(&paths[0], places[1].offset() + 1000);
    assert_eq!(
        lost(bench.read(places[1], &objects[1].head), &objects[1].head, &paths[0]),
        "its bytes are damaged or cut off"
    );
    bench.assert_reads(places[0], &objects[0]);
    truncate(&paths[0], 5);
    assert_eq!(
        lost(bench.read(places[0], &objects[0].head), &objects[0].head, &paths[0]),
        "its record is damaged or cut off"
    );
    fs::remove_file(&paths[1]).unwrap();
    assert_eq!(
        lost(bench.read(places[2], &objects[2].head), &objects[2].head, &paths[1]),
        "its file is gone"
    );
    // The store goes on after the damage.
    let more = bench.write(&[object(3, 100)]);
    bench.assert_reads(more[0], &object(3, 100));
    bench.store().forget(places[2]);
    bench.store().forget(places[0]);
    bench.assert_reads(more[0], &object(3, 100));
}

#[test]
fn another_objects_place_is_no_place_for_this_one() {
    let mut bench = Bench::new();
    let (one, mut two) = (object(1, 100), object(2, 100));
    let places = bench.write(&[one, two.clone()]);
    assert!(matches!(bench.read(places[0], &two.head), Err(SpillError::Damaged { .. })));
    two.head.data_len += 1;
    assert!(matches!(bench.read(places[1], &two.head), Err(SpillError::Damaged { .. })));
}

/// Inverts the last byte of an object in its file, and makes its record's checksum match.
fn forge(path: &Path, place: Place, object: &Object) {
    let mut bytes = fs::read(path).unwrap();
    let salt = decode_file(bytes[..FILE_HEADER_BYTES].try_into().unwrap()).unwrap();
    let (offset, header) = (place.offset(), header_len(&object.head));
    let record = &mut bytes[offset as usize..];
    let sequence = decode(record, salt, offset).unwrap().sequence;
    let (head, payload) = record.split_at_mut(header);
    let payload = &mut payload[..object.bytes.len()];
    *payload.last_mut().unwrap() ^= 0xff;
    encode(head, &object.head, sequence, XxHash3_64::oneshot(payload), salt, offset);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_whole_record_of_what_was_not_sealed_costs_its_object() {
    let mut bench = Bench::new();
    let objects: Vec<Object> =
        [500, 3000, 400_000, 70_000, 400_000].into_iter().zip(1..).map(|(len, n)| object(n, len)).collect();
    let places = bench.write(&objects);
    let path = files(&bench.dir)[0].canonicalize().unwrap();
    // One of the forged objects has no digest.
    let forged = [1, 2, 4];
    for number in forged {
        forge(&path, places[number], &objects[number]);
    }
    for restarted in [false, true] {
        for (number, (place, object)) in places.iter().zip(&objects).enumerate() {
            let read = bench.read(*place, &object.head);
            let head = &object.head;
            if !forged.contains(&number) {
                bench.assert_reads(*place, object);
            } else if head.digest == 0 {
                assert!(read.unwrap() != object.bytes, "only the digest tells");
            } else {
                let error = read.unwrap_err();
                let message = error.to_string();
                assert!(
                    message.contains(&format!("was {:016x}", head.digest))
                        && message.contains(&head.id.to_string()),
                    "{message}"
                );
                assert!(
                    matches!(error, SpillError::Altered { sealed, .. } if sealed == head.digest),
                    "{error}"
                );
            }
        }
        if !restarted {
            assert_eq!(bench.restart().len(), objects.len(), "the records are whole");
        }
    }
}

#[test]
fn a_scan_finds_what_lies_behind_damage() {
    let mut bench = Bench::new();
    let objects: Vec<Object> = (0..30).map(|number| object(number, 50 + 3000 * number as usize)).collect();
    let places = bench.write(&objects);
    bench.close();
    let path = &files(&bench.dir)[0];
    for hit in [0, 7, 8, 29] {
        flip(path, places[hit].offset() + 30);
    }
    let recovered = bench.restart();
    assert_eq!(recovered.len(), 26);
    for recovered in &recovered {
        let object = objects.iter().find(|object| object.head == recovered.header).unwrap();
        bench.assert_reads(recovered.place, object);
    }
    let usage = bench.store().usage();
    assert_eq!((usage.failures, usage.unreadable), (3, 3), "two neighbours are one damaged stretch");
}

#[test]
fn a_file_is_read_as_long_as_one_of_its_headers_is() {
    let mut bench = Bench::new();
    // The object is large enough for the file not to be emptied.
    bench.write(&[object(1, 70_000)]);
    bench.close();
    let path = files(&bench.dir)[0].clone();
    flip(&path, 17);
    let recovered = bench.restart();
    bench.assert_reads(recovered[0].place, &object(1, 70_000));
    bench.close();
    flip(&path, 2048);
    assert_eq!(bench.restart(), []);
    assert_eq!(bench.store().usage().failures, 1);
    bench.write(&[object(2, 100)]);
    bench.close();
    flip(&path, 2048);
    assert_eq!(bench.restart().len(), 2, "it was left alone");
}

#[test]
fn an_object_that_was_cut_off_is_known_and_damaged() {
    let mut bench = Bench::new();
    let objects = [object(0, 100_000), object(1, 100_000)];
    let places = bench.write(&objects);
    bench.close();
    let path = files(&bench.dir)[0].clone();
    truncate(&path, path.metadata().unwrap().len() - 8);
    for whole in [1, 0] {
        let recovered = bench.restart();
        assert_eq!(recovered.len(), whole + 1);
        for (number, object) in objects.iter().enumerate().take(whole + 1) {
            let found = recovered.iter().find(|found| found.header == object.head).expect("it is known");
            assert_eq!(found.place, places[number]);
            if number < whole {
                bench.assert_reads(found.place, object);
            } else {
                let full = path.canonicalize().unwrap();
                assert!(lost(bench.read(found.place, &object.head), &object.head, &full).contains("cut off"));
            }
        }
        // The damage is counted once at the start, and once when the object is asked for.
        let usage = bench.store().usage();
        assert_eq!((usage.failures, usage.unreadable), (2, 0));
        bench.close();
        truncate(&path, places[0].offset() + 50_000);
    }
    bench.restart();
    bench.store().forget(places[0]);
    bench.settle();
    assert!(!path.exists(), "nothing else was in it");
}

#[test]
fn of_an_object_that_is_there_twice_the_one_that_is_whole_counts() {
    let mut bench = Bench::new();
    let objects = [object(0, 100_000), object(1, 100_000)];
    let places = bench.write(&objects);
    bench.close();
    let [original, former, latter] = ["original", "0.spill", "1.spill"].map(|name| bench.dir.join(name));
    fs::rename(&former, &original).unwrap();
    // The state is that of a daemon that died during a move, with one of the files cut off.
    for (cut, whole) in [(&former, &latter), (&latter, &former)] {
        for file in [cut, whole] {
            fs::copy(&original, file).unwrap();
        }
        truncate(cut, places[1].offset() + 50_000);
        let recovered = bench.restart();
        assert_eq!(recovered.len(), 2);
        for found in recovered {
            let object = objects.iter().find(|object| object.head == found.header).unwrap();
            bench.assert_reads(found.place, object);
        }
        bench.close();
    }
}

#[test]
fn a_record_inside_an_object_is_none() {
    let mut bench = Bench::new();
    let place = bench.write(&[object(1, 20_000)])[0];
    bench.store().forget(place);
    // A client can know the format and the offset, since offsets repeat those of the first file.
    let mut forger = object(1, 20_000);
    let forged = object(2, 200).head;
    let len = record_len(&forged).unwrap() as usize;
    let payload = FIRST_RECORD_AT + header_len(&forger.head) as u64;
    for (at, bytes) in (payload..).step_by(len).zip(forger.bytes.chunks_exact_mut(len)) {
        encode(&mut bytes[..header_len(&forged)], &forged, 7, 0, 0, at);
    }
    assert_eq!(bench.write(std::slice::from_ref(&forger)), [Place::new(1, FIRST_RECORD_AT)]);
    bench.close();
    flip(&files(&bench.dir)[0], FIRST_RECORD_AT + 20);
    assert_eq!(bench.restart(), [], "the scan searches behind the damaged header, in the object");
    assert_eq!(bench.store().usage().failures, 1);
}

#[test]
fn strange_files_are_left_alone() {
    let mut bench = Bench::new();
    bench.close();
    for name in ["1.spill", "007.spill", "x.spill", "-1.spill", "99999999999.spill", "notes"] {
        fs::write(bench.dir.join(name), "not a spill file").unwrap();
    }
    fs::create_dir(bench.dir.join("2.spill")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", bench.dir.join("3.spill")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, bench.dir.join("4.spill"), rustix::fs::Mode::RWXU).unwrap();
    assert_eq!(bench.restart(), []);
    assert_eq!(bench.store().usage().failures, 4);
    let place = bench.write(&[object(1, 1)])[0];
    bench.assert_reads(place, &object(1, 1));
    assert_eq!(fs::read_dir(&bench.dir).unwrap().count(), 9 + 2, "with the lock and a file of our own");
}

/// Damage to a file: its place as a fraction of the file's length, and its kind.
#[derive(Debug, Clone)]
enum Harm {
    Flip(f64, u8),
    Fill(f64, usize, u8),
    Copy(f64, f64, usize),
    Truncate(f64),
}

fn harm() -> impl Strategy<Value = Harm> {
    // Most bytes are payload, so a second strategy hits headers at the front.
    let at = prop_oneof![0.0..1.0, 0.0..0.05];
    prop_oneof![
        8 => (at.clone(), 1u8..).prop_map(|(at, mask)| Harm::Flip(at, mask)),
        2 => (at.clone(), 1usize..5000, any::<u8>()).prop_map(|(at, len, byte)| Harm::Fill(at, len, byte)),
        2 => (at.clone(), at.clone(), 1usize..5000).prop_map(|(from, to, len)| Harm::Copy(from, to, len)),
        1 => at.prop_map(Harm::Truncate),
    ]
}

fn apply(path: &Path, harm: &Harm) {
    let mut bytes = fs::read(path).unwrap();
    let len = bytes.len();
    let place = |fraction: &f64| ((len as f64 * fraction) as usize).min(len.saturating_sub(1));
    match harm {
        _ if len == 0 => {}
        Harm::Flip(at, mask) => bytes[place(at)] ^= mask,
        Harm::Fill(at, count, byte) => bytes[place(at)..(place(at) + count).min(len)].fill(*byte),
        Harm::Copy(from, to, count) => {
            let count = (*count).min(len - place(from)).min(len - place(to));
            bytes.copy_within(place(from)..place(from) + count, place(to));
        }
        Harm::Truncate(at) => bytes.truncate(place(at)),
    }
    fs::write(path, bytes).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn nothing_wrong_is_ever_handed_out(
        lens in prop::collection::vec(prop_oneof![0usize..300, 60_000usize..70_000], 1..12),
        harms in prop::collection::vec(harm(), 1..8),
        forgotten in any::<usize>(),
        while_open in any::<bool>(),
    ) {
        let mut bench = Bench::new();
        let objects: Vec<Object> = (0..).zip(lens).map(|(number, len)| object(number, len)).collect();
        let places = bench.write(&objects);
        let forgotten = forgotten % (2 * objects.len());
        if let Some(place) = places.get(forgotten) {
            bench.store().forget(*place);
        }
        bench.settle();
        if !while_open {
            bench.close();
        }
        for path in files(&bench.dir) {
            harms.iter().for_each(|harm| apply(&path, harm));
        }
        if while_open {
            for (object, place) in objects.iter().zip(&places) {
                if let Ok(bytes) = bench.read(*place, &object.head) {
                    prop_assert!(bytes == object.bytes);
                }
            }
        }
        let recovered = bench.restart();
        for recovered in &recovered {
            let object = objects.iter().find(|object| object.head == recovered.header);
            let object = object.expect("a header that was never written");
            if let Ok(bytes) = bench.read(recovered.place, &recovered.header) {
                prop_assert!(bytes == object.bytes);
            }
        }
        // The store is still usable.
        let place = bench.write(&[object(1000, 100)])[0];
        bench.assert_reads(place, &object(1000, 100));
    }
}
