//! Tests with a disk that has no room.

use std::process::Command;

use super::*;

/// A small filesystem of its own, unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    fn new(at: &Path, size: &str) -> Result<Mount, String> {
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size},mode=0700"), "spill"])
            .arg(at)
            .output();
        match output {
            Ok(output) if output.status.success() => Ok(Mount(at.to_owned())),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "cannot unmount {}", self.0.display());
    }
}

#[test]
fn a_batch_that_finds_no_room_leaves_nothing_and_harms_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path().join("small");
    fs::create_dir(&dir).unwrap();
    let mount = match Mount::new(&dir, "32M") {
        Ok(mount) => mount,
        Err(reason) => return println!("skipped: cannot mount a small tmpfs (run as root): {reason}"),
    };
    let mut bench = Bench::at(temporary, dir);
    let kept = [object(1, 1000), object(2, 500_000)];
    let places = bench.write(&kept);
    let before = bench.store().usage();

    for (first, len) in [(10, 1 << 20), (50, 40 << 20), (100, 200)] {
        // The count is one too many for each size: large objects, objects with a file of their own, and
        // small ones.
        let count = (40 << 20) / len as u64;
        let mut batch: Vec<Object> = vec![object(first + count, 17 << 20)];
        batch.extend((first..first + count).map(|number| object(number, len)));
        let error = bench.try_write(&batch).unwrap_err();
        let SpillError::NoSpace { dir, bytes, .. } = &error else { panic!("{error}") };
        assert_eq!(*dir, bench.dir.canonicalize().unwrap());
        assert!(*bytes > 57 << 20);
        let after = bench.store().usage();
        assert_eq!(
            (after.live_bytes, after.disk_bytes, after.files),
            (before.live_bytes, before.disk_bytes, 1)
        );
        assert_eq!(files(&bench.dir).len(), 1);
    }
    let late = [object(3, 2000), object(4, 17 << 20)];
    let more = bench.write(&late);
    let all: Vec<&Object> = kept.iter().chain(&late).collect();
    for (object, place) in all.iter().zip(places.iter().chain(&more)) {
        bench.assert_reads(*place, object);
    }
    let recovered = bench.restart();
    assert_eq!(bench.store().usage().failures, 0, "nothing half-written is left");
    let mut lives: Vec<u64> = all.iter().map(|object| object.head.life).collect();
    lives.sort_unstable();
    assert_eq!(recovered.iter().map(|recovered| recovered.header.life).collect::<Vec<_>>(), lives);
    bench.close();
    drop(mount);
}
