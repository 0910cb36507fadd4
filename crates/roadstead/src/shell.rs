//! What a shell and `man` want to know about our commands, from the same source as `--help`.

use std::io;
use std::path::PathBuf;

use anyhow::Context;
use clap::{CommandFactory, Parser, ValueEnum};

use crate::cli::Cli;

/// Print what a shell needs to complete our commands and flags.
#[derive(Debug, Parser)]
pub(crate) struct CompletionArgs {
    /// The shell.
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Write the manual pages.
#[derive(Debug, Parser)]
pub(crate) struct ManualArgs {
    /// The directory to write them to, one for each command.
    directory: PathBuf,
}

/// Prints the completions of a shell.
pub(crate) fn completion(args: CompletionArgs) {
    let shell = match args.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    clap_complete::generate(shell, &mut Cli::command(), "roadstead", &mut io::stdout());
}

/// Writes a manual page for every command.
pub(crate) fn manual(args: ManualArgs) -> anyhow::Result<()> {
    let directory = &args.directory;
    let why = || format!("cannot write manual pages to {}", directory.display());
    std::fs::create_dir_all(directory).with_context(why)?;
    clap_mangen::generate_to(Cli::command(), directory).with_context(why)
}
