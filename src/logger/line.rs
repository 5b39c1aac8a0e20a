//! How one line looks: as a sentence for a mail, as text with what it is about, for the journal, as JSON.

use log::kv::{self, VisitSource, VisitValue};
use log::{Level, Record};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::About;
use crate::{mask, moment, task};

pub(super) struct Line {
    pub level: Level,
    message: String,
    /// In the order in which they are shown.
    fields: Vec<(String, Value)>,
    /// Whose target it is about; empty: of none, or it is not known.
    recipient: String,
}

impl Line {
    pub fn of(record: &Record<'_>, about: About, run: Option<Uuid>) -> Self {
        let mut own = Fields(Vec::new());
        // Our visitor never fails.
        let _ = record.key_values().visit(&mut own);
        let mut take = |key: &str| {
            let at = own.0.iter().position(|(name, _)| name == key)?;
            Some(own.0.remove(at).1)
        };
        let task = take("task").or(about.task.map(Value::from));
        let target = take("target").or(about.target.map(Value::from));
        let recipient = take("recipient").and_then(|value| value.as_str().map(str::to_owned));
        let context = [("task", task), ("target", target), ("recipient", recipient.clone().map(Value::from))];
        let mut fields: Vec<_> =
            context.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        fields.append(&mut own.0);
        fields.extend(run.map(|run| ("run".to_owned(), Value::from(run.to_string()))));
        let message = record.args().to_string();
        Self { level: record.level(), message, fields, recipient: recipient.unwrap_or_default() }
    }

    fn message(&self, masked: bool) -> String {
        if masked { mask::within(&self.message, &self.recipient) } else { self.message.clone() }
    }

    fn field(&self, key: &str, value: &Value, masked: bool) -> Value {
        match value {
            Value::String(text) if masked && key == "recipient" => mask::mask(text).into(),
            Value::String(text) if masked && key != "run" => mask::within(text, &self.recipient).into(),
            value => value.clone(),
        }
    }

    /// The sentence alone.
    pub fn sentence(&self, masked: bool) -> String {
        format!("batch-send: {}\n", self.message(masked))
    }

    pub fn on_stderr(&self, masked: bool) -> String {
        let level = match self.level {
            Level::Error | Level::Warn => String::new(),
            level => format!("{}: ", word(level)),
        };
        format!("batch-send: {level}{}\n", self.with_fields(masked))
    }

    pub fn in_file(&self, masked: bool) -> String {
        format!("{} {} {}\n", time(), word(self.level), self.with_fields(masked))
    }

    /// The priority in front, as sd-daemon(3) has it; the journal has the time by itself.
    pub fn journal(&self, masked: bool) -> String {
        let priority = match self.level {
            Level::Error => 3,
            Level::Warn => 4,
            Level::Info => 6,
            Level::Debug | Level::Trace => 7,
        };
        format!("<{priority}>{}\n", self.with_fields(masked))
    }

    pub fn json(&self, masked: bool) -> String {
        let mut line = Map::new();
        line.insert("time".into(), time().into());
        line.insert("level".into(), word(self.level).into());
        line.insert("pid".into(), std::process::id().into());
        for (key, value) in &self.fields {
            line.insert(key.clone(), self.field(key, value, masked));
        }
        line.insert("message".into(), self.message(masked).into());
        format!("{}\n", Value::Object(line))
    }

    /// On one line, whatever it quotes.
    fn with_fields(&self, masked: bool) -> String {
        let mut text: String =
            self.message(masked).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        for (key, value) in &self.fields {
            let value = match self.field(key, value, masked) {
                Value::String(word) if is_plain(&word) => word,
                value => value.to_string(),
            };
            text += &format!(" {key}={value}");
        }
        text
    }
}

fn is_plain(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '='))
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warning",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    }
}

fn time() -> String {
    task::show_time(&moment::wall())
}

/// The key-values of a record.
struct Fields(Vec<(String, Value)>);

impl<'kvs> VisitSource<'kvs> for Fields {
    fn visit_pair(&mut self, key: kv::Key<'kvs>, value: kv::Value<'kvs>) -> Result<(), kv::Error> {
        struct Kept(Value);

        impl VisitValue<'_> for Kept {
            fn visit_any(&mut self, value: kv::Value<'_>) -> Result<(), kv::Error> {
                self.0 = value.to_string().into();
                Ok(())
            }

            fn visit_u64(&mut self, value: u64) -> Result<(), kv::Error> {
                self.0 = value.into();
                Ok(())
            }

            fn visit_i64(&mut self, value: i64) -> Result<(), kv::Error> {
                self.0 = value.into();
                Ok(())
            }
        }

        let mut kept = Kept(Value::Null);
        value.visit(&mut kept)?;
        // What is not known is left out.
        if kept.0.as_str() != Some("") {
            self.0.push((key.to_string(), kept.0));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(about: About, level: Level, fields: &[(&str, &str)], message: &str) -> Line {
        let fields: Vec<(&str, &str)> = fields.to_vec();
        Line::of(
            &Record::builder().level(level).args(format_args!("{message}")).key_values(&fields).build(),
            about,
            Some(Uuid::nil()),
        )
    }

    const RUN: &str = "run=00000000-0000-0000-0000-000000000000";

    #[test]
    fn a_line_names_its_task_its_target_and_its_run() {
        let about = About { task: Some(7), target: Some(9) };
        let said = line(about, Level::Info, &[("channel", "web")], "leased");
        assert_eq!(
            said.on_stderr(true),
            format!("batch-send: info: leased task=7 target=9 channel=web {RUN}\n")
        );
        assert_eq!(said.sentence(true), "batch-send: leased\n");
        assert_eq!(said.journal(true), format!("<6>leased task=7 target=9 channel=web {RUN}\n"));
        let json: Value = serde_json::from_str(&said.json(true)).unwrap();
        assert_eq!(
            (&json["task"], &json["target"], &json["message"]),
            (&7.into(), &9.into(), &"leased".into())
        );
        // What the line itself says goes before what the thread is at.
        let said = line(about, Level::Warn, &[("task", "8"), ("why", "a \"b\"")], "no");
        assert_eq!(said.journal(true), format!("<4>no task=8 target=9 why=\"a \\\"b\\\"\" {RUN}\n"));
    }

    #[test]
    fn a_line_is_one_line_and_masks_its_recipient() {
        let said = line(About::default(), Level::Error, &[("recipient", "ann")], "550\nno ann\u{1b}[1m");
        assert_eq!(said.journal(true), format!("<3>550 no a*** [1m recipient=a*** {RUN}\n"));
        assert_eq!(said.journal(false), format!("<3>550 no ann [1m recipient=ann {RUN}\n"));
        assert_eq!(said.json(true).lines().count(), 1);
        assert!(said.json(true).contains(r#""message":"550\nno a***"#), "{}", said.json(true));
        assert!(said.json(true).contains(r#""recipient":"a***""#), "{}", said.json(true));
    }
}
