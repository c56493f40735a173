//! The tree keeps the rules, but for the exceptions that are listed.
//!
//! `PLASMON_TIDY=write cargo test -p plasmon-tidy` writes the lists again after something was mended or files
//! were moved. It refuses to make a list longer, but for one that is not there: that of a new rule. [`RULES`]
//! has the length of each list, so that a list that was made longer by hand is refused as well.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use plasmon_tidy::{Exceptions, Finding, RULES, Source};

fn list(rule: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("exceptions").join(rule).with_extension("txt")
}

#[test]
fn the_tree_keeps_the_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the repository");
    let source = Source::read(root);
    assert!(source.texts().count() > 100, "most of the tree is not seen");
    let write = std::env::var("PLASMON_TIDY").is_ok_and(|what| what == "write");
    let mut wrong = String::new();
    for (name, rule, exceptions) in RULES {
        let found = rule(&source);
        if write {
            rewrite(name, &found);
        }
        let list = read(name);
        match list.len().cmp(&exceptions) {
            Ordering::Greater => {
                _ = writeln!(
                    wrong,
                    "tidy/exceptions/{name}.txt: the list grew from {exceptions} to {}: mend what is new",
                    list.len()
                )
            }
            Ordering::Less => {
                _ = writeln!(
                    wrong,
                    "tidy/src/lib.rs: {name} has {} exceptions now: write that instead of {exceptions}",
                    list.len()
                )
            }
            Ordering::Equal => {}
        }
        let verdict = list.judge(&found);
        for Finding { path, line, advice, .. } in verdict.refused {
            let _ = writeln!(wrong, "{path}:{line}: {name}: {advice}");
        }
        for line in verdict.unneeded {
            let _ = writeln!(
                wrong,
                "tidy/exceptions/{name}.txt: {line}: make the list shorter (PLASMON_TIDY=write does it)"
            );
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

fn read(rule: &str) -> Exceptions {
    Exceptions::parse(&fs::read_to_string(list(rule)).unwrap_or_default())
}

fn rewrite(rule: &str, found: &[Finding]) {
    let (before, after) = (read(rule), Exceptions::of(found));
    if !list(rule).exists() || after.len() <= before.len() && after != before {
        fs::write(list(rule), after.content()).expect("the list is written");
    }
}
