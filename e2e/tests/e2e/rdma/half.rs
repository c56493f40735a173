//! One guest's half of a test that runs in two guests: a node in each. The halves signal each other by
//! objects of agreed names.

use std::env;
use std::path::Path;
use std::process::Command;

use plasmon::{Client, CreateOptions, Object, ObjectId};
use plasmon_e2e::{Daemon, PATIENCE, binary, eventually, until};

/// Address of the first guest's node.
pub(super) const FIRST: &str = "10.77.0.1:4740";

/// Half of a test in this guest.
pub(super) struct Half {
    pub(super) guest: usize,
    pub(super) daemon: Daemon,
    pub(super) client: Client,
}

impl Half {
    /// Starts this guest's node and waits until the other's is a member.
    pub(super) fn start(folder: &Path, args: &[&str]) -> Self {
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

    pub(super) fn members(&self) -> usize {
        self.client.status().expect("the node answers").cluster.members.len()
    }

    /// Puts an object that the other half waits for.
    pub(super) fn tell(&self, what: &str, data: &[u8]) {
        let id = ObjectId::from_name(&format!("{what} of {}", self.guest));
        self.client.put(id, data, b"", &CreateOptions::default()).expect("put");
    }

    /// Waits for an object that the other half puts.
    pub(super) fn hear(&self, what: &str) -> Object {
        let id = ObjectId::from_name(&format!("{what} of {}", 1 - self.guest));
        let mut objects = self.client.get(&[id], Some(2 * PATIENCE)).expect("get");
        objects.remove(0).unwrap_or_else(|error| panic!("{what}: {error}\n{}", self.daemon.log()))
    }

    /// Object that the other half puts, if it can be got now.
    pub(super) fn try_hear(&self, what: &str) -> Option<Object> {
        let id = ObjectId::from_name(&format!("{what} of {}", 1 - self.guest));
        self.client.get(&[id], Some(PATIENCE)).ok()?.remove(0).ok()
    }

    /// Ends the test when both halves are done. The first guest leaves last, after the other's last object.
    pub(super) fn part(self) {
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

impl Drop for Half {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of this guest's node ---\n{}", self.daemon.log());
        }
    }
}
