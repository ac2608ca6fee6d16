//! `passwd`: password files, with the options of mosquitto_passwd.

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use super::output::print;
use crate::auth::{Hash, PasswordFile, Record};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Create the file; one that is there is overwritten
    #[arg(short, long, conflicts_with_all = ["delete", "update"])]
    create: bool,
    /// Delete the user
    #[arg(short = 'D', long, conflicts_with_all = ["update", "batch"])]
    delete: bool,
    /// Hash the plain passwords of the file, lines of NAME:PASSWORD; those that are hashed already stay
    #[arg(short = 'U', long, conflicts_with_all = ["name", "batch"])]
    update: bool,
    /// Take the password from the command line, where others may see it
    #[arg(short, long, requires = "password")]
    batch: bool,
    /// How the password is hashed
    #[arg(short = 'H', long, value_enum, default_value_t = HashName::Argon2id)]
    hash: HashName,
    /// Make a record for SCRAM-SHA-256, with which a client never sends its password; it is good for other clients, too
    #[arg(long, conflicts_with = "hash")]
    scram: bool,
    /// Iterations, for sha512-pbkdf2 (default 1000) and --scram (default 15000)
    #[arg(short = 'I', long, value_name = "COUNT")]
    iterations: Option<u32>,
    /// The password file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The user's name
    #[arg(value_name = "NAME", required_unless_present = "update")]
    name: Option<String>,
    /// The password, with --batch; without: asked for, or read from stdin
    #[arg(value_name = "PASSWORD", requires = "batch")]
    password: Option<String>,
}

/// As mosquitto_passwd has them.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum HashName {
    /// As Mosquitto from 2.1 on; takes 46 MiB and some ten milliseconds at each log-in
    #[value(name = "argon2id")]
    Argon2id,
    /// As Mosquitto from 1.6 on
    #[value(name = "sha512-pbkdf2")]
    Sha512Pbkdf2,
    /// As Mosquitto before
    #[value(name = "sha512")]
    Sha512,
}

impl Arguments {
    fn record(&self, password: &[u8]) -> Result<Record, crate::auth::Unusable> {
        let hash = match self.hash {
            _ if self.scram => Hash::ScramSha256,
            HashName::Argon2id => Hash::Argon2id,
            HashName::Sha512Pbkdf2 => Hash::Sha512Pbkdf2,
            HashName::Sha512 => Hash::Sha512,
        };
        Record::new(hash, self.iterations, password)
    }
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let shown = arguments.file.display();
    let mut file = if arguments.create {
        PasswordFile::default()
    } else {
        let text = fs::read_to_string(&arguments.file).with_context(|| format!("cannot read {shown}; -c makes a new file"))?;
        PasswordFile::new(&text)
    };
    match &arguments.name {
        None => {
            let hashed = file.hash_plain(|password| arguments.record(password));
            let count = hashed.map_err(|error| {
                anyhow::anyhow!("{shown}{}: {}", error.line.map_or_else(String::new, |line| format!(":{line}")), error.problem)
            })?;
            write(&arguments.file, &file)?;
            print(&format!("{shown}: {count} passwords hashed"))?;
        }
        Some(name) if arguments.delete => {
            if !file.remove(name) {
                bail!("{shown} has no user {name:?}");
            }
            write(&arguments.file, &file)?;
        }
        Some(name) => {
            let password = match &arguments.password {
                Some(password) => password.clone(),
                None => ask()?,
            };
            if password.is_empty() {
                bail!("an empty password; nobody could tell it from none");
            }
            file.set(name, &arguments.record(password.as_bytes())?)?;
            write(&arguments.file, &file)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The file appears whole, readable for its owner alone if it is new; its mode and owner stay if it is not.
fn write(path: &Path, file: &PasswordFile) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    // A link stays a link.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    let written = || {
        let mut new = open_private(&unfinished)?;
        if let Ok(old) = fs::metadata(path) {
            keep_owner(&new, &old)?;
            new.set_permissions(Permissions::clone(&old.permissions()))?;
        }
        write!(new, "{file}")?;
        new.sync_all()?;
        fs::rename(&unfinished, path)?;
        File::open(directory)?.sync_all()
    };
    written().inspect_err(|_| drop(fs::remove_file(&unfinished))).with_context(failed)
}

#[cfg(unix)]
fn open_private(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    // What a run that was interrupted has left behind.
    let _ = fs::remove_file(path);
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(not(unix))]
fn open_private(path: &Path) -> io::Result<File> {
    File::create(path)
}

/// Only root can give a file away; who else writes it owns it afterwards, and must be told if that takes it from the broker's user.
#[cfg(unix)]
fn keep_owner(new: &File, old: &fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, fchown};
    let now = new.metadata()?;
    if (now.uid(), now.gid()) == (old.uid(), old.gid()) { Ok(()) } else { fchown(new, Some(old.uid()), Some(old.gid())) }
}

#[cfg(not(unix))]
fn keep_owner(_: &File, _: &fs::Metadata) -> io::Result<()> {
    Ok(())
}

/// Asks twice on a terminal; from a pipe one line is read.
fn ask() -> anyhow::Result<String> {
    if !io::stdin().is_terminal() {
        return read_line();
    }
    let first = ask_unseen("Password: ")?;
    if first != ask_unseen("Again: ")? {
        bail!("the passwords are not the same; nothing was changed");
    }
    Ok(first)
}

fn read_line() -> anyhow::Result<String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).context("cannot read the password from stdin")?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(unix)]
fn ask_unseen(prompt: &str) -> anyhow::Result<String> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let mut err = io::stderr();
    write!(err, "{prompt}").and_then(|()| err.flush()).context("cannot ask for the password")?;
    let stdin = io::stdin();
    let seen = tcgetattr(&stdin).context("cannot turn the terminal's echo off")?;
    let mut unseen = seen.clone();
    unseen.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&stdin, OptionalActions::Flush, &unseen).context("cannot turn the terminal's echo off")?;
    let line = read_line();
    tcsetattr(&stdin, OptionalActions::Now, &seen).context("cannot turn the terminal's echo on again")?;
    let _ = writeln!(err);
    line
}

#[cfg(not(unix))]
fn ask_unseen(_: &str) -> anyhow::Result<String> {
    bail!("cannot ask for a password without showing it here; send it through a pipe, or use --batch")
}
