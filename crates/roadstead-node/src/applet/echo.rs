//! `echo`: an HTTP server that says who it is.
//!
//! Every path is answered with the host name, which in a pod is the pod's name. `/healthz` answers
//! 200 until somebody asks for `/fail`, then 500 until somebody asks for `/ok`.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const DEFAULT_PORT: u16 = 8080;
const SMALL_STACK: usize = 256 * 1024;
const MOST_CONNECTIONS: usize = 1000;
const IDLE: Duration = Duration::from_secs(75);
const LONGEST_LINE: u64 = 8 * 1024;

static FAILING: AtomicBool = AtomicBool::new(false);
static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);

pub(super) fn main(arguments: &[String]) -> i32 {
    let port = match port(arguments, env::var("PORT").ok().as_deref()) {
        Ok(port) => port,
        Err(message) => {
            eprintln!("echo: {message}");
            return 2;
        }
    };
    // Where there is no IPv6, IPv4 alone will do.
    let listener =
        TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
    match listener {
        Ok(listener) => serve(&listener, port),
        Err(error) => {
            eprintln!("echo: cannot listen on port {port}: {error}");
            1
        }
    }
}

fn port(arguments: &[String], variable: Option<&str>) -> Result<u16, String> {
    let mut words = arguments.iter();
    let mut chosen = variable.map(str::to_owned);
    while let Some(word) = words.next() {
        match word.split_once('=') {
            Some(("--port", value)) => chosen = Some(value.to_owned()),
            None if word == "--port" => chosen = words.next().cloned(),
            _ => return Err(format!("unknown argument {word:?}; usage: echo [--port PORT]")),
        }
    }
    match chosen {
        Some(text) => text.parse().map_err(|_| format!("{text:?} is not a port")),
        None => Ok(DEFAULT_PORT),
    }
}

fn serve(listener: &TcpListener, port: u16) -> i32 {
    eprintln!("{} listens on port {port}", hostname());
    for connection in listener.incoming() {
        let Ok(connection) = connection else {
            // Out of file descriptors, most likely: the connections that we have will end.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        if CONNECTIONS.load(Ordering::Relaxed) >= MOST_CONNECTIONS {
            continue;
        }
        CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        let talk = move || {
            let _ = converse(&connection);
            CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().stack_size(SMALL_STACK).spawn(talk).is_err() {
            CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
        }
    }
    0
}

/// Answers the requests of one connection.
fn converse(connection: &TcpStream) -> std::io::Result<()> {
    connection.set_read_timeout(Some(IDLE))?;
    connection.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(1024, connection);
    let mut writer = connection;
    while let Some(request) = read_request(&mut reader)? {
        let (code, body) = answer(&request.path);
        let connection = if request.keep_alive { "keep-alive" } else { "close" };
        let head = format!(
            "HTTP/1.1 {code}\r\nContent-Type: text/plain; charset=utf-8\r\n\
             Content-Length: {}\r\nConnection: {connection}\r\n\r\n",
            body.len()
        );
        let body = if request.is_head { "" } else { &body };
        writer.write_all(format!("{head}{body}").as_bytes())?;
        if !request.keep_alive {
            break;
        }
    }
    Ok(())
}

fn answer(path: &str) -> (&'static str, String) {
    match path.split('?').next().unwrap_or_default() {
        "/healthz" if FAILING.load(Ordering::Relaxed) => {
            ("500 Internal Server Error", "failing\n".into())
        }
        "/healthz" => ("200 OK", "ok".into()),
        "/fail" => {
            FAILING.store(true, Ordering::Relaxed);
            ("200 OK", "/healthz fails from now on\n".into())
        }
        "/ok" => {
            FAILING.store(false, Ordering::Relaxed);
            ("200 OK", "/healthz is well again\n".into())
        }
        _ => ("200 OK", format!("{}\n", hostname())),
    }
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

struct Request {
    path: String,
    is_head: bool,
    keep_alive: bool,
}

/// Reads one request and skips its body; `None` at the end of the connection.
fn read_request(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let first = read_line(reader)?;
    let mut words = first.split_whitespace();
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(None) };
    let mut keep_alive = words.next() == Some("HTTP/1.1");
    let mut length = 0;
    loop {
        let line = read_line(reader)?;
        if line.trim().is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        let value = value.trim().to_ascii_lowercase();
        match name.to_ascii_lowercase().as_str() {
            "connection" if value == "close" => keep_alive = false,
            "connection" if value == "keep-alive" => keep_alive = true,
            "content-length" => length = value.parse().unwrap_or(0),
            // Bodies of unknown length are not read: the connection ends with the answer.
            "transfer-encoding" => keep_alive = false,
            _ => {}
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
    Ok(Some(Request { path: path.into(), is_head: method == "HEAD", keep_alive }))
}

fn read_line(reader: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = Vec::new();
    reader.take(LONGEST_LINE).read_until(b'\n', &mut line)?;
    Ok(String::from_utf8_lossy(&line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports() {
        let cases = [
            ("", None, Ok(8080)),
            ("", Some("80"), Ok(80)),
            ("--port 9090", Some("80"), Ok(9090)),
            ("--port=9091", None, Ok(9091)),
            ("--port x", None, Err("\"x\" is not a port".to_owned())),
        ];
        for (arguments, variable, want) in cases {
            let words: Vec<String> = arguments.split_whitespace().map(Into::into).collect();
            assert_eq!(port(&words, variable), want, "{arguments:?} {variable:?}");
        }
    }

    #[test]
    fn requests() {
        let cases = [
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "/ keep"),
            ("GET /a HTTP/1.0\r\n\r\n", "/a close"),
            ("GET /a HTTP/1.1\r\nConnection: close\r\n\r\n", "/a close"),
            (
                "POST /b HTTP/1.1\r\ncontent-length: 3\r\n\r\nxyzGET /c HTTP/1.1\r\n\r\n",
                "/b keep /c keep",
            ),
            ("", ""),
        ];
        for (text, want) in cases {
            let mut reader = BufReader::new(text.as_bytes());
            let mut seen = Vec::new();
            while let Some(request) = read_request(&mut reader).unwrap() {
                let end = if request.keep_alive { "keep" } else { "close" };
                seen.push(format!("{} {end}", request.path));
            }
            assert_eq!(seen.join(" "), want, "{text:?}");
        }
    }
}
