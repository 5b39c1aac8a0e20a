//! A line that becomes a target: its recipient, and everything else as params.

use anyhow::Result;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Flaw, RECIPIENT, Record, Row, Value};
use crate::commands::output::plain;
use crate::target::NewTarget;

/// JSON that is nested more deeply is refused by some databases (MariaDB stops at 32), and then for a whole batch.
const DEPTH_MOST: usize = 30;

impl Row for NewTarget {
    /// For each column the beginning of its member in params, as in `"name":`; none for the recipient.
    type Columns = Vec<Option<String>>;

    fn columns(header: &Record<'_>, names: &[Value<'_>]) -> Result<Self::Columns> {
        let mut keys = Vec::new();
        for (position, (offset, name)) in names.iter().enumerate() {
            let name = name.trim();
            if name.is_empty() {
                return Err(header.flaw(*offset, "a column without a name").into());
            }
            if names[..position].iter().any(|(_, before)| before.trim() == name) {
                return Err(header.flaw(*offset, format!("a second column `{}`", plain(name))).into());
            }
            keys.push(if name == RECIPIENT { None } else { Some(serde_json::to_string(name)? + ":") });
        }
        Ok(keys)
    }

    fn from_csv(record: &Record<'_>, keys: &Self::Columns, values: &[Value<'_>]) -> Result<Self> {
        let mut recipient = String::new();
        let mut params = String::new();
        for (key, (offset, value)) in keys.iter().zip(values) {
            match key {
                None => recipient = record.recipient(*offset, value)?,
                Some(key) => {
                    params.push(if params.is_empty() { '{' } else { ',' });
                    params += key;
                    params += &serde_json::to_string(value)?;
                }
            }
        }
        let params = (!params.is_empty()).then(|| params + "}");
        Ok(Self { recipient, params })
    }

    fn from_json(record: &Record<'_>) -> Result<Self> {
        let line: Line<'_> =
            serde_json::from_str(record.text).map_err(|error| record.json_flaw(0, &error))?;
        let (at, recipient) = record.string(RECIPIENT, line.recipient)?;
        let recipient = record.recipient(at, &recipient)?;
        let params = line.params.map(|params| checked(record, params)).transpose()?;
        Ok(Self { recipient, params })
    }

    fn bytes(&self) -> usize {
        self.recipient.len() + self.params.as_ref().map_or(0, String::len)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    recipient: &'a RawValue,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// Params that templates can read and every database takes.
fn checked(record: &Record<'_>, params: &RawValue) -> Result<String, Flaw> {
    let offset = record.offset(params);
    let value: serde_json::Value =
        serde_json::from_str(params.get()).map_err(|error| record.json_flaw(offset, &error))?;
    match unfit(&value) {
        Some(why) => Err(record.flaw(offset, format!("params are {why}"))),
        None => Ok(params.get().to_owned()),
    }
}

/// Why a value cannot be params, or a payload.
pub fn unfit(value: &serde_json::Value) -> Option<String> {
    if !value.is_object() {
        return Some("not a JSON object".into());
    }
    (depth(value) > DEPTH_MOST).then(|| format!("nested more than {DEPTH_MOST} deep"))
}

fn depth(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        serde_json::Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
