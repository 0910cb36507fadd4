//! Questions that must be answered before the proxy can start.
//!
//! A machine often boots before its API server does. Whoever took silence for "there is none"
//! would run with the wrong settings until somebody restarts it.

use std::time::Duration;

use kube::Error;
use tokio::time;
use tracing::{debug, info, warn};

const FIRST: Duration = Duration::from_millis(250);
const LAST: Duration = Duration::from_secs(10);

/// Asks until there is an answer. `None` if what was asked for is not there, or not for us to see.
pub async fn wait_for_answer<T, A>(what: &str, mut ask: impl FnMut() -> A) -> Option<T>
where
    A: Future<Output = Result<T, Error>>,
{
    let mut pause = FIRST;
    loop {
        match ask().await {
            Ok(found) => {
                if pause > FIRST {
                    info!(what, "the API server answers");
                }
                return Some(found);
            }
            Err(error) if means_absent(&error) => {
                debug!(what, %error, "going on without");
                return None;
            }
            Err(error) => {
                warn!(what, %error, ?pause, "the API server does not say, will ask again");
                time::sleep(pause).await;
                pause = (pause * 2).min(LAST);
            }
        }
    }
}

/// Whether somebody who knows says no.
fn means_absent(error: &Error) -> bool {
    matches!(error, Error::Api(status) if [403, 404].contains(&status.code))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future;

    use kube::core::Status;

    use super::*;

    #[tokio::test]
    async fn silence_is_no_answer() {
        let said = |code| Error::Api(Status { code, ..Status::default() }.boxed());
        let cases = [
            ("there", vec![Ok(1)], Some(1)),
            ("not there", vec![Err(404), Ok(1)], None),
            ("not for us", vec![Err(403), Ok(1)], None),
            ("overloaded, then there", vec![Err(503), Ok(1)], Some(1)),
            ("no token yet, then not there", vec![Err(401), Err(404)], None),
        ];
        for (name, answers, want) in cases {
            let answers = RefCell::new(answers.into_iter());
            let ask = || future::ready(answers.borrow_mut().next().unwrap().map_err(said));
            assert_eq!(wait_for_answer("a test", ask).await, want, "{name}");
        }
    }
}
