//! The manual: a page of the whole and one of each subcommand, which `groff` sets without a complaint, and which say what
//! README says of exit codes and variables.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use tempfile::TempDir;

use crate::support::document::document;
use crate::support::process::bare;
use crate::support::sandbox::BINARY;

fn man(dir: &Path) -> Output {
    bare(BINARY).arg("man").arg(dir).current_dir("/").output().unwrap()
}

/// In a directory that was not there before.
fn pages() -> (TempDir, Vec<PathBuf>) {
    let dir = TempDir::new().unwrap();
    let inner = dir.path().join("share/man/man1");
    let output = man(&inner);
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    let mut pages: Vec<_> = fs::read_dir(&inner).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.sort();
    (dir, pages)
}

fn set(page: &Path) -> String {
    let output = bare("groff").args(["-man", "-Tutf8", "-ww", "-P-c"]).arg(page).output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{}: {complaints}", page.display());
    // Bold and underlined are struck twice.
    let mut text = String::new();
    for c in String::from_utf8(output.stdout).unwrap().chars() {
        match c {
            '\u{8}' => _ = text.pop(),
            c => text.push(c),
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn groff_sets_every_page_without_a_complaint() {
    let (_dir, pages) = pages();
    assert!(pages.len() > 20, "{pages:?}");
    for page in &pages {
        let text = set(page);
        let name = page.file_stem().unwrap().to_str().unwrap();
        assert!(text.contains(&format!("NAME {name} - ")), "{text}");
    }
}

#[test]
fn groff_shows_what_readme_says_of_exits_and_variables() {
    let (dir, _) = pages();
    let page = set(&dir.path().join("share/man/man1/batch-send.1"));
    let readme = document("README.md");
    let exits: Vec<&str> = readme
        .split("| exit | means |")
        .nth(1)
        .unwrap()
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert!(exits.len() >= 5, "{exits:?}");
    for line in exits {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (code, means) = (cells[1], &cells[2][1..]);
        assert!(page.contains(&format!("{code} {}{means}", cells[2][..1].to_uppercase())), "{line}\n{page}");
    }
    let words = readme.split(|c: char| !c.is_ascii_uppercase() && c != '_');
    for name in words.filter(|word| word.starts_with("BATCH_SEND_")) {
        assert!(page.contains(name), "{name}\n{page}");
    }
}

#[test]
fn pages_refer_to_pages_that_are_there() {
    let (dir, pages) = pages();
    for page in pages {
        let text =
            fs::read_to_string(&page).unwrap().replace("\\-", "-").replace("\\fB", "").replace("\\fR", "");
        let named =
            text.split(|c: char| c.is_whitespace() || c == ',').filter_map(|word| word.strip_suffix("(1)"));
        let mut any = false;
        for name in named {
            any = true;
            assert!(
                dir.path().join(format!("share/man/man1/{name}.1")).is_file(),
                "{name} in {}",
                page.display()
            );
        }
        assert!(any, "{} refers to none", page.display());
    }
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let output = man(&file.join("man1"));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("cannot make the directory") && stderr.contains("file/man1"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}
