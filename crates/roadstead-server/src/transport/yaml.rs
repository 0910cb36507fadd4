//! Answers in YAML, for those who ask for it by `Accept: application/yaml`: JSON rewritten as it
//! comes, without an idea of the whole.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, StreamBody};

use crate::reading::listing::InPieces;
use crate::transport::response::Body;
use crate::transport::rotation::{Flow, TURN};
use crate::transport::slices;

/// Whether YAML is the first form that a client accepts and we can write.
pub(crate) fn is_wanted(accept: &str) -> bool {
    let mut choices = accept.split(',').map(|choice| choice.split(';').next().unwrap_or("").trim());
    let known = ["application/json", "application/yaml", "application/*", "*/*"];
    choices.find(|choice| known.contains(choice)) == Some("application/yaml")
}

/// The same answer in YAML, if it is JSON with an end.
pub(crate) async fn answer(flow: &Arc<Flow>, response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
    let short = body.size_hint().exact().is_some_and(|size| size <= TURN as u64);
    if short {
        let json = body.collect().await.unwrap_or_else(|never| match never {}).to_bytes();
        let mut out = BytesMut::with_capacity(json.len() * 2);
        Writer::default().write(&json, &mut out);
        return Response::from_parts(parts, slices::body(out.freeze()));
    }
    parts.extensions.insert(InPieces);
    let state = (body, Bytes::new(), Writer::default(), flow.clone());
    let frames = stream::unfold(state, |(mut body, mut json, mut writer, flow)| async move {
        while json.is_empty() {
            let frame = body.frame().await?.unwrap_or_else(|never| match never {});
            json = frame.into_data().unwrap_or_default();
        }
        let piece = json.split_to(json.len().min(TURN));
        let work = move || {
            let mut out = BytesMut::with_capacity(piece.len() * 2);
            writer.write(&piece, &mut out);
            (writer, out.freeze())
        };
        let (writer, out) = flow.work(work).await;
        Some((Ok(Frame::data(out)), (body, json, writer, flow)))
    });
    Response::from_parts(parts, BodyExt::boxed_unsync(StreamBody::new(frames)))
}

/// Longer texts are put in quotes without a look at all of them.
const LONG: usize = 200;

/// Rewrites JSON that comes in pieces. Texts keep their quotes and escapes, which mean the same in
/// YAML, unless nobody could take them for anything else.
#[derive(Default)]
struct Writer {
    within: Vec<Level>,
    state: State,
    /// Whether the next text is the name of a field.
    naming: bool,
    /// The beginning of a text that may need no quotes.
    text: Vec<u8>,
    started: bool,
}

/// A list or object that has been begun.
struct Level {
    is_object: bool,
    is_empty: bool,
}

#[derive(Clone, Copy, Default)]
enum State {
    #[default]
    Between,
    /// In a text that may need no quotes.
    Plain,
    /// In a text with quotes, perhaps after a backslash.
    Quoted(bool),
    /// In a number or word.
    Word,
}

impl Writer {
    fn write(&mut self, mut json: &[u8], out: &mut BytesMut) {
        while let Some((&byte, rest)) = json.split_first() {
            match self.state {
                State::Between => {
                    self.between(byte, out);
                    json = rest;
                }
                State::Word if matches!(byte, b',' | b'}' | b']' | b' ' | b'\n') => {
                    self.state = State::Between;
                }
                State::Word => {
                    out.put_u8(byte);
                    json = rest;
                }
                State::Plain if byte == b'"' => {
                    let text = std::mem::take(&mut self.text);
                    match is_word(&text) {
                        true => out.put_slice(&text),
                        false => quoted(&text, true, out),
                    }
                    self.end_text(out);
                    json = rest;
                }
                State::Plain if self.may_be_plain(byte) => {
                    self.text.push(byte);
                    json = rest;
                }
                State::Plain => {
                    quoted(&std::mem::take(&mut self.text), false, out);
                    self.state = State::Quoted(false);
                }
                State::Quoted(escaped) => json = self.quoted(json, escaped, out),
            }
        }
    }

    fn between(&mut self, byte: u8, out: &mut BytesMut) {
        match byte {
            b'{' | b'[' => {
                self.begin_value(out);
                let is_object = byte == b'{';
                self.within.push(Level { is_object, is_empty: true });
                self.naming = is_object;
            }
            b'}' | b']' => {
                if self.within.pop().is_some_and(|level| level.is_empty) {
                    self.blank(out);
                    out.put_slice(if byte == b'}' { b"{}" } else { b"[]" });
                }
            }
            b'"' => {
                if self.naming {
                    self.line(out);
                } else {
                    self.begin_value(out);
                    self.blank(out);
                }
                self.state = State::Plain;
            }
            b':' => self.naming = false,
            b',' => self.naming = self.within.last().is_some_and(|level| level.is_object),
            b' ' | b'\n' => {}
            _ => {
                self.begin_value(out);
                self.blank(out);
                out.put_u8(byte);
                self.state = State::Word;
            }
        }
    }

    /// The items of a list have a line each.
    fn begin_value(&mut self, out: &mut BytesMut) {
        if self.within.last().is_some_and(|level| !level.is_object) {
            self.line(out);
            out.put_u8(b'-');
        }
    }

    /// Begins a line in the list or object that we are in.
    fn line(&mut self, out: &mut BytesMut) {
        if self.started {
            out.put_u8(b'\n');
        }
        self.started = true;
        if let Some(level) = self.within.last_mut() {
            level.is_empty = false;
        }
        for _ in 1..self.within.len() {
            out.put_slice(b"  ");
        }
    }

    fn blank(&mut self, out: &mut BytesMut) {
        if self.started {
            out.put_u8(b' ');
        }
        self.started = true;
    }

    fn may_be_plain(&self, byte: u8) -> bool {
        match self.text.is_empty() {
            true => byte.is_ascii_alphabetic(),
            false => {
                self.text.len() < LONG && (byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
            }
        }
    }

    /// Copies up to the end of the text, and returns what follows.
    fn quoted<'a>(&mut self, json: &'a [u8], mut escaped: bool, out: &mut BytesMut) -> &'a [u8] {
        let end = json.iter().position(|byte| {
            let ends = !escaped && *byte == b'"';
            escaped = !escaped && *byte == b'\\';
            ends
        });
        let (text, rest) = json.split_at(end.map_or(json.len(), |end| end + 1));
        out.put_slice(text);
        match end {
            Some(_) => self.end_text(out),
            None => self.state = State::Quoted(escaped),
        }
        rest
    }

    fn end_text(&mut self, out: &mut BytesMut) {
        self.state = State::Between;
        if self.naming {
            out.put_u8(b':');
        }
    }
}

fn quoted(text: &[u8], whole: bool, out: &mut BytesMut) {
    out.put_u8(b'"');
    out.put_slice(text);
    if whole {
        out.put_u8(b'"');
    }
}

/// Whether nobody could take a text without quotes for anything else.
fn is_word(text: &[u8]) -> bool {
    let others = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    !text.is_empty() && !others.iter().any(|other| text.eq_ignore_ascii_case(other.as_bytes()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn in_pieces_of(size: usize, json: &str) -> String {
        let (mut writer, mut out) = (Writer::default(), BytesMut::new());
        json.as_bytes().chunks(size).for_each(|piece| writer.write(piece, &mut out));
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn yaml_reads_as_what_was_written() {
        let long = "x".repeat(3 * LONG);
        let value = json!({"a": {"b": [1, "x", {"c": [], "d": {}}, [true, null]], "e": ""},
            "on": "no", "f": "1e3", "g": "a: b\n# c", "h": "\u{e9}\"'\\", "i/j": -1.5,
            "12": "2024-01-01", "k": [[["deep"]], []], "l": "- x", "m": long, "n": "\\\\\"",
            "o": [{"p": 1, "q": {"r": [{}]}}, "s"], "t": {"u": {}}});
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let whole = in_pieces_of(text.len(), &text);
            assert_eq!(serde_saphyr::from_str::<Value>(&whole).unwrap(), value, "{whole}");
            for size in 1..9 {
                assert_eq!(in_pieces_of(size, &text), whole, "in pieces of {size}");
            }
        }
        for (json, yaml) in [
            (r#"{"a":1}"#, "a: 1"),
            ("{}", "{}"),
            (r#"["a",[],{"b":"c d"}]"#, "- a\n- []\n-\n  b: \"c d\""),
        ] {
            assert_eq!(in_pieces_of(1, json), yaml);
        }
    }

    #[test]
    fn who_wants_yaml() {
        for (accept, want) in [
            ("application/yaml", true),
            ("application/yaml, */*", true),
            ("application/json, application/yaml", false),
            ("application/vnd.kubernetes.protobuf, application/yaml;q=0.9", true),
            ("", false),
        ] {
            assert_eq!(is_wanted(accept), want, "{accept}");
        }
    }
}
