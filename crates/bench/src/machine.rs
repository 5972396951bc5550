//! What the figures were measured on, and how much memory this process holds.

use std::fs;

use serde::Serialize;

/// The machine, as every report names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The processor's model name.
    pub cpu: String,
    /// Cores the process may run on.
    pub cores: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The kernel's setting for transparent huge pages: `always`, `madvise` or `never`.
    pub huge_pages: String,
    /// The compiler that built the benchmarks.
    pub rustc: String,
}

impl Machine {
    /// This machine. What it does not tell is `unknown`.
    #[must_use]
    pub fn detect() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let unknown = || "unknown".to_owned();
        let memory_kib: u64 = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|value| value.trim_end_matches(" kB").parse().ok())
            .unwrap_or(0);
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory_kib / 1_024,
            kernel: Some(read("/proc/sys/kernel/osrelease").trim().to_owned())
                .filter(|release| !release.is_empty())
                .unwrap_or_else(unknown),
            huge_pages: bracketed(&read("/sys/kernel/mm/transparent_hugepage/enabled"))
                .unwrap_or_else(unknown),
            rustc: env!("TOLLBAR_BENCH_RUSTC").to_owned(),
        }
    }
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

/// The chosen word of `always [madvise] never`.
fn bracketed(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

/// Bytes of this process that are in memory; `None` where `/proc` does not tell.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * crate::huge_pages::page_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read_by_field() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A Processor\nmodel name\t: Another\n";
        assert_eq!(field(cpuinfo, "model name").as_deref(), Some("A Processor"));
        assert_eq!(field(cpuinfo, "flags"), None);
        assert_eq!(bracketed("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(bracketed("nothing"), None);
    }

    #[test]
    fn resident_memory_grows_with_what_is_touched() {
        let before = resident_bytes().expect("/proc is there");
        let touched = std::hint::black_box(vec![1_u8; 64 << 20]);
        let grown = resident_bytes().expect("/proc is there") - before;
        // Other tests allocate and free meanwhile, hence the margin.
        assert!(grown > 48 << 20, "{grown} bytes for {}", touched.len());
    }
}
