//! `dns`: a name of `mesh.peers` followed for ever: every address to which it resolves is a broker of its own. A name that begins with `_`
//! has SRV records (RFC 2782): each names a host and a port; those of a better priority are tried first, and among these those of more
//! weight. Its hosts are looked up side by side: one that does not answer hides no other.
//!
//! An answer holds for as long as it says, within bounds. What an answer no longer names is not dialled any more; a link that is there
//! stays. A name service that does not answer, or says that there is no such name, changes nothing. `/etc/resolv.conf` and `/etc/hosts`
//! are read anew for each look-up.

use std::cmp::Reverse;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::{Duration, Instant};

use hickory_resolver::TokioResolver;
use hickory_resolver::net::NetError;
use hickory_resolver::proto::rr::RData;
use tokio::sync::mpsc;
use tracing::debug;

use super::{ADDRESSES_MAX, Found, Place, Source, Surroundings, Target};
use crate::clock;
use crate::config::HostPort;

/// An answer is asked for again after this at least, and at most; sooner while there is no link.
const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(30);
const TTL_MAX_ALONE: Duration = Duration::from_secs(2);
/// After a failure.
const RETRY: Duration = Duration::from_secs(2);
/// One attempt at a question, which a lost datagram costs; how often it is repeated; all attempts together; all questions about one name.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(1_500);
const REPETITIONS: usize = 2;
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(20);
/// Hosts of one SRV name that are looked up.
const HOSTS_MAX: usize = 64;
/// Of these at once.
const HOSTS_AT_ONCE: usize = 32;
const _: () = assert!(QUESTION_TIMEOUT.as_millis() > ATTEMPT_TIMEOUT.as_millis() * (1 + REPETITIONS as u128));
// Hosts that do not answer use up their own time, not that of the others.
const _: () = assert!(LOOK_UP_TIMEOUT.as_secs() > QUESTION_TIMEOUT.as_secs() * (1 + HOSTS_MAX.div_ceil(HOSTS_AT_ONCE) as u64));

/// Follows a name.
pub(super) async fn follow(around: Surroundings, name: HostPort, found: mpsc::Sender<Found>) {
    let mut known = Vec::new();
    loop {
        let asked = tokio::time::timeout(LOOK_UP_TIMEOUT, look_up(&around, &name)).await;
        let wait = match asked.unwrap_or(Err(LookUpError::Silent)) {
            Ok(answer) => {
                if answer.addresses != known {
                    debug!(%name, addresses = ?answer.addresses, "a name has new addresses");
                    known.clone_from(&answer.addresses);
                }
                let places = answer.addresses.into_iter().map(Place::Address);
                let targets = places.map(|place| (Target::At(place.clone()), vec![place])).collect();
                if found.send(Found { source: Source::Dns(name.clone()), targets }).await.is_err() {
                    return;
                }
                let longest = if around.connector.local.roster.links() == 0 { TTL_MAX_ALONE } else { TTL_MAX };
                answer.valid_until.saturating_duration_since(clock::now()).clamp(TTL_MIN, longest)
            }
            Err(error) => {
                around.connector.complain_text("cannot look up", &name.to_string(), &error.to_string());
                RETRY
            }
        };
        tokio::time::sleep(wait.mul_f64(1.0 + rand::random::<f64>() / 4.0)).await;
    }
}

struct Answer {
    /// Best first, without repetition.
    addresses: Vec<SocketAddr>,
    valid_until: Instant,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum LookUpError {
    #[error("{0}")]
    Resolver(#[from] NetError),
    #[error("the name service does not answer")]
    Silent,
}

async fn look_up(around: &Surroundings, name: &HostPort) -> Result<Answer, LookUpError> {
    let mut builder = TokioResolver::builder_tokio()?;
    // What is cached here would be asked for again only when it is due.
    builder.options_mut().cache_size = 0;
    builder.options_mut().timeout = ATTEMPT_TIMEOUT;
    builder.options_mut().attempts = REPETITIONS;
    let resolver = builder.build()?;
    let (mut addresses, mut valid_until) = (Vec::new(), clock::now() + TTL_MAX);
    let hosts = if name.host.starts_with('_') {
        let answer = ask(resolver.srv_lookup(name.host.as_str())).await?;
        valid_until = answer.valid_until().min(valid_until);
        let mut records: Vec<_> = answer
            .answers()
            .iter()
            .filter_map(|record| match &record.data {
                RData::SRV(srv) => Some((srv.priority, Reverse(srv.weight), srv.target.to_string(), srv.port)),
                _ => None,
            })
            .collect();
        records.sort();
        records.into_iter().take(HOSTS_MAX).map(|(.., host, port)| HostPort { host, port }).collect()
    } else {
        vec![name.clone()]
    };
    let is_srv = name.host.starts_with('_');
    let hosts_at = hosts.into_iter().map(|HostPort { host, port }| {
        let resolver = resolver.clone();
        async move {
            let answer = ask(resolver.lookup_ip(host.as_str())).await.map_err(|error| (host, error))?;
            Ok((answer.iter().map(|ip| SocketAddr::new(ip, port)).collect::<Vec<_>>(), answer.valid_until()))
        }
    });
    let mut failed = None;
    for answer in in_waves(hosts_at, |(addresses, _)| addresses.len()).await {
        match answer {
            Ok((found, until)) => {
                valid_until = until.min(valid_until);
                for address in found.into_iter().filter(|address| around.can_dial(*address)) {
                    if addresses.len() < ADDRESSES_MAX && !addresses.contains(&address) {
                        addresses.push(address);
                    }
                }
            }
            // The other hosts are as good.
            Err((host, error)) if is_srv => around.connector.complain_text("cannot look up", &host, &error.to_string()),
            Err((_, error)) => failed = Some(error),
        }
    }
    failed.map_or(Ok(Answer { addresses, valid_until }), Err)
}

/// The answers to all questions in their order, many asked at once, until there are as many addresses as are tried.
async fn in_waves<T, E>(
    questions: impl Iterator<Item = impl Future<Output = Result<T, E>>>,
    count: impl Fn(&T) -> usize,
) -> Vec<Result<T, E>> {
    let mut questions = questions.peekable();
    let (mut answers, mut found) = (Vec::new(), 0);
    while found < ADDRESSES_MAX && questions.peek().is_some() {
        for answer in all(questions.by_ref().take(HOSTS_AT_ONCE)).await {
            found += answer.as_ref().map_or(0, &count);
            answers.push(answer);
        }
    }
    answers
}

/// Waits for all, at the same time.
async fn all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut waiting: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        let mut is_pending = false;
        for (future, done) in waiting.iter_mut().filter(|(_, done)| done.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(value) => *done = Some(value),
                Poll::Pending => is_pending = true,
            }
        }
        if is_pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    waiting.into_iter().filter_map(|(_, done)| done).collect()
}

async fn ask<T>(question: impl Future<Output = Result<T, NetError>>) -> Result<T, LookUpError> {
    Ok(tokio::time::timeout(QUESTION_TIMEOUT, question).await.map_err(|_| LookUpError::Silent)??)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    #[test]
    fn a_host_that_does_not_answer_hides_no_other() {
        // Each answers when all of its wave have been asked: one after another they never would.
        let asked = tokio::sync::Barrier::new(HOSTS_AT_ONCE);
        let answers = wait(async {
            let hosts = (0..HOSTS_MAX).map(|number| {
                let asked = &asked;
                async move {
                    asked.wait().await;
                    if number < HOSTS_MAX - 1 { Err(number) } else { Ok(number) }
                }
            });
            tokio::time::timeout(LOOK_UP_TIMEOUT, in_waves(hosts, |_| 1)).await
        });
        let expected: Vec<_> = (0..HOSTS_MAX - 1).map(Err).chain([Ok(HOSTS_MAX - 1)]).collect();
        assert_eq!(answers, Ok(expected));
    }

    #[test]
    fn nobody_is_asked_once_there_are_enough() {
        let hosts = (0..HOSTS_MAX).map(|number| async move { Ok::<_, ()>(number) });
        let answers = wait(in_waves(hosts, |_| ADDRESSES_MAX / HOSTS_AT_ONCE));
        assert!(answers.into_iter().map(Result::unwrap).eq(0..HOSTS_AT_ONCE), "in their order");
    }
}
