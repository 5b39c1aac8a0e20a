//! Reading one table of the file, key by key: what is there has the right type and range, and what is left at the end is
//! not known. Which keys there are, and their defaults, is config.rs.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Error, Result};
use serde::Deserializer;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::environment::{Environment, expand};
use super::{DAY, EXPANDED, HOUR, MINUTE, SECOND, Unset, usage};
use crate::cli::duration;
use crate::pace::{BURST_MOST, Pace};
use crate::sender::{Kind, Memory};
use crate::settlement::{Backoff, Policy};
use crate::store::ClaimForm;
use crate::trouble::neighbour;
use crate::window::Window;

/// One table of the file. Keys are taken out of it; what is left at the end is not known here.
pub(super) struct Section<'a> {
    pub file: &'a Path,
    /// As in the brackets; empty at the top of the file.
    pub name: String,
    pub table: Table,
    known: Vec<&'static str>,
}

impl<'a> Section<'a> {
    pub fn parse(file: &'a Path, text: &str) -> Result<Self> {
        let table = text.parse::<Table>().map_err(|error| {
            // Without the line itself, which toml would show: it may hold a secret.
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            usage(format!("{}: line {line} is no TOML: {}", file.display(), error.message()))
        })?;
        Ok(Self { file, name: String::new(), table, known: Vec::new() })
    }

    pub fn empty(&self, name: &str) -> Self {
        Self { file: self.file, name: name.into(), table: Table::new(), known: Vec::new() }
    }

    pub fn refuse(&self, sentence: impl Display) -> Error {
        usage(format!("{}: {sentence}", self.file.display()))
    }

    /// A key and where it stands.
    pub fn key(&self, key: &str) -> String {
        if self.name.is_empty() { format!("`{key}`") } else { format!("`{key}` in [{}]", self.name) }
    }

    pub fn wrong_type(&self, key: &str, expected: &str, value: &Value) -> Error {
        // The type, never the value.
        self.refuse(format!("{} must be {expected}, not of type {}", self.key(key), value.type_str()))
    }

    pub fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.table.remove(key)
    }

    pub fn string(&mut self, key: &'static str) -> Result<Option<String>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong_type(key, "a string", &other)),
        }
    }

    pub fn directory(&mut self, key: &'static str) -> Result<Option<PathBuf>> {
        let Some(path) = self.string(key)?.map(PathBuf::from) else { return Ok(None) };
        if path.is_relative() {
            let path = path.display();
            return Err(self.refuse(format!("{} must be an absolute path, not `{path}`", self.key(key))));
        }
        Ok(Some(path))
    }

    pub fn duration(
        &mut self,
        key: &'static str,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Result<Duration> {
        let time = match self.take(key) {
            None => return Ok(default),
            Some(Value::String(text)) => {
                duration(&text).map_err(|error| self.refuse(format!("{}: {error}", self.key(key))))?
            }
            Some(other) => return Err(self.wrong_type(key, "a duration such as \"50s\"", &other)),
        };
        if !range.contains(&time) {
            return Err(self.refuse(out_of(&self.key(key), time, &range)));
        }
        Ok(time)
    }

    pub fn optional_duration(
        &mut self,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Result<Option<Duration>> {
        if !self.table.contains_key(key) {
            self.known.push(key);
            return Ok(None);
        }
        self.duration(key, Duration::ZERO, range).map(Some)
    }

    pub fn integer<T>(&mut self, key: &'static str, default: T, range: RangeInclusive<T>) -> Result<T>
    where
        T: TryFrom<i64> + PartialOrd + Display,
    {
        let number = match self.take(key) {
            None => return Ok(default),
            Some(Value::Integer(number)) => number,
            Some(other) => return Err(self.wrong_type(key, "an integer", &other)),
        };
        T::try_from(number).ok().filter(|number| range.contains(number)).ok_or_else(|| {
            self.refuse(format!(
                "{} must be {} to {}, not {number}",
                self.key(key),
                range.start(),
                range.end()
            ))
        })
    }

    pub fn claim(&mut self) -> Result<ClaimForm> {
        let Some(form) = self.string("claim")? else { return Ok(ClaimForm::default()) };
        Value::String(form.clone()).try_into().map_err(|_| {
            let key = self.key("claim");
            self.refuse(format!("{key} must be auto, skip-locked or update, not `{form}`"))
        })
    }

    pub fn backoff(&mut self) -> Result<Backoff> {
        let mut section = match self.section("backoff")? {
            Some(section) => section,
            None => self.empty("backoff"),
        };
        let first = section.duration("first", 30 * SECOND, Duration::ZERO..=30 * DAY)?;
        let most = section.duration("most", HOUR, Duration::ZERO..=30 * DAY)?;
        section.finish(&[])?;
        if first > most {
            return Err(section.refuse(format!(
                "{} ({}) must not be longer than `most` ({})",
                section.key("first"),
                shown(first),
                shown(most)
            )));
        }
        Ok(Backoff { first, most })
    }

    /// `rate` and `burst`.
    pub fn pace(&mut self) -> Result<Option<Pace>> {
        let rate = self.string("rate")?;
        let given = self.table.contains_key("burst");
        let burst = self.integer("burst", 1, 1..=BURST_MOST)?;
        let Some(rate) = rate else {
            if given {
                return Err(self.refuse(format!("{} says nothing without `rate`", self.key("burst"))));
            }
            return Ok(None);
        };
        Pace::parse(&rate, given.then_some(burst))
            .map(Some)
            .map_err(|error| self.refuse(format!("{} {error}", self.key("rate"))))
    }

    /// `window` and `time_zone`.
    pub fn window(&mut self) -> Result<Option<Window>> {
        match (self.string("window")?, self.string("time_zone")?) {
            (None, None) => Ok(None),
            (Some(hours), Some(zone)) => Window::parse(&hours, &zone)
                .map(Some)
                .map_err(|error| self.refuse(format!("[{}]: {error}", self.name))),
            (Some(_), None) => Err(self.refuse(format!(
                "{} needs a `time_zone` beside it, as in \"Asia/Shanghai\"",
                self.key("window")
            ))),
            (None, Some(_)) => {
                Err(self.refuse(format!("{} says nothing without `window`", self.key("time_zone"))))
            }
        }
    }

    /// For how long the provider's memory of a key may be relied on.
    pub fn idempotent_for(
        &self,
        policy: &Policy,
        kind: &Kind,
        timeout: Duration,
    ) -> Result<Option<Duration>> {
        let key = self.key("idempotent_for");
        let window = match (kind.memory(), policy.idempotent_for) {
            (Memory::None, Some(_)) => {
                return Err(self.refuse(format!(
                    "{key}: nothing behind this channel drops a message whose key it has seen; take it out"
                )));
            }
            (Memory::None, None) | (Memory::Said, None) => return Ok(None),
            (Memory::Known(known), None) => return Ok(Some(known)),
            (Memory::Said, Some(said)) => said,
            (Memory::Known(known), Some(said)) => said.min(known),
        };
        // Begin lets a target in doubt leave only when the window lasts to the end of its claim.
        let needed = kind.longest(timeout) + policy.backoff.first;
        if window <= needed {
            return Err(self.refuse(format!(
                "{key} ({}) must be longer than one exchange and the first wait of `backoff` together ({}): a message in doubt could never \
                 be sent again in time",
                shown(window),
                shown(needed)
            )));
        }
        Ok(Some(window))
    }

    /// A table inside this one.
    pub fn section(&mut self, key: &'static str) -> Result<Option<Section<'a>>> {
        self.known.push(key);
        self.inner(key)
    }

    /// The same, where the key is the operator's own word: the name of a channel.
    pub fn inner(&mut self, key: &str) -> Result<Option<Section<'a>>> {
        let name = if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) };
        match self.table.remove(key) {
            None => Ok(None),
            Some(Value::Table(table)) => Ok(Some(Self { file: self.file, name, table, known: Vec::new() })),
            Some(other) => Err(self.wrong_type(key, "a table", &other)),
        }
    }

    /// Refuses what was not asked for, nor is in `also`.
    pub fn finish(&self, also: &[&'static str]) -> Result<()> {
        let Some((key, value)) = self.table.iter().find(|(key, _)| !also.contains(&key.as_str())) else {
            return Ok(());
        };
        if value.as_table().is_some_and(|table| table.contains_key("kind"))
            && self.name.starts_with("channel.")
        {
            let name = self.name.trim_start_matches("channel.");
            return Err(self.refuse(format!(
                "[{}.{key}] is a table inside [{}]: write the name of a channel with a dot in quotes, as in \
                 [channel.\"{name}.{key}\"]",
                self.name, self.name
            )));
        }
        let known: Vec<&str> = self.known.iter().chain(also).copied().collect();
        Err(self.refuse(format!("unknown key {}{}", self.key(key), neighbour(key, &known))))
    }

    /// The keys of a kind's own `Settings`, with the environment's values in them.
    pub fn own<T: DeserializeOwned>(&mut self, env: Environment) -> Result<(T, Option<Unset>)> {
        self.finish(fields::<T>())?;
        let mut table = std::mem::take(&mut self.table);
        let mut unset = None;
        for (key, value) in table.iter_mut().filter(|(key, _)| EXPANDED.contains(&key.as_str())) {
            let missing =
                expand_all(value, env).map_err(|error| self.refuse(format!("{}: {error}", self.key(key))))?;
            unset = unset.or(missing.map(|name| Unset { name, key: key.clone() }));
        }
        let settings = T::deserialize(table.clone()).map_err(|error| {
            let mut sentence = error.to_string().trim().to_owned();
            // serde shows the string that it found instead of something else; that may be a secret.
            hide(&Value::Table(table), &mut sentence);
            let missing = sentence.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
            if let Some(key) = missing.filter(|key| !key.contains('`')) {
                return self.refuse(format!(
                    "{} is missing: a channel of this kind cannot do without it, batch-send.example.toml shows one",
                    self.key(key)
                ));
            }
            match sentence.trim_end_matches('`').rsplit_once("\nin `") {
                Some((what, key)) => self.refuse(format!("{}: {what}", self.key(key))),
                None => self.refuse(format!("[{}]: {sentence}", self.name)),
            }
        })?;
        Ok((settings, unset))
    }

    /// What a kind says of its settings, once they are complete.
    pub fn checked(&self, check: Result<()>, unset: &Option<Unset>) -> Result<()> {
        match check {
            Err(error) if unset.is_none() => Err(self.refuse(format!("[{}]: {error:#}", self.name))),
            _ => Ok(()),
        }
    }
}

fn expand_all(value: &mut Value, env: Environment) -> Result<Option<String>, String> {
    let mut first = None;
    match value {
        Value::String(text) => {
            let (whole, unset) = expand(text, env, str::to_owned)?;
            *text = whole;
            first = unset;
        }
        Value::Array(values) => {
            for value in values {
                let unset = expand_all(value, env)?;
                first = first.or(unset);
            }
        }
        Value::Table(table) => {
            for (_, value) in table.iter_mut() {
                let unset = expand_all(value, env)?;
                first = first.or(unset);
            }
        }
        _ => {}
    }
    Ok(first)
}

fn hide(value: &Value, sentence: &mut String) {
    match value {
        Value::String(text) => *sentence = sentence.replace(&format!("string {text:?}"), "a string"),
        Value::Integer(number) => *sentence = sentence.replace(&format!("integer `{number}`"), "an integer"),
        Value::Array(values) => values.iter().for_each(|value| hide(value, sentence)),
        Value::Table(table) => table.values().for_each(|value| hide(value, sentence)),
        _ => {}
    }
}

/// The names of a struct's fields, as its `Deserialize` asks for them.
pub(super) fn fields<T: DeserializeOwned>() -> &'static [&'static str] {
    struct Ask<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Ask<'_> {
        type Error = serde::de::value::Error;

        fn deserialize_any<V: serde::de::Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(serde::de::Error::custom("only asked for the names of its fields"))
        }

        fn deserialize_struct<V: serde::de::Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Self::Error> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut names: &'static [&'static str] = &[];
    // It always ends in our own error; by then the names are known.
    let _ = T::deserialize(Ask(&mut names));
    names
}

pub(super) fn out_of(what: &str, value: Duration, range: &RangeInclusive<Duration>) -> String {
    format!("{what} must be {} to {}, not {}", shown(*range.start()), shown(*range.end()), shown(value))
}

/// In the greatest unit that is exact, as it is written in the file.
pub(super) fn shown(time: Duration) -> String {
    let ms = time.as_millis();
    let units = [(DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (SECOND, "s")];
    let exact = units.iter().find(|(unit, _)| ms > 0 && ms.is_multiple_of(unit.as_millis()));
    exact.map_or_else(|| format!("{ms}ms"), |(unit, name)| format!("{}{name}", ms / unit.as_millis()))
}
