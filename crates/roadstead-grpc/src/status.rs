//! How a call ended.

use http::HeaderMap;

/// Why a call did not give an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code:?} desc = {message}")]
pub struct Status {
    /// Of which kind the failure is.
    pub code: Code,
    /// In words.
    pub message: String,
}

/// The kinds of failures, by the numbers of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are called as the protocol calls them")]
pub enum Code {
    Canceled = 1,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl Code {
    fn of(number: u32) -> Self {
        const ALL: [Code; 16] = [
            Code::Canceled,
            Code::Unknown,
            Code::InvalidArgument,
            Code::DeadlineExceeded,
            Code::NotFound,
            Code::AlreadyExists,
            Code::PermissionDenied,
            Code::ResourceExhausted,
            Code::FailedPrecondition,
            Code::Aborted,
            Code::OutOfRange,
            Code::Unimplemented,
            Code::Internal,
            Code::Unavailable,
            Code::DataLoss,
            Code::Unauthenticated,
        ];
        let found = ALL.into_iter().find(|code| *code as u32 == number);
        found.unwrap_or(Self::Unknown)
    }
}

impl Status {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// More than we hold for a peer.
    pub(crate) fn too_long() -> Self {
        Self::new(Code::ResourceExhausted, "the answer is too long")
    }

    /// The connection failed, or there is none.
    pub(crate) fn unavailable(error: impl std::error::Error) -> Self {
        let causes = std::iter::successors(error.source(), |cause| cause.source());
        let text = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
        Self::new(Code::Unavailable, text)
    }

    /// What these headers say: `None` if nothing yet, and otherwise whether the call went well.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Result<(), Self>> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let number = text("grpc-status")?.parse::<u32>();
        let message = unescape(text("grpc-message").unwrap_or_default());
        Some(match number {
            Ok(0) => Ok(()),
            Ok(number) => Err(Self::new(Code::of(number), message)),
            Err(_) => Err(Self::new(Code::Unknown, message)),
        })
    }
}

/// Takes the percent signs out by which a message comes through headers.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let number = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match number.and_then(|two| u8::from_str_radix(two, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_headers_say() {
        for (headers, want) in [
            (&[][..], "nothing"),
            (&[("grpc-status", "0")], "well"),
            (
                &[("grpc-status", "5"), ("grpc-message", "no %22x%22, 100%")],
                "rpc error: code = NotFound desc = no \"x\", 100%",
            ),
            (&[("grpc-status", "99")], "rpc error: code = Unknown desc = "),
            (&[("grpc-status", "x")], "rpc error: code = Unknown desc = "),
            (
                &[("grpc-status", "16"), ("grpc-message", "na%C3%AFf%2")],
                "rpc error: code = Unauthenticated desc = naïf%2",
            ),
        ] {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.insert(*name, value.parse().unwrap());
            }
            let found = match Status::of(&map) {
                None => "nothing".to_owned(),
                Some(Ok(())) => "well".to_owned(),
                Some(Err(status)) => status.to_string(),
            };
            assert_eq!(found, want, "{headers:?}");
        }
    }
}
