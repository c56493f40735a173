//! The store's part of the report: memory, objects and spilled objects. Owns no state. Engine
//! thread only. A report walks the table.

use plasmon::status::{MemoryStatus, ObjectsStatus, SpillStatus, Status};

use super::Store;
use crate::memory::PageKind;
use crate::object::FastPins;

impl Store {
    /// Enters the store's state into a report.
    pub(crate) fn report(&self, status: &mut Status) {
        status.memory = self.memory_status();
        status.objects = self.objects_status();
        status.spill = self.spill_status();
    }

    fn memory_status(&self) -> MemoryStatus {
        let mut arena = self.arena.borrow_mut();
        let usage = arena.usage();
        MemoryStatus {
            capacity: usage.capacity,
            used: usage.used,
            free: usage.free,
            largest_free: usage.largest_run,
            prefaulted: usage.prefaulted,
            pages: match arena.page_kind() {
                PageKind::Huge => "huge".into(),
                PageKind::Base => "base".into(),
            },
            huge: usage.huge + usage.transparent,
            segment_size: arena.segment_size(),
            segments: arena.segment_count(),
            tables: self.objects.borrow().shared.memory(),
            waiting: self.room.waiting(),
            compacted_bytes: self.room.compacted.get(),
        }
    }

    fn objects_status(&self) -> ObjectsStatus {
        let objects = self.objects.borrow();
        let census = objects.census(&self.scan_pins());
        ObjectsStatus {
            primary: census.primary,
            primary_bytes: census.primary_bytes,
            kept: census.kept,
            kept_bytes: census.kept_bytes,
            cached: census.cached,
            cached_bytes: census.cached_bytes,
            unsealed: census.unsealed,
            pinned: census.pinned,
            pinned_bytes: census.pinned_bytes,
            doomed: census.doomed,
            doomed_bytes: census.doomed_bytes,
            evicted: objects.evicted(),
        }
    }

    fn spill_status(&self) -> SpillStatus {
        let (Some(store), Some(directory)) = (self.spill_store(), &self.kernel.config.spill_dir) else {
            return SpillStatus::default();
        };
        let usage = store.usage();
        let census = self.objects.borrow().census(&FastPins::default());
        SpillStatus {
            directory: directory.display().to_string(),
            objects: census.spilled,
            bytes: census.spilled_bytes,
            files: usage.files,
            disk_bytes: usage.disk_bytes,
            written_bytes: usage.written,
            restored_bytes: usage.read,
            failures: usage.failures,
            unreadable: usage.unreadable,
            failing: self.spill_failure().unwrap_or_default(),
        }
    }
}
