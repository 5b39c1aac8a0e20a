//! Who acts: the words by which audits, leases and error texts name a person and a process. For people only; nothing
//! is decided by them. They come from the kernel and /etc/passwd, never from the environment: cron's has little in
//! it, and a person's may say anything.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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
    name_of(uid).unwrap_or_else(|| uid.to_string())
}

/// The user's name, if /etc/passwd has one.
pub fn name_of(uid: u32) -> Option<String> {
    let passwd = fs::read(PASSWD).unwrap_or_default();
    name_in(&String::from_utf8_lossy(&passwd), &uid.to_string())
}

/// To a user who may not do something with a file: whose it is, and who asks.
pub fn may_not(path: &Path) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    let group = fs::read("/etc/group").unwrap_or_default();
    let gid = found.gid().to_string();
    let group = name_in(&String::from_utf8_lossy(&group), &gid).unwrap_or(gid);
    let (owner, mode) = (name(found.uid()), found.mode() & 0o7777);
    Some(format!("it belongs to {owner}:{group}, mode {mode:04o}, and this is user {}", user()))
}

/// How root does something as another user. Only who has a name can be named to runuser, which every host has, where sudo is
/// often missing.
pub fn as_user(uid: u32, command: &str) -> String {
    match name_of(uid) {
        Some(name) => format!("runuser -u {name} -- {command}"),
        None => format!("setpriv --reuid={uid} --regid={uid} --clear-groups -- {command}"),
    }
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
