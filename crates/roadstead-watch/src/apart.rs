//! A stream that is read in a task of its own, so that its reading and the work on what it brings
//! share the processors instead of taking turns.

use std::mem;
use std::panic;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::{self, BoxStream, Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// So many items at most are handed over at once, and so many such parcels wait.
const PARCEL: usize = 128;
const WAITING: usize = 8;

/// The same items in the same order. The task ends with the stream that is returned, and a panic in
/// it is passed on.
pub fn apart<T: Send + 'static>(items: BoxStream<'static, T>) -> BoxStream<'static, T> {
    let (parcels, received) = mpsc::channel(WAITING);
    let task = tokio::spawn(async move {
        let mut items = items.ready_chunks(PARCEL);
        while let Some(parcel) = items.next().await {
            if parcels.send(parcel).await.is_err() {
                return;
            }
        }
    });
    Received { parcels: received, task: Some(task) }.flat_map(stream::iter).boxed()
}

struct Received<T> {
    parcels: mpsc::Receiver<Vec<T>>,
    task: Option<JoinHandle<()>>,
}

impl<T> Stream for Received<T> {
    type Item = Vec<T>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<T>>> {
        if let Some(parcel) = futures::ready!(self.parcels.poll_recv(context)) {
            return Poll::Ready(Some(parcel));
        }
        if let Some(task) = &mut self.task {
            let ended = futures::ready!(Pin::new(task).poll(context));
            self.task = None;
            if let Err(error) = ended
                && let Ok(payload) = error.try_into_panic()
            {
                panic::resume_unwind(payload);
            }
        }
        Poll::Ready(None)
    }
}

impl<T> Drop for Received<T> {
    fn drop(&mut self) {
        if let Some(task) = mem::take(&mut self.task) {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn nothing_is_lost_or_out_of_order() {
        let all = apart(stream::iter(0..5_000).boxed()).collect::<Vec<_>>().await;
        assert_eq!(all, (0..5_000).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn the_task_ends_with_its_stream() {
        let alive = Arc::new(());
        let held = alive.clone();
        let mut items = apart(stream::repeat_with(move || Arc::strong_count(&held)).boxed());
        assert_eq!(items.next().await, Some(2));
        drop(items);
        while Arc::strong_count(&alive) > 1 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    #[should_panic(expected = "what nobody expected")]
    async fn a_panic_is_passed_on() {
        let items = stream::iter(0..10).map(|n| assert_ne!(n, 5, "what nobody expected"));
        apart(items.boxed()).collect::<Vec<_>>().await;
    }
}
