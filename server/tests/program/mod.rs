//! Runs the program as a process.

pub(crate) mod commands;

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// The program, without the environment variables that it reads.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_couch-layer"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("COUCH")) {
        command.env_remove(name);
    }
    command
}

/// Runs it with `input` as its standard input.
pub(crate) fn run(arguments: &[&str], input: &str) -> Output {
    let mut command = program();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    // Written while the output is read. The drop ends the input.
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().expect("the binary ends");
    writer.join().expect("the input is written");
    output
}
