//! The other side for mail: postfix's smtp-sink, which takes what it is sent, refuses, hangs or leaves as it was started
//! to, and writes down every message whose final dot it read, whatever it answered.

use std::collections::BTreeMap;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::process::wait_until;

pub struct Sink {
    dir: TempDir,
    pub port: u16,
    child: Child,
}

/// A message as the sink wrote it down.
pub struct Mail {
    /// What the commands of its transaction said, by their names in the file, and the headers of the message.
    pub head: Vec<(String, String)>,
    pub body: String,
}

impl Sink {
    /// With these options of smtp-sink(1).
    pub fn new(options: &[&str]) -> Self {
        let program = std::env::var("BATCH_SEND_TEST_SMTP_SINK").unwrap_or_else(|_| "smtp-sink".into());
        let dir = TempDir::new().unwrap();
        // Free now; taken by nobody but us within the next second, most likely.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(&program);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        let mut child = command
            .args(["-d", &format!("{}/", dir.path().join("mail").display())])
            .args(options)
            .args([&format!("127.0.0.1:{port}"), "100"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{program}: {error}; it comes with postfix, and BATCH_SEND_TEST_SMTP_SINK or PATH names it")
            });
        wait_until("the sink to listen", 20, || {
            assert!(child.try_wait().unwrap().is_none(), "smtp-sink ended");
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Self { dir, port, child }
    }

    /// A channel that sends here, with further keys.
    pub fn channel(&self, name: &str, keys: &str) -> String {
        format!(
            "[channel.{name}]\nkind = \"smtp\"\nhost = \"127.0.0.1\"\nport = {}\nhello = \"app1.example.com\"\n\
             from = \"Shop <news@shop.example>\"\nsubject = \"Hi\"\ntext = \"Hello\"\n{keys}\n",
            self.port
        )
    }

    /// What it read to the end.
    pub fn mails(&self) -> Vec<Mail> {
        let files: Vec<PathBuf> = match fs::read_dir(self.dir.path().join("mail")) {
            Ok(files) => files.map(|file| file.unwrap().path()).collect(),
            Err(_) => Vec::new(),
        };
        // An empty line follows the whole message. (Of one that broke off, the file may stay.)
        let texts = files.iter().map(|file| fs::read_to_string(file).unwrap_or_default());
        texts.filter(|text| text.ends_with("\n\n")).map(|text| Mail::read(&text)).collect()
    }

    /// How often it read a message for each recipient.
    pub fn ledger(&self) -> BTreeMap<String, usize> {
        let mut ledger = BTreeMap::new();
        for mail in self.mails() {
            *ledger.entry(mail.recipient().to_owned()).or_insert(0) += 1;
        }
        ledger
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Mail {
    fn read(text: &str) -> Self {
        let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
        // Folded lines are one.
        let head = head.replace("\n ", " ").replace("\n\t", " ");
        let pair =
            |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { head: head.lines().filter_map(pair).collect(), body: body.to_owned() }
    }

    /// The values of one header.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.head.iter().filter(|(one, _)| one == name).map(|(_, value)| value.as_str()).collect()
    }

    /// The value of a header that is there once.
    #[track_caller]
    pub fn one(&self, name: &str) -> &str {
        match self.all(name)[..] {
            [value] => value,
            ref values => panic!("{name}: {values:?}"),
        }
    }

    /// The one recipient of its transaction.
    #[track_caller]
    pub fn recipient(&self) -> &str {
        self.one("X-Rcpt-Args").trim_matches(['<', '>'])
    }
}
