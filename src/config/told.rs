//! How a run tells what it does: `log_file`, `metrics_file`, `ping_url` and `[notify]`. What is done with them is in logger.rs,
//! metrics.rs, ping.rs and notify.rs.

use std::cell::RefCell;
use std::path::PathBuf;

use anyhow::Result;
use serde::Deserialize;
use uuid::Uuid;

use super::environment::{Environment, expand};
use super::section::Section;
use super::{Unset, usage};
use crate::notify::Notify;
use crate::ping::Ping;

pub struct Told {
    pub log_file: Option<PathBuf>,
    pub metrics_file: Option<PathBuf>,
    ping_url: Option<PingUrl>,
    notify: Option<NotifySettings>,
}

/// A secret, mostly: who has the URL can ping.
struct PingUrl {
    url: String,
    place: String,
    unset: Option<Unset>,
}

struct NotifySettings {
    command: Vec<String>,
    place: String,
    unset: Option<Unset>,
    secrets: Vec<String>,
}

/// `[notify]`.
#[derive(Deserialize)]
struct Keys {
    command: Vec<String>,
}

impl Told {
    pub(super) fn read(top: &mut Section, env: Environment) -> Result<Self> {
        let log_file = top.absolute("log_file")?;
        let metrics_file = top.absolute("metrics_file")?;
        if let Some(file) = &metrics_file
            && file.extension().is_none_or(|extension| extension != "prom")
        {
            let (key, file) = (top.key("metrics_file"), file.display());
            return Err(top.refuse(format!(
                "{key} must end in .prom, not `{file}`: node_exporter reads no other files"
            )));
        }
        let ping_url = match top.string("ping_url")? {
            None => None,
            Some(text) => {
                let key = top.key("ping_url");
                let (url, unset) = expand(&text, env, str::to_owned)
                    .map_err(|error| top.refuse(format!("{key}: {error}")))?;
                let unset = unset.map(|name| Unset { name, key: "ping_url".into() });
                let checked = Ping::check(&url).map_err(|error| error.context("`ping_url`"));
                top.checked(checked, &unset)?;
                Some(PingUrl { url, place: top.file.display().to_string(), unset })
            }
        };
        let notify = match top.section("notify")? {
            None => None,
            Some(section) => Some(NotifySettings::read(section, env)?),
        };
        Ok(Self { log_file, metrics_file, ping_url, notify })
    }

    /// Errors are [`crate::trouble::Kind::Usage`]: a `${NAME}` that is not set.
    pub fn ping(&self, run: Uuid) -> Result<Option<Ping>> {
        let Some(PingUrl { url, place, unset }) = &self.ping_url else { return Ok(None) };
        if let Some(unset) = unset {
            return Err(unset.refused(place));
        }
        let ping = Ping::open(url, run).map_err(|error| usage(format!("{place}: `ping_url`: {error:#}")))?;
        Ok(Some(ping))
    }

    /// Errors are [`crate::trouble::Kind::Usage`]: a `${NAME}` that is not set.
    pub fn notify(&self, run: Uuid) -> Result<Option<Notify>> {
        let Some(NotifySettings { command, place, unset, secrets }) = &self.notify else { return Ok(None) };
        if let Some(unset) = unset {
            return Err(unset.refused(place));
        }
        let notify =
            Notify::open(command, secrets, run).map_err(|error| usage(format!("{place}: {error:#}")))?;
        Ok(Some(notify))
    }
}

impl NotifySettings {
    fn read(mut section: Section, env: Environment) -> Result<Self> {
        let given = RefCell::new(Vec::new());
        let env: Environment = &|name| {
            let value = env(name);
            given.borrow_mut().extend(value.as_ref().map(|value| value.to_string_lossy().into_owned()));
            value
        };
        let (Keys { command }, unset) = section.own(env)?;
        section.checked(Notify::check(&command), &unset)?;
        let place = format!("{}: [{}]", section.file.display(), section.name);
        Ok(Self { command, place, unset, secrets: given.into_inner() })
    }
}
