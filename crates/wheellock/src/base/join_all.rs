//! Several requests at once. This module owns their futures. It does not interpret the replies.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Pending requests, each with the number of its member. Dropping the set drops all requests. A dropped acquire request releases any lock
/// that the server may have granted.
pub(crate) struct JoinAll<'a, T> {
    under_way: Vec<(usize, Request<'a, T>)>,
}

/// Boxed, because the request continues in another task when its caller no longer needs it.
type Request<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl<T> Default for JoinAll<'_, T> {
    fn default() -> Self {
        Self { under_way: Vec::new() }
    }
}

impl<'a, T> JoinAll<'a, T> {
    /// Creates a set of these requests. The number of each is its place among them.
    pub(crate) fn new(requests: impl IntoIterator<Item = impl Future<Output = T> + Send + 'a>) -> Self {
        let mut all = Self::default();
        requests.into_iter().enumerate().for_each(|(number, request)| all.add(number, request));
        all
    }

    pub(crate) fn add(&mut self, number: usize, request: impl Future<Output = T> + Send + 'a) {
        self.under_way.push((number, Box::pin(request)));
    }

    pub(crate) fn is_under_way(&self, number: usize) -> bool {
        self.under_way.iter().any(|(known, _)| *known == number)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Polls all pending requests and returns the finished ones. The first call sends all requests within one turn, so the requests to one
    /// server go out in one write.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Vec<(usize, T)> {
        let mut ready = Vec::new();
        self.under_way.retain_mut(|(number, request)| match request.as_mut().poll(cx) {
            Poll::Ready(answer) => {
                ready.push((*number, answer));
                false
            }
            Poll::Pending => true,
        });
        ready
    }

    /// Waits until a request has finished. Returns at once if no request is pending.
    pub(crate) async fn ready(&mut self) -> Vec<(usize, T)> {
        std::future::poll_fn(|cx| {
            let ready = self.poll(cx);
            if ready.is_empty() && !self.is_over() { Poll::Pending } else { Poll::Ready(ready) }
        })
        .await
    }

    /// Waits for all replies. Returns them in the order of the members.
    pub(crate) async fn all(mut self) -> Vec<T> {
        let mut answers = Vec::with_capacity(self.under_way.len());
        while !self.is_over() {
            answers.append(&mut self.ready().await);
        }
        answers.sort_by_key(|(number, _)| *number);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }
}

/// Sends all requests at once, and waits for all replies. Returns them in the order of the requests.
pub(crate) async fn join_all<F: Future + Send>(requests: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    JoinAll::new(requests).all().await
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::task::Waker;

    use super::*;

    #[test]
    fn requests_start_together_and_finish_separately() {
        static OPEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
        static ASKED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
        let request = |number: usize| {
            let mut asked = false;
            std::future::poll_fn(move |_| {
                if !std::mem::replace(&mut asked, true) {
                    ASKED.lock().unwrap().push(number);
                }
                if OPEN.lock().unwrap().contains(&number) { Poll::Ready(10 * number) } else { Poll::Pending }
            })
        };
        let mut cx = Context::from_waker(Waker::noop());
        let mut flight = JoinAll::new((0..3).map(request));
        assert_eq!(flight.poll(&mut cx), []);
        assert_eq!(*ASKED.lock().unwrap(), [0, 1, 2]);
        *OPEN.lock().unwrap() = vec![2, 0];
        assert_eq!(flight.poll(&mut cx), [(0, 0), (2, 20)]);
        assert!(!flight.is_over());
        *OPEN.lock().unwrap() = vec![1];
        assert_eq!(flight.poll(&mut cx), [(1, 10)]);
        assert!(flight.is_over());
    }
}
