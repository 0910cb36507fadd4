//! How a command ended, as its client is told on the error channel.

use serde_json::json;

/// How a command in a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It exited with this code.
    Exited(i32),
    /// It did not run, or we lost it.
    Failed(String),
}

impl Outcome {
    /// What versions 4 and 5 of the protocol send: a Status. Always something.
    pub fn status(&self) -> String {
        let status = match self {
            Self::Exited(0) => json!({"metadata": {}, "status": "Success"}),
            Self::Exited(code) => json!({
                "metadata": {},
                "status": "Failure",
                "message": format!("command terminated with non-zero exit code: exit status {code}"),
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Self::Failed(why) => json!({
                "metadata": {},
                "status": "Failure",
                "message": why,
                "reason": "InternalError",
                "details": {"causes": [{"message": why}]},
                "code": 500,
            }),
        };
        status.to_string()
    }

    /// What versions 1 to 3 send: the error in words, and nothing after success.
    pub fn words(&self) -> Option<String> {
        match self {
            Self::Exited(0) => None,
            Self::Exited(code) => {
                Some(format!("command terminated with non-zero exit code: exit status {code}"))
            }
            Self::Failed(why) => Some(why.clone()),
        }
    }

    /// What a protocol of this version sends.
    pub fn message(&self, version: u8) -> Option<String> {
        if version >= 4 { Some(self.status()) } else { self.words() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_clients_are_told() {
        let missing = "error executing command in container: no such file";
        let cases = [
            (Outcome::Exited(0), r#"{"metadata":{},"status":"Success"}"#, None),
            (
                Outcome::Exited(7),
                concat!(
                    r#"{"details":{"causes":[{"message":"7","reason":"ExitCode"}]},"#,
                    r#""message":"command terminated with non-zero exit code: exit status 7","#,
                    r#""metadata":{},"reason":"NonZeroExitCode","status":"Failure"}"#
                ),
                Some("command terminated with non-zero exit code: exit status 7"),
            ),
        ];
        for (outcome, status, words) in cases {
            let value: serde_json::Value = serde_json::from_str(&outcome.status()).unwrap();
            assert_eq!(value, serde_json::from_str::<serde_json::Value>(status).unwrap());
            assert_eq!(outcome.message(3).as_deref(), words);
        }
        let failed = Outcome::Failed(missing.to_owned());
        let value: serde_json::Value = serde_json::from_str(&failed.status()).unwrap();
        assert_eq!((&value["code"], &value["message"]), (&json!(500), &json!(missing)));
    }
}
