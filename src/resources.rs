//! What the system lets this process have: descriptors and memory.
//!
//! Linux only; elsewhere nothing is known and nothing is changed. It reads small files of the kernel's, which never block.

use std::fs;
use std::path::Path;

use crate::limits::{DESCRIPTORS_RESERVED, MEMORY_PERCENT_DEFAULT};

/// Raises the limit of descriptors as far as it may be raised.
pub fn raise_descriptors() {
    // Read, not asked for by a system call: in a sandbox where nothing is to be raised none is made that it might forbid.
    if let Some((soft, hard)) = limits_of_descriptors().filter(|(soft, hard)| soft < hard) {
        let limit = rustix::process::Rlimit { current: Some(hard), maximum: Some(hard) };
        if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit) {
            tracing::warn!(%error, soft, hard, "the limit of descriptors cannot be raised");
        }
    }
}

/// Descriptors that this process may have now. `None` where that cannot be known.
#[must_use]
pub fn descriptors() -> Option<u64> {
    limits_of_descriptors().map(|(soft, _)| soft)
}

/// Clients for which there are descriptors, when links and files have theirs.
#[must_use]
pub fn clients_max() -> usize {
    let descriptors = descriptors().and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    // Half of very few: then neither has enough.
    descriptors - DESCRIPTORS_RESERVED.min(descriptors / 2)
}

fn limits_of_descriptors() -> Option<(u64, u64)> {
    parse_descriptors(&fs::read_to_string("/proc/self/limits").ok()?)
}

/// Soft and hard limit of open files, as `/proc/self/limits` has them.
fn parse_descriptors(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let mut numbers = line.split_whitespace().map(|word| if word == "unlimited" { Some(u64::MAX) } else { word.parse().ok() });
    Some((numbers.next()??, numbers.next()??))
}

/// How much memory there is, and who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What the broker may take by default, bytes.
    pub limit: u64,
    /// Who has the least to give.
    pub from: &'static str,
}

/// What the broker may take where nobody says how much: a part of the least that the machine and the control groups allow. `None` where that
/// cannot be known.
#[must_use]
pub fn memory() -> Option<Memory> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| machine_bytes(&text)).map(|bytes| (bytes, "machine"));
    let group = group_bytes(Path::new("/sys/fs/cgroup"), &fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
    let (least, from) = machine.into_iter().chain(group.map(|bytes| (bytes, "cgroup"))).min()?;
    Some(Memory { limit: least / 100 * MEMORY_PERCENT_DEFAULT, from })
}

fn machine_bytes(meminfo: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1_024)
}

/// The least that the control groups around this process allow, of either version; `groups` is `/proc/self/cgroup`.
fn group_bytes(root: &Path, groups: &str) -> Option<u64> {
    let mut found = Vec::new();
    for line in groups.lines() {
        // number:controllers:path; version 2 has number 0 and no controllers.
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            list if list.split(',').any(|one| one == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => continue,
        };
        // In a container the path may be the host's, of which only the root is to be seen here.
        let own = root.join(path.trim_start_matches('/'));
        let around = own.ancestors().take_while(|group| group.starts_with(&root));
        found.extend(
            around
                .chain([root.as_path()])
                .filter_map(|group| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok()),
        );
    }
    found.into_iter().min()
}

/// Bytes of memory that this process takes now. `None` where that cannot be known.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max processes             1024                 unlimited            processes \n\
                      Max open files            1024                 524288               files     \n";
        assert_eq!(parse_descriptors(limits), Some((1_024, 524_288)));
        assert_eq!(
            parse_descriptors("Max open files            unlimited            unlimited            files"),
            Some((u64::MAX, u64::MAX))
        );
        assert_eq!((parse_descriptors(""), parse_descriptors("Max open files  x  1  files")), (None, None));
        assert_eq!(machine_bytes("MemTotal:        2038732 kB\nMemFree: 1 kB"), Some(2_038_732 * 1_024));
        assert_eq!((machine_bytes("MemFree: 1 kB"), machine_bytes("MemTotal: x kB")), (None, None));
    }

    #[test]
    fn the_narrowest_control_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/b/memory.max", "max\n");
        write("a/memory.max", "1000\n");
        write("memory/x/memory.limit_in_bytes", "500\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(group_bytes(root.path(), "0::/a/b\n"), Some(1_000));
        assert_eq!(group_bytes(root.path(), "4:cpu,memory:/x\n3:cpuset:/y\n"), Some(500));
        assert_eq!(group_bytes(root.path(), "4:memory:/of/the/host\n"), Some(9_223_372_036_854_771_712));
        assert_eq!((group_bytes(root.path(), "0::/\n"), group_bytes(root.path(), "")), (None, None));
    }

    #[test]
    fn this_process_has_something() {
        assert!(memory().is_some_and(|memory| memory.limit > 0));
        assert!(resident_bytes().is_some_and(|bytes| bytes > 100_000));
    }
}
