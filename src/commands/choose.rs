//! Which targets of a task a person means, for `resolve` and `retry`: by id, by recipient, or those that a file names. They are acted
//! on a slice at a time, in flat memory. What is done to them is the verb's.
//!
//! A file is read twice: a line that is wrong ends it before anything is changed, and the question can say how many they are.
//! Standard input can be read only once: there it ends at the line, and the sentence says how many were changed before it.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::import::{Chosen, Source, unfit_recipient};
use super::output::{plain, targets};
use crate::cli::WhichArgs;
use crate::store::{Desk, Names};
use crate::target::{TargetId, TargetRow, TargetStatus};
use crate::task::TaskId;
use crate::trouble::Trouble;

/// Those that stay as they are are named, so many of them at most.
const NAMED_MOST: usize = 20;

/// What a person typed; `--all`, or nothing, is no choice.
pub enum Choice<'a> {
    Typed(Vec<Chosen>),
    File(&'a Path),
    Stdin,
}

/// What is done to a slice. How many it changed.
type OnSlice<'a> = &'a mut dyn FnMut(&mut dyn Desk, &[TargetId]) -> Result<u64>;

/// What came of it.
pub struct Done {
    pub changed: u64,
    left: Left,
}

/// Those that stay as they are, since they are not in the right status, or none of the task.
#[derive(Default)]
struct Left {
    named: Vec<String>,
    more: u64,
}

impl<'a> Choice<'a> {
    pub fn of(which: &'a WhichArgs) -> Result<Option<Self>> {
        if let Some(path) = &which.file {
            return Ok(Some(if path == Path::new("-") { Self::Stdin } else { Self::File(path) }));
        }
        let ids = which.target.iter().map(|id| Ok(Chosen::Id(*id)));
        let names = which.recipient.iter().map(|name| Ok(Chosen::Recipient(typed(name)?)));
        let typed: Vec<Chosen> = ids.chain(names).collect::<Result<_>>()?;
        Ok((!typed.is_empty()).then_some(Self::Typed(typed)))
    }

    /// Does `act` to those of them that are in `status`. `agree` is asked before anything is changed, with their number where it is
    /// known.
    pub fn act(
        &self,
        store: &mut dyn Desk,
        task: TaskId,
        status: TargetStatus,
        agree: &mut dyn FnMut(Option<u64>) -> Result<()>,
        act: OnSlice<'_>,
    ) -> Result<Done> {
        let mut number = None;
        if !matches!(self, Self::Stdin) {
            let (mut fit, mut left) = (0, Left::default());
            let flaw = self.each(&mut |slice| {
                fit += sort(store, task, status, slice, &mut left)?.len() as u64;
                Ok(())
            })?;
            if let Some(flaw) = flaw {
                bail!(Trouble::usage(format!(
                    "{flaw}; nothing was changed: mend the line and give it again"
                )));
            }
            if fit == 0 {
                return Ok(Done { changed: 0, left });
            }
            number = Some(fit);
        }
        agree(number)?;
        let (mut changed, mut left) = (0, Left::default());
        let flaw = self
            .each(&mut |slice| {
                let fit = sort(store, task, status, slice, &mut left)?;
                if !fit.is_empty() {
                    let now = act(store, &fit)?;
                    changed += now;
                    // In the moment between.
                    left.more += (fit.len() as u64).saturating_sub(now);
                }
                Ok(())
            })
            .with_context(|| format!("{} changed before", targets(changed)))?;
        if let Some(flaw) = flaw {
            bail!(Trouble::usage(format!(
                "{flaw}; {} changed before it: mend the line and give it again, those before it are left alone then",
                targets(changed)
            )));
        }
        Ok(Done { changed, left })
    }

    /// Slice by slice; the line that ended it.
    fn each(&self, each: &mut dyn FnMut(&[Chosen]) -> Result<()>) -> Result<Option<String>> {
        let path = match self {
            Self::Typed(typed) => return each(typed).map(|()| None),
            Self::File(path) => path,
            Self::Stdin => Path::new("-"),
        };
        Source::open("--file", path)?.each(each)
    }
}

/// A recipient on the command line, as import would take it.
pub fn typed(recipient: &str) -> Result<String> {
    let recipient = recipient.trim_end();
    match unfit_recipient(recipient) {
        Some(why) => bail!(Trouble::usage(why)),
        None => Ok(recipient.to_owned()),
    }
}

/// The ids of those that are in `status`. The others are told to `left`.
fn sort(
    store: &mut dyn Desk,
    task: TaskId,
    status: TargetStatus,
    slice: &[Chosen],
    left: &mut Left,
) -> Result<Vec<TargetId>> {
    let (mut ids, mut recipients) = (BTreeSet::new(), BTreeSet::new());
    for one in slice {
        match one {
            Chosen::Id(id) => drop(ids.insert(*id)),
            Chosen::Recipient(recipient) => drop(recipients.insert(recipient.clone())),
        }
    }
    let by_id = match ids.len() {
        0 => Vec::new(),
        _ => store.named(task, Names::Ids(&Vec::from_iter(ids.iter().copied())))?,
    };
    let by_recipient = match recipients.len() {
        0 => Vec::new(),
        _ => store.named(task, Names::Recipients(&Vec::from_iter(recipients.iter().cloned())))?,
    };
    let mut fit = BTreeSet::new();
    let mut judge = |row: &TargetRow, name: String| {
        if row.status == status.word() {
            fit.insert(row.id);
        } else {
            let status = if row.status.is_empty() { "no status" } else { &row.status };
            left.add(format!("{name} ({status})"));
        }
    };
    for row in &by_id {
        ids.remove(&row.id);
        judge(row, row.id.to_string());
    }
    for row in &by_recipient {
        recipients.remove(row.recipient.trim_end());
        judge(row, plain(&row.recipient).into_owned());
    }
    ids.iter().for_each(|id| left.add(format!("{id} (none of task {task})")));
    recipients.iter().for_each(|name| left.add(format!("{} (none of task {task})", plain(name))));
    Ok(fit.into_iter().collect())
}

impl Left {
    fn add(&mut self, name: String) {
        if self.named.len() < NAMED_MOST { self.named.push(name) } else { self.more += 1 }
    }
}

impl Done {
    /// Errors: there are some that the verb is not for; their names.
    pub fn named(self, task: TaskId, status: TargetStatus) -> Result<()> {
        let Left { mut named, more } = self.left;
        if more > 0 {
            named.push(format!("{more} more"));
        }
        if named.is_empty() {
            return Ok(());
        }
        bail!(
            "not {}, or not of task {task}, and left as they are: {}; `batch-send targets {task}` shows them",
            status.word(),
            named.join(", ")
        )
    }
}
