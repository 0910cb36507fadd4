//! Work that begins when it is due, whatever else goes on.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{self, Instant};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Something, and when it is due.
struct Due {
    at: Instant,
    /// Of what is due at the same time, what was asked for first.
    number: u64,
    work: Work,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Where work is handed in.
#[derive(Clone)]
pub(crate) struct Timeline(mpsc::UnboundedSender<(Instant, Work)>);

impl Timeline {
    /// Starts what is handed in when it is due, until nobody can hand in anything any more.
    pub(crate) fn start() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(run(receiver));
        Self(sender)
    }

    /// Hands in work. Its time counts from when it was due, so it is told when that is.
    pub(crate) fn at<F: Future<Output = ()> + Send + 'static>(
        &self,
        at: Instant,
        work: impl FnOnce(Instant) -> F,
    ) {
        // Nobody listens when the run is over.
        let _ = self.0.send((at, Box::pin(work(at))));
    }
}

async fn run(mut receiver: mpsc::UnboundedReceiver<(Instant, Work)>) {
    let (mut waiting, mut number) = (BinaryHeap::<Reverse<Due>>::new(), 0);
    loop {
        let far = || Instant::now() + Duration::from_secs(3_600);
        let next = waiting.peek().map_or_else(far, |Reverse(due)| due.at);
        tokio::select! {
            handed = receiver.recv() => {
                let Some((at, work)) = handed else { return };
                waiting.push(Reverse(Due { at, number, work }));
                number += 1;
            }
            () = time::sleep_until(next) => {
                while waiting.peek().is_some_and(|Reverse(due)| due.at <= Instant::now()) {
                    if let Some(Reverse(due)) = waiting.pop() {
                        tokio::spawn(due.work);
                    }
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn work_begins_when_it_is_due() {
    let (timeline, begin) = (Timeline::start(), Instant::now());
    let (sender, mut done) = mpsc::unbounded_channel();
    for millis in [300, 100, 200, 100] {
        let sender = sender.clone();
        timeline.at(begin + Duration::from_millis(millis), move |due| async move {
            // However long it takes, the others do not wait for it.
            sender.send((due - begin, begin.elapsed())).unwrap();
            time::sleep(Duration::from_secs(10)).await;
        });
    }
    for want in [100, 100, 200, 300] {
        let (due, began) = done.recv().await.unwrap();
        assert_eq!((due.as_millis(), began.as_millis()), (want, want));
    }
}
