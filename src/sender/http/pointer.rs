//! JSON pointers (RFC 6901), taken apart once when the configuration is read: serde_json's own takes them apart anew, on the heap,
//! at each look.

use std::fmt;

use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    text: String,
    steps: Vec<String>,
}

impl Pointer {
    /// The error says why `text` is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix('/') else {
            return Err(format!("{text:?} is not a JSON pointer: it must begin with /, as in \"/code\""));
        };
        if text.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
            return Err(format!(
                "{text:?} is not a JSON pointer: ~ is written ~0 there, and a / in a name ~1"
            ));
        }
        let steps = path.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
        Ok(Self { text: text.to_owned(), steps })
    }

    pub fn find<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.steps.iter().try_fold(value, |value, step| match value {
            Value::Object(members) => members.get(step),
            Value::Array(elements) => elements.get(index(step)?),
            _ => None,
        })
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn index(step: &str) -> Option<usize> {
    let plain = step == "0" || step.starts_with(|first: char| ('1'..='9').contains(&first));
    step.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_serde_jsons_own_finds() {
        let text = r#"{"a": {"b": [10, {"c": 1}]}, "x/y": 2, "m~n": 3, "~1": 4, "": {"": 5}, "0": 6}"#;
        let value: Value = serde_json::from_str(text).unwrap();
        for pointer in [
            "/a",
            "/a/b",
            "/a/b/0",
            "/a/b/1/c",
            "/a/b/01",
            "/a/b/+1",
            "/a/b/-",
            "/a/b/2",
            "/a/b/99999999999999999999",
            "/a/b/x",
            "/a/c",
            "/a/b/0/c",
            "/x~1y",
            "/m~0n",
            "/~01",
            "/",
            "//",
            "/0",
        ] {
            assert_eq!(Pointer::parse(pointer).unwrap().find(&value), value.pointer(pointer), "{pointer}");
        }
    }

    #[test]
    fn says_what_is_none() {
        for text in ["", "code", "#/code", "/a~", "/a~2", "/~~0"] {
            let said = Pointer::parse(text).unwrap_err();
            assert!(said.starts_with(&format!("{text:?} is not a JSON pointer: ")), "{said}");
        }
    }
}
