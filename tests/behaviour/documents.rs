//! What the documents show is what the binary takes: every command line in README.md and crontab.example, and every
//! key of the example configuration.

use std::collections::BTreeSet;
use std::fs;

use crate::support::process::bare;
use crate::support::sandbox::BINARY;

fn document(name: &str) -> String {
    let path = format!("{}/{name}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every `batch-send ...` in code blocks and crontab lines, as the shell would hand it over.
fn command_lines(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_code = !text.contains("```");
    let joined = text.replace("\\\n", " ");
    for line in joined.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            continue;
        }
        // Commented out with no space behind the `#`: a line to be used.
        let line = line.strip_prefix('#').filter(|line| !line.starts_with(' ')).unwrap_or(line);
        if !in_code || line.trim_start().starts_with('#') {
            continue;
        }
        for part in line.split(['|', ';', '&']) {
            let Some((before, command)) = part.split_once("batch-send ") else { continue };
            let typed = before.trim().is_empty() || before.ends_with('/') || before.trim_end().ends_with('$');
            if typed {
                // Without what the shell redirects.
                let end = [" 2>", ">", "<"].iter().filter_map(|mark| command.find(mark)).min();
                found.push(command[..end.unwrap_or(command.len())].trim().to_owned());
            }
        }
    }
    found
}

/// Words as a shell splits them: single and double quotes, no more.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut any) = (Vec::new(), String::new(), None, false);
    for c in line.chars() {
        match (quote, c) {
            (None, '\'' | '"') => (quote, any) = (Some(c), true),
            (Some(open), _) if open == c => quote = None,
            (None, ' ') => {
                if any || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                any = false;
            }
            _ => word.push(c),
        }
    }
    if any || !word.is_empty() {
        words.push(word);
    }
    words
}

/// Parsed, and stopped by a configuration that is not there; `demo` needs none, and shows its help instead.
#[track_caller]
fn is_understood(line: &str) {
    let mut args = words(line);
    if args.iter().any(|arg| arg == "demo") {
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

#[test]
fn the_reader_of_documents_finds_commands() {
    let text = "Text.\n```\n$ batch-send task create --name 'Spring sale' \\\n    --channel web\n12\n```\n";
    assert_eq!(command_lines(text), ["task create --name 'Spring sale'      --channel web"]);
    assert_eq!(words("a 'b c' \"d\" ''"), ["a", "b c", "d", ""]);
    let cron = "* * * * * app /usr/local/bin/batch-send run >> /var/log/x\n";
    assert_eq!(command_lines(cron), ["run"]);
}
