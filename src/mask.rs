//! Recipients as a log may show them: enough to recognise one that is known, not enough to write to it. What a row, `status` or
//! `targets` shows is whole.

/// One recipient. The domain of an address stays, of a number the beginning and the last four digits, of anything else three
/// characters at each end if it is long.
pub fn mask(recipient: &str) -> String {
    if let Some((local, domain)) = recipient.rsplit_once('@') {
        return format!("{}***@{domain}", first(local));
    }
    let digits = recipient.strip_prefix('+').unwrap_or(recipient);
    if digits.len() >= 7 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return number(recipient);
    }
    let length = recipient.chars().count();
    if length < 16 {
        return format!("{}***", first(recipient));
    }
    let last: String = recipient.chars().skip(length - 3).collect();
    format!("{}***{last}", recipient.chars().take(3).collect::<String>())
}

/// The first character, of two and more.
fn first(text: &str) -> &str {
    let mut ends = text.char_indices().skip(1).map(|(at, _)| at);
    ends.next().map_or("", |end| &text[..end])
}

/// Digits, with a plus or without.
fn number(text: &str) -> String {
    let (plus, digits) = text.strip_prefix('+').map_or(("", text), |digits| ("+", digits));
    if digits.len() < 11 {
        return format!("{plus}****{}", &digits[digits.len() - 2..]);
    }
    let begins = (digits.len() - 8).min(5);
    format!("{plus}{}****{}", &digits[..begins], &digits[digits.len() - 4..])
}

/// A text without this recipient, where it stands as a word of its own, and without whatever looks like an address, a telephone
/// number or an openid. Masking what is masked changes nothing.
pub fn within(text: &str, recipient: &str) -> String {
    let text = if recipient.is_empty() { text.to_owned() } else { without_word(text, recipient) };
    without_addresses(&without_numbers(&text))
}

fn without_word(text: &str, word: &str) -> String {
    let (mut whole, mut rest, mut before) = (String::with_capacity(text.len()), text, None);
    while let Some(at) = rest.find(word) {
        let (skipped, found) = rest.split_at(at);
        let after = &found[word.len()..];
        let alone = |neighbour: Option<char>| neighbour.is_none_or(|c| !c.is_ascii_alphanumeric());
        whole.push_str(skipped);
        if alone(skipped.chars().next_back().or(before)) && alone(after.chars().next()) {
            whole.push_str(&mask(word));
        } else {
            whole.push_str(word);
        }
        before = word.chars().next_back();
        rest = after;
    }
    whole.push_str(rest);
    whole
}

/// Words of letters and digits of ASCII, `_`, `-` and a plus in front.
fn without_numbers(text: &str) -> String {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+');
    while let Some(at) = rest.find(part) {
        let (skipped, from) = rest.split_at(at);
        let (word, after) = from.split_at(from.find(|c| !part(c)).unwrap_or(from.len()));
        // A part of a path, of a host's name or of an address is none.
        let inside = skipped.ends_with(['/', '.', '@', '%']) || after.starts_with(['@', '/', '*']);
        let digits = word.strip_prefix('+').unwrap_or(word);
        let number = digits.bytes().all(|byte| byte.is_ascii_digit())
            && digits.len() >= if digits.len() < word.len() { 7 } else { 11 };
        // WeChat's.
        let openid = word.len() == 28
            && word.starts_with('o')
            && word.bytes().any(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
        whole.push_str(skipped);
        if !inside && (number || openid) {
            whole.push_str(&mask(word))
        } else {
            whole.push_str(word)
        }
        rest = after;
    }
    whole.push_str(rest);
    whole
}

fn without_addresses(text: &str) -> String {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('@') {
        let local = |c: char| c.is_alphanumeric() || ".!#$&*+-/=?^_~%".contains(c);
        let domain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-');
        let start = rest[..at]
            .rfind(|c| !local(c))
            .map_or(0, |before| before + rest[before..].chars().next().map_or(0, char::len_utf8));
        let end = rest[at + 1..].find(|c| !domain(c)).map_or(rest.len(), |end| at + 1 + end);
        if start < at && at + 1 < end {
            whole.push_str(&rest[..start]);
            whole.push_str(first_of_masked(&rest[start..at]));
            whole.push_str("***");
            whole.push_str(&rest[at..end]);
        } else {
            whole.push_str(&rest[..end]);
        }
        rest = &rest[end..];
    }
    whole.push_str(rest);
    whole
}

fn first_of_masked(local: &str) -> &str {
    if local.starts_with('*') { "" } else { first(local) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipient_is_recognised_and_cannot_be_written_to() {
        for (recipient, masked) in [
            ("wang@example.com", "w***@example.com"),
            ("w@example.com", "***@example.com"),
            ("王小明@例子.公司", "王***@例子.公司"),
            ("a@b@example.com", "a***@example.com"),
            ("@example.com", "***@example.com"),
            ("+8613812341234", "+86138****1234"),
            ("13812341234", "138****1234"),
            ("+155512345678901", "+15551****8901"),
            ("5551234", "****34"),
            ("+5551234", "+****34"),
            ("555123", "5***"),
            ("oUpF8uMuAJO_M2pxb1Q9zNjWeS6o", "oUp***S6o"),
            ("0123456789abcdef0123456789abcdef", "012***def"),
            ("ann", "a***"),
            ("a", "***"),
            ("", "***"),
            ("李", "***"),
            ("李雷", "李***"),
        ] {
            assert_eq!(mask(recipient), masked, "{recipient}");
        }
    }

    #[test]
    fn a_reason_that_repeats_the_recipient_is_masked_in_it() {
        for (reason, recipient, masked) in [
            ("550 no such user ann", "ann", "550 no such user a***"),
            ("the channel cannot be planned, ann.", "ann", "the channel cannot be planned, a***."),
            ("annann ann", "ann", "annann a***"),
            ("<wang@example.com>: unknown", "wang@example.com", "<w***@example.com>: unknown"),
            ("unknown: WANG@EXAMPLE.COM", "wang@example.com", "unknown: W***@EXAMPLE.COM"),
            ("redirected to other@x.org, twice", "wang@example.com", "redirected to o***@x.org, twice"),
            ("号码13812341234无效", "+8613812341234", "号码138****1234无效"),
            ("8613812341234 is off", "+8613812341234", "86138****1234 is off"),
            ("device 0a1b2c3d4e5f6a7b gone", "0a1b2c3d4e5f6a7b", "device 0a1***a7b gone"),
            ("openid oUpF8uMuAJO_M2pxb1Q9zNjWeS6o", "", "openid oUp***S6o"),
            ("{\"to\":\"王小明@例子.公司\"}", "", "{\"to\":\"王***@例子.公司\"}"),
        ] {
            assert_eq!(within(reason, recipient), masked, "{reason}");
            assert_eq!(within(masked, recipient), masked, "twice: {reason}");
        }
    }

    #[test]
    fn what_is_no_recipient_stays() {
        for text in [
            "task 7 is paused: 100 targets rejected and none accepted",
            "the database at 127.0.0.1:3306 cannot be reached",
            "journal /var/lib/batch-send/journal-0d9f8f0e-0000-4000-8000-012345678901.jsonl",
            "targets [1, 2, 3000000000]",
            "it expired at 2026-11-30T15:57:55.910Z",
            "mail @ home, and @",
            "host-20261130123456.example.com",
        ] {
            assert_eq!(within(text, ""), text);
        }
    }
}
