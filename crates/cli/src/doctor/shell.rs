//! Shell commands, in the form in which this user has to type them.
//!
//! Owns no state. Main thread.

use std::path::Path;

use rustix::process::geteuid;

use crate::quoting::quoted;

/// Writer of commands for this user.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shell {
    pub(super) root: bool,
}

impl Shell {
    /// Writer of commands for the user of this process.
    pub(super) fn of_this_user() -> Self {
        Self { root: geteuid().is_root() }
    }

    /// Command that only root may run: with `sudo` for other users.
    pub(super) fn root(self, command: &str) -> String {
        if self.root { command.to_owned() } else { format!("sudo {command}") }
    }

    /// Command that sets a kernel setting until the next boot.
    pub(super) fn sysctl(self, key: &str, value: u64) -> String {
        self.root(&format!("sysctl -w {key}={value}"))
    }

    /// Command that sets a kernel setting at every boot.
    pub(super) fn sysctl_for_ever(self, key: &str, value: u64) -> String {
        let name = key.rsplit('.').next().unwrap_or(key).replace('_', "-");
        self.write(&format!("{key} = {value}"), &format!("/etc/sysctl.d/80-plasmon-{name}.conf"))
    }

    /// Command that writes a line to a file of root's, or to several.
    pub(super) fn write(self, text: &str, files: &str) -> String {
        format!("echo '{text}' | {}", self.root(&format!("tee {files}")))
    }
}

/// Command that starts a node as `words` did, another node's command line with a NUL after each word, but
/// with `memory` bytes, with huge pages if there are any, and on the memory node `numa` if it is given.
pub(super) fn serve(words: &str, memory: u64, spill: Option<&Path>, numa: Option<&str>) -> String {
    let mut words = words.split('\0').skip(1).filter(|word| !word.is_empty());
    let mut command = vec!["plasmon".to_owned()];
    while let Some(word) = words.next() {
        match word {
            "--memory" | "--spill-dir" => drop(words.next()),
            "--numa" if numa.is_some() => drop(words.next()),
            word if numa.is_some() && word.starts_with("--numa=") => {}
            "--no-huge-pages" | "serve" => {}
            word if word.starts_with("--memory=") || word.starts_with("--spill-dir=") => {}
            word => command.push(quoted(word)),
        }
    }
    command.insert(1, format!("serve --memory {}MiB", memory >> 20));
    command.extend(spill.map(|spill| format!("--spill-dir {}", quoted(&spill.to_string_lossy()))));
    command.extend(numa.map(|numa| format!("--numa {numa}")));
    command.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_types_no_sudo() {
        let of = |root| Shell { root }.write("always", "/sys/x");
        assert_eq!(of(true), "echo 'always' | tee /sys/x");
        assert_eq!(of(false), "echo 'always' | sudo tee /sys/x");
        let for_ever = Shell { root: false }.sysctl_for_ever("vm.nr_hugepages", 7);
        assert_eq!(
            for_ever,
            "echo 'vm.nr_hugepages = 7' | sudo tee /etc/sysctl.d/80-plasmon-nr-hugepages.conf"
        );
    }

    #[test]
    fn a_node_is_started_again_as_it_was() {
        let words = [
            "plasmon-node",
            "serve",
            "--memory",
            "1GiB",
            "--socket",
            "/a b",
            "--no-huge-pages",
            "--listen=x:1",
        ];
        let words = words.join("\0") + "\0";
        assert_eq!(
            serve(&words, 2 << 30, None, None),
            "plasmon serve --memory 2048MiB --socket '/a b' --listen=x:1"
        );
        let spilling = serve("", 1 << 20, Some(Path::new("/d")), None);
        assert_eq!(spilling, "plasmon serve --memory 1MiB --spill-dir /d");
        let numa = "plasmon-node\0serve\0--numa\x000\0--cache\0--numa=1\0";
        assert_eq!(
            serve(numa, 1 << 20, None, Some("auto")),
            "plasmon serve --memory 1MiB --cache --numa auto"
        );
        assert_eq!(serve(numa, 1 << 20, None, None), "plasmon serve --memory 1MiB --numa 0 --cache --numa=1");
    }
}
