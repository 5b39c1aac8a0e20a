//! Addresses: from what people write to what a server and a header take. Domains become ASCII here, local parts stay as
//! they are (only the server knows what they mean).

use lettre::Address;
use lettre::message::Mailbox;

/// `ann@example.com`. Errors say what is wrong, without the place.
pub fn address(text: &str) -> Result<Address, String> {
    no_control(text)?;
    let none = || format!("`{text}` is no address: it should look like ann@example.com");
    let (local, domain) = text.trim_matches(' ').rsplit_once('@').ok_or_else(none)?;
    let domain = if domain.is_ascii() {
        domain.to_owned()
    } else {
        idna::domain_to_ascii(domain).map_err(|_| format!("`{domain}` is no name of a domain"))?
    };
    Address::new(local, domain).map_err(|_| none())
}

/// `ann@example.com`, or `Ann <ann@example.com>`, the name in quotes or not.
pub fn mailbox(text: &str) -> Result<Mailbox, String> {
    no_control(text)?;
    let text = text.trim_matches(' ');
    let Some((name, inner)) = text.strip_suffix('>').and_then(|text| text.rsplit_once('<')) else {
        return Ok(Mailbox::new(None, address(text)?));
    };
    let name = Some(unquoted(name.trim_matches(' '))).filter(|name| !name.is_empty());
    Ok(Mailbox::new(name, address(inner)?))
}

fn unquoted(name: &str) -> String {
    let Some(inner) = name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) else {
        return name.to_owned();
    };
    let (mut plain, mut escaped) = (String::new(), false);
    for c in inner.chars() {
        escaped = c == '\\' && !escaped;
        if !escaped {
            plain.push(c);
        }
    }
    plain
}

/// A line break in a header or in a command would begin another one.
pub fn no_control(text: &str) -> Result<(), String> {
    match text.chars().find(|c| c.is_control() && *c != '\t') {
        Some(c) => Err(format!("it has the control character {c:?}, which would end or spoil its line")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_as_people_write_them() {
        for (text, expected) in [
            ("ann@example.com", "ann@example.com"),
            (" Ann.O'Neil+x@Example.COM ", "Ann.O'Neil+x@Example.COM"),
            ("\"ann smith\"@example.com", "\"ann smith\"@example.com"),
            ("a@b@example.com", ""),
            ("ann@b\u{fc}cher.example", "ann@xn--bcher-kva.example"),
            ("j\u{f6}rg@b\u{fc}cher.example", "j\u{f6}rg@xn--bcher-kva.example"),
            ("ann@[127.0.0.1]", "ann@[127.0.0.1]"),
            ("ann", ""),
            ("", ""),
            ("@example.com", ""),
            ("ann@", ""),
            ("ann@example..com", ""),
            ("ann smith@example.com", ""),
            ("ann@example.com>", ""),
            ("Ann <ann@example.com>", ""),
            ("ann@exa mple.com", ""),
            ("ann@example.com\r\nRCPT TO:<eve@example.com>", ""),
            ("ann@example.com\0", ""),
            ("ann\u{85}@example.com", ""),
        ] {
            let found = address(text).map(|address| address.to_string());
            assert_eq!(found.as_deref().unwrap_or_default(), expected, "{text:?}: {found:?}");
        }
    }

    #[test]
    fn a_name_may_stand_before_an_address() {
        for (text, name, address) in [
            ("ann@example.com", None, "ann@example.com"),
            ("<ann@example.com>", None, "ann@example.com"),
            ("Ann Smith <ann@example.com>", Some("Ann Smith"), "ann@example.com"),
            ("Acme, Inc. <news@acme.example>", Some("Acme, Inc."), "news@acme.example"),
            (r#""A \"B\" \\ C" <a@b.example>"#, Some(r#"A "B" \ C"#), "a@b.example"),
            ("J\u{f6}rg <j@b\u{fc}cher.example>", Some("J\u{f6}rg"), "j@xn--bcher-kva.example"),
        ] {
            let mailbox = mailbox(text).unwrap();
            assert_eq!(
                (mailbox.name.as_deref(), mailbox.email.to_string().as_str()),
                (name, address),
                "{text}"
            );
        }
        for text in ["Ann <ann>", "Ann <>", "Ann", "An\nn <ann@example.com>", "Ann <ann@example.com", ""] {
            assert!(mailbox(text).is_err(), "{text:?}");
        }
    }
}
