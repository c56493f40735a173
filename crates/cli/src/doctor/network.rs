//! Checks of RDMA devices, and of their use by the node.
//!
//! Owns no state. Main thread.

use std::net::IpAddr;

use plasmon::status::Status;
use rustix::fs::{Access, access};

use super::finding::Finding;
use super::{Case, roce};

const DEVICES: &str = "/sys/class/infiniband";

/// Checks the RDMA devices, the first active port, and whether the node uses that port.
pub(super) fn check(case: &Case) -> Vec<Finding> {
    let ports: Vec<Port> = case.files.names(DEVICES).iter().flat_map(|name| ports(case, name)).collect();
    let mut findings = vec![devices(case, &ports)];
    let active = ports.iter().find(|port| port.is_active());
    findings.extend(active.and_then(|port| device_file(case, &port.device)));
    findings.extend(active.into_iter().flat_map(|port| roce::check(case, port)));
    if let (Some(node), Some(port)) = (&case.node, active) {
        findings.push(provider(case, node, port));
    }
    findings
}

/// Port of an RDMA device.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) device: String,
    pub(super) number: String,
    /// State of the port, such as ACTIVE, INIT or DOWN.
    state: String,
    /// Rate of the port, such as `100 Gb/sec (4X EDR)`.
    rate: String,
    /// Link layer of the port: InfiniBand, or Ethernet for RoCE and iWARP.
    pub(super) link: String,
    /// Network interface of an Ethernet port.
    pub(super) interface: Option<String>,
}

impl Port {
    /// Folder of the port's files in the kernel.
    pub(super) fn folder(&self) -> String {
        format!("{DEVICES}/{}/ports/{}", self.device, self.number)
    }

    fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

fn ports(case: &Case, device: &str) -> Vec<Port> {
    let folder = format!("{DEVICES}/{device}/ports");
    let port = |number: String| {
        let text = |file| case.files.text(&format!("{folder}/{number}/{file}")).unwrap_or_default();
        // `4: ACTIVE`
        let state = text("state");
        let state = state.split_once(": ").map_or(state.as_str(), |(_, name)| name);
        let interface = text("gid_attrs/ndevs/0");
        Port {
            device: device.to_owned(),
            state: if state.is_empty() { "unknown".to_owned() } else { state.to_owned() },
            rate: text("rate"),
            link: text("link_layer"),
            interface: Some(interface).filter(|interface| !interface.is_empty()),
            number,
        }
    };
    case.files.names(&folder).into_iter().map(port).collect()
}

fn devices(case: &Case, ports: &[Port]) -> Finding {
    const TOPIC: &str = "rdma";
    if ports.is_empty() {
        let why = "Nodes talk over TCP then. If the host has such a card, its driver is not loaded.";
        return Finding::ok(TOPIC, "no device").because(why);
    }
    let describe = |port: &Port| {
        format!("{} port {} is {} ({}, {})", port.device, port.number, port.state, port.link, port.rate)
    };
    let found = ports.iter().map(describe).collect::<Vec<_>>().join("; ");
    if ports.iter().any(Port::is_active) {
        return Finding::ok(TOPIC, found);
    }
    let why = "None is ACTIVE, so nodes talk over TCP: their processors copy every byte, and each transfer \
               waits for the other host's.";
    let mut finding = Finding::problem(TOPIC, found, why);
    for port in ports {
        finding = match (&port.interface, port.state.as_str(), port.link.as_str()) {
            (Some(interface), _, _) => {
                let what = format!("bring {}'s interface up, and look at its cable", port.device);
                finding.mend(what, case.shell.root(&format!("ip link set {interface} up")))
            }
            (None, "INIT", "InfiniBand") => {
                let what = format!("{} waits for a subnet manager: on one host of the network", port.device);
                finding.mend(what, case.shell.root("systemctl enable --now opensm"))
            }
            _ => {
                finding.mend(format!("see what {} waits for", port.device), format!("ibstat {}", port.device))
            }
        };
    }
    finding
}

/// Checks the file in /dev through which a process uses an RDMA device.
fn device_file(case: &Case, device: &str) -> Option<Finding> {
    const TOPIC: &str = "rdma_access";
    const CLASS: &str = "/sys/class/infiniband_verbs";
    let of_device =
        |name: &String| case.files.text(&format!("{CLASS}/{name}/ibdev")).as_deref() == Some(device);
    let why = "Without it the node cannot use the device and talks over TCP.";
    let Some(name) = case.files.names(CLASS).into_iter().find(of_device) else {
        let found = format!("no file in /dev leads to {device}");
        return Some(
            Finding::problem(TOPIC, found, why)
                .mend("load the kernel's part", case.shell.root("modprobe ib_uverbs"))
                .mend("and the libraries'", case.shell.root("apt install rdma-core ibverbs-providers")),
        );
    };
    let file = format!("/dev/infiniband/{name}");
    let path = case.files.path(&file);
    if access(&path, Access::READ_OK | Access::WRITE_OK).is_ok() {
        return Some(Finding::ok(TOPIC, format!("{file} is open to this user")));
    }
    let found = format!("{file} is not open to this user");
    Some(if path.exists() {
        Finding::problem(TOPIC, found, why).mend(
            "let all users of the host in, until the next boot",
            case.shell.root(&format!("chmod 666 {file}")),
        )
    } else {
        Finding::problem(TOPIC, format!("{file} is missing"), why)
            .mend("in a container: pass it on", format!("docker run --device {file} --ulimit memlock=-1 ..."))
    })
}

/// Checks whether the node uses RDMA on a host that has it.
fn provider(case: &Case, node: &Status, port: &Port) -> Finding {
    const TOPIC: &str = "provider";
    let fabric = &node.fabric;
    let found = format!("the node talks over {} ({})", fabric.provider, fabric.reason);
    if !fabric.provider.starts_with("tcp") {
        return Finding::ok(TOPIC, found);
    }
    let host = node.listen.rsplit_once(':').map_or(node.listen.as_str(), |(host, _)| host);
    if matches!(host.trim_matches(['[', ']']), "localhost" | "::1") || host.starts_with("127.") {
        return Finding::ok(TOPIC, found)
            .because("It listens on this host alone, where nobody needs the network.");
    }
    let why = format!(
        "{} is ACTIVE ({}), and the processors of both hosts copy every byte instead.",
        port.device, port.rate
    );
    let name = port.interface.as_deref().unwrap_or("IP over InfiniBand");
    let address = roce::addresses(case, port).first().map_or("ADDRESS".to_owned(), |(ip, _)| match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    });
    Finding::problem(TOPIC, found, why)
        .mend("see whether libfabric finds the device", "fi_info -p verbs")
        .mend(
            "if it does not",
            case.shell.root("apt install libfabric-bin rdma-core ibverbs-providers librdmacm1"),
        )
        .mend(
            format!("{}, listening at an address of {}'s interface ({name})", case.restart(), port.device),
            format!(
                "plasmon serve --memory {}MiB --listen {address}:4740 --provider verbs",
                case.memory >> 20
            ),
        )
}
