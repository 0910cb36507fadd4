//! `port-forward` over SPDY: each connection is a pair of streams, one for data, one for errors.

use std::collections::BTreeMap;

use crate::spdy::frame::Headers;

/// One connection to a port of the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// Where the client wants to go.
    pub port: u16,
    /// Carries the bytes, both ways.
    pub data: u32,
    /// Carries words when it fails; its end says that all went well.
    pub error: u32,
}

/// Why a stream cannot be part of a pair.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PairError {
    /// The header must be there.
    #[error("{0:?} header is required")]
    Missing(&'static str),
    /// A port is a number from 1 to 65535.
    #[error("unable to parse {0:?} as a port")]
    Port(String),
    /// There are streams of data and of errors.
    #[error("invalid stream type {0:?}")]
    Kind(String),
    /// The pair has one already.
    #[error("request {0} has this stream already")]
    Twice(String),
    /// Too many wait for their other half.
    #[error("too many requests wait for their second stream")]
    TooMany,
}

#[derive(Debug, Default)]
struct Half {
    port: u16,
    data: Option<u32>,
    error: Option<u32>,
}

/// Finds the streams that belong together.
#[derive(Debug, Default)]
pub(crate) struct Pairing {
    waiting: BTreeMap<String, Half>,
}

impl Pairing {
    const MOST_WAITING: usize = 256;

    /// Takes a stream that the client opened; returns the pair that it completes.
    pub(crate) fn opened(
        &mut self,
        stream: u32,
        headers: &Headers,
    ) -> Result<Option<Pair>, PairError> {
        let kind = headers.get("streamtype").ok_or(PairError::Missing("streamType"))?;
        let port = headers.get("port").ok_or(PairError::Missing("port"))?;
        let number = port.parse().ok().filter(|port| *port > 0);
        let port: u16 = number.ok_or_else(|| PairError::Port(port.clone()))?;
        let request = match headers.get("requestid") {
            Some(request) => request.clone(),
            None => request_of(kind, stream).to_string(),
        };
        if self.waiting.len() >= Self::MOST_WAITING && !self.waiting.contains_key(&request) {
            return Err(PairError::TooMany);
        }
        let is_data = match kind.as_str() {
            "data" => true,
            "error" => false,
            _ => return Err(PairError::Kind(kind.clone())),
        };
        let half = self.waiting.entry(request.clone()).or_default();
        half.port = port;
        let place = if is_data { &mut half.data } else { &mut half.error };
        if place.is_some() {
            return Err(PairError::Twice(request));
        }
        *place = Some(stream);
        let (Some(data), Some(error)) = (half.data, half.error) else { return Ok(None) };
        self.waiting.remove(&request);
        Ok(Some(Pair { port, data, error }))
    }

    /// Forgets a stream that its client gave up before its pair was complete.
    pub(crate) fn gone(&mut self, stream: u32) {
        self.waiting.retain(|_, half| half.data != Some(stream) && half.error != Some(stream));
    }
}

/// Old clients name no request: they open the error stream, and the data stream right after it.
fn request_of(kind: &str, stream: u32) -> u32 {
    if kind == "data" { stream.saturating_sub(2) } else { stream }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Streams 1, 3, 5 … written as `error/80/0 data/80/0`: kind, port, request; `-` is absent.
    fn pair(text: &str) -> Result<Vec<Pair>, PairError> {
        let mut pairing = Pairing::default();
        let mut pairs = Vec::new();
        for (at, stream) in text.split(' ').enumerate() {
            let names = ["streamtype", "port", "requestid"];
            let parts = names.into_iter().zip(stream.split('/')).filter(|(_, part)| *part != "-");
            let headers = parts.map(|(name, part)| (name.to_owned(), part.to_owned())).collect();
            pairs.extend(pairing.opened(at as u32 * 2 + 1, &headers)?);
        }
        Ok(pairs)
    }

    #[test]
    fn streams_find_each_other() {
        let one = Pair { port: 80, data: 3, error: 1 };
        let cases = [
            ("a pair", "error/80/0 data/80/0", Ok(vec![one])),
            ("no request named", "error/80/- data/80/-", Ok(vec![one])),
            ("data first", "data/80/a error/80/a", Ok(vec![Pair { port: 80, data: 1, error: 3 }])),
            ("half of one", "error/80/0", Ok(vec![])),
            (
                "two at once",
                "error/80/0 error/81/1 data/81/1 data/80/0",
                Ok(vec![
                    Pair { port: 81, data: 5, error: 3 },
                    Pair { port: 80, data: 7, error: 1 },
                ]),
            ),
            ("twice", "error/80/0 error/80/0", Err(PairError::Twice("0".to_owned()))),
            ("no kind", "-/80/0", Err(PairError::Missing("streamType"))),
            ("no port", "data/-/0", Err(PairError::Missing("port"))),
            ("port 0", "data/0/0", Err(PairError::Port("0".to_owned()))),
            ("no number", "data/http/0", Err(PairError::Port("http".to_owned()))),
            ("unknown", "log/80/0", Err(PairError::Kind("log".to_owned()))),
        ];
        for (name, text, want) in cases {
            assert_eq!(pair(text), want, "{name}");
        }
    }

    #[test]
    fn halves_are_bounded_and_forgotten() {
        let mut pairing = Pairing::default();
        let headers = |request: u32| {
            let rows = [("streamtype", "error"), ("port", "80")];
            let rows = rows.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let mut headers = Headers::from(rows);
            headers.insert("requestid".to_owned(), request.to_string());
            headers
        };
        for at in 0..Pairing::MOST_WAITING as u32 {
            assert_eq!(pairing.opened(at * 2 + 1, &headers(at)), Ok(None));
        }
        assert_eq!(pairing.opened(9_999, &headers(9_999)), Err(PairError::TooMany));
        pairing.gone(1);
        assert_eq!(pairing.opened(9_999, &headers(9_999)), Ok(None));
    }
}
