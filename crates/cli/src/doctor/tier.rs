//! Checks of the running node's regions and services: whether they have the memory and the threads that they
//! need.
//!
//! Owns no state. Main thread.

use plasmon::status::{FunctionsStatus, RegionsStatus};

use super::Case;
use super::finding::Finding;
use crate::output::{counted, size};

/// Number of calls that wait at a port before others are refused, as the node has it.
const PORT_CALLS: u64 = 1024;

/// Checks the regions and the services of the running node.
pub(super) fn check(case: &Case) -> Vec<Finding> {
    let Some(node) = &case.node else { return Vec::new() };
    let regions = &node.regions;
    vec![memory(case, regions), mapping(case, regions), calls(&node.functions)]
}

/// Checks whether more regions can be made.
fn memory(case: &Case, regions: &RegionsStatus) -> Finding {
    const TOPIC: &str = "region_memory";
    let RegionsStatus { bytes, limit, .. } = *regions;
    let count = counted(regions.regions, "region");
    let found = format!("{count} of {} in all, of {} that regions may take", size(bytes), size(limit));
    if bytes <= limit - limit / 10 {
        return Finding::ok(TOPIC, found);
    }
    let why = "Less than a tenth is left. A region that has no room is refused, and none moves here. \
               Memory of regions that were freed counts as long as processes have it mapped.";
    let more = case.memory.saturating_add(limit);
    Finding::advice(TOPIC, found, why)
        .mend("see which regions are large, and free those that nobody needs", "plasmon region ls")
        .mend(format!("or {}, with more memory", case.restart()), case.serve(more))
}

/// Checks whether processes can map the regions that are to be mapped.
fn mapping(case: &Case, regions: &RegionsStatus) -> Finding {
    const TOPIC: &str = "region_mapping";
    let RegionsStatus { in_pieces, crowded_out, .. } = *regions;
    let found = match (crowded_out, in_pieces) {
        (0, 0) => "processes map their user's regions as they are".to_owned(),
        (0, pieces) => format!("{} in several pieces of memory", counted(pieces, "region")),
        (out, _) => format!("{} cannot be mapped by processes", counted(out, "region")),
    };
    if crowded_out == 0 {
        return Finding::ok(TOPIC, found);
    }
    let why = "No memory that the owner's processes may map was free when such a region was made. Each \
               operation on it is a call of the node, some hundred times slower than a load or a store. A \
               region that is made anew, or moved to another node, is looked for memory again.";
    Finding::advice(TOPIC, found, why)
        .mend("see which they are, and where", "plasmon region ls --json")
        .mend(format!("or {}, with more memory", case.restart()), case.serve(case.memory.saturating_mul(2)))
}

/// Checks whether calls wait for those who serve them.
fn calls(functions: &FunctionsStatus) -> Finding {
    const TOPIC: &str = "services";
    let FunctionsStatus { ports, waiting, running, .. } = *functions;
    let found =
        format!("{}, at which {} wait and {running} run", counted(ports, "port"), counted(waiting, "call"));
    if waiting <= ports * PORT_CALLS / 2 {
        return Finding::ok(TOPIC, found);
    }
    let why = "Calls come faster than the processes that serve them reply. A port at which 1,024 calls wait \
               refuses further ones.";
    Finding::advice(TOPIC, found, why)
        .mend("see which they are; then start more servers, or serve with more threads", "plasmon services")
}
