//! What the documents show is what the binary takes: every command line in README.md, docs/ and crontab.example, and
//! every key of the example configuration.

use std::collections::BTreeSet;

use crate::support::document::{command_lines, document, documents, words};
use crate::support::process::bare;
use crate::support::sandbox::BINARY;

/// Parsed, and stopped by a configuration that is not there; `demo` and `man` need none, and show their help instead.
#[track_caller]
fn is_understood(line: &str) {
    let mut args = words(line);
    if args.iter().any(|arg| arg == "demo" || arg == "man") {
        args.push("--help".into());
    }
    let output = bare(BINARY)
        .args(&args)
        .env("BATCH_SEND_CONFIG", "/nowhere/config.toml")
        .current_dir("/")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    // clap's own complaints end with its usage; ours are about the configuration that is not there.
    assert!(!stderr.contains("Usage:") && !stderr.contains("panicked"), "batch-send {line}\n{stderr}");
}

#[test]
fn command_lines_of_readme_are_understood() {
    let lines = command_lines(&document("README.md"));
    assert!(lines.len() >= 10, "only {lines:?}");
    lines.iter().for_each(|line| is_understood(line));
}

#[test]
fn command_lines_of_docs_are_understood() {
    for name in documents() {
        let lines = command_lines(&document(&name));
        assert!(!lines.is_empty(), "none in {name}");
        lines.iter().for_each(|line| is_understood(line));
    }
}

#[test]
fn command_lines_of_crontab_example_are_understood() {
    let lines = command_lines(&document("crontab.example"));
    assert!(lines.len() >= 3, "only {lines:?}");
    lines.iter().for_each(|line| is_understood(line));
}

#[test]
fn every_line_of_crontab_example_has_absolute_paths() {
    for line in document("crontab.example").lines().filter(|line| line.contains("batch-send")) {
        let line = line.trim_start_matches('#').trim();
        for word in line.split_whitespace().filter(|word| word.contains("batch-send") && word.contains('/')) {
            assert!(word.trim_start_matches("BATCH_SEND_CONFIG=").starts_with('/'), "{word} in {line}");
        }
    }
}

#[test]
fn every_key_of_the_example_configuration_is_in_readme() {
    let readme = document("README.md");
    let example = document("batch-send.example.toml");
    let keys: BTreeSet<&str> = example
        .lines()
        .filter_map(|line| line.trim_start_matches(['#', ' ']).split_once(" = "))
        .map(|(key, _)| key.trim())
        .filter(|key| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        .collect();
    assert!(keys.len() > 15, "{keys:?}");
    let missing: Vec<_> = keys.iter().filter(|key| !readme.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "in batch-send.example.toml and not in README.md: {missing:?}");
}
