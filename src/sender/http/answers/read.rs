//! The setting `answers`: a list of rules as they are written in the configuration. Each refusal is one sentence that names the
//! rule by its place in the list.

use std::ops::RangeInclusive;

use anyhow::Result;
use serde_json::{Number, Value};
use toml::{Table, Value as Toml};

use super::{After, Condition, Rule, Rules, Verdict, same};
use crate::cli::duration;
use crate::sender::Toll;
use crate::sender::http::exchange::{LONGEST_WAIT, SHORTEST_WAIT};
use crate::sender::http::pointer::Pointer;
use crate::sender::http::refused;
use crate::trouble::neighbour;

const KEYS: [&str; 6] = ["status", "json", "absent", "outcome", "after", "hold"];
const OUTCOMES: [&str; 5] = ["accepted", "deferred", "rejected", "unknown", "unavailable"];

/// As HTTP has them.
const STATUSES: RangeInclusive<u16> = 100..=999;

pub fn read(written: &[Table]) -> Result<Rules> {
    let mut rules: Vec<Rule> = Vec::with_capacity(written.len());
    for (n, table) in written.iter().enumerate() {
        let place = format!("answers: rule {}", n + 1);
        let rule = rule(table).map_err(|why| refused(format!("{place}: {why}")))?;
        if let Some(earlier) = rules.iter().position(|earlier| earlier.covers(&rule)) {
            let earlier = earlier + 1;
            return Err(refused(format!(
                "{place} can never decide, since rule {earlier} takes every answer that it is about: put it before that one, or take it out"
            )));
        }
        rules.push(rule);
    }
    Ok(Rules::new(rules))
}

fn rule(table: &Table) -> Result<Rule, String> {
    if table.is_empty() {
        return Err("it is empty: give it a status and an outcome, or take it out".into());
    }
    if let Some(unknown) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!("unknown key `{unknown}`{}", neighbour(unknown, &KEYS)));
    }
    let status =
        table.get("status").ok_or("`status` is missing: an integer, or a range such as \"200-299\"")?;
    Ok(Rule { statuses: statuses(status)?, conditions: conditions(table)?, verdict: verdict(table)? })
}

fn statuses(written: &Toml) -> Result<RangeInclusive<u16>, String> {
    let wrong =
        || "`status` must be an integer from 100 to 999, or a range of them such as \"200-299\"".to_owned();
    let ends = match written {
        Toml::Integer(status) => u16::try_from(*status).ok().map(|status| (status, status)),
        Toml::String(text) => {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            first.trim().parse().ok().zip(last.trim().parse().ok())
        }
        _ => None,
    };
    let (first, last) = ends.ok_or_else(wrong)?;
    if first > last {
        return Err(format!("`status` \"{first}-{last}\" begins after its end"));
    }
    if !STATUSES.contains(&first) || !STATUSES.contains(&last) {
        return Err(wrong());
    }
    Ok(first..=last)
}

fn conditions(table: &Table) -> Result<Vec<Condition>, String> {
    let mut conditions = Vec::new();
    match table.get("json") {
        None => {}
        Some(Toml::Table(json)) if !json.is_empty() => {
            for (pointer, written) in json {
                let pointer = Pointer::parse(pointer).map_err(|why| format!("`json`: {why}"))?;
                let values = values(written).ok_or_else(|| {
                    format!("`json`: {pointer} must be a string, a number, true or false, or a list of them")
                })?;
                conditions.push(Condition::Among(pointer, values));
            }
        }
        Some(_) => return Err("`json` must be a table such as { \"/code\" = \"OK\" }".into()),
    }
    let wrong = || "`absent` must be a JSON pointer such as \"/error\", or a list of them".to_owned();
    let absent = match table.get("absent") {
        None => Vec::new(),
        Some(Toml::String(one)) => vec![one.as_str()],
        Some(Toml::Array(several)) if !several.is_empty() => {
            several.iter().map(Toml::as_str).collect::<Option<_>>().ok_or_else(wrong)?
        }
        Some(_) => return Err(wrong()),
    };
    for pointer in absent {
        let pointer = Pointer::parse(pointer).map_err(|why| format!("`absent`: {why}"))?;
        if conditions.iter().any(|known| matches!(known, Condition::Among(its, _) if *its == pointer)) {
            return Err(format!("{pointer} cannot both be something and be absent"));
        }
        conditions.push(Condition::Absent(pointer));
    }
    Ok(conditions)
}

/// One or several.
fn values(written: &Toml) -> Option<Vec<Value>> {
    let one = std::slice::from_ref(written);
    let several = written.as_array().map_or(one, Vec::as_slice);
    let values: Vec<Value> = several.iter().map(value).collect::<Option<_>>()?;
    Some(values).filter(|values| !values.is_empty())
}

fn value(written: &Toml) -> Option<Value> {
    match written {
        Toml::String(text) => Some(text.as_str().into()),
        Toml::Boolean(truth) => Some((*truth).into()),
        Toml::Integer(number) => Some((*number).into()),
        // There is no JSON for what is not finite.
        Toml::Float(number) => Number::from_f64(*number).map(Value::Number),
        Toml::Datetime(_) | Toml::Array(_) | Toml::Table(_) => None,
    }
}

fn verdict(table: &Table) -> Result<Verdict, String> {
    let outcome = match table.get("outcome") {
        None => return Err(format!("`outcome` is missing: one of {}", OUTCOMES.join(", "))),
        Some(Toml::String(outcome)) => outcome.as_str(),
        Some(_) => return Err(format!("`outcome` must be one of {}", OUTCOMES.join(", "))),
    };
    if outcome != "deferred"
        && let Some(key) = ["after", "hold"].into_iter().find(|key| table.contains_key(*key))
    {
        return Err(format!("`{key}` is for the outcome deferred alone: take it out"));
    }
    match outcome {
        "accepted" => Ok(Verdict::Accepted),
        "deferred" => Ok(Verdict::Deferred { after: after(table)?, toll: toll(table)? }),
        "rejected" => Ok(Verdict::Rejected),
        "unknown" => Ok(Verdict::Unknown),
        "unavailable" => Ok(Verdict::Unavailable),
        other => Err(format!("`outcome` \"{other}\" is unknown{}", neighbour(other, &OUTCOMES))),
    }
}

fn after(table: &Table) -> Result<After, String> {
    let wait = match table.get("after") {
        None => return Ok(After::Unsaid),
        Some(Toml::String(pointer)) if pointer.starts_with('/') => {
            let pointer = Pointer::parse(pointer).map_err(|why| format!("`after`: {why}"))?;
            return Ok(After::At(pointer));
        }
        Some(Toml::String(text)) => duration(text).map_err(|why| {
            format!("`after`: {why}, or a JSON pointer to a number of seconds, as in \"/retry_in\"")
        })?,
        Some(_) => {
            return Err("`after` must be a duration such as \"30s\", or a JSON pointer to a number of \
                        seconds, as in \"/retry_in\""
                .into());
        }
    };
    if !(SHORTEST_WAIT..=LONGEST_WAIT).contains(&wait) {
        return Err("`after` must be 1s to 24h".into());
    }
    Ok(After::Fixed(wait))
}

fn toll(table: &Table) -> Result<Toll, String> {
    match table.get("hold") {
        None | Some(Toml::Boolean(false)) => Ok(Toll::Attempt),
        Some(Toml::Boolean(true)) => Ok(Toll::Hold),
        Some(_) => Err("`hold` must be true or false".into()),
    }
}

impl Rule {
    /// Whether it takes every answer that `later` is about.
    fn covers(&self, later: &Self) -> bool {
        self.statuses.contains(later.statuses.start())
            && self.statuses.contains(later.statuses.end())
            && self.conditions.iter().all(|own| later.conditions.iter().any(|its| own.follows_from(its)))
    }
}

impl Condition {
    fn follows_from(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Among(pointer, values), Self::Among(its, others)) => {
                pointer == its && others.iter().all(|other| values.iter().any(|value| same(value, other)))
            }
            (Self::Absent(pointer), Self::Absent(its)) => pointer == its,
            _ => false,
        }
    }
}
