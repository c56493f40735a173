//! The fuzzer: see `scripts/fuzz.sh`, which builds and runs it. `PLASMON_FUZZ` names the target.
//!
//! Built without the instrumentation, `plasmon-fuzz TARGET FILE...` runs a target on files, to see what a
//! file that the fuzzer found does, and `plasmon-fuzz seeds FOLDER` writes what the fuzzer begins with.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(init: {
    assert!(target().is_some(), "PLASMON_FUZZ names no target");
}, |bytes: &[u8]| {
    if let Some(target) = target() {
        (target.run)(bytes);
    }
});

#[cfg(fuzzing)]
fn target() -> Option<&'static plasmon_fuzz::Target> {
    static TARGET: std::sync::OnceLock<Option<&'static plasmon_fuzz::Target>> = std::sync::OnceLock::new();
    *TARGET.get_or_init(|| plasmon_fuzz::target(&std::env::var("PLASMON_FUZZ").ok()?))
}

#[cfg(not(fuzzing))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::{env, fs, path::Path};

    let words: Vec<String> = env::args().skip(1).collect();
    match &words[..] {
        [seeds, folder] if seeds == "seeds" => {
            for target in &plasmon_fuzz::TARGETS {
                let folder = Path::new(folder).join(target.name);
                fs::create_dir_all(&folder)?;
                for (number, seed) in (target.seeds)().into_iter().enumerate() {
                    fs::write(folder.join(format!("seed{number}")), seed)?;
                }
                println!("{}", target.name);
            }
        }
        [name, files @ ..] => {
            let target = plasmon_fuzz::target(name).ok_or(format!("there is no target {name}"))?;
            for file in files {
                println!("{file}");
                (target.run)(&fs::read(file)?);
            }
        }
        [] => return Err("usage: plasmon-fuzz TARGET FILE... | seeds FOLDER".into()),
    }
    Ok(())
}
