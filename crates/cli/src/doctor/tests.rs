//! Tests of the checks, on the files of different hosts.

use std::fs;

use plasmon::status::{FabricStatus, FunctionsStatus, MemoryStatus, NumaStatus, RegionsStatus};
use tempfile::TempDir;

use super::*;

const GIB: u64 = 1 << 30;

const MEMINFO: &str = "\
MemTotal:       24731708 kB
MemFree:        11935176 kB
MemAvailable:   22884356 kB
SwapTotal:             0 kB
Shmem:            533624 kB
CommitLimit:    12365852 kB
Committed_AS:    1103140 kB
ShmemHugePages:        0 kB
HugePages_Total:       0
Hugepagesize:       2048 kB
";

const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     
Max open files            1024                 1048576              files     
Max locked memory         8388608              8388608              bytes     
";

const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// Host made of files.
struct Host {
    root: TempDir,
    case: Case,
}

impl Host {
    /// Small virtual machine without special devices, for a node of 4 GiB.
    fn plain() -> Self {
        let root = tempfile::tempdir().expect("a folder can be made");
        let case = Case {
            files: Files::under(root.path()),
            shell: Shell { root: true },
            memory: 4 * GIB,
            spill: None,
            node: None,
        };
        Self { root, case }
            .with("/proc/meminfo", MEMINFO)
            .with("/proc/self/limits", LIMITS)
            .with("/proc/self/status", "Name:\tplasmon\nCapEff:\t0000000000000000\nMems_allowed_list:\t0-1\n")
            .with("/proc/self/cgroup", "0::/user.slice\n")
            .with("/proc/sys/vm/overcommit_memory", "0\n")
            .with("/proc/sys/vm/max_map_count", "65530\n")
            .with("/proc/sys/vm/swappiness", "60\n")
            .with(SHMEM_ENABLED, "always within_size advise [never] deny force\n")
            .with("/sys/devices/system/node/online", "0\n")
            .with("/sys/devices/system/cpu/online", "0-1\n")
            .pool(0, 0, 0)
    }

    fn with(self, path: &str, text: &str) -> Self {
        let path = self.root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("the folder is ours");
        fs::write(path, text).expect("the folder is ours");
        self
    }

    fn pool(self, total: u64, free: u64, promised: u64) -> Self {
        self.with(&format!("{POOL}/nr_hugepages"), &format!("{total}\n"))
            .with(&format!("{POOL}/free_hugepages"), &format!("{free}\n"))
            .with(&format!("{POOL}/resv_hugepages"), &format!("{promised}\n"))
    }

    /// Replaces a line of /proc/meminfo.
    fn meminfo(self, key: &str, kib: u64) -> Self {
        let line = |line: &str| match line.split_once(':') {
            Some((name, _)) if name == key => format!("{key}: {kib} kB\n"),
            _ => format!("{line}\n"),
        };
        let text: String = MEMINFO.lines().map(line).collect();
        self.with("/proc/meminfo", &text)
    }

    /// Adds an InfiniBand card with one port.
    fn card(self, state: &str) -> Self {
        let port = "/sys/class/infiniband/mlx5_0/ports/1";
        self.with(&format!("{port}/state"), &format!("{state}\n"))
            .with(&format!("{port}/rate"), "100 Gb/sec (4X EDR)\n")
            .with(&format!("{port}/link_layer"), "InfiniBand\n")
            .with("/sys/class/infiniband/mlx5_0/device/numa_node", "1\n")
            .with("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n")
            .with("/dev/infiniband/uverbs0", "")
    }

    /// Adds a running node of 4 GiB.
    fn node(mut self, pages: &str, provider: &str, listen: &str) -> Self {
        let memory = MemoryStatus {
            capacity: 4 * GIB,
            prefaulted: 4 * GIB,
            pages: pages.into(),
            ..Default::default()
        };
        let fabric =
            FabricStatus { provider: provider.into(), reason: "for a reason".into(), ..Default::default() };
        self.case.node =
            Some(Status { pid: 77, listen: listen.into(), memory, fabric, ..Default::default() });
        self.with("/proc/77/comm", "plasmon-node\n")
            .with("/proc/77/cmdline", "plasmon-node\0serve\0--socket\0/s\0")
            .with(
                "/proc/77/limits",
                "Max open files  1024  100  files\nMax locked memory  1  unlimited  bytes\n",
            )
    }

    fn findings(&self) -> Vec<Finding> {
        examine(&self.case, &Answer::Nobody("/nowhere".into()))
    }

    /// Only finding on a topic.
    fn finding(&self, topic: &str) -> Finding {
        let mut found: Vec<_> =
            self.findings().into_iter().filter(|finding| finding.topic == topic).collect();
        assert_eq!(found.len(), 1, "{topic}");
        found.remove(0)
    }

    fn severity(&self, topic: &str) -> Severity {
        self.finding(topic).severity
    }
}

/// Commands of a finding, a line each.
fn commands(finding: &Finding) -> String {
    finding.mend.iter().map(|step| format!("{}\n", step.command)).collect()
}

#[test]
fn whatever_is_wrong_can_be_mended_and_is_explained() {
    let hosts = [
        Host::plain(),
        Host::plain().card("4: ACTIVE"),
        Host::plain().card("1: DOWN").meminfo("SwapTotal", 1 << 20),
        Host::plain().meminfo("MemAvailable", 1 << 20).node("base", "tcp;ofi_rxm", "10.0.0.1:4740"),
    ];
    for finding in hosts.iter().flat_map(Host::findings) {
        assert!(!finding.found.is_empty(), "{finding:?}");
        if finding.severity > Severity::Ok {
            assert!(!finding.why.is_empty(), "{finding:?}");
        } else {
            assert!(finding.mend.is_empty(), "{finding:?}");
        }
        if finding.severity == Severity::Problem {
            assert!(!finding.mend.is_empty(), "{finding:?}");
        }
    }
}

#[test]
fn a_plain_host_has_no_problem() {
    let bad: Vec<_> =
        Host::plain().findings().into_iter().filter(|found| found.severity == Severity::Problem).collect();
    assert!(bad.is_empty(), "{bad:?}");
}

#[test]
fn a_pool_of_huge_pages_suffices_or_grows_by_what_is_missing() {
    assert_eq!(Host::plain().pool(2048, 2048, 0).severity("huge_pages"), Severity::Ok);
    // Other programs have 500 pages, and 100 are promised.
    let short = Host::plain().pool(2500, 2000, 100).finding("huge_pages");
    assert_eq!(short.severity, Severity::Advice);
    assert!(commands(&short).starts_with("sysctl -w vm.nr_hugepages=2648\n"), "{short:?}");
    // The node wants more than there is memory for.
    let beyond = Host::plain().meminfo("MemAvailable", 2 << 20).pool(10, 0, 0).finding("huge_pages");
    assert_eq!(beyond.severity, Severity::Advice);
    assert!(commands(&beyond).is_empty(), "{beyond:?}");
}

#[test]
fn huge_pages_that_a_container_may_not_have_do_not_suffice() {
    let limited = |bytes: u64| {
        let host = Host::plain().pool(2048, 2048, 0);
        host.with("/proc/self/mountinfo", "34 24 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
            .with("/sys/fs/cgroup/user.slice/hugetlb.2MB.max", &format!("{bytes}\n"))
            .with("/sys/fs/cgroup/user.slice/hugetlb.2MB.current", "0\n")
    };
    assert_eq!(limited(4 * GIB).severity("huge_pages"), Severity::Ok);
    let forbidden = limited(0).finding("huge_pages");
    assert_eq!(forbidden.severity, Severity::Advice);
    assert!(forbidden.found.contains("/sys/fs/cgroup/user.slice/hugetlb.2MB.max"), "{forbidden:?}");
    // The arena then takes memory that others could have.
    assert_eq!(limited(0).meminfo("MemAvailable", 1 << 20).severity("memory"), Severity::Problem);
}

#[test]
fn what_a_running_node_has_counts_as_its_own() {
    let node = |pages| Host::plain().node(pages, "tcp;ofi_rxm", "127.0.0.1:1");
    assert_eq!(node("huge").pool(2048, 0, 0).severity("huge_pages"), Severity::Ok);
    let started_too_early = node("base").pool(2048, 2048, 0).finding("huge_pages");
    assert_eq!(started_too_early.severity, Severity::Advice);
    assert_eq!(commands(&started_too_early), "plasmon serve --memory 4096MiB --socket /s\n");
    // The node's base pages are not available any more, and need not be.
    assert_eq!(node("base").meminfo("MemAvailable", 1 << 20).severity("memory"), Severity::Ok);
}

#[test]
fn the_kernel_may_give_huge_pages_of_its_own_accord() {
    assert_eq!(Host::plain().severity("transparent_huge_pages"), Severity::Advice);
    let given = || Host::plain().with(SHMEM_ENABLED, "always [within_size] advise never deny force\n");
    assert_eq!(given().severity("transparent_huge_pages"), Severity::Ok);
    assert_eq!(given().severity("huge_pages"), Severity::Ok);
    // A node that started before has no huge pages.
    let node = given().node("base", "tcp;ofi_rxm", "127.0.0.1:1");
    assert_eq!(node.severity("transparent_huge_pages"), Severity::Advice);
    let node = node.meminfo("ShmemHugePages", 4 << 20);
    assert_eq!(node.severity("transparent_huge_pages"), Severity::Ok);
    // A newer kernel is asked for huge pages, unless the setting is deny.
    let asked = |setting| {
        Host::plain().with("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n").with(SHMEM_ENABLED, setting)
    };
    assert_eq!(asked("always [never] deny force\n").severity("transparent_huge_pages"), Severity::Ok);
    assert_eq!(asked("always never [deny] force\n").severity("transparent_huge_pages"), Severity::Advice);
    let older = Host::plain().with("/proc/sys/kernel/osrelease", "5.15.0-91-generic\n");
    assert_eq!(older.severity("transparent_huge_pages"), Severity::Advice);
    let unneeded = Host::plain().pool(2048, 2048, 0);
    assert_eq!(unneeded.severity("transparent_huge_pages"), Severity::Ok);
}

#[test]
fn memory_has_to_be_there() {
    assert_eq!(Host::plain().severity("memory"), Severity::Ok);
    let little = Host::plain().meminfo("MemAvailable", 3 << 20).finding("memory");
    assert_eq!(little.severity, Severity::Problem);
    assert_eq!(commands(&little), "plasmon serve --memory 3072MiB\n");
    let mut nearly_all = Host::plain();
    nearly_all.case.memory = 22 * GIB;
    nearly_all = nearly_all.meminfo("MemAvailable", 24 << 20);
    assert_eq!(nearly_all.severity("memory"), Severity::Advice);
    let set_aside = Host::plain().meminfo("MemAvailable", 3 << 20).pool(2048, 2048, 0);
    assert_eq!(set_aside.severity("memory"), Severity::Ok);
}

#[test]
fn limits_of_containers_are_found_at_any_level() {
    let found = |host: Host| {
        host.findings()
            .into_iter()
            .find(|found| found.topic == "container_memory")
            .map(|found| found.severity)
    };
    assert_eq!(found(Host::plain()), None);
    let unified = || {
        let mounts = "34 24 0:29 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        Host::plain().with("/proc/self/mountinfo", mounts)
    };
    let unlimited = unified().with("/sys/fs/cgroup/user.slice/memory.max", "max\n");
    assert_eq!(found(unlimited), None);
    let above = |limit: u64| {
        unified()
            .with("/proc/self/cgroup", "0::/a.slice/b.service\n")
            .with("/sys/fs/cgroup/a.slice/memory.max", &format!("{limit}\n"))
            .with("/sys/fs/cgroup/a.slice/b.service/memory.max", "max\n")
    };
    assert_eq!(found(above(4 * GIB)), Some(Severity::Problem));
    assert_eq!(found(above(4 * GIB + (128 << 20))), Some(Severity::Advice));
    assert_eq!(found(above(5 * GIB)), Some(Severity::Ok));
    let shared = above(5 * GIB).with("/sys/fs/cgroup/a.slice/memory.stat", "anon 1073741824\nshmem 0\n");
    assert_eq!(found(shared), Some(Severity::Problem));
    // The node's own use of the limit is for its objects.
    let node = above(5 * GIB)
        .node("base", "tcp;ofi_rxm", "127.0.0.1:1")
        .with("/proc/77/cgroup", "0::/a.slice/b.service\n")
        .with("/proc/77/mountinfo", "34 24 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        .with("/sys/fs/cgroup/a.slice/memory.stat", "anon 1048576\nshmem 4294967296\n");
    assert_eq!(found(node), Some(Severity::Ok));
    let inside =
        unified().with("/proc/self/cgroup", "0::/\n").with("/sys/fs/cgroup/memory.max", "8589934592\n");
    assert_eq!(found(inside), Some(Severity::Ok));
    let former = Host::plain()
        .with("/proc/self/cgroup", "9:name=systemd:/\n4:memory:/docker/1\n1:cpu:/\n")
        .with("/proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
        .with("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
        .with("/sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "1073741824\n");
    assert_eq!(found(former), Some(Severity::Problem));
}

#[test]
fn strict_accounting_is_a_problem_where_it_is_too_strict() {
    let strict = |kib| {
        Host::plain()
            .with("/proc/sys/vm/overcommit_memory", "2\n")
            .meminfo("CommitLimit", kib)
            .severity("overcommit")
    };
    assert_eq!(strict(20 << 20), Severity::Ok);
    assert_eq!(strict(5 << 20), Severity::Problem);
}

#[test]
fn swap_is_for_others() {
    let swap = || Host::plain().meminfo("SwapTotal", 8 << 20);
    assert_eq!(swap().severity("swap"), Severity::Advice);
    assert_eq!(swap().with("/proc/sys/vm/swappiness", "1\n").severity("swap"), Severity::Ok);
    assert_eq!(swap().pool(2048, 2048, 0).severity("swap"), Severity::Ok);
}

#[test]
fn the_limits_of_the_node_go_before_those_of_the_shell() {
    assert_eq!(Host::plain().severity("open_files"), Severity::Ok);
    let node = Host::plain().node("base", "tcp;ofi_rxm", "127.0.0.1:1");
    assert_eq!(node.severity("open_files"), Severity::Problem);
    // The process id belongs to another process here.
    let elsewhere = node.with("/proc/77/comm", "bash\n");
    assert_eq!(elsewhere.severity("open_files"), Severity::Ok);
}

#[test]
fn locked_memory_matters_to_rdma_alone() {
    assert_eq!(Host::plain().severity("locked_memory"), Severity::Ok);
    let card = || Host::plain().card("4: ACTIVE");
    assert_eq!(card().severity("locked_memory"), Severity::Problem);
    let exempt = card().with("/proc/self/status", "CapEff:\t000001fffeffffff\n");
    assert_eq!(exempt.severity("locked_memory"), Severity::Ok);
    let unlimited = card().with("/proc/self/limits", "Max locked memory  unlimited  unlimited  bytes\n");
    assert_eq!(unlimited.severity("locked_memory"), Severity::Ok);
}

#[test]
fn a_card_has_to_be_active_reachable_and_used() {
    assert_eq!(Host::plain().severity("rdma"), Severity::Ok);
    let card = || Host::plain().card("4: ACTIVE");
    let active = card().finding("rdma");
    assert_eq!(active.severity, Severity::Ok);
    assert!(active.found.contains("mlx5_0 port 1 is ACTIVE (InfiniBand, 100 Gb/sec (4X EDR))"), "{active:?}");
    assert_eq!(card().severity("rdma_access"), Severity::Ok);

    let down = Host::plain().card("1: DOWN").finding("rdma");
    assert_eq!((down.severity, commands(&down).as_str()), (Severity::Problem, "ibstat mlx5_0\n"));
    let alone = Host::plain().card("2: INIT").finding("rdma");
    assert!(commands(&alone).contains("opensm"), "{alone:?}");
    let roce = Host::plain()
        .card("1: DOWN")
        .with("/sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n")
        .with("/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth4\n")
        .finding("rdma");
    assert_eq!(commands(&roce), "ip link set eth4 up\n");

    let hidden = card();
    fs::remove_file(hidden.root.path().join("dev/infiniband/uverbs0")).expect("it is there");
    assert_eq!(hidden.severity("rdma_access"), Severity::Problem);
    fs::remove_dir_all(hidden.root.path().join("sys/class/infiniband_verbs")).expect("it is there");
    assert_eq!(hidden.severity("rdma_access"), Severity::Problem);

    let node = |provider, listen| card().node("base", provider, listen).severity("provider");
    assert_eq!(node("verbs;ofi_rxm", "10.0.0.1:4740"), Severity::Ok);
    assert_eq!(node("tcp;ofi_rxm", "10.0.0.1:4740"), Severity::Problem);
    assert_eq!(node("tcp;ofi_rxm", "127.0.0.1:4740"), Severity::Ok);
    assert_eq!(node("tcp;ofi_rxm", "[::1]:4740"), Severity::Ok);
}

/// Host with two memory nodes.
fn two_nodes(host: Host) -> Host {
    let meminfo = "Node 0 MemTotal:        8388608 kB\nNode 0 MemFree:         1048576 kB\n";
    let nodes = "/sys/devices/system/node";
    host.with(&format!("{nodes}/online"), "0-1\n")
        .with(&format!("{nodes}/node0/cpulist"), "0-3\n")
        .with(&format!("{nodes}/node0/meminfo"), meminfo)
        .with(&format!("{nodes}/node1/cpulist"), "4-7\n")
}

#[test]
fn memory_nodes_and_cards_are_shown() {
    let one = Host::plain().with("/sys/devices/system/node/node0/cpulist", "0-1\n").finding("numa");
    assert!(one.severity == Severity::Ok && one.found.starts_with("one memory node"), "{one:?}");
    let host = two_nodes(Host::plain().card("4: ACTIVE"))
        .with("/sys/class/net/eth0/device/numa_node", "0\n")
        .with("/sys/class/net/eth1/device/numa_node", "-1\n");
    let found = host.finding("numa");
    for word in ["node0 (CPUs 0-3; 8.0 GiB of memory, 1.0 GiB free)", "node1 (CPUs 4-7)"] {
        assert!(found.found.contains(word), "{found:?}");
    }
    assert!(found.found.contains("mlx5_0 is at node1, eth0 is at node0"), "{found:?}");
    assert!(!found.found.contains("eth1"), "{found:?}");
    assert_eq!(found.severity, Severity::Ok, "a node binds itself: {found:?}");
}

#[test]
fn roce_takes_an_address_and_large_packets() {
    let port = "/sys/class/infiniband/rxe0/ports/1";
    let card = |mtu: &str| {
        Host::plain()
            .with(&format!("{port}/state"), "4: ACTIVE\n")
            .with(&format!("{port}/link_layer"), "Ethernet\n")
            .with(&format!("{port}/gids/0"), "fe80:0000:0000:0000:5054:00ff:fe77:0001\n")
            .with(&format!("{port}/gid_attrs/types/0"), "RoCE v2\n")
            .with(&format!("{port}/gid_attrs/ndevs/0"), "eth4\n")
            .with(&format!("{port}/gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000\n")
            .with("/sys/class/net/eth4/mtu", mtu)
    };
    let nowhere = card("9000\n").finding("rdma_address");
    assert_eq!(nowhere.severity, Severity::Problem);
    assert_eq!(commands(&nowhere), "ip address add ADDRESS/24 dev eth4\n");

    let address = |kind: &str| {
        card("9000\n")
            .with(&format!("{port}/gids/2"), "0000:0000:0000:0000:0000:ffff:0a4d:0001\n")
            .with(&format!("{port}/gid_attrs/types/2"), kind)
    };
    let there = address("RoCE v2\n").finding("rdma_address");
    assert_eq!(there.severity, Severity::Ok);
    assert!(there.found.contains("10.77.0.1 (RoCE v2)"), "{there:?}");
    assert_eq!(address("IB/RoCE v1\n").severity("rdma_address"), Severity::Advice);
    // The node listens elsewhere: the finding tells where to listen.
    let elsewhere = address("RoCE v2\n").node("base", "tcp;ofi_rxm", "10.0.0.1:4740").finding("provider");
    assert!(commands(&elsewhere).contains("--listen 10.77.0.1:4740"), "{elsewhere:?}");

    assert_eq!(card("9000\n").severity("rdma_mtu"), Severity::Ok);
    assert_eq!(card("4192\n").severity("rdma_mtu"), Severity::Ok);
    let small = card("1500\n").finding("rdma_mtu");
    assert_eq!(
        (small.severity, commands(&small).as_str()),
        (Severity::Advice, "ip link set eth4 mtu 9000\n")
    );
    assert!(small.found.contains("carry 1024 bytes"), "{small:?}");
}

#[test]
fn memory_belongs_near_the_card() {
    let numa = |node, card, elsewhere| {
        let mut host = two_nodes(Host::plain()).node("base", "verbs;ofi_rxm", "10.0.0.1:4740");
        let status = host.case.node.as_mut().expect("it runs");
        status.fabric.interface = "mlx5_0".into();
        status.numa = NumaStatus { nodes: 2, node, card, elsewhere, ..Default::default() };
        host
    };
    for (node, card) in [(Some(1), Some(1)), (Some(0), None), (None, None)] {
        assert_eq!(numa(node, card, 0).severity("numa"), Severity::Ok, "{node:?} {card:?}");
    }
    let near = numa(Some(1), Some(1), 0).finding("numa").found;
    assert!(near.contains("bound to node1, where mlx5_0 is"), "{near}");
    for (node, card) in [(Some(0), Some(1)), (None, Some(1))] {
        let far = numa(node, card, 0)
            .with("/proc/77/cmdline", "plasmon-node\0serve\0--numa\0off\0")
            .finding("numa");
        assert_eq!(far.severity, Severity::Advice);
        assert!(commands(&far).contains("plasmon serve --memory 4096MiB --numa auto"), "{far:?}");
    }
    let spread = numa(Some(1), Some(1), GIB).finding("numa");
    assert!(spread.severity == Severity::Advice && spread.found.contains("1.0 GiB"), "{spread:?}");
    let confined = numa(None, Some(1), 0).with("/proc/77/status", "Mems_allowed_list:\t1\n");
    assert_eq!(confined.severity("numa"), Severity::Ok);
}

#[test]
fn huge_pages_belong_near_the_card() {
    let there = format!("/sys/devices/system/node/node1/{}", "hugepages/hugepages-2048kB");
    let host = |pages: u64| {
        two_nodes(Host::plain().card("4: ACTIVE").pool(3000, 3000, 0))
            .with(&format!("{there}/free_hugepages"), &format!("{pages}\n"))
            .with(&format!("{there}/nr_hugepages"), &format!("{pages}\n"))
    };
    assert_eq!(host(2048).severity("numa"), Severity::Ok);
    let few = host(1500).finding("numa");
    assert_eq!(few.severity, Severity::Advice);
    assert_eq!(commands(&few), format!("echo '2048' | tee {there}/nr_hugepages\n"));
}

#[test]
fn a_slow_clock_is_noticed() {
    let governor = |one: &str, two: &str| {
        Host::plain()
            .with("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", one)
            .with("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", two)
            .severity("cpu_governor")
    };
    assert_eq!(Host::plain().severity("cpu_governor"), Severity::Ok);
    assert_eq!(governor("performance\n", "performance\n"), Severity::Ok);
    assert_eq!(governor("performance\n", "powersave\n"), Severity::Advice);
}

#[test]
fn few_mappings_are_noticed() {
    let host = Host::plain().with("/proc/sys/vm/max_map_count", "4096\n");
    assert_eq!(host.severity("memory_maps"), Severity::Advice);
    let host = with_tier(RegionsStatus { in_pieces: 1, ..regions() }, FunctionsStatus::default());
    assert_eq!(host.severity("memory_maps"), Severity::Ok);
    let host = host.with("/proc/sys/vm/max_map_count", "20000\n");
    assert_eq!(host.severity("memory_maps"), Severity::Advice);
    let without = Host::plain().with("/proc/sys/vm/max_map_count", "20000\n");
    assert_eq!(without.severity("memory_maps"), Severity::Ok);
}

fn regions() -> RegionsStatus {
    RegionsStatus { regions: 7, bytes: GIB, limit: 2 * GIB, ..Default::default() }
}

/// A host whose node has regions and services.
fn with_tier(regions: RegionsStatus, functions: FunctionsStatus) -> Host {
    let mut host = Host::plain().node("base", "tcp;ofi_rxm", "10.0.0.1:4740");
    let node = host.case.node.as_mut().expect("it was made");
    (node.regions, node.functions) = (regions, functions);
    host
}

#[test]
fn regions_and_calls_need_room() {
    let topics = ["region_memory", "region_mapping", "services"];
    let found = |regions: RegionsStatus, functions: FunctionsStatus| {
        topics.map(|topic| with_tier(regions.clone(), functions.clone()).severity(topic))
    };
    let functions = || FunctionsStatus { ports: 2, waiting: 1024, ..Default::default() };
    assert_eq!(found(regions(), functions()), [Severity::Ok; 3]);
    let full = || RegionsStatus { bytes: 2 * GIB - 1, ..regions() };
    let out = || RegionsStatus { crowded_out: 3, in_pieces: 9, ..regions() };
    let busy = || FunctionsStatus { waiting: 1025, ..functions() };
    assert_eq!(found(full(), functions()), [Severity::Advice, Severity::Ok, Severity::Ok]);
    assert_eq!(found(out(), functions()), [Severity::Ok, Severity::Advice, Severity::Ok]);
    assert_eq!(found(regions(), busy()), [Severity::Ok, Severity::Ok, Severity::Advice]);
    let host = with_tier(out(), functions());
    assert_eq!(host.finding("region_mapping").found, "3 regions cannot be mapped by processes");
    assert!(commands(&with_tier(full(), functions()).finding("region_memory")).contains("--memory 6144MiB"));
    assert!(!Host::plain().findings().iter().any(|finding| topics.contains(&finding.topic)), "no node");
}

#[test]
fn a_kernel_that_says_nothing_is_no_failure() {
    let root = tempfile::tempdir().expect("a folder can be made");
    let case = Case { files: Files::under(root.path()), ..Host::plain().case };
    let findings = examine(&case, &Answer::Nobody("/nowhere".into()));
    let problems: Vec<_> = findings.iter().filter(|found| found.severity == Severity::Problem).collect();
    assert_eq!(problems.iter().map(|found| found.topic).collect::<Vec<_>>(), ["memory"]);
}

#[test]
fn mounts_take_the_device_and_for_users_the_helper() {
    let without = Host::plain();
    let device = without.finding("fuse");
    assert_eq!((device.severity, commands(&device).as_str()), (Severity::Advice, "modprobe fuse\n"));
    assert_eq!(without.severity("fuse_helper"), Severity::Ok, "root needs none");
    let mut user = Host::plain().with("/dev/fuse", "");
    assert_eq!(user.severity("fuse"), Severity::Ok);
    user.case.shell = Shell { root: false };
    assert_eq!(commands(&user.finding("fuse_helper")), "sudo apt-get install -y fuse3\n");
    let user = user.with("/usr/bin/fusermount3", "").with("/etc/fuse.conf", "# user_allow_other\n");
    let alone = user.finding("fuse_helper");
    assert_eq!(alone.severity, Severity::Ok);
    assert!(alone.found.contains("for themselves"), "{alone:?}");
    let shared = user.with("/etc/fuse.conf", "user_allow_other\n").finding("fuse_helper");
    assert!(shared.found.contains("may share"), "{shared:?}");
}

#[test]
fn requests_and_read_ahead_of_mounts_are_large() {
    const LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
    let any = |topic: &str, host: &Host| host.findings().iter().any(|finding| finding.topic == topic);
    assert!(!any("fuse_requests", &Host::plain()), "older kernels have no such limit");
    assert_eq!(Host::plain().with(LIMIT, "256\n").severity("fuse_requests"), Severity::Ok);
    let small = Host::plain().with(LIMIT, "32\n").finding("fuse_requests");
    assert_eq!(small.severity, Severity::Advice);
    assert!(commands(&small).starts_with("sysctl -w fs.fuse.max_pages_limit=256\n"), "{small:?}");

    let mounted = |kib: &str| {
        Host::plain()
            .with(
                "/proc/self/mountinfo",
                "40 36 0:45 / /mnt/a rw,nosuid - fuse.plasmon main rw\n\
                 41 36 0:46 / /mnt/b rw - fuse.sshfs host rw\n\
                 42 36 0:47 / /mnt/c rw shared:7 - fuse.plasmon other rw\n",
            )
            .with("/sys/class/bdi/0:45/read_ahead_kb", "4096\n")
            .with("/sys/class/bdi/0:46/read_ahead_kb", "1\n")
            .with("/sys/class/bdi/0:47/read_ahead_kb", kib)
    };
    assert_eq!(mounted("4096\n").severity("fuse_read_ahead"), Severity::Ok);
    let little = mounted("128\n").finding("fuse_read_ahead");
    assert_eq!(little.severity, Severity::Advice);
    assert_eq!(commands(&little), "echo '4096' | tee /sys/class/bdi/0:47/read_ahead_kb\n");
    assert!(!any("fuse_read_ahead", &Host::plain()), "nothing is mounted");
}
