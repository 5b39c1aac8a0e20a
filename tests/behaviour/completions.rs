//! What `completions` prints makes a shell complete, and needs nothing but the binary.

use crate::support::process::bare;
use crate::support::sandbox::BINARY;

fn completions(shell: &str) -> String {
    let output = bare(BINARY).args(["completions", shell]).current_dir("/").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What bash offers for the last of these words, as it asks a completion function on Tab.
fn bash_offers(words: &[&str]) -> Vec<String> {
    let asked = r#"
        eval "$1"; shift
        function=$(complete -p batch-send | sed 's/.*-F \([^ ]*\).*/\1/')
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        "$function" batch-send "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let output = bare("bash")
        .args(["--norc", "-c", asked, "bash", &completions("bash")])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    assert_eq!(bash_offers(&["batch-send", "mig"]), ["migrate"]);
    assert_eq!(bash_offers(&["batch-send", "task", "res"]), ["resume"]);
    assert_eq!(bash_offers(&["batch-send", "run", "--forc"]), ["--force"]);
    assert_eq!(bash_offers(&["batch-send", "targets", "7", "--format", "js"]), ["jsonl"]);
}

#[test]
fn each_shell_is_told_of_each_command() {
    let help = bare(BINARY).arg("--help").output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    let commands = help.split("Commands:\n").nth(1).unwrap().lines().take_while(|line| !line.is_empty());
    // What goes on in another line stands further in.
    let commands = commands.filter(|line| !line.starts_with("   "));
    let commands: Vec<&str> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() > 8, "{help}");
    for shell in ["bash", "zsh", "fish"] {
        let script = completions(shell);
        let missing: Vec<_> = commands.iter().filter(|command| !script.contains(**command)).collect();
        assert!(missing.is_empty(), "{shell}: {missing:?}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_trouble() {
    let piped = format!("set -o pipefail; '{BINARY}' completions bash | true");
    let output = bare("bash").args(["-c", &piped]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
