//! A provider that answers every request after a fixed time: one thread for each connection, which stays open.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::Result;

const LATENCY: Duration = Duration::from_millis(20);

const ANSWER: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{\"id\":\"r1\"}";

/// Listens on a free port until the process ends, and says where. `arrived` is called for each request.
pub fn start(arrived: impl Fn() + Clone + Send + 'static) -> Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let url = format!("http://{}/messages", listener.local_addr()?);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let arrived = arrived.clone();
            // A client that leaves is no trouble.
            std::thread::spawn(move || serve(stream, &arrived));
        }
    });
    Ok(url)
}

fn serve(mut to: TcpStream, arrived: &dyn Fn()) -> Option<()> {
    to.set_nodelay(true).ok()?;
    let mut from = BufReader::new(to.try_clone().ok()?);
    loop {
        let mut body = vec![0; length(&mut from)?];
        from.read_exact(&mut body).ok()?;
        arrived();
        std::thread::sleep(LATENCY);
        to.write_all(ANSWER.as_bytes()).ok()?;
    }
}

/// Of the body of the next request, whose head is read; `None` when there is no further one.
fn length(from: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut length = 0;
    let mut line = String::new();
    loop {
        line.clear();
        if from.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end().split_once(':') {
            None if line.trim_end().is_empty() => return Some(length),
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().ok()?
            }
            _ => {}
        }
    }
}

/// A channel that posts to `url`, 64 at once; `more` are further keys.
pub fn channel(name: &str, url: &str, more: &str) -> String {
    format!(
        r#"
[channel.{name}]
kind = "http"
url = "{url}"
body = '{{"to": {{{{ target.recipient }}}}, "text": {{{{ "Hello " ~ target.params.name }}}}, "key": {{{{ key }}}}}}'
receipt = "/id"
concurrency = 64
{more}
"#
    )
}
