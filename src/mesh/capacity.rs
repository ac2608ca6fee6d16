//! What this machine can carry, as a power of two, for the election of the root: cores and memory, each in powers of two, added. Rough on
//! purpose: like machines come out equal, and the id decides.

/// Measures the machine.
pub(super) fn measure() -> u8 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let memory = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| memory_gib(&text)).unwrap_or(1);
    let capacity = cores.max(1).ilog2() + memory.max(1).ilog2();
    u8::try_from(capacity).unwrap_or(u8::MAX)
}

/// `MemTotal` of `/proc/meminfo`, rounded up: firmware takes a little of every gibibyte.
fn memory_gib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib.div_ceil(1024 * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_as_linux_writes_it() {
        assert_eq!(memory_gib("MemTotal:       16265668 kB\nMemFree:  1 kB\n"), Some(16));
        assert_eq!(memory_gib("MemFree: 1 kB\n"), None);
    }
}
