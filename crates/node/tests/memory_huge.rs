//! Arenas of huge pages. Tests that need huge pages of the pool are skipped if the host's pool is empty:
//! `sysctl vm.nr_hugepages=64` (and 0 afterwards) lets them run.

mod wait;

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, ptr};

use plasmon_node::memory::{
    Access, Arena, ArenaConfig, ArenaError, Domain, Extent, HugePages, PageKind, SegmentChange, Writer, Zone,
};
use rustix::fs::FallocateFlags;
use rustix::mm::{MapFlags, ProtFlags};

use wait::eventually;

const HUGE: u64 = 2 << 20;
const SEGMENTS: u64 = 4;
const CAPACITY: u64 = SEGMENTS * HUGE;
const ENGINE: Zone = Zone { domain: Domain::Shared, writer: Writer::Engine };

/// Zone that the daemon's own user writes: huge pages are allowed.
fn own() -> Zone {
    Zone { domain: Domain::Shared, writer: Writer::Uid(rustix::process::geteuid().as_raw()) }
}

fn other() -> Zone {
    Zone { domain: Domain::Shared, writer: Writer::Uid(rustix::process::geteuid().as_raw() + 1000) }
}

fn config(huge_pages: HugePages, prefault: bool) -> ArenaConfig {
    let segment_size = Some(HUGE);
    ArenaConfig { capacity: CAPACITY, segment_size, huge_pages, prefault, near: None, huge_allowance: None }
}

/// An arena of huge pages, and the turn to use the host's pool; `None` if there are not enough.
fn arena() -> Option<(MutexGuard<'static, ()>, Arena)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match Arena::new(&config(HugePages::Require, true)) {
        Ok(arena) => Some((turn, arena)),
        Err(error @ ArenaError::HugePages { .. }) => {
            assert!(error.to_string().contains("vm.nr_hugepages"), "{error}");
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The pages that a segment is made of, as its file says.
fn pages(arena: &mut Arena, segment: u32) -> PageKind {
    let stat = rustix::fs::fstat(arena.descriptor(segment, Access::Read).unwrap()).unwrap();
    if stat.st_blksize as u64 == HUGE { PageKind::Huge } else { PageKind::Base }
}

/// Holds all huge pages of the pool that nobody has, until dropped.
struct Rest(*mut std::ffi::c_void, usize);

impl Rest {
    fn take() -> Rest {
        let counter = |name| -> usize {
            let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
            fs::read_to_string(path).unwrap().trim().parse().unwrap()
        };
        let free = (counter("free_hugepages") - counter("resv_hugepages")) * HUGE as usize;
        if free == 0 {
            return Rest(ptr::null_mut(), 0);
        }
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let mapped = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), free, protection, flags) };
        Rest(mapped.unwrap(), free)
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        if self.1 > 0 {
            // SAFETY: mapped in `take`, and never used.
            unsafe { rustix::mm::munmap(self.0, self.1) }.unwrap();
        }
    }
}

/// Control group that allows no huge page, gone when this value is dropped. The hierarchy is mounted for it.
struct Group(PathBuf);

impl Group {
    /// Makes the group. `None` if this process may not, or the kernel has no limits of huge pages.
    fn new() -> Option<Group> {
        let hierarchy = std::env::temp_dir().join(format!("plasmon-hugetlb-{}", std::process::id()));
        fs::create_dir(&hierarchy).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "cgroup", "-o", "hugetlb", "test"]).arg(&hierarchy).output();
        if !mounted.is_ok_and(|mounted| mounted.status.success()) {
            fs::remove_dir(&hierarchy).unwrap();
            return None;
        }
        let group = Group(hierarchy);
        fs::create_dir(group.folder()).unwrap();
        fs::write(group.folder().join("hugetlb.2MB.limit_in_bytes"), "0").unwrap();
        Some(group)
    }

    fn folder(&self) -> PathBuf {
        self.0.join("none")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        fs::remove_dir(self.folder()).unwrap();
        assert!(Command::new("umount").arg(&self.0).status().unwrap().success());
        fs::remove_dir(&self.0).unwrap();
    }
}

fn is_zero(extent: &Extent) -> bool {
    let mut bytes = vec![1; extent.len() as usize];
    extent.read(0, &mut bytes).unwrap();
    bytes.iter().all(|byte| *byte == 0)
}

#[test]
fn the_engine_and_its_user_write_huge_pages_and_others_base_pages() {
    let Some((_turn, mut arena)) = arena() else { return };
    assert_eq!((arena.page_kind(), arena.usage().huge), (PageKind::Huge, CAPACITY));
    let mut changes = vec![];
    for (round, (zone, kind)) in
        [(ENGINE, PageKind::Huge), (other(), PageKind::Base), (own(), PageKind::Huge)].into_iter().enumerate()
    {
        let extent = arena.allocate(zone, CAPACITY).unwrap();
        assert!(is_zero(&extent));
        extent.write(0, &vec![1; CAPACITY as usize]).unwrap();
        assert!((0..SEGMENTS as u32).all(|segment| pages(&mut arena, segment) == kind), "{zone}");
        assert_eq!(arena.version(3), round as u32 + 1);
        assert_eq!(arena.usage().huge, if kind == PageKind::Huge { CAPACITY } else { 0 });
        changes.append(&mut arena.take_changes());
    }
    let recycled = changes.iter().filter(|change| matches!(change, SegmentChange::Recycled { .. }));
    assert_eq!(recycled.count() as u64, 2 * SEGMENTS, "once whenever other memory came");
}

#[test]
fn places_in_huge_pages_lie_side_by_side() {
    let Some((_turn, mut arena)) = arena() else { return };
    // Zones of regions that are mapped, and of other regions.
    for zone in [own(), Zone { domain: Domain::Nobody, writer: Writer::Engine }] {
        let mut pages: Vec<_> = (0..SEGMENTS).map(|_| Some(arena.allocate(zone, HUGE).unwrap())).collect();
        (pages[0], pages[2]) = (None, None);
        let whole = arena.allocate_in_places(zone, HUGE + 5, 4).unwrap();
        let places: Vec<_> = whole.pieces().map(|piece| (piece.segment, piece.len)).collect();
        assert_eq!(places, [(0, HUGE), (2, 5)], "{zone}");
        // Nobody gets the file of a segment of the second zone.
        assert_eq!(arena.usage().huge, CAPACITY, "{zone}");
        let written: Vec<u8> = (0..whole.len()).map(|at| (at % 251) as u8).collect();
        whole.write(0, &written).unwrap();
        let mut found = vec![0; written.len()];
        whole.read(0, &mut found).unwrap();
        assert!(found == written, "{zone}");
        drop((whole, pages));
        assert_eq!(arena.usage().used, 0);
    }
}

/// A registration belongs to certain pages. So a segment gets a new version when its pages are exchanged.
#[test]
fn a_segment_whose_pages_are_exchanged_at_its_first_use_is_a_new_one() {
    let Some((_turn, mut arena)) = arena() else { return };
    let zone = other();
    let _extent = arena.allocate(zone, 1).unwrap();
    let expected = [
        SegmentChange::Recycled { segment: 0, version: 1 },
        SegmentChange::Assigned { segment: 0, version: 2, zone },
    ];
    assert_eq!((arena.take_changes(), arena.version(0)), (expected.to_vec(), 2));
    assert_eq!(arena.usage().huge, CAPACITY - HUGE);
}

#[test]
fn nobody_else_can_take_a_page_away() {
    let Some((_turn, mut arena)) = arena() else { return };
    let extent = arena.allocate(other(), HUGE).unwrap();
    extent.write(0, &vec![1; HUGE as usize]).unwrap();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(arena.descriptor(0, Access::Write).unwrap(), flags, 0, HUGE).unwrap();
    let _rest = Rest::take();
    // If huge pages were gone, touching one would end this process.
    assert!(is_zero(&extent), "the client has lost its own bytes");
}

#[test]
fn base_pages_do_where_no_huge_ones_are_left() {
    let Some((_turn, mut arena)) = arena() else { return };
    let extent = arena.allocate(ENGINE, CAPACITY).unwrap();
    // Clients that do not let go of a segment keep its memory.
    let held = rustix::io::dup(arena.descriptor(0, Access::Read).unwrap()).unwrap();
    drop(extent);
    let rest = Rest::take();
    let extent = arena.allocate(own(), CAPACITY).unwrap();
    assert!(is_zero(&extent));
    // The pages of other segments went back to the pool and came again; only the held ones are missing.
    assert_eq!(arena.usage().huge, CAPACITY - HUGE);
    drop((held, rest, extent));
    let _extent = arena.allocate(ENGINE, CAPACITY).unwrap();
    assert_eq!(arena.usage().huge, CAPACITY, "there are enough again");
}

#[test]
fn progress_counts_the_present_memory_of_every_segment() {
    let Some((_turn, mut arena)) = arena() else { return };
    let wait = |arena: &mut Arena| {
        eventually("its memory is there", || arena.usage().prefaulted >= CAPACITY);
        assert_eq!(arena.usage().prefaulted, CAPACITY);
    };
    wait(&mut arena);
    for zone in [other(), ENGINE] {
        drop(arena.allocate(zone, CAPACITY).unwrap());
        wait(&mut arena);
    }
}

/// Whether the kernel makes transparent huge pages when asked: Linux 6.1 does, unless its settings say
/// `deny`.
fn gives_transparent() -> bool {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let release = read("/proc/sys/kernel/osrelease");
    let mut parts = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let new = (parts.next(), parts.next()) >= (Some(6), Some(1));
    let setting = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    new && setting.contains('[') && !setting.contains("[deny]")
}

#[test]
fn without_a_pool_the_kernel_is_asked_for_huge_pages() {
    let gives = gives_transparent();
    for (huge_pages, expected) in [(HugePages::Auto, if gives { CAPACITY } else { 0 }), (HugePages::Never, 0)]
    {
        let mut arena = Arena::new(&config(huge_pages, true)).unwrap();
        if arena.page_kind() == PageKind::Huge {
            eprintln!("skipped: the pool has huge pages");
            return;
        }
        let first = arena.allocate(ENGINE, 3 * HUGE).unwrap();
        first.write(HUGE, &[7; 4096]).unwrap();
        let populated = |arena: &mut Arena| {
            eventually("its memory is there", || arena.usage().prefaulted >= CAPACITY);
        };
        populated(&mut arena);
        let mut bytes = [0; 4096];
        first.read(HUGE, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096], "what was written meanwhile is there");
        assert_eq!((arena.usage().transparent, arena.usage().huge), (expected, 0));
        drop(first);
        // A recycled segment too, also when somebody else writes it.
        drop(arena.allocate(other(), CAPACITY).unwrap());
        populated(&mut arena);
        assert_eq!(arena.usage().transparent, expected);
    }
}

#[test]
fn a_process_that_may_have_no_huge_page_takes_base_pages() {
    const LIMITED: &str = "PLASMON_TEST_LIMITED";
    if std::env::var_os(LIMITED).is_some() {
        // The pool has free pages. A touch of one of them would end this process.
        let mut arena = Arena::new(&config(HugePages::Auto, false)).unwrap();
        assert_eq!(arena.page_kind(), PageKind::Base);
        let extent = arena.allocate(ENGINE, HUGE).unwrap();
        extent.write(0, &[7; 4096]).unwrap();
        return;
    }
    let Some((_turn, arena)) = arena() else { return };
    drop(arena);
    let Some(group) = Group::new() else {
        eprintln!("skipped: no control group can limit huge pages here");
        return;
    };
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.folder().display());
    let mut child = Command::new("sh");
    child.args(["-c", &enter, "sh"]).arg(std::env::current_exe().unwrap());
    child.args(["--exact", "a_process_that_may_have_no_huge_page_takes_base_pages", "--nocapture"]);
    let ended = child.env(LIMITED, "1").output().unwrap();
    assert!(ended.status.success(), "{}: {}", ended.status, String::from_utf8_lossy(&ended.stderr));
}
