//! The one place that spawns. A panic in a task is a bug of ours: it is logged with the task's name and ends that task only.

use std::future::Future;

use tokio::task::JoinHandle;

/// Spawns `future` on the current runtime; `name` is for people who read a stack dump or a log.
#[expect(clippy::disallowed_methods, reason = "this module is the one that may")]
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tracing::trace!(task = name, "spawn");
    tokio::spawn(future)
}

/// Runs what takes a processor for long on a thread of its own. None if it panicked or the runtime is going down. The caller bounds how many there are.
pub async fn blocking<T, F>(body: F) -> Option<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    match tokio::task::spawn_blocking(body).await {
        Ok(result) => Some(result),
        Err(error) => {
            if error.is_panic() {
                tracing::error!(%error, "a task panicked: this is a bug, please report it");
            }
            None
        }
    }
}

/// Starts an operating system thread called `name`.
///
/// # Errors
/// When the system refuses another thread.
#[expect(clippy::disallowed_methods, reason = "this module is the one that may")]
pub fn thread<F>(name: &str, body: F) -> std::io::Result<std::thread::JoinHandle<()>>
where
    F: FnOnce() + Send + 'static,
{
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}

/// Tasks that end with their owner: dropping the set aborts them.
#[derive(Debug, Default)]
pub struct TaskSet {
    tasks: tokio::task::JoinSet<()>,
}

impl TaskSet {
    /// Starts one more.
    pub fn spawn(&mut self, future: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(future);
    }

    /// Waits until one has ended and forgets it; waits for ever if there is none.
    pub async fn ended(&mut self) {
        match self.tasks.join_next().await {
            Some(Ok(())) => {}
            Some(Err(error)) if error.is_panic() => tracing::error!(%error, "a task panicked: this is a bug, please report it"),
            Some(Err(_)) => {}
            None => std::future::pending().await,
        }
    }

    /// How many run.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether none runs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}
