//! A server's reply: its code and its lines, read as RFC 5321 4.2 writes them. What a code means at which step is step.rs.

/// Of a reply no more than this is read, and of its text no more than that is shown.
const LONGEST: usize = 64 * 1024;
const SHOWN: usize = 4 * 1024;

/// A complete reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub code: u16,
    /// Without the code. There is at least one.
    pub lines: Vec<String>,
}

/// Takes a reply off the front of what was read. `None`: it is not complete yet.
pub fn take(read: &mut Vec<u8>) -> Result<Option<Reply>, String> {
    let mut lines = Vec::new();
    let (mut code, mut rest) = (None, read.as_slice());
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, after) = rest.split_at(end + 1);
        rest = after;
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end_matches(['\r', '\n']);
        let (this, last, text) = parts(line).ok_or_else(|| format!("no SMTP: {}", shown(line)))?;
        if *code.get_or_insert(this) != this {
            return Err(format!("no SMTP, two codes in one reply: {}", shown(line)));
        }
        lines.push(text.to_owned());
        if last {
            let used = read.len() - rest.len();
            read.drain(..used);
            return Ok(Some(Reply { code: this, lines }));
        }
    }
    if read.len() > LONGEST { Err("a reply without an end".into()) } else { Ok(None) }
}

/// The code, whether it is the last line, and the text.
fn parts(line: &str) -> Option<(u16, bool, &str)> {
    let code = line.get(..3).filter(|code| code.bytes().all(|byte| byte.is_ascii_digit()))?;
    let (last, text) = match line.as_bytes().get(3) {
        None => (true, ""),
        Some(b' ') => (true, &line[4..]),
        Some(b'-') => (false, &line[4..]),
        Some(_) => return None,
    };
    Some((code.parse().ok()?, last, text))
}

impl Reply {
    /// The code of RFC 2034, such as 5.1.1.
    pub fn enhanced(&self) -> Option<&str> {
        let word = self.lines.first()?.split(' ').next()?;
        let mut numbers = word.split('.');
        let class = numbers.next()?;
        let good =
            |number: &str| (1..=3).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
        (class == (self.code / 100).to_string() && numbers.clone().count() == 2 && numbers.all(good))
            .then_some(word)
    }

    /// All of it on one line; an enhanced code that each line repeats is there once.
    pub fn text(&self) -> String {
        let mut text = self.code.to_string();
        for (number, line) in self.lines.iter().enumerate() {
            let line = match self.enhanced() {
                Some(code) if number > 0 => line.strip_prefix(code).unwrap_or(line),
                _ => line,
            };
            text.push(' ');
            text.push_str(line);
        }
        shown(&text)
    }

    /// The server's own id of a message that it took: what servers in use write, or else all that it said.
    pub fn receipt(&self) -> Option<String> {
        let text = Self { code: self.code, lines: self.lines.clone() }.text();
        let text = text.trim_start_matches(|c: char| c.is_ascii_digit()).trim();
        let text = self.enhanced().and_then(|code| text.strip_prefix(code)).unwrap_or(text).trim();
        let id = after(text, "queued as ")
            .or_else(|| after(text, "id="))
            .or_else(|| text.split_once(" Message accepted").map(|(id, _)| id))
            .map(|id| id.trim_matches(['<', '>', '(', ')', '.', ',', ';']))
            .filter(|id| !id.is_empty() && !id.contains(' '));
        Some(id.unwrap_or(text)).filter(|text| !text.is_empty()).map(str::to_owned)
    }
}

/// The word that follows, in letters of either case.
fn after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    let at = text.to_ascii_lowercase().find(mark)?;
    text[at + mark.len()..].split_whitespace().next()
}

/// The beginning of a text from outside, on one line, with nothing unprintable in it.
fn shown(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let mut line = words.collect::<Vec<_>>().join(" ");
    line.truncate(line.floor_char_boundary(SHOWN));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(text: &str) -> Reply {
        take(&mut text.as_bytes().to_vec()).unwrap().unwrap()
    }

    #[test]
    fn a_reply_is_complete_with_its_last_line_and_not_before() {
        let whole = "250-mx.example.com\r\n250-SIZE 1000\r\n250 HELP\r\n";
        for end in 0..whole.len() {
            assert_eq!(take(&mut whole.as_bytes()[..end].to_vec()), Ok(None), "{end}");
        }
        let mut read = format!("{whole}354 go").into_bytes();
        let lines = ["mx.example.com", "SIZE 1000", "HELP"].map(str::to_owned).to_vec();
        assert_eq!(take(&mut read), Ok(Some(Reply { code: 250, lines })));
        assert_eq!(read, b"354 go", "what follows stays");
    }

    #[test]
    fn what_is_no_reply_is_said() {
        for text in [
            "SSH-2.0-OpenSSH_9.6\r\n",
            "25\r\n",
            "2500 ok\r\n",
            "250-a\r\n251 b\r\n",
            "\r\n",
            "25\u{e9} x\r\n",
        ] {
            assert!(take(&mut text.as_bytes().to_vec()).is_err(), "{text}");
        }
        assert!(take(&mut vec![b'x'; LONGEST + 1]).is_err());
    }

    #[test]
    fn bare_codes_and_line_feeds_are_replies_too() {
        assert_eq!(reply("250\r\n"), Reply { code: 250, lines: vec![String::new()] });
        assert_eq!(reply("250 ok\n"), Reply { code: 250, lines: vec!["ok".into()] });
    }

    #[test]
    fn the_text_is_on_one_line_and_says_the_enhanced_code_once() {
        let long = reply("550-5.7.1 Blocked,\x1b[31m see\r\n550 5.7.1 https://x.example\r\n");
        assert_eq!(long.enhanced(), Some("5.7.1"));
        assert_eq!(long.text(), "550 5.7.1 Blocked, [31m see https://x.example");
        for none in [
            "550 5.1 x\r\n",
            "550 4.1.1 x\r\n",
            "550 5.1.1.1 x\r\n",
            "550 5.x.1 x\r\n",
            "550 x\r\n",
            "550\r\n",
        ] {
            assert_eq!(reply(none).enhanced(), None, "{none}");
        }
        let endless = reply(&format!("250 {}\r\n", "\u{e9}".repeat(10_000)));
        assert!(endless.text().len() <= SHOWN);
    }

    #[test]
    fn a_receipt_is_the_queue_id_that_servers_in_use_write() {
        for (text, id) in [
            ("250 2.0.0 Ok: queued as 4Qk1Z21xxz", "4Qk1Z21xxz"),
            ("250 OK id=1pQxyz-0001Ab-2C", "1pQxyz-0001Ab-2C"),
            ("250 2.0.0 u1ABC123 Message accepted for delivery", "u1ABC123"),
            ("250 2.0.0 Ok: Queued as <abc@mx.example>.", "abc@mx.example"),
            ("250 Message Queued (7E0B)", "Message Queued (7E0B)"),
            ("250 2.0.0 OK  1700000000 x1-2002.si.123 - gsmtp", "OK 1700000000 x1-2002.si.123 - gsmtp"),
        ] {
            assert_eq!(reply(&format!("{text}\r\n")).receipt().as_deref(), Some(id), "{text}");
        }
        assert_eq!(reply("250\r\n").receipt(), None);
        assert_eq!(reply("250 2.0.0\r\n").receipt(), None);
    }
}
