//! A MariaDB server of a story's own, to be killed, stopped and started again. Needs `mariadbd` and
//! `mariadb-install-db` on this machine; the throwaway server of tests/run is shared and must live.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use super::process::wait_until;

pub struct Server {
    dir: TempDir,
    port: u16,
    child: Option<std::process::Child>,
}

impl Server {
    pub fn start() -> Self {
        let dir = TempDir::new().unwrap();
        // One at a time: several at once ask too much of a small machine.
        static INSTALLING: Mutex<()> = Mutex::new(());
        let installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
        let install = || {
            let data = dir.path().join("data");
            // What a failed try left would fail the next.
            let _ = std::fs::remove_dir_all(&data);
            tool("mariadb-install-db")
                .arg(format!("--datadir={}", data.display()))
                .arg("--auth-root-authentication-method=normal")
                .output()
                .expect("mariadb-install-db runs")
        };
        // It needs more of the machine than the server itself, and may not get it while many of them run.
        let mut output = install();
        for _ in 0..4 {
            if output.status.success() {
                break;
            }
            std::thread::sleep(Duration::from_secs(2));
            output = install();
        }
        drop(installing);
        assert!(
            output.status.success(),
            "mariadb-install-db: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        // Free now; taken by nobody but us within the next second, most likely.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = Self { dir, port, child: None };
        server.again();
        server
    }

    /// Starts it (again) on the same data and port.
    pub fn again(&mut self) {
        let path = |name: &str| -> PathBuf { self.dir.path().join(name) };
        let child = tool("mariadbd")
            .arg(format!("--datadir={}", path("data").display()))
            .arg(format!("--socket={}", path("socket").display()))
            .arg(format!("--pid-file={}", path("pid").display()))
            .arg(format!("--port={}", self.port))
            .args(["--bind-address=127.0.0.1", "--skip-name-resolve", "--innodb-buffer-pool-size=32M"])
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(path("log")).unwrap())
            .spawn()
            .expect("mariadbd runs");
        self.child = Some(child);
        let port = self.port;
        wait_until("the server to listen", 60, || TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    pub fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/mysql", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("the server runs");
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    /// SIGKILL: what was committed must still be there.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.take().expect("the server runs").wait().unwrap();
    }

    /// SIGSTOP: connections stay open, and nobody answers.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn tool(name: &str) -> Command {
    let places = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/usr/libexec"];
    let found = places.iter().map(|place| PathBuf::from(place).join(name)).find(|path| path.exists());
    let mut command = Command::new(found.unwrap_or_else(|| name.into()));
    command.arg("--no-defaults").stdin(Stdio::null());
    if geteuid().is_root() {
        command.arg("--user=root");
    }
    command
}
