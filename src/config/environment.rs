//! What the environment says: our own variables, and `${NAME}` in the file.

use std::ffi::OsString;

use anyhow::Result;

use super::{usage, word};

/// The environment, or what a test says it is.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

#[allow(clippy::disallowed_methods)]
pub(super) fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// A variable of our own. Empty counts as unset: a crontab cannot unset.
pub(super) fn text_of(env: Environment, name: &str) -> Result<Option<String>> {
    match env(name).map(OsString::into_string) {
        None => Ok(None),
        Some(Ok(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(Err(_)) => Err(usage(format!("{name} is not UTF-8"))),
    }
}

/// Puts the environment's values for `${NAME}`; a name that is not set stays as it is, and the first of them is told.
pub(super) fn expand(
    text: &str,
    env: Environment,
    encode: fn(&str) -> String,
) -> Result<(String, Option<String>), String> {
    let (mut whole, mut unset, mut rest) = (String::new(), None, text);
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            whole.push_str(before);
            whole.push_str("${");
            rest = &from[2..];
            continue;
        }
        whole.push_str(before);
        let name = from[2..]
            .split_once('}')
            .map(|(name, _)| name)
            .filter(|name| name.chars().all(word) && name.starts_with(|c: char| !c.is_ascii_digit()));
        let Some(name) = name else {
            return Err(
                "`${` must be followed by the name of an environment variable and `}`; `$${` stands for \
                        the text itself"
                    .into(),
            );
        };
        let (variable, after) = from.split_at(name.len() + 3);
        match env(name).map(OsString::into_string) {
            Some(Ok(value)) => whole.push_str(&encode(&value)),
            Some(Err(_)) => return Err(format!("the environment's `{name}` is not UTF-8")),
            None => {
                whole.push_str(variable);
                unset.get_or_insert_with(|| name.to_owned());
            }
        }
        rest = after;
    }
    whole.push_str(rest);
    Ok((whole, unset))
}
