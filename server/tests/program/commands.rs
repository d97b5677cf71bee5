//! Runs commands of the program, and returns what they print.

// Each test file uses a part of it.
#![allow(dead_code)]

/// Whether the command succeeded, its output, and its messages.
pub(crate) fn couch_layer(arguments: &[&str]) -> (bool, String, String) {
    let output = super::run(arguments, "");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// The output of a command that must succeed.
pub(crate) fn succeed(arguments: &[&str]) -> String {
    let (success, stdout, stderr) = couch_layer(arguments);
    assert!(success, "{arguments:?}: {stdout}{stderr}");
    stdout
}

/// The messages of a command that must fail.
pub(crate) fn refused(arguments: &[&str]) -> String {
    let (success, stdout, stderr) = couch_layer(arguments);
    assert!(!success, "{arguments:?}: {stdout}{stderr}");
    stderr
}
