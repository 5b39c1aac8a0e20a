//! A line that says which target is meant: by its `id`, or where there is none by its `recipient`. Whatever else the line has is
//! passed over, so that what `targets` prints can be filtered and given back.

use anyhow::Result;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Flaw, RECIPIENT, Record, Row, Value, find};
use crate::target::TargetId;

const ID: &str = "id";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    Id(TargetId),
    Recipient(String),
}

/// Where in a CSV it stands.
pub enum Column {
    Id(usize),
    Recipient(usize),
}

impl Row for Chosen {
    type Columns = Column;

    const NEEDS: &[&str] = &[ID, RECIPIENT];

    fn columns(header: &Record<'_>, names: &[Value<'_>]) -> Result<Column> {
        let (id, recipient) = (find(header, names, ID)?, find(header, names, RECIPIENT)?);
        Ok(id.map_or_else(|| Column::Recipient(recipient.unwrap_or_default()), Column::Id))
    }

    fn from_csv(record: &Record<'_>, column: &Column, values: &[Value<'_>]) -> Result<Self> {
        Ok(match column {
            Column::Id(at) => Self::Id(id(record, values[*at].0, values[*at].1.trim())?),
            Column::Recipient(at) => Self::Recipient(record.recipient(values[*at].0, &values[*at].1)?),
        })
    }

    fn from_json(record: &Record<'_>) -> Result<Self> {
        let line: Line<'_> =
            serde_json::from_str(record.text).map_err(|error| record.json_flaw(0, &error))?;
        Ok(match (line.id, line.recipient) {
            (Some(part), _) => Self::Id(id(record, record.offset(part), part.get())?),
            (None, Some(part)) => {
                let (at, recipient) = record.string(RECIPIENT, part)?;
                Self::Recipient(record.recipient(at, &recipient)?)
            }
            (None, None) => {
                let what =
                    "neither `id` nor `recipient` in this line: one of them says which target is meant";
                return Err(record.flaw(0, what).into());
            }
        })
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Id(_) => size_of::<Self>(),
            Self::Recipient(recipient) => size_of::<Self>() + recipient.len(),
        }
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    recipient: Option<&'a RawValue>,
}

fn id(record: &Record<'_>, at: usize, text: &str) -> Result<TargetId, Flaw> {
    text.parse().map_err(|_| record.flaw(at, "the id is not a whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::import::read;

    fn import(input: &str) -> (Vec<Chosen>, Option<String>) {
        let mut got = Vec::new();
        let flaw = read(input.as_bytes(), &mut |rows: &[Chosen]| {
            got.extend_from_slice(rows);
            Ok(())
        });
        (got, flaw.unwrap().map(|flaw| flaw.to_string()))
    }

    fn named(name: &str) -> Chosen {
        Chosen::Recipient(name.into())
    }

    #[test]
    fn an_id_decides_and_without_one_the_recipient() {
        let ids = vec![Chosen::Id(17), Chosen::Id(9)];
        assert_eq!(import("id\n17\n 9\n"), (ids.clone(), None));
        assert_eq!(import("recipient,params,id\nann,\"{\"\"n\"\": 1}\",17\nbob,,9\n"), (ids.clone(), None));
        assert_eq!(import("{\"id\":17,\"recipient\":\"ann\",\"params\":null}\n{\"id\":9}"), (ids, None));
        let names = vec![named("ann"), named("17")];
        assert_eq!(import("recipient\nann  \n17\n"), (names.clone(), None));
        assert_eq!(import("{\"recipient\":\"ann\",\"id\":null}\n{\"recipient\":\"17\"}"), (names, None));
    }

    #[test]
    fn a_line_that_says_nothing_is_named() {
        for (input, expected) in [
            ("17\n9\n", "line 1, column 1: no column `id` or `recipient` in the header, only `17`"),
            ("id,id\n", "line 1, column 4: a second column `id`"),
            ("id\n17\nann\n", "line 3, column 1: the id is not a whole number"),
            ("id,recipient\n17,a\n,b\n", "line 3, column 1: the id is not a whole number"),
            ("recipient\na\n\"\"\n", "line 3, column 1: the recipient is empty"),
            ("{\"id\":17}\n{\"id\":\"9\"}", "line 2, column 7: the id is not a whole number"),
            ("{\"id\":17}\n{\"target\":9}", "line 2, column 1: neither `id` nor `recipient`"),
        ] {
            let flaw = import(input).1.unwrap_or_else(|| panic!("no flaw in {input:?}"));
            assert!(flaw.starts_with(expected), "{input:?}: {flaw}");
        }
    }
}
