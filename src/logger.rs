//! The lines on stderr: trouble, and with -v what happens. Nothing at all in a healthy minute, since cron mails what is printed.
//! And the lines that a run keeps: in its log file, and at hand for the ping of its end. How a line looks is logger/line.rs.
//!
//! Each line of a run names the run, and the task and the target that the thread is at ([`about`]). A line without -v is the sentence
//! alone: a mail. Recipients are masked, but on stderr with -v.

mod line;

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use log::{Level, LevelFilter, Log, Metadata, Record};
use rustix::fs::OFlags;
use uuid::Uuid;

use self::line::Line;
use crate::cli::LogFormat;
use crate::owner;
use crate::patience;
use crate::target::TargetId;
use crate::task::TaskId;

/// What a log file gets, whatever stderr does.
const KEPT: LevelFilter = LevelFilter::Info;

/// A file system that has gone away never answers.
const OPENING: Duration = Duration::from_secs(2);

/// Bytes of the last lines that are kept at hand.
const TAIL: usize = 10_000;

static LOGGER: OnceLock<Logger> = OnceLock::new();

struct Logger {
    stderr: env_logger::Logger,
    level: LevelFilter,
    format: LogFormat,
    /// None: another command than `run`.
    run: Option<Uuid>,
    file: OnceLock<LogFile>,
    tail: OnceLock<Mutex<VecDeque<String>>>,
}

/// Only our own lines: what a library has to say is in the errors it returns. `run`: the name of this run.
pub fn start(verbose: u8, quiet: bool, format: LogFormat, run: Option<Uuid>) {
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::Error,
        (false, 0) => LevelFilter::Warn,
        (false, 1) => LevelFilter::Info,
        (false, _) => LevelFilter::Debug,
    };
    let (file, tail) = (OnceLock::new(), OnceLock::new());
    let stderr = stderr(level, verbose > 0, format, run);
    let logger = LOGGER.get_or_init(|| Logger { stderr, level, format, run, file, tail });
    log::set_max_level(level);
    // It fails only where a logger stands already.
    let _ = log::set_logger(logger);
}

/// The name of this run.
pub fn run() -> Uuid {
    LOGGER.get().and_then(|logger| logger.run).unwrap_or_default()
}

/// From now on lines go to this file, too.
pub fn keep_in(path: &Path) -> io::Result<()> {
    let at = path.to_owned();
    let file = patience::within(OPENING, "log", move || LogFile::open(&at))??;
    if let Some(logger) = LOGGER.get() {
        logger.file.get_or_init(|| file);
        log::set_max_level(logger.kept());
    }
    Ok(())
}

/// From now on the last lines are kept at hand.
pub fn keep_tail() {
    if let Some(logger) = LOGGER.get() {
        logger.tail.get_or_init(Mutex::default);
        log::set_max_level(logger.kept());
    }
}

/// The last lines of this run, as in a log file.
pub fn tail() -> String {
    let tail = LOGGER.get().and_then(|logger| logger.tail.get());
    tail.map_or_else(String::new, |tail| {
        tail.lock().unwrap_or_else(PoisonError::into_inner).iter().map(String::as_str).collect()
    })
}

// ---- what a line is about -----------------------------------------------------------------------------------------

#[derive(Clone, Copy, Default)]
struct About {
    task: Option<TaskId>,
    target: Option<TargetId>,
}

thread_local! {
    static ABOUT: Cell<About> = const { Cell::new(About { task: None, target: None }) };
}

/// Until it is dropped, what this thread logs is about one task, or one target of it.
#[must_use]
pub struct Speaking(About);

impl Drop for Speaking {
    fn drop(&mut self) {
        ABOUT.set(self.0);
    }
}

pub fn about(task: TaskId, target: Option<TargetId>) -> Speaking {
    Speaking(ABOUT.replace(About { task: Some(task), target }))
}

// ---- where lines go -----------------------------------------------------------------------------------------------

fn stderr(level: LevelFilter, verbose: bool, format: LogFormat, run: Option<Uuid>) -> env_logger::Logger {
    let masked = run.is_some() && !verbose;
    env_logger::Builder::new()
        .filter_level(LevelFilter::Off)
        .filter_module("batch_send", level)
        .format(move |out, record| {
            let line = Line::of(record, ABOUT.get(), run);
            let text = match format {
                LogFormat::Text if verbose => line.on_stderr(masked),
                LogFormat::Text => line.sentence(masked),
                LogFormat::Json => line.json(masked),
                LogFormat::Journal => line.journal(masked),
            };
            out.write_all(text.as_bytes())
        })
        .build()
}

impl Logger {
    /// The level of what is kept.
    fn kept(&self) -> LevelFilter {
        self.level.max(KEPT)
    }

    fn keep(&self, line: &Line) {
        let masked = self.run.is_some();
        if let Some(file) = self.file.get() {
            let text = match self.format {
                LogFormat::Json => line.json(masked),
                LogFormat::Text | LogFormat::Journal => line.in_file(masked),
            };
            if let Err(error) = file.write(&text)
                && !file.failed.swap(true, Ordering::Relaxed)
            {
                let path = file.path.display();
                self.stderr.log(
                    &Record::builder()
                        .level(Level::Warn)
                        .target(module_path!())
                        .args(format_args!(
                            "the log file {path} cannot be written: {error}; the run goes on, and what it does is not kept"
                        ))
                        .build(),
                );
            }
        }
        if let Some(tail) = self.tail.get().filter(|_| line.level <= Level::Info) {
            let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
            tail.push_back(line.in_file(masked));
            while tail.len() > 1 && tail.iter().map(String::len).sum::<usize>() > TAIL {
                tail.pop_front();
            }
        }
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("batch_send") && metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        self.stderr.log(record);
        let kept = self.file.get().is_some() || self.tail.get().is_some();
        if kept && record.level() <= self.kept() {
            self.keep(&Line::of(record, ABOUT.get(), self.run));
        }
    }

    fn flush(&self) {}
}

/// Opened anew by each run, so that it may be moved away at any time, and appended to by one write a line, so that lines of several
/// runs stay whole.
struct LogFile {
    path: PathBuf,
    file: File,
    /// It was told that it cannot be written.
    failed: AtomicBool,
    /// The disk took a part of a line.
    torn: AtomicBool,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options
            .append(true)
            // A pipe without a reader must not hold the run.
            .custom_flags((OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32)
            .mode(0o640);
        let file = owner::open(&options, path)
            .map_err(|error| owner::of_another(path, &error).map_or(error, io::Error::other))?;
        Ok(Self { path: path.to_owned(), file, failed: AtomicBool::new(false), torn: AtomicBool::new(false) })
    }

    fn write(&self, line: &str) -> io::Result<()> {
        let mended;
        let line = if self.torn.load(Ordering::Relaxed) {
            mended = format!("\n{line}");
            &mended
        } else {
            line
        };
        let written = (&self.file).write(line.as_bytes())?;
        self.torn.store(written < line.len(), Ordering::Relaxed);
        if written < line.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// A pipe takes a short write whole or not at all: with room for half a line, nothing of it is there.
    #[test]
    fn a_line_is_one_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .unwrap();
        assert!(LogFile::open(&path).is_err(), "nobody reads");
        let flags = OFlags::NONBLOCK.bits() as i32;
        let mut reader = OpenOptions::new().read(true).custom_flags(flags).open(&path).unwrap();
        let file = LogFile::open(&path).unwrap();
        let filler = 16 * 4096 - 60;
        file.write(&"x".repeat(filler)).unwrap();
        assert_eq!(file.write(&"y".repeat(100)).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let mut read = vec![0; 2 * filler];
        let mut length = 0;
        while let Ok(more @ 1..) = reader.read(&mut read[length..]) {
            length += more;
        }
        assert_eq!(length, filler);
        file.write("whole\n").unwrap();
        assert_eq!(reader.read(&mut read).unwrap(), 6);
    }
}
