//! `completions`: what a shell needs to complete the commands of this binary, made from their definition. Asks for neither a
//! configuration nor a database.

use std::io::Write;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::cli::{Cli, CompletionsArgs, Shell};
use crate::exit::Exit;

pub fn run(args: &CompletionsArgs, out: &mut dyn Write) -> Result<Exit> {
    let shell = match args.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    // Not at once to `out`: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "batch-send", &mut script);
    let script = String::from_utf8(script).context("the completions as text")?;
    // Bash: the generator gives commands after a name with a hyphen two names (clap-rs/clap#6421), and they never meet.
    let script = script.replace("batch__subcmd__send", "batch__send");
    out.write_all(script.as_bytes())?;
    Ok(Exit::Done)
}
