//! A line that becomes a suppression. Lists come from providers, whose exports say more than is asked here: what is not
//! `recipient`, `channel` or `reason` is passed over. A channel of `*` stays as it is written, for the caller to tell it from one
//! that is not given.

use anyhow::Result;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Flaw, RECIPIENT, Record, Row, Value, find};
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
        let find = |wanted| find(header, names, wanted);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::import::read;

    /// Recipient, channel and reason of each row, and the flaw that ended it.
    fn import(input: &str) -> (Vec<[String; 3]>, Option<String>) {
        let mut got = Vec::new();
        let flaw = read(input.as_bytes(), &mut |rows: &[Suppression]| {
            got.extend(rows.iter().map(|row| {
                let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
                [row.recipient.clone(), text(&row.channel), text(&row.reason)]
            }));
            Ok(())
        });
        (got, flaw.unwrap().map(|flaw| flaw.to_string()))
    }

    #[track_caller]
    fn good(input: &str, expected: &[[&str; 3]]) {
        let (got, flaw) = import(input);
        assert_eq!((got, flaw), (expected.iter().map(|row| row.map(str::to_owned)).collect(), None));
    }

    #[test]
    fn an_export_of_a_provider_is_taken_as_it_is() {
        let csv = "created,recipient,,reason,,type\n1,\" Ann@x \",a,\"550, no\nsuch user \",b,bounce\n2,bob@x,,,,\n";
        good(csv, &[["Ann@x", "-", "550, no\nsuch user"], ["bob@x", "-", "-"]]);
        let jsonl = "{\"recipient\": \" Ann@x \", \"created\": 1, \"more\": {\"a\": []}}\n{\"reason\": \"full\", \"recipient\": \"b\", \"channel\": null}\n";
        good(jsonl, &[["Ann@x", "-", "-"], ["b", "-", "full"]]);
    }

    #[test]
    fn a_channel_is_a_name_or_every_one_or_not_given() {
        good(
            "recipient,channel\na,web\nb, * \nc, \n",
            &[["a", "web", "-"], ["b", "*", "-"], ["c", "-", "-"]],
        );
        good("{\"recipient\":\"a\",\"channel\":\"*\"}", &[["a", "*", "-"]]);
    }

    #[test]
    fn a_bad_line_is_named_and_what_came_before_it_is_kept() {
        let long = "x".repeat(256);
        for (input, expected) in [
            ("recipient,n\na,1\n   ,2\n", "line 3, column 1: the recipient is empty"),
            (&format!("recipient\na\n{long}\n"), "line 3, column 1: the recipient is longer than 255"),
            ("recipient,channel\na,web\nb,we b\n", "line 3, column 3: `we b` is no name for a channel"),
            ("{\"recipient\":\"a\"}\n{\"recipient\":7}", "line 2, column 14: the recipient is not a string"),
            (
                "{\"recipient\":\"a\"}\n{\"recipient\":\"b\",\"channel\":[]}",
                "line 2, column 28: the channel is not a string",
            ),
            ("{\"recipient\":\"a\"}\n{\"email\":\"b\"}", "line 2, column 13: no `recipient` in this line"),
        ] {
            let (got, flaw) = import(input);
            let flaw = flaw.unwrap_or_else(|| panic!("no flaw in {input:?}"));
            assert!(flaw.starts_with(expected), "{input:?}: {flaw}");
            assert_eq!((got.len(), got[0][0].as_str()), (1, "a"), "{input:?}");
        }
        for (input, expected) in [
            ("recipient,reason, reason\n", "line 1, column 18: a second column `reason`"),
            (
                "email,reason\n",
                "line 1, column 1: no column `recipient` in the header, only `email`, `reason`",
            ),
        ] {
            assert!(import(input).1.is_some_and(|flaw| flaw.starts_with(expected)), "{input:?}");
        }
    }
}
