//! The documents as their readers use them: code blocks to copy, and command lines to type.

use std::fs;
use std::path::Path;

fn path(name: &str) -> String {
    format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))
}

pub fn document(name: &str) -> String {
    let path = path(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents in docs/.
pub fn documents() -> Vec<String> {
    let entries = fs::read_dir(path("docs")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = entries.map(|name| format!("docs/{}", name.to_str().unwrap())).collect();
    names.retain(|name| Path::new(name).extension().is_some_and(|end| end == "md"));
    names.sort();
    names
}

/// The code blocks whose fence says exactly `info`, in order.
pub fn blocks(text: &str, info: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut fence: Option<&str> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), fence) {
            (Some(_), Some(_)) => fence = None,
            (Some(begins), None) => {
                fence = Some(begins);
                if begins == info {
                    found.push(String::new());
                }
            }
            (None, Some(of)) if of == info => {
                let block = found.last_mut().unwrap();
                block.push_str(line);
                block.push('\n');
            }
            (None, _) => {}
        }
    }
    assert!(!found.is_empty(), "no code block ```{info}");
    found
}

/// The one code block whose fence says `info`.
pub fn block(text: &str, info: &str) -> String {
    let mut found = blocks(text, info);
    assert_eq!(found.len(), 1, "blocks ```{info}");
    found.remove(0)
}

/// The statements of a block of SQL: each ends a line with its semicolon.
pub fn statements(sql: &str) -> Vec<String> {
    sql.split(";\n").map(|statement| statement.trim().to_owned()).filter(|one| !one.is_empty()).collect()
}

/// Every `batch-send ...` in code blocks and crontab lines, as the shell would hand it over.
pub fn command_lines(text: &str) -> Vec<String> {
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
pub fn words(line: &str) -> Vec<String> {
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

#[test]
fn the_reader_of_documents_finds_commands() {
    let text = "Text.\n```\n$ batch-send task create --name 'Spring sale' \\\n    --channel web\n12\n```\n";
    assert_eq!(command_lines(text), ["task create --name 'Spring sale'      --channel web"]);
    assert_eq!(words("a 'b c' \"d\" ''"), ["a", "b c", "d", ""]);
    let cron = "* * * * * app /usr/local/bin/batch-send run >> /var/log/x\n";
    assert_eq!(command_lines(cron), ["run"]);
}

#[test]
fn the_reader_of_documents_finds_blocks() {
    let text =
        "```sql one\nSELECT 1;\nSELECT\n 2;\n```\ntext\n```sql\nSELECT 3;\n```\n```sql\nSELECT 4;\n```\n";
    assert_eq!(statements(&block(text, "sql one")), ["SELECT 1", "SELECT\n 2"]);
    assert_eq!(blocks(text, "sql"), ["SELECT 3;\n", "SELECT 4;\n"]);
}
