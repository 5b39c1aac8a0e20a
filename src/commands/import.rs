//! Reads recipients from CSV or JSON lines, in one pass and in flat memory, and hands them on in batches. It knows
//! files, not tasks: what a line becomes is in import/targets.rs, import/suppressions.rs and import/chosen.rs, where the rows go its
//! caller's affair.
//!
//! A line that is wrong is no error but a [`Flaw`]: what came before it is handed on, so that the same import, once the line is
//! mended, completes what is there. The CSV is read strictly: the usual lenient reading finds a meaning in every
//! file, and a quote that is never closed would swallow the recipients after it without a word.

mod chosen;
mod suppressions;
mod targets;

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use serde_json::value::RawValue;

pub use self::chosen::Chosen;
pub use self::targets::unfit;
use super::output::{bar, plain, recipients};
use crate::store::{Added, RECIPIENT_MOST};
use crate::trouble::Trouble;

/// A batch is handed on when it has so many rows, or so many bytes.
const BATCH_ROWS: usize = 1000;
const BATCH_BYTES: usize = 512 << 10;

/// No line, and no CSV record of several lines, is longer.
const RECORD_MOST: usize = 1 << 20;

/// What a line becomes.
pub trait Row: Sized {
    /// What the header of a CSV says of the columns.
    type Columns;

    /// One of these the header has.
    const NEEDS: &[&str] = &[RECIPIENT];

    fn columns(header: &Record<'_>, names: &[Value<'_>]) -> Result<Self::Columns>;

    /// `values` are as many as the header has columns.
    fn from_csv(record: &Record<'_>, columns: &Self::Columns, values: &[Value<'_>]) -> Result<Self>;

    /// The record begins with `{`.
    fn from_json(record: &Record<'_>) -> Result<Self>;

    /// How much memory its texts take.
    fn bytes(&self) -> usize;
}

/// A value of a CSV record, and where in it it stands.
type Value<'a> = (usize, Cow<'a, str>);

/// A file, or standard input, opened.
pub struct Source {
    /// For people.
    name: String,
    input: Box<dyn BufRead>,
    bar: ProgressBar,
}

/// What came of an import.
#[derive(Debug)]
pub struct Imported {
    pub added: Added,
    /// The line at which it ended, with the name of the file.
    pub flaw: Option<String>,
}

/// What is wrong with a line, and where.
#[derive(Debug, PartialEq, Eq)]
pub struct Flaw {
    line: u64,
    /// In characters, from 1.
    column: Option<usize>,
    what: String,
}

impl Source {
    /// `-` is standard input. `role`: where the command line names it, for people. The bar is drawn on a terminal only.
    pub fn open(role: &str, path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            let bar = bar(None);
            let input = BufReader::with_capacity(64 << 10, bar.wrap_read(io::stdin().lock()));
            return Ok(Self { name: "standard input".into(), input: Box::new(input), bar });
        }
        let name = plain(&path.to_string_lossy()).into_owned();
        let file =
            File::open(path).with_context(|| Trouble::usage(format!("{role} {name} cannot be opened")))?;
        let about = file.metadata().ok();
        if about.as_ref().is_some_and(|about| about.is_dir()) {
            return Err(Trouble::usage(format!(
                "{role} {name} is a directory: name a file, or - for standard input"
            ))
            .into());
        }
        let length = about.filter(|about| about.is_file()).map(|about| about.len());
        let bar = bar(length);
        let input = BufReader::with_capacity(64 << 10, bar.wrap_read(file));
        Ok(Self { name, input: Box::new(input), bar })
    }

    /// Reads to the end, or to the first line that is wrong, and hands every row to `add`. Errors: those of `add`, and of reading.
    pub fn import<R: Row>(self, add: &mut dyn FnMut(&[R]) -> Result<Added>) -> Result<Imported> {
        let name = self.name.clone();
        let mut added = Added::default();
        let flaw = self.each(&mut |rows| {
            let more = add(rows)?;
            added.new += more.new;
            added.repeated += more.repeated;
            Ok(())
        });
        let flaw =
            flaw.with_context(|| format!("import {name}, after {}", recipients(added.new + added.repeated)))?;
        Ok(Imported { added, flaw })
    }

    /// The same without a count: hands every row to `each`. The line at which it ended, with the name of the file.
    pub fn each<R: Row>(self, each: &mut dyn FnMut(&[R]) -> Result<()>) -> Result<Option<String>> {
        let Self { name, input, bar } = self;
        let mut so_far = 0;
        let flaw = read(input, &mut |rows| {
            each(rows)?;
            so_far += rows.len() as u64;
            let speed = so_far as f64 / bar.elapsed().as_secs_f64();
            bar.set_message(format!("{}, {speed:.0}/s", recipients(so_far)));
            Ok(())
        })?;
        Ok(flaw.map(|flaw| format!("{name}, {flaw}")))
    }
}

impl Flaw {
    /// `before`: what stands before it, from the start of line `first` on.
    fn after(first: u64, before: &str, what: impl Into<String>) -> Self {
        let in_line = before.rsplit('\n').next().unwrap_or(before);
        let line = first + before.bytes().filter(|byte| *byte == b'\n').count() as u64;
        Self { line, column: Some(in_line.chars().count() + 1), what: what.into() }
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        if let Some(column) = self.column {
            write!(f, ", column {column}")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for Flaw {}

/// Reads CSV or JSON lines, told by the first byte.
fn read<R: Row>(mut input: impl BufRead, add: &mut dyn FnMut(&[R]) -> Result<()>) -> Result<Option<Flaw>> {
    let mut batch = Batch { rows: Vec::new(), bytes: 0, add };
    let mut head = Vec::new();
    input.by_ref().take(3).read_to_end(&mut head)?;
    if head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff]) {
        let what = "this is UTF-16; save it as UTF-8".into();
        return Ok(Some(Flaw { line: 1, column: Some(1), what }));
    }
    if head == [0xef, 0xbb, 0xbf] {
        head.clear();
        input.by_ref().take(1).read_to_end(&mut head)?;
    }
    let json = head.starts_with(b"{");
    let mut records = Records { input: head.chain(input), quoted: !json, text: Vec::new(), next: 1 };
    let read = if json { json_lines(&mut records, &mut batch) } else { csv(&mut records, &mut batch) };
    let flaw = read.map_or_else(|error| error.downcast::<Flaw>().map(Some), |()| Ok(None))?;
    batch.hand_on()?;
    Ok(flaw)
}

struct Batch<'a, R> {
    rows: Vec<R>,
    bytes: usize,
    add: &'a mut dyn FnMut(&[R]) -> Result<()>,
}

impl<R: Row> Batch<'_, R> {
    fn push(&mut self, row: R) -> Result<()> {
        self.bytes += row.bytes();
        self.rows.push(row);
        if self.rows.len() >= BATCH_ROWS || self.bytes >= BATCH_BYTES { self.hand_on() } else { Ok(()) }
    }

    fn hand_on(&mut self) -> Result<()> {
        if !self.rows.is_empty() {
            (self.add)(&self.rows)?;
        }
        self.rows.clear();
        self.bytes = 0;
        Ok(())
    }
}

/// Cuts the input into records: lines, but that a quoted CSV value may go over several.
struct Records<R> {
    input: R,
    quoted: bool,
    text: Vec<u8>,
    /// The number of the line that comes next.
    next: u64,
}

/// One record, without the end of its line.
pub struct Record<'a> {
    line: u64,
    text: &'a str,
}

impl<R: BufRead> Records<R> {
    fn next(&mut self) -> Result<Option<Record<'_>>> {
        let line = self.next;
        self.text.clear();
        let mut open = false;
        loop {
            let known = self.text.len();
            let room = (RECORD_MOST + 1 - known) as u64;
            self.input.by_ref().take(room).read_until(b'\n', &mut self.text)?;
            if self.text.len() == known {
                break;
            }
            if self.text.len() > RECORD_MOST {
                let hint = if open { ": is a quote in it not closed?" } else { "" };
                let what = format!("longer than {} KiB{hint}", RECORD_MOST >> 10);
                return Err(Flaw { line, column: None, what }.into());
            }
            self.next += 1;
            // A quote inside a quoted value is written twice, so that an odd number of them leaves the value open.
            open ^= self.quoted && self.text[known..].iter().filter(|byte| **byte == b'"').count() % 2 == 1;
            if !open {
                break;
            }
        }
        if self.text.is_empty() {
            return Ok(None);
        }
        let text = self.text.strip_suffix(b"\n").unwrap_or(&self.text);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let text = match std::str::from_utf8(text) {
            Ok(text) => text,
            Err(error) => {
                let before = String::from_utf8_lossy(&text[..error.valid_up_to()]);
                return Err(Flaw::after(line, &before, "this is not UTF-8").into());
            }
        };
        let record = Record { line, text };
        match text.find('\0') {
            Some(offset) => Err(record.flaw(offset, "a NUL byte").into()),
            None => Ok(Some(record)),
        }
    }
}

impl Record<'_> {
    fn flaw(&self, offset: usize, what: impl Into<String>) -> Flaw {
        Flaw::after(self.line, &self.text[..offset], what)
    }

    /// Trimmed on the right, and fit for its column.
    fn recipient(&self, offset: usize, text: &str) -> Result<String, Flaw> {
        let text = text.trim_end();
        match unfit_recipient(text) {
            Some(why) => Err(self.flaw(offset, why)),
            None => Ok(text.to_owned()),
        }
    }

    /// Where in a JSON line a part of it stands.
    fn offset(&self, part: &RawValue) -> usize {
        part.get().as_ptr() as usize - self.text.as_ptr() as usize
    }

    /// A part of a JSON line that must be a string, and where it stands.
    fn string(&self, what: &str, part: &RawValue) -> Result<(usize, String), Flaw> {
        let offset = self.offset(part);
        match serde_json::from_str(part.get()) {
            Ok(text) => Ok((offset, text)),
            Err(_) => Err(self.flaw(offset, format!("the {what} is not a string"))),
        }
    }

    /// serde_json's words on what stands at `offset`, without its position, which is ours to tell: it counts bytes, and from the
    /// start of the part. What it says of keys is said so that whoever wrote the line knows what to write.
    fn json_flaw(&self, offset: usize, error: &serde_json::Error) -> Flaw {
        let text = error.to_string();
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        let key = |before: &str| Some(plain(what.strip_prefix(before)?.split('`').next()?));
        let what = if let Some(key) = key("missing field `") {
            format!("no `{key}` in this line: write {{\"{key}\": \"ann@example.com\"}}")
        } else if let Some(key) = key("unknown field `") {
            format!("the key `{key}` is not known here: what is not `recipient` goes into `params`")
        } else {
            plain(what).into_owned()
        };
        let mut offset = offset + error.column().saturating_sub(1);
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        self.flaw(offset, what)
    }

    /// The values of a CSV record.
    fn values(&self) -> Result<Vec<Value<'_>>, Flaw> {
        let text = self.text;
        let mut values = Vec::new();
        let mut start = 0;
        loop {
            let (value, end) = if text[start..].starts_with('"') {
                let end = closing_quote(text, start + 1)
                    .ok_or_else(|| self.flaw(start, "a quote opens here and is never closed"))?;
                let inside = &text[start + 1..end];
                let value = match inside.contains('"') {
                    true => Cow::Owned(inside.replace("\"\"", "\"")),
                    false => Cow::Borrowed(inside),
                };
                (value, end + 1)
            } else {
                let end = text[start..].find(',').map_or(text.len(), |comma| start + comma);
                if let Some(quote) = text[start..end].find('"') {
                    let what = "a quote inside a value; write the value in quotes, and a quote in it twice";
                    return Err(self.flaw(start + quote, what));
                }
                (Cow::Borrowed(&text[start..end]), end)
            };
            values.push((start, value));
            match text[end..].chars().next() {
                None => return Ok(values),
                Some(',') => start = end + 1,
                Some(_) => return Err(self.flaw(end, "text after the quote that closes a value")),
            }
        }
    }
}

fn closing_quote(text: &str, mut from: usize) -> Option<usize> {
    loop {
        let quote = from + text[from..].find('"')?;
        if !text[quote + 1..].starts_with('"') {
            return Some(quote);
        }
        from = quote + 2;
    }
}

const RECIPIENT: &str = "recipient";

/// Where among the names of a header the column `wanted` is, if it is there; once.
fn find(header: &Record<'_>, names: &[Value<'_>], wanted: &str) -> Result<Option<usize>, Flaw> {
    let mut found = (0..names.len()).filter(|at| names[*at].1.trim() == wanted);
    let first = found.next();
    match found.next() {
        Some(second) => Err(header.flaw(names[second].0, format!("a second column `{wanted}`"))),
        None => Ok(first),
    }
}

/// Why a text cannot be a recipient.
pub fn unfit_recipient(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some("the recipient is empty".into());
    }
    if text.len() > RECIPIENT_MOST && text.chars().count() > RECIPIENT_MOST {
        return Some(format!("the recipient is longer than {RECIPIENT_MOST} characters"));
    }
    text.contains('\0').then(|| "a NUL character in the recipient".into())
}

fn csv<R: Row>(records: &mut Records<impl BufRead>, batch: &mut Batch<'_, R>) -> Result<()> {
    let Some(header) = records.next()? else {
        let what = "nothing is here: CSV begins with a header line, JSON lines with {".into();
        return Err(Flaw { line: 1, column: None, what }.into());
    };
    let names = header.values()?;
    let number = names.len();
    if !names.iter().any(|(_, name)| R::NEEDS.contains(&name.trim())) {
        let found: Vec<String> = names.iter().map(|(_, name)| format!("`{}`", plain(name.trim()))).collect();
        let what = format!(
            "no column `{}` in the header, only {}; CSV has a header and commas, JSON lines begin with {{",
            R::NEEDS.join("` or `"),
            found.join(", ")
        );
        return Err(header.flaw(0, what).into());
    }
    let columns = R::columns(&header, &names)?;
    while let Some(record) = records.next()? {
        if record.text.is_empty() {
            continue;
        }
        let values = record.values()?;
        if values.len() != number {
            let offset = values.get(number).map_or(record.text.len(), |(offset, _)| *offset);
            let what = format!("{} values for {number} columns", values.len());
            return Err(record.flaw(offset, what).into());
        }
        batch.push(R::from_csv(&record, &columns, &values)?)?;
    }
    Ok(())
}

fn json_lines<R: Row>(records: &mut Records<impl BufRead>, batch: &mut Batch<'_, R>) -> Result<()> {
    while let Some(record) = records.next()? {
        let text = record.text;
        let start = text.len() - text.trim_start().len();
        if start == text.len() {
            continue;
        }
        if !text[start..].starts_with('{') {
            return Err(record.flaw(start, "not a JSON object").into());
        }
        batch.push(R::from_json(&record)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::NewTarget;

    /// What was handed on, and the flaw that ended it.
    fn import(input: &[u8]) -> (Vec<NewTarget>, Option<String>) {
        let mut got = Vec::new();
        let flaw = read(input, &mut |rows: &[NewTarget]| {
            got.extend_from_slice(rows);
            Ok(())
        });
        (got, flaw.unwrap().map(|flaw| flaw.to_string()))
    }

    fn good(input: &[u8]) -> Vec<(String, Option<String>)> {
        let (got, flaw) = import(input);
        assert_eq!(flaw, None, "{}", String::from_utf8_lossy(input));
        got.into_iter().map(|row| (row.recipient, row.params)).collect()
    }

    fn row(recipient: &str, params: &str) -> (String, Option<String>) {
        (recipient.into(), (!params.is_empty()).then(|| params.into()))
    }

    #[test]
    fn csv_columns_become_params_and_values_are_strings() {
        let input = "name, recipient ,n\r\nAnn,a@x ,01\r\n\r\n\"O'Neil \"\"N\"\"\nJr, 王\",b@x,\n";
        let expected = [
            row("a@x", r#"{"name":"Ann","n":"01"}"#),
            row("b@x", r#"{"name":"O'Neil \"N\"\nJr, 王","n":""}"#),
        ];
        assert_eq!(good(input.as_bytes()), expected);
    }

    #[test]
    fn recipients_alone_have_no_params_and_the_last_line_needs_no_end() {
        assert_eq!(good(b"\xef\xbb\xbfrecipient\na\n b"), [row("a", ""), row(" b", "")]);
        assert_eq!(good(b"recipient\n"), []);
        assert_eq!(good(b"\"recipient\"\n\"a,b\""), [row("a,b", "")]);
    }

    #[test]
    fn json_lines_are_told_by_the_first_byte() {
        let input = "\u{feff}{\"recipient\":\"a \\u00e9 \"}\r\n\n {\"params\": {\"b\": [1.50, {}]}, \"recipient\":\"b\"}\n{\"recipient\":\"c\",\"params\":null}";
        let expected = [row("a é", ""), row("b", r#"{"b": [1.50, {}]}"#), row("c", "")];
        assert_eq!(good(input.as_bytes()), expected);
    }

    #[test]
    fn a_bad_line_is_named_and_what_came_before_it_is_kept() {
        let long = "x".repeat(256);
        let cases: Vec<(String, &str)> = vec![
            ("recipient,n\na,1\n ,2\n".into(), "line 3, column 1: the recipient is empty"),
            ("n,recipient\n王王,a\n王王,\n".into(), "line 3, column 4: the recipient is empty"),
            (
                format!("recipient\na\n{long}\n"),
                "line 3, column 1: the recipient is longer than 255 characters",
            ),
            ("recipient,n\na,1\nb\n".into(), "line 3, column 2: 1 values for 2 columns"),
            ("recipient,n\na,1\nb,2,3\n".into(), "line 3, column 5: 3 values for 2 columns"),
            ("recipient,n\na,\"1\n2\"\nb,\"3\n4\"x\n".into(), "line 5, column 3: text after the quote"),
            ("recipient,n\na,\nb,5\" disk\nc,\n".into(), "line 3, column 4: a quote inside a value"),
            (
                "recipient,n\na,\nb,\"5\nc,\nd,\n".into(),
                "line 3, column 3: a quote opens here and is never closed",
            ),
            ("recipient,n\na,\nb,\0\n".into(), "line 3, column 3: a NUL byte"),
            (
                "{\"recipient\":\"a\"}\n{\"recipient\":\"b\",\"x\":1}".into(),
                "line 2, column 20: the key `x` is not known here",
            ),
            (
                "{\"recipient\":\"a\"}\n{\"recipient\":\"\"}".into(),
                "line 2, column 14: the recipient is empty",
            ),
            (
                "{\"recipient\":\"a\"}\n{\"recipient\":7}".into(),
                "line 2, column 14: the recipient is not a string",
            ),
            (
                "{\"recipient\":\"a\"}\n{\"recipient\":\"b\\u0000\"}".into(),
                "line 2, column 14: a NUL character",
            ),
            (
                "{\"recipient\":\"a\"}\n{\"params\":{}}".into(),
                "line 2, column 13: no `recipient` in this line: write {\"recipient\"",
            ),
            ("{\"recipient\":\"a\"}\n{\"recipient\":\"王\",}".into(), "line 2, column 18: trailing comma"),
            (
                "{\"recipient\":\"a\"}\n{\"recipient\":\"b\"}{}".into(),
                "line 2, column 18: trailing characters",
            ),
            ("{\"recipient\":\"a\"}\n{\"recipient\":\"b\"".into(), "line 2, column 16: EOF"),
            ("{\"recipient\":\"a\"}\n[\"b\"]".into(), "line 2, column 1: not a JSON object"),
            (
                "{\"recipient\":\"a\"}\n{\"recipient\":\"b\",\"params\":[1]}".into(),
                "line 2, column 27: params are not a JSON object",
            ),
            (
                "{\"recipient\":\"a\"}\n{\"recipient\":\"b\",\"params\":{\"n\":1e999}}".into(),
                "line 2, column 36: number out of range",
            ),
            (
                format!(
                    "{{\"recipient\":\"a\"}}\n{{\"recipient\":\"b\",\"params\":{{\"n\":{}{}}}}}",
                    "[".repeat(30),
                    "]".repeat(30)
                ),
                "line 2, column 27: params are nested more than 30 deep",
            ),
        ];
        for (input, expected) in cases {
            let (got, flaw) = import(input.as_bytes());
            let flaw = flaw.unwrap_or_else(|| panic!("no flaw in {input:?}"));
            assert!(flaw.starts_with(expected), "{input:?}: {flaw}");
            let kept: Vec<&str> = got.iter().map(|row| row.recipient.as_str()).collect();
            assert_eq!(kept, ["a"], "{input:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_at_all_is_named() {
        let cases: [(&[u8], &str); 8] = [
            (b"", "line 1: nothing is here"),
            (b"\xff\xfer\0", "line 1, column 1: this is UTF-16"),
            (b"r\0e\0", "line 1, column 2: a NUL byte"),
            (b"recipient,na\xefme\n", "line 1, column 13: this is not UTF-8"),
            (b"to;name\n", "line 1, column 1: no column `recipient` in the header, only `to;name`"),
            (b"recipient,a,a\n", "line 1, column 13: a second column `a`"),
            (b"recipient,recipient\n", "line 1, column 11: a second column `recipient`"),
            (b"recipient,,b\n", "line 1, column 11: a column without a name"),
        ];
        for (input, expected) in cases {
            let (got, flaw) = import(input);
            assert_eq!(got, []);
            let flaw = flaw.unwrap();
            assert!(flaw.starts_with(expected), "{flaw}");
        }
    }

    #[test]
    fn a_quote_that_is_never_closed_is_not_read_into_memory_to_the_end() {
        let mut input = b"recipient,n\na,\"".to_vec();
        input.resize(RECORD_MOST + 100, b'\n');
        let (_, flaw) = import(&input);
        assert_eq!(flaw.unwrap(), "line 2: longer than 1024 KiB: is a quote in it not closed?");
        let endless = io::repeat(b'x');
        let flaw = read(BufReader::new(endless), &mut |_: &[NewTarget]| Ok(())).unwrap().unwrap();
        assert_eq!(flaw.to_string(), "line 1: longer than 1024 KiB");
    }

    #[test]
    fn batches_are_bounded_in_rows_and_in_bytes() {
        let wide = format!("recipient,n\n{}", format!("r,{}\n", "x".repeat(100_000)).repeat(20));
        let long = format!("recipient\n{}", "r\n".repeat(2500));
        for (input, rows, batches) in [(wide, 20, 4), (long, 2500, 3)] {
            let mut sizes = Vec::new();
            let flaw = read(input.as_bytes(), &mut |batch: &[NewTarget]| {
                sizes.push(batch.len());
                Ok(())
            });
            assert_eq!(flaw.unwrap(), None);
            assert_eq!((sizes.iter().sum::<usize>(), sizes.len()), (rows, batches), "{sizes:?}");
        }
    }

    #[test]
    fn trouble_of_the_database_is_no_flaw() {
        let error = read(&b"recipient\na\n"[..], &mut |_: &[NewTarget]| anyhow::bail!("gone")).unwrap_err();
        assert_eq!(error.to_string(), "gone");
    }
}
