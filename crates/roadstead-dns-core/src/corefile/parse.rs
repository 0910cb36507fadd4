//! The form of the configuration language: words, lines, blocks in braces.

use std::net::{Ipv6Addr, SocketAddr};
use std::str::{CharIndices, FromStr};
use std::time::Duration;

use roadstead_zone::name::Name;

use super::CorefileError;
use crate::setup::FallThrough;

/// No sensible configuration is nested deeper.
const DEEPEST: usize = 4;

/// A line with its block, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Directive {
    /// Where it begins, counted from 1.
    pub line: usize,
    /// The file and line that it was imported from.
    pub within: Option<String>,
    /// At least one.
    pub words: Vec<String>,
    /// What is between its braces.
    pub body: Vec<Directive>,
}

/// Reads all server blocks.
pub(super) fn parse(
    text: &str,
    variable: &dyn Fn(&str) -> String,
) -> Result<Vec<Directive>, CorefileError> {
    let blocks = fragment(text, 0, variable)?;
    for block in blocks.iter().filter(|block| block.body.is_empty()) {
        // A block without rules is pointless, and most likely a brace is missing.
        if block.name() != "import" {
            return Err(block.wrong("a server block with rules in braces is expected"));
        }
    }
    Ok(blocks)
}

/// Reads a part: server blocks at level 0, the rules of one at level 1.
pub(super) fn fragment(
    text: &str,
    level: usize,
    variable: &dyn Fn(&str) -> String,
) -> Result<Vec<Directive>, CorefileError> {
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let words = split(line).ok_or_else(|| CorefileError {
            line: at + 1,
            reason: "a quotation mark is not closed".into(),
        })?;
        let words: Vec<String> = words.iter().map(|word| fill_in(word, variable)).collect();
        if !words.is_empty() {
            lines.push((at + 1, words));
        }
    }
    parse_body(&mut lines.into_iter(), None, level)
}

type Lines = std::vec::IntoIter<(usize, Vec<String>)>;

fn parse_body(
    lines: &mut Lines,
    opened: Option<usize>,
    depth: usize,
) -> Result<Vec<Directive>, CorefileError> {
    let wrong = |line, reason: &str| Err(CorefileError { line, reason: reason.into() });
    let mut all: Vec<Directive> = Vec::new();
    while let Some((line, mut words)) = lines.next() {
        if words[0] == "}" {
            return match (opened, words.len()) {
                (None, _) => wrong(line, "a closing brace without an opening one"),
                (Some(_), 1) => Ok(all),
                (Some(_), _) => wrong(line, "nothing may follow a closing brace"),
            };
        }
        let opens = words.last().is_some_and(|word| word == "{");
        if opens {
            words.pop();
        }
        if words.iter().any(|word| word == "{" || word == "}") {
            return wrong(line, "a brace in the middle of a line");
        }
        if words.is_empty() {
            return wrong(line, "an opening brace without anything before it");
        }
        if depth == 0 {
            let zones = words.iter().flat_map(|word| word.split(','));
            words = zones.filter(|word| !word.is_empty()).map(str::to_owned).collect();
        }
        if opens && depth >= DEEPEST {
            return wrong(line, "too many blocks within blocks");
        }
        let body = if opens { parse_body(lines, Some(line), depth + 1)? } else { Vec::new() };
        all.push(Directive { line, within: None, words, body });
    }
    match opened {
        None => Ok(all),
        Some(line) => wrong(line, "the brace that is opened here is not closed"),
    }
}

/// The words of a line; `None` if a quotation mark is not closed.
fn split(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut inside = false;
    let mut letters: CharIndices<'_> = line.char_indices();
    while let Some((_, letter)) = letters.next() {
        match letter {
            '"' => {
                for (_, quoted) in letters.by_ref() {
                    if quoted == '"' {
                        inside = true;
                        break;
                    }
                    word.push(quoted);
                }
                if !inside {
                    return None;
                }
            }
            '#' if word.is_empty() && !inside => break,
            letter if letter.is_whitespace() => {
                if inside || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                inside = false;
            }
            letter => {
                word.push(letter);
                inside = true;
            }
        }
    }
    if inside || !word.is_empty() {
        words.push(word);
    }
    Some(words)
}

/// Puts the values of variables in the place of `{$NAME}` and `{%NAME%}`. A value is always one word.
fn fill_in(word: &str, known: &dyn Fn(&str) -> String) -> String {
    let mut text = word.to_owned();
    for (open, close) in [("{$", "}"), ("{%", "%}")] {
        let mut done = String::new();
        while let Some((before, rest)) = text.split_once(open) {
            let Some((name, behind)) = rest.split_once(close) else { break };
            done += before;
            done += &known(name);
            text = behind.to_owned();
        }
        text = done + &text;
    }
    text
}

impl Directive {
    /// The first word.
    pub(super) fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// An error about this line.
    pub(super) fn wrong(&self, reason: impl Into<String>) -> CorefileError {
        let reason = match &self.within {
            Some(within) => format!("{within}: {}", reason.into()),
            None => reason.into(),
        };
        CorefileError { line: self.line, reason }
    }

    /// The only argument.
    pub(super) fn only(&self) -> Result<&str, CorefileError> {
        match self.words.as_slice() {
            [_, only] => Ok(only),
            _ => Err(self.wrong(format!("{} takes one argument", self.name()))),
        }
    }

    /// The only argument, as a number.
    pub(super) fn number<T: FromStr>(&self) -> Result<T, CorefileError> {
        let word = self.only()?;
        word.parse().map_err(|_| self.wrong(format!("{} {word}: not a number", self.name())))
    }

    /// The only argument, as a duration.
    pub(super) fn duration(&self) -> Result<Duration, CorefileError> {
        self.parse_duration(self.only()?)
    }

    /// Reads `1h30m`, `500ms`, or a number of seconds.
    pub(crate) fn parse_duration(&self, word: &str) -> Result<Duration, CorefileError> {
        duration(word).ok_or_else(|| self.wrong(format!("{word}: not a duration")))
    }

    /// Reads a zone.
    pub(super) fn zone(&self, word: &str) -> Result<Name, CorefileError> {
        let name = Name::parse(word).map(|name| name.to_lowercase());
        name.ok_or_else(|| self.wrong(format!("{word:?} is not a domain name")))
    }

    /// Where to listen: nothing, `:8080` or `127.0.0.1:8080`. The newer family stands for both.
    pub(super) fn address(&self, port: u16) -> Result<SocketAddr, CorefileError> {
        let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let Some(word) = self.words.get(1) else { return Ok(everywhere) };
        let word = match word.strip_prefix(':') {
            Some(port) => format!("[::]:{port}"),
            None => word.replace("localhost:", "127.0.0.1:"),
        };
        word.parse().map_err(|_| self.wrong(format!("{word}: not an address with a port")))
    }

    /// The zones that a `fallthrough` names, or all.
    pub(crate) fn fall_through(&self, all: &[Name]) -> Result<FallThrough, CorefileError> {
        if self.words.len() == 1 {
            return Ok(FallThrough { zones: all.to_vec() });
        }
        let zones = self.words[1..].iter().map(|zone| self.zone(zone));
        Ok(FallThrough { zones: zones.collect::<Result<_, _>>()? })
    }
}

fn duration(word: &str) -> Option<Duration> {
    if let Ok(seconds) = word.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let mut rest = word;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit()).filter(|at| *at > 0)?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|letter: char| letter.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let millis: u64 = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        let millis = number.parse::<u64>().ok()?.checked_mul(millis)?;
        total = total.checked_add(Duration::from_millis(millis))?;
        rest = tail;
    }
    Some(total).filter(|_| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables() {
        let known = |name: &str| format!("<{}>", name.to_lowercase());
        for (word, want) in [
            ("plain", "plain"),
            ("{$ZONE}", "<zone>"),
            ("a.{%ZONE%}:{$PORT}", "a.<zone>:<port>"),
            ("{$ZONE", "{$ZONE"),
            ("{1}.{2}$", "{1}.{2}$"),
            ("{", "{"),
        ] {
            assert_eq!(fill_in(word, &known), want, "{word}");
        }
    }
}
