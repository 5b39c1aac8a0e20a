//! A line that becomes a suppression. Lists come from providers, whose exports say more than is asked here: what is not
//! `recipient`, `channel` or `reason` is passed over. A channel of `*` stays as it is written, for the caller to tell it from one
//! that is not given.

use anyhow::Result;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Flaw, RECIPIENT, Record, Row, Value};
use crate::commands::suppress::unfit_channel;
use crate::suppression::Suppression;

const CHANNEL: &str = "channel";
const REASON: &str = "reason";

/// Where in a CSV its columns are.
pub struct Columns {
    recipient: usize,
    channel: Option<usize>,
    reason: Option<usize>,
}

impl Row for Suppression {
    type Columns = Columns;

    fn columns(header: &Record<'_>, names: &[Value<'_>]) -> Result<Columns> {
        let find = |wanted: &str| {
            let mut found = (0..names.len()).filter(|at| names[*at].1.trim() == wanted);
            let first = found.next();
            match found.next() {
                Some(second) => Err(header.flaw(names[second].0, format!("a second column `{wanted}`"))),
                None => Ok(first),
            }
        };
        let recipient = find(RECIPIENT)?.unwrap_or_default();
        Ok(Columns { recipient, channel: find(CHANNEL)?, reason: find(REASON)? })
    }

    fn from_csv(record: &Record<'_>, columns: &Columns, values: &[Value<'_>]) -> Result<Self> {
        let value = |column: usize| (values[column].0, &*values[column].1);
        let given = |column: Option<usize>| column.map(value);
        Ok(of(record, value(columns.recipient), given(columns.channel), given(columns.reason))?)
    }

    fn from_json(record: &Record<'_>) -> Result<Self> {
        let line: Line<'_> =
            serde_json::from_str(record.text).map_err(|error| record.json_flaw(0, &error))?;
        let recipient = record.string(RECIPIENT, line.recipient)?;
        let channel = line.channel.map(|part| record.string(CHANNEL, part)).transpose()?;
        let reason = line.reason.map(|part| record.string(REASON, part)).transpose()?;
        fn part((at, text): &(usize, String)) -> (usize, &str) {
            (*at, text)
        }
        Ok(of(record, part(&recipient), channel.as_ref().map(part), reason.as_ref().map(part))?)
    }

    fn bytes(&self) -> usize {
        let of = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.recipient.len() + of(&self.channel) + of(&self.reason)
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    recipient: &'a RawValue,
    #[serde(borrow)]
    channel: Option<&'a RawValue>,
    #[serde(borrow)]
    reason: Option<&'a RawValue>,
}

/// Each text with where it stands.
fn of(
    record: &Record<'_>,
    recipient: (usize, &str),
    channel: Option<(usize, &str)>,
    reason: Option<(usize, &str)>,
) -> Result<Suppression, Flaw> {
    let recipient = record.recipient(recipient.0, recipient.1.trim_start())?;
    let channel = channel.map(|(at, text)| (at, text.trim())).filter(|(_, text)| !text.is_empty());
    if let Some((at, name)) = channel
        && let Some(why) = unfit_channel(name)
    {
        return Err(record.flaw(at, why));
    }
    let reason = reason.map(|(_, text)| text.trim()).filter(|text| !text.is_empty());
    Ok(Suppression {
        recipient,
        channel: channel.map(|(_, name)| name.to_owned()),
        reason: reason.map(str::to_owned),
        since: None,
    })
}
