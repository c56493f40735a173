//! Checks of RDMA over Ethernet (RoCE): the addresses for connections, and the size of packets.
//!
//! Owns no state. Main thread.

use std::net::{IpAddr, Ipv6Addr};

use super::Case;
use super::finding::Finding;
use super::network::Port;

/// Largest size in bytes of the headers of a packet: RDMA, UDP and IP.
const HEADER_BYTES: u64 = 96;
/// Possible payload sizes of packets in bytes, largest first.
const PAYLOAD_BYTES: [u64; 5] = [4096, 2048, 1024, 512, 256];

/// Checks a port that is active.
pub(super) fn check(case: &Case, port: &Port) -> Vec<Finding> {
    if port.link != "Ethernet" {
        return Vec::new();
    }
    [Some(address(case, port)), packets(case, port)].into_iter().flatten().collect()
}

/// IP addresses of a port, each with its version of RoCE.
pub(super) fn addresses(case: &Case, port: &Port) -> Vec<(IpAddr, String)> {
    let folder = port.folder();
    let address = |number: String| {
        let gid: Ipv6Addr = case.files.text(&format!("{folder}/gids/{number}"))?.parse().ok()?;
        let kind = case.files.text(&format!("{folder}/gid_attrs/types/{number}")).unwrap_or_default();
        let ip = gid.to_ipv4_mapped().map_or(IpAddr::V6(gid), IpAddr::V4);
        // Every port has a link-local address, at which no node listens.
        let local = gid.segments()[0] & 0xffc0 == 0xfe80;
        (!gid.is_unspecified() && !local).then_some((ip, kind))
    };
    case.files.names(&format!("{folder}/gids")).into_iter().filter_map(address).collect()
}

fn address(case: &Case, port: &Port) -> Finding {
    const TOPIC: &str = "rdma_address";
    let device = &port.device;
    let interface = port.interface.as_deref().unwrap_or("its interface");
    let addresses = addresses(case, port);
    if addresses.is_empty() {
        let why = "Connections over RDMA are made by IP address: without one, libfabric does not offer the \
                   device, and nodes talk over TCP.";
        return Finding::problem(TOPIC, format!("{device} has no IP address"), why).mend(
            format!("give {interface} an address of its network"),
            case.shell.root(&format!("ip address add ADDRESS/24 dev {interface}")),
        );
    }
    let list: Vec<_> = addresses.iter().map(|(ip, kind)| format!("{ip} ({kind})")).collect();
    let found = format!("{device} is at {}: a node that listens there uses it", list.join(", "));
    if addresses.iter().all(|(_, kind)| kind.contains("v1")) {
        let why = "The device supports only RoCE v1, which is not routed, and for which many switches have \
                   no congestion control.";
        return Finding::advice(TOPIC, found, why);
    }
    Finding::ok(TOPIC, found)
}

fn packets(case: &Case, port: &Port) -> Option<Finding> {
    const TOPIC: &str = "rdma_mtu";
    let interface = port.interface.as_deref()?;
    let mtu = case.files.number(&format!("/sys/class/net/{interface}/mtu"))?;
    let carried = PAYLOAD_BYTES.into_iter().find(|size| size + HEADER_BYTES <= mtu)?;
    let found = format!("packets of {} carry {carried} bytes (MTU {mtu} of {interface})", port.device);
    if carried == PAYLOAD_BYTES[0] {
        return Some(Finding::ok(TOPIC, found));
    }
    let why = format!(
        "They can carry {}, so that fewer packets are needed, if all hosts and the switches between them \
         accept frames of that size.",
        PAYLOAD_BYTES[0]
    );
    let command = case.shell.root(&format!("ip link set {interface} mtu 9000"));
    Some(Finding::advice(TOPIC, found, why).mend("on every host, until the next boot", command))
}
