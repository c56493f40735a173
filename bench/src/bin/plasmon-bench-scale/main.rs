//! Costs of membership and directory in large clusters. The nodes' own code for shards, publications and
//! directory entries runs with thousands of nodes and up to 10^9 objects. Prints CSV.
//!
//! Nothing is sent: messages and bytes are counted from the frames that nodes would send. Objects are spread
//! evenly over their holders, one primary each. If there are more objects or holders than are gone through, a
//! sample stands for all, and the row says so. The ids are the same in every run, so that all figures except
//! times are the same.
#![forbid(unsafe_code)]

mod directory;
mod events;

use std::env;
use std::time::Duration;

use plasmon::wire::Draw;
use plasmon::{NodeId, ObjectId};
use plasmon_node::simulation::{Frames, Shards, frames, rests, view_len};
use rustix::time::{ClockId, clock_gettime};

use crate::directory::Costs;
use crate::events::{Event, Load};

const NODES: [usize; 9] = [2, 5, 10, 30, 100, 300, 1000, 3000, 10_000];
const OBJECTS: [u64; 4] = [1_000_000, 10_000_000, 100_000_000, 1_000_000_000];
/// Rates in Gbit/s of the links for which the time to heal is computed.
const LINKS: [u32; 3] = [10, 25, 100];

/// Origin of a figure.
#[derive(Clone, Copy)]
pub(crate) enum How {
    /// Everything was counted.
    Counted,
    /// A sample stands for all.
    Sampled,
    /// A time, or memory, measured on this machine.
    Measured,
    /// Computed from other figures of this file.
    Computed,
}

impl How {
    fn name(self) -> &'static str {
        match self {
            Self::Counted => "counted",
            Self::Sampled => "sampled",
            Self::Measured => "measured",
            Self::Computed => "computed",
        }
    }
}

fn row(nodes: usize, objects: u64, measure: &str, value: f64, unit: &str, how: How) {
    println!("{nodes},{objects},\"{measure}\",{value:.6},{unit},{}", how.name());
}

/// Word for every number, the same in every run.
pub(crate) fn word(seed: u64, number: u64) -> u64 {
    Draw::new(seed << 48 ^ number).word()
}

/// Id of the node with this number.
pub(crate) fn node(number: usize) -> NodeId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&word(1, number as u64).to_le_bytes());
    bytes[8..].copy_from_slice(&word(2, number as u64).to_le_bytes());
    NodeId::from_bytes(bytes)
}

/// Id of the object with this number at a holder.
pub(crate) fn object(holder: usize, number: u64) -> ObjectId {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&word(3 + holder as u64, number).to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..].copy_from_slice(&(holder as u32).to_le_bytes());
    ObjectId::from_bytes(bytes)
}

/// CPU time of this thread, which excludes other work of this machine.
pub(crate) fn spent() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Shortest of some times, with the last result.
pub(crate) fn timed<T>(times: usize, mut make: impl FnMut() -> T) -> (T, Duration) {
    let mut once = || {
        let begun = spent();
        let made = make();
        (made, spent() - begun)
    };
    let (mut made, mut best) = once();
    for _ in 1..times {
        let (again, time) = once();
        (made, best) = (again, best.min(time));
    }
    (made, best)
}

fn main() {
    let quick = env::args().any(|argument| argument == "--quick");
    println!("nodes,objects,measure,value,unit,how");
    let frames = frames();
    let costs = Costs::measure(if quick { 50_000 } else { 2_000_000 });
    costs.tell();
    for nodes in NODES.into_iter().filter(|nodes| !quick || *nodes <= 300) {
        let members: Vec<_> = (0..=nodes).map(node).collect();
        let (shards, full) = timed(3, || Shards::new(&members[..nodes]));
        row(nodes, 0, "map made anew", full.as_secs_f64(), "s", How::Measured);
        per_operation(nodes, &frames);
        let events = [Event::join(&shards, &members), Event::death(&shards, &members[..nodes])];
        for event in &events {
            let what = event.name();
            row(nodes, 0, &format!("map after a {what}"), event.map.as_secs_f64(), "s", How::Measured);
        }
        row(nodes, 0, "a view, told to one that joins", view_len(nodes) as f64, "bytes", How::Counted);
        let kept = events::kept(&shards, &members[..nodes]);
        let mean = kept.iter().sum::<usize>() as f64 / nodes as f64;
        let most = kept.iter().max().copied().unwrap_or_default() as f64;
        row(nodes, 0, "shards of a keeper", mean, "shards", How::Counted);
        row(nodes, 0, "shards of the busiest keeper", most, "shards", How::Counted);
        for objects in OBJECTS {
            let entries = objects as f64 * mean / events::SHARDS as f64;
            let busiest = objects as f64 * most / events::SHARDS as f64;
            row(nodes, objects, "entries of a keeper", entries, "entries", How::Computed);
            row(nodes, objects, "directory of a keeper", entries * costs.entry_bytes, "bytes", How::Computed);
            let busiest_bytes = busiest * costs.entry_bytes;
            row(nodes, objects, "directory of the busiest keeper", busiest_bytes, "bytes", How::Computed);
            for event in &events {
                let load = event.load(objects, &members[..nodes], if quick { 2000 } else { 100_000 });
                tell(nodes, objects, event, &load, busiest, &costs);
            }
        }
    }
}

/// Prints the frames of puts, gets and deletions, weighted by how often holder, keepers and asker are
/// different nodes.
fn per_operation(nodes: usize, frames: &Frames) {
    let elsewhere = 1.0 - 1.0 / nodes as f64;
    let keepers = 2.0 * elsewhere;
    let tell = |what: &str, messages: f64, bytes: f64| {
        row(nodes, 0, &format!("messages of {what}"), messages, "messages", How::Computed);
        row(nodes, 0, &format!("bytes of {what}, without the object's"), bytes, "bytes", How::Computed);
    };
    let published = keepers * frames.publish as f64;
    tell("a put under an id drawn at random", keepers, published);
    let claimed = elsewhere * (frames.claim + frames.claimed) as f64;
    tell("a put under a name", keepers + 2.0 * elsewhere, published + claimed);
    let asked = 2.0 * elsewhere * frames.fetch as f64;
    tell(
        "a get of a small object",
        3.0 * elsewhere + keepers,
        asked + frames.eager as f64 * elsewhere + published,
    );
    let large = asked + (frames.offer + frames.release) as f64 * elsewhere + published;
    tell("a get of a large object", 4.0 * elsewhere + keepers, large);
    let order = (frames.drop + frames.done) as f64;
    tell("a deletion", 6.0 * elsewhere, elsewhere * ((frames.delete + frames.done) as f64 + 2.0 * order));
}

/// Prints the cost of a join or a death, and the time until the directory is complete.
fn tell(nodes: usize, objects: u64, event: &Event, load: &Load, busiest: f64, costs: &Costs) {
    let what = event.name();
    let say = |measure: &str, value: f64, unit: &str, how| {
        row(nodes, objects, &format!("{what}: {measure}"), value, unit, how);
    };
    say("objects published again", load.objects, "objects", load.how);
    say("messages to keepers", load.messages, "messages", load.how);
    say("bytes to keepers", load.bytes, "bytes", load.how);
    say("bytes to the busiest keeper", load.busiest_bytes, "bytes", load.how);
    let views = event.told_by_coordinator() as f64;
    say("bytes from the coordinator", views, "bytes", How::Counted);

    // The steps follow one another, as if nothing overlapped: the view is sent, each node makes its map and
    // goes through its entries, then through its objects in lots, and the busiest keeper takes in its
    // messages.
    let still = event.map.as_secs_f64() + costs.settle_s;
    say("a node's engine stands still", still, "s", How::Computed);
    let look = still + busiest * costs.follow_s;
    say("the busiest keeper has looked at its entries", look, "s", How::Computed);
    let each = objects as f64 / nodes as f64;
    let walk = each * costs.scan_s + rests(each as usize).as_secs_f64();
    let taken_in = load.busiest_objects * costs.publish_s;
    for link in LINKS {
        let rate = f64::from(link) * 1e9 / 8.0;
        let seconds = views / rate + look + walk + (load.busiest_bytes / rate).max(taken_in);
        say(&format!("healed after the view, links of {link} Gbit/s"), seconds, "s", How::Computed);
    }
}
