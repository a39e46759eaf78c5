//! Concurrent requests in one task.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Work that is in progress, or what it returned.
enum Joined<F: Future> {
    Pending(Pin<Box<F>>),
    Ready(F::Output),
}

/// Runs all work at the same time; returns the results in the same order.
pub(crate) async fn join_all<F: Future>(work: impl IntoIterator<Item = F>) -> Vec<F::Output>
where
    F::Output: Unpin,
{
    let mut all: Vec<Joined<F>> = work.into_iter().map(|work| Joined::Pending(Box::pin(work))).collect();
    poll_fn(|context| {
        for joined in &mut all {
            if let Joined::Pending(work) = joined
                && let Poll::Ready(result) = work.as_mut().poll(context)
            {
                *joined = Joined::Ready(result);
            }
        }
        match all.iter().any(|joined| matches!(joined, Joined::Pending(_))) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    })
    .await;
    let results = all.into_iter().filter_map(|joined| match joined {
        Joined::Ready(result) => Some(result),
        Joined::Pending(_) => None,
    });
    results.collect()
}
