//! A terminal in front of the binary: what it draws is kept as it came, and the terminal may change its size.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::process::wait_until;

pub struct Terminal {
    child: Child,
    master: File,
    drawn: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    pub fn start(mut command: Command, columns: u16, rows: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let master = File::from(master);
        resize(&master, columns, rows);
        let end = || Stdio::from(slave.try_clone().unwrap());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        // The last to hold the other end is the process: with it the reader ends.
        drop((command, slave));
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let (kept, mut read) = (Arc::clone(&drawn), master.try_clone().unwrap());
        let reader = std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(number @ 1..) = read.read(&mut some) {
                kept.lock().unwrap().extend_from_slice(&some[..number]);
            }
        });
        Self { child, master, drawn, reader: Some(reader) }
    }

    /// All that was drawn so far.
    pub fn drawn(&self) -> String {
        String::from_utf8_lossy(&self.drawn.lock().unwrap()).into_owned()
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        resize(&self.master, columns, rows);
    }

    /// A line typed by a person, once this was drawn.
    #[track_caller]
    pub fn answer(&self, question: &str, line: &str) {
        wait_until(question, 20, || self.drawn().contains(question));
        writeln!(&self.master, "{line}").unwrap();
    }

    /// What ctrl-C does.
    pub fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Its exit code, and all that was drawn.
    #[track_caller]
    pub fn wait(mut self) -> (Option<i32>, String) {
        wait_until("the process to end", 60, || self.child.try_wait().unwrap().is_some());
        self.reader.take().unwrap().join().unwrap();
        (self.child.wait().unwrap().code(), self.drawn())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(terminal: &File, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}
