//! Who acts: the words by which audits, leases and error texts name a person and a process. For people only; nothing
//! is decided by them. They come from the kernel and /etc/passwd, never from the environment: cron's has little in
//! it, and a person's may say anything.

use std::fs;

/// `user@host`: who runs this.
pub fn person() -> String {
    format!("{}@{}", user(), host())
}

/// `host:pid`: this run.
pub fn process() -> String {
    format!("{}:{}", host(), std::process::id())
}

/// The effective user's name, or its number where /etc/passwd has none (a container, a directory server).
pub fn user() -> String {
    name(rustix::process::geteuid().as_raw())
}

/// The same of any user.
pub fn name(uid: u32) -> String {
    let uid = uid.to_string();
    let passwd = fs::read(PASSWD).unwrap_or_default();
    name_in(&String::from_utf8_lossy(&passwd), &uid).unwrap_or(uid)
}

const PASSWD: &str = "/etc/passwd";

fn name_in(passwd: &str, uid: &str) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    })
}

/// This host's name.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_named_by_the_password_file_or_else_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n\n+::::::\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(name_in(passwd, "0").as_deref(), Some("root"));
        assert_eq!(name_in(passwd, "1000").as_deref(), Some("ann"));
        assert_eq!(name_in(passwd, "100"), None);
    }

    #[test]
    fn person_and_process_name_this_host() {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim();
        assert!(person().ends_with(&format!("@{host}")) && person().len() > host.len() + 1, "{}", person());
        assert_eq!(process(), format!("{host}:{}", std::process::id()));
    }
}
