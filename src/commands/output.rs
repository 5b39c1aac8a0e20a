//! What commands say in the same words, and how: stdout, hints, text that came from elsewhere. A reader that goes away (`| head`) is
//! neither a panic nor an error.

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, Write};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use crate::exit::Exit;
use crate::task::TaskId;

/// Runs a command that writes to stdout. Once the reader has gone away, what the command could not say is of no interest.
pub fn to_stdout(command: impl FnOnce(&mut dyn Write) -> Result<Exit>) -> Result<Exit> {
    to(io::stdout().lock(), command)
}

fn to(out: impl Write, command: impl FnOnce(&mut dyn Write) -> Result<Exit>) -> Result<Exit> {
    let mut out = BufWriter::new(Pipe { out, closed: false });
    let ended = command(&mut out).and_then(|exit| {
        out.flush().context("write to stdout")?;
        Ok(exit)
    });
    if out.get_ref().closed { Ok(ended.unwrap_or(Exit::Done)) } else { ended }
}

/// Remembers that its reader has gone away: the error alone could be a database's.
struct Pipe<W> {
    out: W,
    closed: bool,
}

impl<W: Write> Write for Pipe<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.closed |= matches!(&written, Err(error) if error.kind() == io::ErrorKind::BrokenPipe);
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        self.closed |= matches!(&flushed, Err(error) if error.kind() == io::ErrorKind::BrokenPipe);
        flushed
    }
}

/// What to do next, for a person: on a terminal only, so that cron mails nothing.
pub fn hint(text: &str) {
    let stderr = io::stderr();
    if stderr.is_terminal() {
        // Nobody is there to be told that a hint could not be written.
        let _ = writeln!(stderr.lock(), "{text}");
    }
}

/// Text from elsewhere as a terminal may show it: no control characters, nothing that turns the direction of the line.
pub fn plain(text: &str) -> Cow<'_, str> {
    let odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(odd) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if odd(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// How far long work has come, on a terminal only; without a length, how long it has been at work.
pub fn bar(length: Option<u64>) -> ProgressBar {
    let (bar, template) = match length {
        Some(length) => (ProgressBar::new(length), "{wide_bar} {percent}% {msg} ETA {eta}"),
        None => (ProgressBar::no_length(), "{spinner} {msg} {elapsed}"),
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style).with_finish(ProgressFinish::AndClear)
}

/// "1 target", "2 targets".
pub fn targets(number: u64) -> String {
    format!("{number} target{}", if number == 1 { "" } else { "s" })
}

/// "1 recipient", "2 recipients".
pub fn recipients(number: u64) -> String {
    format!("{number} recipient{}", if number == 1 { "" } else { "s" })
}

/// What `resolve` says at its end.
pub fn changed(id: TaskId, number: u64, done: &str, json: bool, out: &mut dyn Write) -> Result<()> {
    if json {
        writeln!(out, "{}", serde_json::json!({ "id": id, "changed": number }))?;
    } else {
        writeln!(out, "{} {done}", targets(number))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    struct Gone(io::ErrorKind);

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn talk(out: &mut dyn Write) -> Result<Exit> {
        for line in 0..10_000 {
            writeln!(out, "{line}")?;
        }
        bail!("nobody stopped it")
    }

    #[test]
    fn a_reader_that_went_away_ends_the_command_quietly() {
        assert_eq!(to(Gone(io::ErrorKind::BrokenPipe), talk).unwrap(), Exit::Done);
        let short = |out: &mut dyn Write| Ok(writeln!(out, "7").map(|()| Exit::Done)?);
        assert_eq!(to(Gone(io::ErrorKind::BrokenPipe), short).unwrap(), Exit::Done);
    }

    #[test]
    fn a_full_disk_is_trouble() {
        let short = |out: &mut dyn Write| Ok(writeln!(out, "7").map(|()| Exit::Done)?);
        assert!(to(Gone(io::ErrorKind::StorageFull), short).is_err());
    }

    #[test]
    fn a_broken_pipe_of_somebody_else_is_trouble() {
        let failed = |_: &mut dyn Write| Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        assert!(to(Vec::new(), failed).is_err());
    }

    #[test]
    fn text_from_elsewhere_cannot_steer_a_terminal() {
        assert_eq!(plain("a\x1b[2J\n\u{9b}b\u{202e}王"), "a\\u{1b}[2J\\n\\u{9b}b\\u{202e}王");
        assert!(matches!(plain("ann@example.com"), Cow::Borrowed(_)));
    }
}
