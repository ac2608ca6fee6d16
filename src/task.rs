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
