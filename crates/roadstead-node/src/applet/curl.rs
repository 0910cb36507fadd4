//! `curl`: fetches over HTTP, with the options that people use to look at a Service, and curl's
//! exit codes.
#![allow(clippy::print_stdout)]

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::lookup::Resolver;

const USAGE: &str = "usage: curl [-s] [-S] [-f] [-i] [-o FILE] [-w FORMAT] [-m SECONDS] \
                     [--connect-timeout SECONDS] [-X METHOD] [-H HEADER] [-d DATA] http://URL\n\
                     This is the small curl of the built-in image: it speaks HTTP, not HTTPS.";
/// Without `-m` a connection may take this long.
const PATIENCE: Duration = Duration::from_secs(300);

pub(super) fn main(arguments: &[String]) -> i32 {
    let outcome = Options::parse(arguments).and_then(|options| {
        fetch(&options).map_err(|mut error| {
            if options.silent && !options.show_error {
                error.message.clear();
            }
            // What was asked for with -w is written even when the transfer fails.
            write_out(options.format.as_deref(), 0);
            error
        })
    });
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            if !error.message.is_empty() {
                eprintln!("curl: ({}) {}", error.code, error.message);
            }
            error.code
        }
    }
}

/// A failure, with curl's number for it.
#[derive(Debug, PartialEq)]
struct CurlError {
    code: i32,
    message: String,
}

fn error(code: i32, message: impl Into<String>) -> CurlError {
    CurlError { code, message: message.into() }
}

#[derive(Debug, Default, PartialEq)]
struct Options {
    silent: bool,
    show_error: bool,
    fail: bool,
    include: bool,
    output: Option<String>,
    format: Option<String>,
    max_time: Option<Duration>,
    connect_timeout: Option<Duration>,
    method: Option<String>,
    headers: Vec<String>,
    data: Option<String>,
    url: String,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, CurlError> {
        let mut options = Self::default();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            if let Some(long) = word.strip_prefix("--") {
                options.take(long_name(long).unwrap_or(long), &mut words)?;
            } else if let Some(letters) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) {
                options.take_letters(letters, &mut words)?;
            } else {
                options.url.clone_from(word);
            }
        }
        if options.url.is_empty() { Err(error(2, USAGE)) } else { Ok(options) }
    }

    /// `-sSo file`, `-m5`: letters, the last of which may have its value right behind it.
    fn take_letters<'a>(
        &mut self,
        letters: &str,
        words: &mut impl Iterator<Item = &'a String>,
    ) -> Result<(), CurlError> {
        for (at, letter) in letters.char_indices() {
            let rest = letters[at + letter.len_utf8()..].to_owned();
            if "owmXHd".contains(letter) && !rest.is_empty() {
                return self.take(&letter.to_string(), &mut [&rest].into_iter());
            }
            self.take(&letter.to_string(), words)?;
        }
        Ok(())
    }

    fn take<'a>(
        &mut self,
        name: &str,
        words: &mut impl Iterator<Item = &'a String>,
    ) -> Result<(), CurlError> {
        let mut value = || {
            let missing = || error(2, format!("option -{name}: requires parameter"));
            words.next().cloned().ok_or_else(missing)
        };
        match name {
            "s" => self.silent = true,
            "S" => self.show_error = true,
            "f" => self.fail = true,
            "i" => self.include = true,
            "k" | "L" | "v" | "4" => {}
            "o" => self.output = Some(value()?),
            "w" => self.format = Some(value()?),
            "m" => self.max_time = Some(seconds(&value()?)?),
            "connect-timeout" => self.connect_timeout = Some(seconds(&value()?)?),
            "X" => self.method = Some(value()?),
            "H" => self.headers.push(value()?),
            "d" => self.data = Some(value()?),
            _ => return Err(error(2, format!("option -{name}: is unknown\n{USAGE}"))),
        }
        Ok(())
    }
}

fn long_name(name: &str) -> Option<&'static str> {
    Some(match name {
        "silent" => "s",
        "insecure" => "k",
        "show-error" => "S",
        "fail" => "f",
        "include" => "i",
        "output" => "o",
        "write-out" => "w",
        "max-time" => "m",
        "request" => "X",
        "header" => "H",
        "data" => "d",
        "location" => "L",
        _ => return None,
    })
}

fn seconds(text: &str) -> Result<Duration, CurlError> {
    let parsed = text.parse().ok().and_then(|number| Duration::try_from_secs_f64(number).ok());
    parsed.ok_or_else(|| error(2, format!("expected a proper numerical parameter, got {text:?}")))
}

/// The parts of a URL that matter: host, port and path.
fn split_url(url: &str) -> Result<(String, u16, String), CurlError> {
    let rest = match url.split_once("://") {
        None => url,
        Some(("http", rest)) => rest,
        Some((other, _)) => {
            let why = "the curl of the built-in image speaks HTTP only";
            return Err(error(1, format!("Protocol \"{other}\" not supported: {why}")));
        }
    };
    let (authority, path) = match rest.find(['/', '?']) {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let malformed = || error(3, "URL using bad/illegal format or missing URL");
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| malformed())?),
        _ => (authority, 80),
    };
    let path = if path.starts_with('?') { format!("/{path}") } else { path.to_owned() };
    if host.is_empty() { Err(malformed()) } else { Ok((host.into(), port, path)) }
}

fn fetch(options: &Options) -> Result<(), CurlError> {
    let begun = Instant::now();
    let (host, port, path) = split_url(&options.url)?;
    let left = || match options.max_time {
        Some(limit) => limit.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()),
        None => Some(PATIENCE),
    };
    let timed_out = || {
        error(28, format!("Operation timed out after {} milliseconds", begun.elapsed().as_millis()))
    };
    // A question may be repeated once, and that must fit into the time as well.
    let patience = (left().ok_or_else(timed_out)? / 2).min(Duration::from_secs(5));
    let addresses = Resolver::of_system(patience).addresses(&host);
    let addresses = addresses.map_err(|_| match left() {
        Some(_) => error(6, format!("Could not resolve host: {host}")),
        None => timed_out(),
    })?;
    let mut stream = None;
    let mut failure = error(6, format!("Could not resolve host: {host}"));
    for address in addresses {
        let limit = left().ok_or_else(timed_out)?;
        let limit = options.connect_timeout.map_or(limit, |connect| connect.min(limit));
        match TcpStream::connect_timeout(&SocketAddr::new(address, port), limit) {
            Ok(connected) => {
                stream = Some(connected);
                break;
            }
            Err(cause) if cause.kind() == io::ErrorKind::TimedOut => failure = timed_out(),
            Err(_) => {
                let after = begun.elapsed().as_millis();
                failure = error(
                    7,
                    format!(
                        "Failed to connect to {host} port {port} after {after} ms: Couldn't connect to server"
                    ),
                );
            }
        }
    }
    let stream = stream.ok_or(failure)?;
    let receive = |cause: io::Error| match cause.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => timed_out(),
        _ => error(56, format!("Recv failure: {cause}")),
    };
    stream.set_read_timeout(left()).map_err(receive)?;
    (&stream).write_all(request(options, &host, port, &path).as_bytes()).map_err(receive)?;
    let response = read_response(&mut BufReader::new(Timed { stream: &stream, left: &left }))
        .map_err(receive)?
        .ok_or_else(|| error(52, "Empty reply from server"))?;
    if options.fail && response.code >= 400 {
        let message = format!("The requested URL returned error: {}", response.code);
        return Err(error(22, message));
    }
    let head = if options.include { response.head.as_bytes() } else { b"" };
    let written = match options.output.as_deref() {
        Some(file) => fs::write(file, [head, &response.body].concat()),
        None => io::stdout().write_all(&[head, &response.body].concat()),
    };
    written.map_err(|cause| error(23, format!("Failure writing output: {cause}")))?;
    write_out(options.format.as_deref(), response.code);
    Ok(())
}

/// A connection that keeps to the time left over.
struct Timed<'a, F> {
    stream: &'a TcpStream,
    left: &'a F,
}

impl<F: Fn() -> Option<Duration>> Read for Timed<'_, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = (self.left)().ok_or(io::ErrorKind::TimedOut)?;
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

fn request(options: &Options, host: &str, port: u16, path: &str) -> String {
    let method = match (&options.method, &options.data) {
        (Some(method), _) => method,
        (None, Some(_)) => "POST",
        (None, None) => "GET",
    };
    let authority = if port == 80 { host.to_owned() } else { format!("{host}:{port}") };
    let mut text = format!("{method} {path} HTTP/1.1\r\n");
    let given = |name: &str| {
        options.headers.iter().any(|header| {
            header.split(':').next().is_some_and(|given| given.eq_ignore_ascii_case(name))
        })
    };
    if !given("host") {
        text += &format!("Host: {authority}\r\n");
    }
    text += "User-Agent: curl/8.0 (roadstead)\r\nAccept: */*\r\nConnection: close\r\n";
    for header in &options.headers {
        text += &format!("{header}\r\n");
    }
    let data = options.data.as_deref().unwrap_or_default();
    if options.data.is_some() {
        text += &format!("Content-Length: {}\r\n", data.len());
    }
    text + "\r\n" + data
}

struct Response {
    code: u16,
    head: String,
    body: Vec<u8>,
}

fn read_response(reader: &mut impl BufRead) -> io::Result<Option<Response>> {
    let mut head = String::new();
    if reader.read_line(&mut head)? == 0 {
        return Ok(None);
    }
    let code = head.split_whitespace().nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let (mut length, mut chunked) = (None, false);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        head += &line;
        let (name, value) = line.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse::<u64>().ok(),
            "transfer-encoding" => chunked = value.trim().eq_ignore_ascii_case("chunked"),
            _ => {}
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = Vec::new();
    match (chunked, length) {
        (true, _) => read_chunks(reader, &mut body)?,
        (false, Some(length)) => drop(reader.take(length).read_to_end(&mut body)?),
        (false, None) => drop(reader.read_to_end(&mut body)?),
    }
    Ok(Some(Response { code, head, body }))
}

fn read_chunks(reader: &mut impl BufRead, body: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "bad chunk"))?;
        if size == 0 {
            return Ok(());
        }
        reader.take(size).read_to_end(body)?;
        reader.read_line(&mut String::new())?;
    }
}

fn write_out(format: Option<&str>, code: u16) {
    let Some(format) = format else { return };
    let text = format.replace("%{http_code}", &format!("{code:03}"));
    let text = text.replace("%{response_code}", &format!("{code:03}"));
    print!("{}", text.replace("\\n", "\n").replace("\\t", "\t"));
    let _ = io::stdout().flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(Into::into).collect()
    }

    #[test]
    fn options() {
        let parsed = Options::parse(&words("-sSo /dev/null -w %{http_code} -m2 web:80")).unwrap();
        assert!(parsed.silent && parsed.show_error);
        assert_eq!(parsed.output.as_deref(), Some("/dev/null"));
        assert_eq!(parsed.format.as_deref(), Some("%{http_code}"));
        assert_eq!(parsed.max_time, Some(Duration::from_secs(2)));
        assert_eq!(parsed.url, "web:80");
        assert_eq!(Options::parse(&words("-s")).unwrap_err().code, 2);
        assert_eq!(Options::parse(&words("--nope x")).unwrap_err().code, 2);
    }

    #[test]
    fn urls() {
        let cases = [
            ("web", "web 80 /"),
            ("http://web:8080/a?b", "web 8080 /a?b"),
            ("web?x", "web 80 /?x"),
            ("http://[::1]:81/", "[::1] 81 /"),
            ("http://[::1]/", "[::1] 80 /"),
        ];
        for (url, want) in cases {
            let (host, port, path) = split_url(url).unwrap();
            assert_eq!(format!("{host} {port} {path}"), want, "{url}");
        }
        let https = split_url("https://web").unwrap_err();
        assert_eq!(https.code, 1);
        assert!(https.message.ends_with("speaks HTTP only"), "{}", https.message);
        assert_eq!(split_url("http://:80").unwrap_err().code, 3);
    }

    #[test]
    fn responses() {
        let cases = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiXXX", Some((200, "hi"))),
            ("HTTP/1.0 404 Not Found\r\n\r\nno", Some((404, "no"))),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n1\r\n!\r\n0\r\n\r\n",
                Some((200, "hi!")),
            ),
            ("", None),
        ];
        for (text, want) in cases {
            let got = read_response(&mut text.as_bytes()).unwrap();
            let got = got.map(|r| (r.code, String::from_utf8(r.body).unwrap()));
            assert_eq!(got, want.map(|(code, body)| (code, body.into())), "{text:?}");
        }
    }
}
