//! What of a configuration file others must not see or change: which of its keys hold a secret in plain text, and who may read and
//! write the file. Nothing is refused here; `check` tells.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use toml::{Table, Value};

/// Keys of a channel that are a secret, whatever is in them.
const SECRET: [&str; 3] = ["password", "secret", "sign_key"];

/// A header whose name has one of these in it is a secret.
const SECRET_HEADERS: [&str; 6] = ["authorization", "cookie", "key", "secret", "token", "password"];

/// Who may do what with a file, beside its owner and group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposed {
    pub readable: bool,
    pub writable: bool,
}

impl Exposed {
    pub fn of(file: &Path) -> std::io::Result<Self> {
        let mode = fs::metadata(file)?.permissions().mode();
        Ok(Self { readable: mode & 0o004 != 0, writable: mode & 0o002 != 0 })
    }
}

/// The keys that hold a secret in plain text, not from the environment. The values are told to nobody.
pub(super) fn secrets(text: &str) -> Vec<String> {
    // It was read before: what is no TOML did not come so far.
    let Ok(top) = text.parse::<Table>() else { return Vec::new() };
    let mut found = Vec::new();
    if top.get("database_url").is_some_and(has_password) {
        found.push("database_url".into());
    }
    let channels = top.get("channel").and_then(Value::as_table);
    for (name, channel) in channels.into_iter().flatten() {
        let Some(channel) = channel.as_table() else { continue };
        for (key, value) in channel {
            let secret = match key.as_str() {
                "url" => has_password(value),
                key => SECRET.contains(&key) && is_plain(value),
            };
            if secret {
                found.push(format!("{key} in [channel.{name}]"));
            }
        }
        let headers = channel.get("headers").and_then(Value::as_table);
        for (header, value) in headers.into_iter().flatten() {
            let lower = header.to_lowercase();
            if SECRET_HEADERS.iter().any(|part| lower.contains(part)) && is_plain(value) {
                found.push(format!("the header {header} in [channel.{name}]"));
            }
        }
    }
    found
}

/// With a text of its own, none of it from the environment.
fn is_plain(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.is_empty() && !text.contains("${"),
        Value::Array(values) => values.iter().any(is_plain),
        _ => false,
    }
}

fn has_password(url: &Value) -> bool {
    let userinfo = url.as_str().and_then(|url| {
        let authority = url.split_once("://")?.1.split('/').next()?;
        Some(authority.rsplit_once('@')?.0)
    });
    let password = userinfo.and_then(|userinfo| userinfo.split_once(':')).map(|(_, password)| password);
    password.is_some_and(|password| !password.is_empty() && !password.contains("${"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_environment_gives_is_no_secret_of_the_file() {
        let plain = r#"
            database_url = "mysql://app:s3cret@db/shop"
            [channel.a]
            url = "https://me:s3cret@host/x"
            headers = { Authorization = "Bearer s3cret", X-Api-Key = "s3cret", Accept = "text/plain" }
            sign_key = ["${NEW}", "whsec_s3cret"]
            [channel.b]
            password = "s3cret"
            [channel.c]
            secret = "s3cret"
        "#;
        let expected = [
            "database_url",
            "sign_key in [channel.a]",
            "url in [channel.a]",
            "the header Authorization in [channel.a]",
            "the header X-Api-Key in [channel.a]",
            "password in [channel.b]",
            "secret in [channel.c]",
        ];
        let mut found = secrets(plain);
        found.sort();
        let mut sorted = expected.map(str::to_owned);
        sorted.sort();
        assert_eq!(found, sorted);
        let from_outside = plain.replace("s3cret", "${SECRET}").replace("whsec_${SECRET}", "${OLD}");
        assert_eq!(secrets(&from_outside), Vec::<String>::new());
        assert_eq!(secrets("database_url = \"mysql://root@127.0.0.1/test\""), Vec::<String>::new());
    }
}
