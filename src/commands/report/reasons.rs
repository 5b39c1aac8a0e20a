//! Why targets are not sent: `last_error`, grouped by what is the same in texts that differ in an address, an id or a long number.
//! In bounded memory: past so many groups, what begins none of them is counted, and not told apart.

use std::collections::HashMap;

/// Of each status.
const GROUPS_MOST: usize = 1000;

/// What stands for an address, an id or a long number.
const ANY: &str = "\u{2026}";

/// The statuses whose reasons are told, in this order.
pub const REASONED: [&str; 3] = ["failed", "unknown", "retry"];

#[derive(Default)]
pub struct Reasons {
    groups: [HashMap<String, Group>; 3],
    /// Of targets whose reason came after all groups were taken.
    others: [u64; 3],
    pattern: String,
}

struct Group {
    /// The text, while all were the same.
    text: Option<String>,
    number: u64,
}

/// So many targets of a status have a reason of this form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// An index of [`REASONED`].
    pub of: usize,
    /// Empty: there is none. With [`ANY`] where texts differ.
    pub text: String,
    pub number: u64,
}

impl Reasons {
    /// `of` is an index of [`REASONED`].
    pub fn add(&mut self, of: usize, text: &str) {
        generalise(text, &mut self.pattern);
        let groups = &mut self.groups[of];
        if let Some(group) = groups.get_mut(&self.pattern) {
            group.number += 1;
            if group.text.as_deref().is_some_and(|first| first != text) {
                group.text = None;
            }
        } else if groups.len() < GROUPS_MOST {
            groups.insert(self.pattern.clone(), Group { text: Some(text.to_owned()), number: 1 });
        } else {
            self.others[of] += 1;
        }
    }

    /// The commonest first, at most so many; then how many targets have another one.
    pub fn commonest(&self, most: usize) -> (Vec<Reason>, u64) {
        let mut all: Vec<Reason> = Vec::new();
        for (of, groups) in self.groups.iter().enumerate() {
            all.extend(groups.iter().map(|(pattern, group)| Reason {
                of,
                text: group.text.as_ref().unwrap_or(pattern).clone(),
                number: group.number,
            }));
        }
        all.sort_by(|a, b| b.number.cmp(&a.number).then(a.of.cmp(&b.of)).then_with(|| a.text.cmp(&b.text)));
        let rest = all.iter().skip(most).map(|reason| reason.number).sum::<u64>();
        all.truncate(most);
        (all, rest + self.others.iter().sum::<u64>())
    }

    pub fn number(&self) -> u64 {
        let grouped = self.groups.iter().flat_map(HashMap::values).map(|group| group.number).sum::<u64>();
        grouped + self.others.iter().sum::<u64>()
    }

    /// Whether some could not be told apart any more.
    pub fn overflowed(&self) -> bool {
        self.others.iter().any(|number| *number > 0)
    }
}

/// Words that are an address, an id or a long number become [`ANY`]. Versions, codes and host names stay.
fn generalise(text: &str, pattern: &mut String) {
    pattern.clear();
    let in_word = |c: char| c.is_alphanumeric() || matches!(c, '@' | '.' | '_' | '+' | '-');
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| !in_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        pattern.push_str(if is_one_of_many(word) { ANY } else { word });
        let next = after.find(in_word).unwrap_or(after.len());
        pattern.push_str(&after[..next]);
        rest = &after[next..];
    }
}

fn is_one_of_many(word: &str) -> bool {
    let word = word.trim_matches(['.', '-']);
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let numbers_and_dots = word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let hexadecimal = word.bytes().all(|b| b.is_ascii_hexdigit());
    word.contains('@')
        || (digits == word.len() && digits >= 5)
        || (word.len() >= 8 && digits >= if hexadecimal { 1 } else { 2 } && !numbers_and_dots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> String {
        let mut pattern = String::new();
        generalise(text, &mut pattern);
        pattern
    }

    #[test]
    fn what_differs_from_target_to_target_is_left_out() {
        for (text, expected) in [
            ("550 5.1.1 <ann@example.com>: user unknown", "550 5.1.1 <…>: user unknown"),
            (
                r#"HTTP 422: {"error":"no such user","id":"9f8a7b6c-11"}"#,
                r#"HTTP 422: {"error":"no such user","id":"…"}"#,
            ),
            ("errcode 40003, rid: 65f1a2b3-0c1d2e3f-44", "errcode …, rid: …"),
            ("connect to 192.168.10.12 port 443: refused", "connect to 192.168.10.12 port 443: refused"),
            ("4.7.1 try after 300 s, api.example.com/v1", "4.7.1 try after 300 s, api.example.com/v1"),
            ("ref faedabe3 of mailbox2.example", "ref … of mailbox2.example"),
            ("没有这个用户 12345", "没有这个用户 …"),
            ("", ""),
            ("...", "..."),
        ] {
            assert_eq!(pattern(text), expected);
        }
    }

    #[test]
    fn a_text_that_was_always_the_same_is_told_as_it_was() {
        let mut reasons = Reasons::default();
        for _ in 0..3 {
            reasons.add(0, "<ann@example.com> is blocked");
        }
        reasons.add(1, "<ann@example.com> is unsure");
        reasons.add(1, "<bob@example.com> is unsure");
        reasons.add(2, "");
        let reason = |of, text: &str, number| Reason { of, text: text.into(), number };
        let (all, rest) = reasons.commonest(9);
        assert_eq!(
            all,
            [reason(0, "<ann@example.com> is blocked", 3), reason(1, "<…> is unsure", 2), reason(2, "", 1)]
        );
        assert_eq!((rest, reasons.number(), reasons.overflowed()), (0, 6, false));
        assert_eq!(reasons.commonest(1), (all[..1].to_vec(), 3));
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_numbers_stay_true() {
        let mut reasons = Reasons::default();
        let word =
            |n: usize| -> String { n.to_string().bytes().map(|b| char::from(b'a' + b - b'0')).collect() };
        for n in 0..GROUPS_MOST + 500 {
            reasons.add(0, &word(n));
        }
        reasons.add(0, &word(0));
        let (all, rest) = reasons.commonest(10);
        assert_eq!((all[0].number, all.len()), (2, 10));
        assert_eq!(all.iter().map(|reason| reason.number).sum::<u64>() + rest, GROUPS_MOST as u64 + 501);
        assert!(reasons.overflowed());
    }
}
