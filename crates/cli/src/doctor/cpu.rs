//! Check of the cores and of their clock.
//!
//! Owns no state. Main thread.

use std::collections::BTreeSet;
use std::thread;

use super::Case;
use super::files::count_of_list;
use super::finding::Finding;

/// Number of cores from which on an idle engine spins for a while before it sleeps.
const CORES_TO_SPIN: u64 = 4;
const CPUS: &str = "/sys/devices/system/cpu";
/// Time in nanoseconds for which an idle core of a virtual machine looks for work before it halts.
const HALT_POLL_NS: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
/// The kernel's own value of [`HALT_POLL_NS`].
const USUAL_HALT_POLL_NS: &str = "200000";

/// Checks the number of cores, their clock, and the idle cores of a virtual machine.
pub(super) fn check(case: &Case) -> Vec<Finding> {
    [cores(case), governor(case), idle(case)].into_iter().flatten().collect()
}

fn cores(case: &Case) -> Option<Finding> {
    let online = count_of_list(&case.files.text(&format!("{CPUS}/online"))?)?;
    let usable = thread::available_parallelism().map_or(online, |usable| usable.get() as u64);
    Some(judge_cores(online, usable))
}

fn judge_cores(online: u64, usable: u64) -> Finding {
    const TOPIC: &str = "cores";
    let found = match online {
        1 => "1".to_owned(),
        all if all == usable => format!("{online}, all usable from here"),
        _ => format!("{online}, {usable} usable from here (affinity, or the quota of a container)"),
    };
    if usable >= CORES_TO_SPIN {
        return Finding::ok(TOPIC, found);
    }
    Finding::ok(TOPIC, found).because(
        "With fewer than 4 cores an idle engine sleeps, because spinning would take a core from its clients. \
         A call that wakes the engine takes about 12 us, a call to a spinning engine less than 1 us.",
    )
}

fn governor(case: &Case) -> Option<Finding> {
    const TOPIC: &str = "cpu_governor";
    let cpus = case.files.names(CPUS);
    let governor = |cpu: &String| case.files.text(&format!("{CPUS}/{cpu}/cpufreq/scaling_governor"));
    let governors: BTreeSet<String> = cpus.iter().filter_map(governor).collect();
    if governors.is_empty() {
        return Some(Finding::ok(TOPIC, "none here: the clock is not this system's to set"));
    }
    let names = governors.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    if names == "performance" {
        return Some(Finding::ok(TOPIC, names));
    }
    let why =
        "A core that was idle starts at a low clock, and a transfer is over before the clock has come up.";
    let files = format!("{CPUS}/cpu*/cpufreq/scaling_governor");
    let command = case.shell.write("performance", &format!("{files} > /dev/null"));
    Some(Finding::advice(TOPIC, names, why).mend("full clock, until the next boot", command))
}

/// Check of what a core of a virtual machine does when it is idle. Nothing is found on other machines.
fn idle(case: &Case) -> Option<Finding> {
    let governor = case.files.text(&format!("{CPUS}/cpuidle/current_governor"))?;
    let nanoseconds = case.files.text(HALT_POLL_NS).filter(|_| governor == "haltpoll")?;
    let finding = judge_idle(&nanoseconds);
    if finding.why.is_empty() {
        return Some(finding);
    }
    let command = case.shell.write(USUAL_HALT_POLL_NS, HALT_POLL_NS);
    Some(finding.mend("cores that look for work before they halt, until the next boot", command))
}

fn judge_idle(nanoseconds: &str) -> Finding {
    const TOPIC: &str = "cpu_idle";
    if nanoseconds != "0" {
        return Finding::ok(TOPIC, format!("a core looks for work for {nanoseconds} ns before it halts"));
    }
    let why = "A halted core of a virtual machine takes up to 50 us to wake up, \
               and a small get from another host has four such wake-ups.";
    Finding::advice(TOPIC, "a core without work halts at once", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_that_halt_at_once_are_told() {
        assert!(judge_idle("200000").why.is_empty());
        assert!(!judge_idle("0").why.is_empty());
    }

    #[test]
    fn few_cores_are_explained() {
        assert!(judge_cores(8, 8).why.is_empty());
        assert!(!judge_cores(2, 2).why.is_empty());
        let limited = judge_cores(64, 2);
        assert!(limited.found.contains("64") && limited.found.contains("2 usable"), "{}", limited.found);
        assert!(!limited.why.is_empty());
    }
}
