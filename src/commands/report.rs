//! `report`: what became of a task, as one page of HTML that needs nothing else: to be attached to a mail, or opened offline. All its
//! numbers are of one moment. The pass over the targets is report/figures.rs, the drawings are report/charts.rs, and how the
//! page looks is report/page.rs and page.html.

mod charts;
mod figures;
mod latency;
mod page;
mod reasons;
mod sums;
mod timeline;

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Error, Result};
use indicatif::{ProgressBar, ProgressStyle};

use self::figures::Figures;
use super::output::{plain, targets};
use super::{installation, no_such_task, status};
use crate::cli::ReportArgs;
use crate::config::Config;
use crate::exit::Exit;
use crate::replace::{Mode, replace};
use crate::store::Desk;
use crate::trouble::Trouble;

pub fn run(args: &ReportArgs, config: &Config, store: &mut dyn Desk, out: &mut dyn Write) -> Result<Exit> {
    let installation = installation(store)?;
    let file = Destination::of(&args.html)?;
    let mut figures = Figures::default();
    let bar = bar();
    let read = store.snapshot(args.id, &mut |target| {
        figures.take(target);
        let so_far = figures.counts.total();
        if so_far % 10_000 == 0 {
            bar.set_message(targets(so_far));
            bar.tick();
        }
        Ok(())
    });
    bar.finish_and_clear();
    let snapshot = read?.ok_or_else(|| no_such_task(args.id))?;
    let sums = sums::of(&snapshot, &figures);
    let waits = status::waits_for(&snapshot.task, config, snapshot.at);
    let page = page::render(&snapshot, waits.as_deref(), &figures, &sums, installation)?;
    match &file {
        Destination::Stdout => out.write_all(page.as_bytes())?,
        Destination::Stream(path) => fs::write(path, page).map_err(|error| cannot_write(path, error))?,
        Destination::File(path) => {
            // Others need not read who the recipients are.
            replace(path, page.as_bytes(), Mode::AtFirst(0o640), true)
                .map_err(|error| cannot_write(path, error))?;
        }
    }
    let wrong: Vec<&str> = sums.iter().filter(|sum| !sum.holds()).map(|sum| sum.what).collect();
    if wrong.is_empty() {
        return Ok(Exit::Done);
    }
    log::warn!(
        "task {}: the sums do not add up ({}): the report shows both sides; were rows changed by hand?",
        args.id,
        wrong.join("; ")
    );
    Ok(Exit::ForAPerson)
}

/// Shown on a terminal only.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
    ProgressBar::no_length().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}

// ---- where the page goes -----------------------------------------------------------------------------------------

enum Destination {
    Stdout,
    /// A pipe or a device: it stays what it is.
    Stream(PathBuf),
    /// A file, there or not; where a link leads to one, that one.
    File(PathBuf),
}

impl Destination {
    /// Looks before millions of rows are read for nothing.
    fn of(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let shown = plain(&path.to_string_lossy()).into_owned();
        if let Ok(about) = fs::metadata(path) {
            if about.is_dir() {
                let text = format!("--html {shown} is a directory: name a file in it");
                return Err(Trouble::usage(text).into());
            }
            return Ok(if about.is_file() {
                Self::File(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
            } else {
                Self::Stream(path.to_owned())
            });
        }
        if path.file_name().is_none() || !folder(path).is_dir() {
            let text =
                format!("--html {shown}: there is no directory {}", plain(&folder(path).to_string_lossy()));
            return Err(Trouble::usage(text).into());
        }
        Ok(Self::File(path.to_owned()))
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn cannot_write(path: &Path, error: io::Error) -> Error {
    let text = format!("cannot write {}", plain(&path.to_string_lossy()));
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Error::new(error).context(
            Trouble::usage(format!("{text}: --html needs a place that this user may write to, or -")),
        ),
        _ => Error::new(error).context(text),
    }
}
