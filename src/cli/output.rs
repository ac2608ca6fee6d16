//! stdout and stderr, for readers that may go away.

use std::io::{self, ErrorKind, Write};

/// Writes `text` and a line's end to stdout. A reader that has gone (`| head`) is no error.
///
/// # Errors
/// When stdout cannot be written for another reason: a full disk, for example.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(anyhow::Error::new(error).context("cannot write to stdout")),
        _ => Ok(()),
    }
}

/// Writes `text` and a line's end to stderr. There is nowhere to tell if that fails.
pub(super) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes `error` and its causes to stderr. There is nowhere to tell if that fails.
pub(super) fn complain(error: &anyhow::Error) {
    let _ = writeln!(io::stderr().lock(), "error: {}", explain(error));
}

/// `error`, then each cause that it does not name itself.
fn explain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match () {
        () if said.is_empty() => cause,
        () if said.contains(&cause) => said,
        () => format!("{said}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cause_is_named_twice() {
        #[derive(Debug, thiserror::Error)]
        #[error("file: {source}; restore it")]
        struct Names {
            source: io::Error,
        }
        let error = anyhow::Error::new(Names { source: io::Error::other("gone") }).context("cannot go on");
        assert_eq!(explain(&error), "cannot go on: file: gone; restore it");
    }
}
