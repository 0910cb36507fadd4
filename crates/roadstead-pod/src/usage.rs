//! How much of the machine is used, read from what the kernel says of groups and of itself: pure.

use jiff::Timestamp;

use crate::resources::{Controller, Version};

/// What a group of processes uses; `None` is what the kernel does not count here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Processor time since it began, in nanoseconds.
    pub cpu: Option<u64>,
    /// Its memory.
    pub memory: Option<MemoryUsage>,
    /// How many processes and threads it has.
    pub processes: Option<u64>,
}

/// Memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryUsage {
    /// All that is counted, with caches of files.
    pub usage: u64,
    /// What cannot be had back easily: usage without caches of files that nobody has used lately.
    pub working_set: u64,
    /// What belongs to no file.
    pub rss: u64,
    /// How often a page was not there when it was used.
    pub page_faults: u64,
    /// How often it had to be read from a disk.
    pub major_page_faults: u64,
}

impl Usage {
    /// Takes in what a group's directory says in the hierarchy of a controller; `read` returns the text of
    /// a file, or "".
    pub fn observe(
        &mut self,
        controller: Controller,
        version: Version,
        read: impl Fn(&str) -> String,
    ) {
        let number = |file: &str| read(file).trim().parse::<u64>().ok();
        match (controller, version) {
            (Controller::Cpu, Version::Two) => {
                let micros = field(&read("cpu.stat"), "usage_usec");
                self.cpu = micros.map(|micros| micros.saturating_mul(1000));
            }
            (Controller::CpuAccounting, Version::One) => self.cpu = number("cpuacct.usage"),
            (Controller::Memory, version) => self.memory = memory(version, read),
            (Controller::Pids, _) => self.processes = number("pids.current"),
            (Controller::Cpu, Version::One) | (Controller::CpuAccounting, Version::Two) => {}
        }
    }
}

fn memory(version: Version, read: impl Fn(&str) -> String) -> Option<MemoryUsage> {
    // In version one, those without `total_` leave out the groups below.
    let (file, inactive, rss, faults, major) = match version {
        Version::One => (
            "memory.usage_in_bytes",
            "total_inactive_file",
            "total_rss",
            "total_pgfault",
            "total_pgmajfault",
        ),
        Version::Two => ("memory.current", "inactive_file", "anon", "pgfault", "pgmajfault"),
    };
    let usage: u64 = read(file).trim().parse().ok()?;
    let stat = read("memory.stat");
    let get = |name| field(&stat, name).unwrap_or(0);
    Some(MemoryUsage {
        usage,
        working_set: usage.saturating_sub(get(inactive)),
        rss: get(rss),
        page_faults: get(faults),
        major_page_faults: get(major),
    })
}

/// The number behind a name, at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
    lines.find(|(found, _)| *found == name)?.1.trim().parse().ok()
}

/// What the whole machine uses, from `/proc/stat`, `/proc/meminfo` and `/proc/vmstat`.
pub fn of_machine(stat: &str, meminfo: &str, vmstat: &str) -> Usage {
    /// As the kernel counts for programs, whatever it does inside.
    const NANOSECONDS_PER_TICK: u64 = 10_000_000;
    // User, nice, system, idle, waiting, interrupts (two kinds), stolen. Guests are counted as users.
    let ticks = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let busy = ticks.map(|ticks| {
        let ticks = ticks.split_whitespace().enumerate();
        let ticks = ticks.filter(|(place, _)| [0, 1, 2, 5, 6, 7].contains(place));
        ticks.filter_map(|(_, text)| text.parse::<u64>().ok()).sum::<u64>()
    });
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        let number = line?.split_whitespace().next()?.parse::<u64>().ok();
        number.map(|kib| kib * 1024)
    };
    let memory = kib("MemTotal:").zip(kib("MemFree:")).map(|(total, free)| {
        let usage = total.saturating_sub(free);
        MemoryUsage {
            usage,
            working_set: usage.saturating_sub(kib("Inactive(file):").unwrap_or(0)),
            rss: kib("AnonPages:").unwrap_or(0),
            page_faults: field(vmstat, "pgfault").unwrap_or(0),
            major_page_faults: field(vmstat, "pgmajfault").unwrap_or(0),
        }
    });
    Usage { cpu: busy.map(|ticks| ticks * NANOSECONDS_PER_TICK), memory, processes: None }
}

/// Processor time at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuSample {
    /// When it was read.
    pub at: Timestamp,
    /// Since the beginning, in nanoseconds.
    pub total: u64,
}

/// How fast processor time was used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuRate {
    /// In billionths of a processor.
    pub nanocores: u64,
    /// Over how long, in nanoseconds.
    pub window: u64,
}

/// Samples that are closer than this say more of chance than of a program, in nanoseconds.
const SHORTEST_WINDOW: u64 = 10_000_000_000;

/// Returns how fast processor time was used between two samples, if they are far enough from each other.
pub fn cpu_rate(first: CpuSample, second: CpuSample) -> Option<CpuRate> {
    let window = u64::try_from(second.at.duration_since(first.at).as_nanos()).ok()?;
    let used = second.total.checked_sub(first.total)?;
    let nanocores = u128::from(used) * 1_000_000_000 / u128::from(window.max(1));
    (window >= SHORTEST_WINDOW)
        .then(|| CpuRate { nanocores: u64::try_from(nanocores).unwrap_or(u64::MAX), window })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads files written as `name: text` lines, where `\n` stands for a new line.
    fn usage(controllers: &[(Controller, Version)], files: &str) -> Usage {
        let mut usage = Usage::default();
        for (controller, version) in controllers {
            usage.observe(*controller, *version, |name| {
                let found = files.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
                found.unwrap_or_default().replace("\\n", "\n")
            });
        }
        usage
    }

    #[test]
    fn what_groups_use() {
        use Controller::{Cpu, CpuAccounting, Memory, Pids};
        use Version::{One, Two};
        let old = "cpuacct.usage: 5000000000\n\
                   memory.usage_in_bytes: 1000\\n\n\
                   memory.stat: rss 1\\ninactive_file 7\\ntotal_rss 300\\ntotal_inactive_file 400\\ntotal_pgfault 5\\ntotal_pgmajfault 2\n\
                   pids.current: 3\\n";
        let new = "cpu.stat: usage_usec 5000000\\nuser_usec 1\\nsystem_usec 2\n\
                   memory.current: 1000\\n\n\
                   memory.stat: anon 300\\nfile 500\\ninactive_file 400\\npgfault 5\\npgmajfault 2\n\
                   pids.current: 3\\n";
        let memory = MemoryUsage {
            usage: 1000,
            working_set: 600,
            rss: 300,
            page_faults: 5,
            major_page_faults: 2,
        };
        let all = Usage { cpu: Some(5_000_000_000), memory: Some(memory), processes: Some(3) };
        let one = [(Cpu, One), (CpuAccounting, One), (Memory, One), (Pids, One)];
        let two = [(Cpu, Two), (Memory, Two), (Pids, Two)];
        let hybrid = [(CpuAccounting, One), (Memory, One), (Pids, Two)];
        for (name, controllers, files, want) in [
            ("version one", &one[..], old, all),
            ("version two", &two, new, all),
            ("hybrid", &hybrid, old, all),
            ("gone", &two, "", Usage::default()),
            (
                "only memory",
                &[(Memory, Two)],
                new,
                Usage { memory: all.memory, ..Usage::default() },
            ),
            (
                "more cache than usage",
                &[(Memory, Two)],
                "memory.current: 1\nmemory.stat: inactive_file 2",
                Usage {
                    memory: Some(MemoryUsage { usage: 1, ..MemoryUsage::default() }),
                    ..Usage::default()
                },
            ),
        ] {
            assert_eq!(usage(controllers, files), want, "{name}");
        }
    }

    #[test]
    fn what_the_machine_uses() {
        let stat = "cpu  100 10 50 9999 77 3 4 2 55 0\ncpu0 1 1 1 1\n";
        let meminfo =
            "MemTotal: 1000 kB\nMemFree: 300 kB\nAnonPages: 200 kB\nInactive(file): 100 kB\n";
        let found = of_machine(stat, meminfo, "pgfault 8\npgmajfault 1\n");
        assert_eq!(found.cpu, Some(1_690_000_000));
        let memory = found.memory.unwrap();
        assert_eq!((memory.usage, memory.working_set), (700 << 10, 600 << 10));
        assert_eq!((memory.rss, memory.page_faults, memory.major_page_faults), (200 << 10, 8, 1));
        assert_eq!(of_machine("", "", ""), Usage::default());
    }

    #[test]
    fn rates() {
        let sample =
            |second, total| CpuSample { at: Timestamp::from_second(second).unwrap(), total };
        let cases = [
            ("half a processor", sample(0, 0), sample(20, 10_000_000_000), Some(500_000_000)),
            ("idle", sample(5, 7), sample(20, 7), Some(0)),
            ("too close", sample(0, 0), sample(9, 1), None),
            ("it began anew", sample(0, 5), sample(20, 1), None),
            ("the clock went back", sample(20, 0), sample(0, 5), None),
        ];
        for (name, first, second, want) in cases {
            assert_eq!(cpu_rate(first, second).map(|rate| rate.nanocores), want, "{name}");
        }
    }
}
