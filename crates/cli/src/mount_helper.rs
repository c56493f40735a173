//! `mount.plasmon`: what mount(8) calls for `mount -t plasmon VOLUME DIR -o OPTIONS` and for lines of fstab.
//!
//! `plasmon` is the helper if it is called by the helper's name, as by a link in /sbin. Owns no state. Main
//! thread. The words of the helper become words of `plasmon mount`. Invariant: an option that has no effect
//! here, and that is not one of mount(8)'s own, is refused, unless mount(8) asks for sloppiness.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Name by which the command is the helper.
const NAME: &str = "mount.plasmon";
/// Name by which mount(8) looks for the helper of what is mounted: the type is that of `/proc/mounts`.
const NAME_OF_MOUNTED: &str = "mount.fuse.plasmon";
/// Exit code of mount(8) for wrong words.
pub(crate) const WRONG: u8 = 1;
/// Exit code of mount(8) for a mount that failed.
pub(crate) const FAILED: u8 = 32;

/// Options that become arguments without a value.
const FLAGS: [(&str, &str); 3] =
    [("ro", "--read-only"), ("allow_other", "--allow-other"), ("direct", "--direct")];
/// Options that become arguments with their value.
const VALUES: [(&str, &str); 5] = [
    ("cache", "--cache"),
    ("log", "--log"),
    ("patience", "--patience"),
    ("socket", "--socket"),
    ("threads", "--threads"),
];
/// Options that mount(8) itself is asked, or that are so in any case.
const OWN: [&str; 20] = [
    "_netdev",
    "async",
    "atime",
    "auto",
    "defaults",
    "diratime",
    "exec",
    "group",
    "noatime",
    "noauto",
    "nodev",
    "nodiratime",
    "nofail",
    "nosuid",
    "nouser",
    "owner",
    "relatime",
    "rw",
    "user",
    "users",
];

/// Request that this process was started with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Words of a command of `plasmon`. The first is the program's name.
    Command(Vec<OsString>),
    /// To mount, as these words of `plasmon` say it.
    Mount(Vec<OsString>),
    /// To change whether a mounted folder can be written, and whether programs in it run.
    Remount { folder: OsString, read_only: bool, no_exec: bool },
    /// To do nothing, and say that it went well (`mount --fake`).
    Nothing,
}

/// Task that the words of this process ask for, as the helper if it is that.
///
/// # Errors
/// A text about what is wrong with the helper's words.
pub(crate) fn asked() -> Result<Asked, String> {
    let mut words = env::args_os();
    match words.next() {
        Some(program) if is_helper(&program) => read(words),
        _ => Ok(Asked::Command(env::args_os().collect())),
    }
}

/// Whether a program is the helper.
fn is_helper(program: &OsStr) -> bool {
    let name = Path::new(program).file_name();
    [NAME, NAME_OF_MOUNTED].iter().any(|known| name == Some(OsStr::new(known)))
}

/// Reads the words behind the helper's name.
fn read(words: impl IntoIterator<Item = OsString>) -> Result<Asked, String> {
    let (mut places, mut options, mut sloppy, mut fake) = (Vec::new(), Vec::new(), false, false);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"-o" => options.push(words.next().ok_or("-o lacks its options")?),
            b"-t" => drop(words.next()),
            b"-N" => return Err("another mount namespace (-N) is not supported".to_owned()),
            [b'-', flags @ ..] if !flags.is_empty() => {
                for flag in flags {
                    match flag {
                        b's' => sloppy = true,
                        b'f' => fake = true,
                        b'r' => options.push("ro".into()),
                        b'n' | b'v' | b'w' => {}
                        _ => return Err(format!("there is no flag {word:?}")),
                    }
                }
            }
            _ => places.push(word),
        }
    }
    let [volume, folder] = <[OsString; 2]>::try_from(places)
        .map_err(|_| format!("usage: {NAME} VOLUME DIR [-o OPTIONS], as mount(8) calls it"))?;
    let options: Vec<_> =
        options.iter().flat_map(|options| options.as_bytes().split(|byte| *byte == b',')).collect();
    if options.contains(&&b"remount"[..]) {
        return Ok(if fake { Asked::Nothing } else { remount(folder, &options) });
    }
    let mut asked = vec!["plasmon".into(), "mount".into(), with_value("--volume", &volume)];
    for option in options {
        match argument(option) {
            Some(word) => asked.extend(word),
            None if sloppy => {}
            None => return Err(format!("there is no option {:?}", String::from_utf8_lossy(option))),
        }
    }
    asked.push(folder);
    Ok(if fake { Asked::Nothing } else { Asked::Mount(asked) })
}

/// Returns what options of a mount that is to be changed ask for. mount(8) adds all options that the mount
/// has, and those of fstab, so the others are not looked at. Of two that contradict each other the last
/// counts.
fn remount(folder: OsString, options: &[&[u8]]) -> Asked {
    let last = |one: &[u8], other: &[u8]| {
        options.iter().rev().find(|option| [one, other].contains(option)).is_some_and(|found| *found == one)
    };
    Asked::Remount { folder, read_only: last(b"ro", b"rw"), no_exec: last(b"noexec", b"exec") }
}

/// Argument of `plasmon mount` for an option, if it becomes one. `None` if there is no such option.
fn argument(option: &[u8]) -> Option<Option<OsString>> {
    let mut halves = option.splitn(2, |byte| *byte == b'=');
    let (name, value) = (std::str::from_utf8(halves.next()?).ok()?, halves.next());
    let of = |table: &[(&str, &'static str)]| {
        table.iter().find(|(known, _)| *known == name).map(|(_, argument)| *argument)
    };
    if name.starts_with("x-") || name.starts_with("X-") || name == "comment" {
        return Some(None);
    }
    match value {
        Some(value) => of(&VALUES).map(|argument| Some(with_value(argument, OsStr::from_bytes(value)))),
        None if name.is_empty() || OWN.contains(&name) => Some(None),
        None => of(&FLAGS).map(|argument| Some(argument.into())),
    }
}

fn with_value(argument: &str, value: &OsStr) -> OsString {
    let mut word = OsString::from(argument);
    word.push("=");
    word.push(value);
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str]) -> Result<String, String> {
        match read(words.iter().map(OsString::from))? {
            Asked::Nothing => Ok("nothing".to_owned()),
            other @ Asked::Remount { .. } => Ok(format!("{other:?}")),
            Asked::Command(words) | Asked::Mount(words) => {
                Ok(words.iter().map(|word| word.to_str().expect("text")).collect::<Vec<_>>().join(" "))
            }
        }
    }

    #[test]
    fn the_helper_is_known_by_its_name_alone() {
        assert!(is_helper("/sbin/mount.plasmon".as_ref()) && is_helper("mount.plasmon".as_ref()));
        assert!(is_helper("/sbin/mount.fuse.plasmon".as_ref()));
        assert!(!is_helper("/sbin/mount.plasmon/plasmon".as_ref()) && !is_helper("".as_ref()));
    }

    #[test]
    fn options_become_arguments() {
        assert_eq!(asked(&["main", "/mnt"]).as_deref(), Ok("plasmon mount --volume=main /mnt"));
        let options = "rw,noauto,x-systemd.requires=plasmon.service,allow_other,socket=/run/a=b,patience=5";
        let words = ["scratch", "/mnt", "-n", "-v", "-o", options, "-t", "plasmon"];
        assert_eq!(
            asked(&words).as_deref(),
            Ok("plasmon mount --volume=scratch --allow-other --socket=/run/a=b --patience=5 /mnt")
        );
        let read_only = ["-r", "main", "-o", "direct", "-mnt"];
        assert!(asked(&read_only).is_err(), "a folder that begins with a dash is a flag");
        assert_eq!(
            asked(&["-rw", "main", "/mnt", "-o", "direct"]).as_deref(),
            Ok("plasmon mount --volume=main --read-only --direct /mnt")
        );
    }

    #[test]
    fn a_mount_is_changed_as_the_last_option_says() {
        for (options, read_only, no_exec) in [
            ("remount,ro", true, false),
            ("ro,remount,rw", false, false),
            ("rw,nosuid,nodev,relatime,user_id=0,allow_other,socket=/run/a,remount,noexec,ro", true, true),
            ("remount,noexec,exec", false, false),
        ] {
            let wanted = Asked::Remount { folder: "/mnt".into(), read_only, no_exec };
            assert_eq!(asked(&["main", "/mnt", "-o", options]), Ok(format!("{wanted:?}")), "{options}");
        }
        assert_eq!(asked(&["main", "/mnt", "-f", "-o", "remount,ro"]).as_deref(), Ok("nothing"));
    }

    #[test]
    fn what_has_no_effect_is_refused() {
        for option in ["noexec", "suid", "cache", "ro=1", "sync", "threads"] {
            let told = asked(&["main", "/mnt", "-o", option]).expect_err(option);
            assert!(told.contains(option), "{told}");
            assert!(asked(&["main", "/mnt", "-s", "-o", option]).is_ok(), "sloppy, {option}");
        }
        for words in [&["main"][..], &["a", "b", "c"], &["a", "b", "-o"], &["a", "b", "-N", "1"], &["-x"]] {
            assert!(asked(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn a_mount_that_is_only_to_be_tried_does_nothing() {
        assert_eq!(asked(&["main", "/mnt", "-f"]).as_deref(), Ok("nothing"));
    }
}
