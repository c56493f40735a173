//! `plasmon completions` and `plasmon man`: what shells and `man` show, made from the command line's own
//! definitions.
//!
//! Owns no state. Main thread. Only these two commands generate scripts and pages from the definitions.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::failure::Failure;
use crate::output::{standard, tolerant};

/// Title in the first line of all man pages.
const MANUAL: &str = "Plasmon";

/// Arguments of `plasmon completions`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
For this user, in bash: plasmon completions bash > ~/.local/share/bash-completion/completions/plasmon. In \
zsh, the file is _plasmon in a directory of $fpath; in fish, \
~/.config/fish/completions/plasmon.fish.")]
pub(crate) struct Completions {
    /// Shell that is to complete
    pub(crate) shell: Shell,
}

/// Arguments of `plasmon man`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ManPages {
    /// Directory to write to, such as /usr/local/share/man/man1; it is made if it does not exist
    pub(crate) directory: PathBuf,
}

/// Prints the script with which a shell completes commands, options and files.
pub(crate) fn completions(shell: Shell, command: Command) -> Result<(), Failure> {
    let script = script(shell, command);
    tolerant(standard().and_then(|mut out| out.write_all(&script)))
}

fn script(shell: Shell, mut command: Command) -> Vec<u8> {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// Writes a man page for `plasmon`, and one for each of its commands, into a directory.
pub(crate) fn man(args: &ManPages, command: Command) -> Result<(), Failure> {
    fs::create_dir_all(&args.directory).map_err(Failure::file("create", &args.directory))?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write(&args.directory, &command)
}

/// Writes the man page of a command, and those of its commands.
fn write(directory: &Path, command: &Command) -> Result<(), Failure> {
    for command in command.get_subcommands() {
        write(directory, command)?;
    }
    let man = Man::new(command.clone()).source(concat!("plasmon ", env!("CARGO_PKG_VERSION"))).manual(MANUAL);
    let path = directory.join(man.get_filename());
    let page = page(&man, command).map_err(Failure::file("make", &path))?;
    fs::write(&path, page).map_err(Failure::file("write", &path))
}

fn page(man: &Man, command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_help() {
        after_help(&text.to_string()).to_writer(&mut page)?;
    }
    Ok(page)
}

/// Sections of the text after the options. A paragraph that begins with a title and a colon is a section of
/// its own, whose lines stay as they are; all others are notes.
fn after_help(text: &str) -> Roff {
    let mut roff = Roff::default();
    let mut noted = false;
    for paragraph in text.split("\n\n") {
        let titled =
            paragraph.split_once('\n').and_then(|(title, rest)| Some((title.strip_suffix(':')?, rest)));
        if let Some((title, lines)) = titled {
            roff.control("SH", [title.to_uppercase().as_str()]).control("nf", []);
            for line in lines.lines() {
                roff.text([roman(line)]);
            }
            roff.control("fi", []);
        } else {
            roff.control(if noted { "PP" } else { "SH" }, if noted { None } else { Some("NOTES") });
            roff.text([roman(paragraph)]);
            noted = true;
        }
    }
    roff
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Command as Process;

    use clap::{CommandFactory, ValueEnum};

    use super::*;
    use crate::args::Args;
    use crate::settings;

    fn definitions() -> Command {
        settings::with_environment(Args::command())
    }

    /// Names of all commands.
    fn commands() -> Vec<String> {
        definitions().get_subcommands().map(|command| command.get_name().to_owned()).collect()
    }

    #[test]
    fn every_shell_gets_every_command() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell, definitions())).unwrap();
            for command in commands() {
                assert!(script.contains(&command), "{shell} does not complete {command}");
            }
        }
    }

    #[test]
    fn bash_takes_its_script_and_completes_by_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("plasmon.bash");
        fs::write(&file, script(Shell::Bash, definitions())).unwrap();
        let checked = Process::new("bash").arg("-n").arg(&file).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        let asked = "source \"$1\"; COMP_WORDS=(plasmon repl); COMP_CWORD=1; _plasmon plasmon repl plasmon; \
                     echo \"${COMPREPLY[@]}\"";
        let answer = Process::new("bash").args(["-c", asked, "bash"]).arg(&file).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&answer.stdout).trim(), "replicate");
    }

    #[test]
    fn every_command_has_a_man_page() {
        let directory = tempfile::tempdir().unwrap();
        let args = ManPages { directory: directory.path().join("man") };
        man(&args, definitions()).unwrap();
        let own = fs::read_to_string(args.directory.join("plasmon.1")).unwrap();
        for section in [".SH NAME", ".SH SUBCOMMANDS", ".SH \"EXIT CODES\"", ".SH EXAMPLES"] {
            assert!(own.contains(section), "{section} is missing in:\n{own}");
        }
        for command in commands() {
            let path = args.directory.join(format!("plasmon-{command}.1"));
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(".SH SYNOPSIS\n") && text.contains(".SH OPTIONS\n"), "{text}");
        }
    }

    /// Text of a file, or of all files of a folder, that say something to users.
    fn text(path: &Path) -> String {
        if path.is_dir() {
            return fs::read_dir(path).unwrap().map(|entry| text(&entry.unwrap().path())).collect();
        }
        let is_text = path.extension().is_some_and(|kind| kind == "rs" || kind == "py" || kind == "md");
        if is_text { fs::read_to_string(path).unwrap() } else { String::new() }
    }

    #[test]
    fn commands_that_messages_and_documentation_name_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let named: BTreeSet<_> = ["crates", "python/python", "docs", "README.md"]
            .iter()
            .flat_map(|place| {
                let text = text(&root.join(place));
                let words = text.split("`plasmon ").skip(1).map(|rest| {
                    rest.chars()
                        .take_while(|letter| letter.is_ascii_lowercase() || *letter == '-')
                        .collect::<String>()
                });
                words.filter(|word| !word.is_empty() && !word.starts_with('-')).collect::<Vec<_>>()
            })
            .collect();
        let there: BTreeSet<_> = commands().into_iter().collect();
        assert!(named.len() > 20, "they are named in backquotes: {named:?}");
        let missing: Vec<_> = named.difference(&there).collect();
        assert!(missing.is_empty(), "there are no such commands: {missing:?}");
    }

    /// Checks the pages by groff and mandoc. Skips a formatter that is not installed.
    #[test]
    fn formatters_of_man_pages_take_them() {
        let directory = tempfile::tempdir().unwrap();
        man(&ManPages { directory: directory.path().to_owned() }, definitions()).unwrap();
        for (program, options) in
            [("groff", ["-man", "-Tutf8", "-ww"]), ("mandoc", ["-T", "lint", "-Werror"])]
        {
            for entry in fs::read_dir(directory.path()).unwrap() {
                let page = entry.unwrap().path();
                match Process::new(program).args(options).arg(&page).output() {
                    Ok(said) => assert!(
                        said.status.success() && said.stderr.is_empty(),
                        "{program} of {}: {}",
                        page.display(),
                        String::from_utf8_lossy(&said.stderr)
                    ),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => panic!("{program}: {error}"),
                }
            }
        }
    }
}
