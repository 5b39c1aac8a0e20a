//! skeleton

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;

use crate::message::Message;
use crate::moment::Moment;
use crate::sender::{Outcome, Sender};

#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub url: String,
    #[serde(default = "post")]
    pub method: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    pub receipt: Option<String>,
    pub ca_file: Option<PathBuf>,
}

fn post() -> String {
    "POST".into()
}

pub struct Http;

impl Http {
    pub fn open(_: &Settings, _: Duration, _: usize) -> Result<Self> {
        Ok(Self)
    }
}

impl Sender for Http {
    fn send(&self, _: &Message, _: Moment) -> Outcome {
        Outcome::unreached("skeleton")
    }
}
