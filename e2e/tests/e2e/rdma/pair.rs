//! Two guests on one cable, a node in each.
//!
//! The same test runs in both, as one half of it: objects of agreed names are all that they tell each other.

use std::env;
use std::path::Path;
use std::process::Command;

use plasmon::{Client, CreateOptions, Object, ObjectId, Protocol};
use plasmon_e2e::{Daemon, PATIENCE, Pattern, binary, eventually, until};

use super::protocols::{offer, take};
use super::{SIZES, VERBS, packets};

/// Where the first guest's node listens.
const FIRST: &str = "10.77.0.1:4740";

/// This guest's half of a test.
struct Half {
    guest: usize,
    daemon: Daemon,
    client: Client,
}

impl Half {
    /// Starts this guest's node and waits until the other's is a member.
    fn start(folder: &Path, args: &[&str]) -> Self {
        let guest = env::var("PLASMON_GUEST").expect("this takes two guests: make test-rdma");
        let guest: usize = guest.parse().expect("it is a number");
        let address = env::var("PLASMON_E2E_ADDRESS").expect("guests have one");
        let socket = folder.join("plasmon.sock");
        let daemon = until("the node starts", || {
            let mut command = Command::new(binary());
            command.args(["serve", "--json", "--exit-with-parent", "--memory", "64MiB"]);
            command.arg("--socket").arg(&socket).args(["--listen", &format!("{address}:4740")]);
            command.args(args);
            if guest != 0 {
                command.args(["--join", FIRST]);
            }
            match Daemon::start(command, folder, "node") {
                Ok(daemon) => Some(daemon),
                // The other guest may still be booting.
                Err(refused) if guest != 0 => {
                    eprintln!("not yet:\n{}", refused.log);
                    None
                }
                Err(refused) => panic!("it did not start:\n{}", refused.log),
            }
        });
        let client = Client::connect(&socket).expect("the node serves");
        let half = Self { guest, daemon, client };
        eventually("both nodes are members", || half.members() == 2);
        half
    }

    fn members(&self) -> usize {
        self.client.status().expect("the node answers").cluster.members.len()
    }

    /// Puts what the other half waits for.
    fn tell(&self, what: &str, data: &[u8]) {
        let id = ObjectId::from_name(&format!("{what} of {}", self.guest));
        self.client.put(id, data, b"", &CreateOptions::default()).expect("put");
    }

    /// Waits for what the other half puts.
    fn hear(&self, what: &str) -> Object {
        let id = ObjectId::from_name(&format!("{what} of {}", 1 - self.guest));
        let mut objects = self.client.get(&[id], Some(2 * PATIENCE)).expect("get");
        objects.remove(0).unwrap_or_else(|error| panic!("{what}: {error}\n{}", self.daemon.log()))
    }

    /// Ends when both are done. The first guest leaves last, after the other's last word.
    fn part(self) {
        const WORD: &str = "all is well";
        if self.guest == 0 {
            self.hear(WORD);
            self.tell(WORD, b"");
            eventually("the other has left", || self.members() == 1);
        } else {
            self.tell(WORD, b"");
            self.hear(WORD);
        }
    }
}

#[test]
#[ignore = "needs two guests: make test-rdma"]
fn objects_of_every_size_cross_the_cable() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let half = Half::start(folder.path(), &[]);
    let before = packets();
    for len in SIZES {
        half.tell(&len.to_string(), &Pattern(len as u64).bytes(len));
    }
    for len in SIZES {
        let object = half.hear(&len.to_string());
        assert_eq!(object.data().len(), len);
        Pattern(len as u64).check(object.data());
    }
    let status = half.client.status().expect("the node answers");
    assert_eq!(status.fabric.provider, VERBS);
    assert!(status.transfer.rendezvous_fetched >= 3, "{:?}", status.transfer);
    assert!(packets() > before, "nothing went through the device");
    half.part();
}

#[test]
#[ignore = "needs two guests: make test-rdma"]
fn every_protocol_brings_every_size_over_the_cable() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let id = |len: usize| ObjectId::from_name(&format!("for every protocol {len}"));
    let (last, others) = Protocol::ALL.split_last().expect("there are some");
    if std::env::var("PLASMON_GUEST").is_ok_and(|guest| guest == "0") {
        let half = Half::start(folder.path(), &[]);
        SIZES.into_iter().for_each(|len| offer(&half.client, id(len), len));
        return half.part();
    }
    let take_all = |protocol: Protocol| {
        let half = Half::start(folder.path(), &["--protocol", protocol.name()]);
        SIZES.into_iter().for_each(|len| take(&half.client, id(len), len, protocol));
        half
    };
    others.iter().for_each(|protocol| drop(take_all(*protocol)));
    take_all(*last).part();
}
