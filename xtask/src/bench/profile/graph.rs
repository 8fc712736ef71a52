//! Stacks as `perf script` prints them: counted, and drawn as a flame graph.

use std::{
    collections::BTreeMap,
    io::{BufRead, Write},
};

use anyhow::{Context, Result, ensure};
use inferno::{
    collapse::{
        Collapse,
        perf::{Folder, Options as Folding},
    },
    flamegraph::{
        self, Options as Drawing, TextTruncateDirection,
        color::{MultiPalette, Palette},
    },
};

/// What inferno appends to the names of the kernel's functions.
const KERNEL: &str = "_[k]";

/// How many functions are named in the report.
const HOTTEST: usize = 15;

/// How often each stack was seen.
pub(super) struct Stacks {
    /// From the outermost, a thread's name, to the innermost, joined by semicolons.
    counts: BTreeMap<String, u64>,
    /// Samples of CPUs with nothing to do.
    pub(super) idle: u64,
}

impl Stacks {
    /// Of what `perf script` prints.
    pub(super) fn read(script: impl BufRead) -> Result<Self> {
        let mut options = Folding::default();
        options.annotate_kernel = true;
        options.nthreads = 1;
        let mut folded = Vec::new();
        let mut folder = Folder::from(options);
        folder
            .collapse(script, &mut folded)
            .context("what perf script prints is not understood")?;
        let stacks = Self::folded(&String::from_utf8_lossy(&folded));
        ensure!(
            !stacks.counts.is_empty(),
            "perf has seen nothing but idling"
        );
        Ok(stacks)
    }

    fn folded(text: &str) -> Self {
        let mut stacks = Self {
            counts: BTreeMap::new(),
            idle: 0,
        };
        for line in text.lines() {
            let Some((stack, count)) = line.rsplit_once(' ') else {
                continue;
            };
            let Ok(count) = count.parse::<u64>() else {
                continue;
            };
            if is_idle(stack) {
                stacks.idle += count;
            } else {
                *stacks.counts.entry(tidy(stack)).or_default() += count;
            }
        }
        stacks
    }

    /// Samples of CPUs with something to do.
    pub(super) fn busy(&self) -> u64 {
        self.counts.values().sum()
    }

    /// The functions in which most samples were taken, and their share of all of [`Self::busy`] in percent.
    #[expect(clippy::cast_precision_loss, reason = "shares for people")]
    pub(super) fn hottest(&self) -> Vec<(String, f64)> {
        let mut functions = BTreeMap::<&str, u64>::new();
        for (stack, count) in &self.counts {
            let innermost = stack.rsplit(';').next().unwrap_or_default();
            let name = innermost.trim_end_matches(KERNEL);
            *functions.entry(name).or_default() += count;
        }
        let mut functions = Vec::from_iter(functions);
        functions.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let share = |count| 100.0 * count as f64 / self.busy() as f64;
        let hottest = functions.into_iter().take(HOTTEST);
        hottest
            .map(|(name, count)| (name.to_owned(), share(count)))
            .collect()
    }

    /// An SVG, of which a browser also lets one search and look closer.
    pub(super) fn draw(&self, title: &str, frequency: u32, to: impl Write) -> Result<()> {
        let mut options = Drawing::default();
        options.title = title.into();
        options.subtitle = Some(format!(
            "the whole machine: {} samples of busy CPUs, {frequency} a second of each; {} of idle ones are left out",
            self.busy(),
            self.idle
        ));
        // Orange is the kernel, yellow Rust and C++.
        options.colors = Palette::Multi(MultiPalette::Java);
        // A function has the same shade in all graphs.
        options.hash = true;
        options.min_width = 0.05;
        options.text_truncate_direction = TextTruncateDirection::Right;
        let lines = self.counts.iter();
        let lines = Vec::from_iter(lines.map(|(stack, count)| format!("{stack} {count}")));
        flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), to)
            .context("the flame graph cannot be drawn")
    }
}

/// Whether the kernel's idle thread has nothing to do; interrupts that come to it are work.
fn is_idle(stack: &str) -> bool {
    let innermost = stack.rsplit(';').next().unwrap_or_default();
    let waits = ["idle", "halt", "mwait"];
    stack.starts_with("swapper;") && waits.iter().any(|word| innermost.contains(word))
}

/// The kernel's workers, of which each CPU has some, as if they were one, and frames without a name, by the hundred where a
/// program keeps no frame pointers, as one frame.
fn tidy(stack: &str) -> String {
    let mut frames = Vec::from_iter(stack.split(';'));
    if let Some((kind @ ("kworker" | "ksoftirqd" | "migration"), _)) = frames[0].split_once('/') {
        frames[0] = kind;
    }
    frames.dedup_by(|one, other| one == other && one.starts_with('['));
    frames.join(";")
}

/// The file of a graph.
pub(super) fn file_name(workload: &str, contestant: &str) -> String {
    let plain = |name: &str| {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        name.chars().map(plain).collect::<String>()
    };
    format!("{}.{}.svg", plain(workload), plain(contestant))
}

/// Whether `/proc/kallsyms` says where functions are; it shows zeroes to those it does not trust.
pub(super) fn shows_addresses(symbols: &str) -> bool {
    let addresses = symbols.lines().take(100);
    let addresses = addresses.filter_map(|line| line.split_whitespace().next());
    { addresses }.any(|address| address.bytes().any(|digit| digit != b'0'))
}

/// The line that says why, of all that perf says.
pub(super) fn complaint(said: &str) -> String {
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines = Vec::from_iter(lines.filter(|line| !line.starts_with("WARNING")));
    // A heading comes before it.
    let heading = |line: &&&str| line.ends_with(':') && line.len() < 20;
    let line = lines.iter().find(|line| !heading(line));
    line.map_or_else(|| "it says nothing".into(), |line| (*line).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "\
tokio-worker  501 10.1: cpu-clock:ppp: \n\tffffffff81 tcp_sendmsg+0x2 ([kernel.kallsyms])\n\t55 relay::serve+0x1 (/relay)\n
kworker/0:1-e   9 10.2: cpu-clock:ppp: \n\tffffffff82 sk_psock_backlog+0x2 ([kernel.kallsyms])\n
kworker/1:3-e  19 10.2: cpu-clock:ppp: \n\tffffffff82 sk_psock_backlog+0x8 ([kernel.kallsyms])\n
swapper         0 10.3: cpu-clock:ppp: \n\tffffffff83 pv_native_safe_halt+0xb ([kernel.kallsyms])\n\tffffffff84 do_idle+0x1 ([kernel.kallsyms])\n
swapper         0 10.4: cpu-clock:ppp: \n\tffffffff85 net_rx_action+0xb ([kernel.kallsyms])\n\tffffffff84 do_idle+0x1 ([kernel.kallsyms])\n
";

    #[test]
    fn stacks_are_counted_and_idling_is_none() {
        let stacks = Stacks::read(SCRIPT.as_bytes()).unwrap();
        assert_eq!((stacks.busy(), stacks.idle), (4, 1), "{:?}", stacks.counts);
        assert_eq!(stacks.counts["kworker;sk_psock_backlog_[k]"], 2);
        assert_eq!(
            stacks.counts["tokio-worker;relay::serve;tcp_sendmsg_[k]"],
            1
        );
        let hottest = stacks.hottest();
        assert_eq!(hottest[0], ("sk_psock_backlog".to_owned(), 50.0));
        assert_eq!(hottest.len(), 3, "{hottest:?}");
    }

    #[test]
    fn a_graph_is_an_svg_with_the_functions() {
        let mut svg = Vec::new();
        let stacks = Stacks::read(SCRIPT.as_bytes()).unwrap();
        stacks.draw("relay splice, bulk-1", 999, &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        for word in [
            "<svg",
            "relay splice, bulk-1",
            "sk_psock_backlog",
            "relay::serve",
        ] {
            assert!(svg.contains(word), "no {word} in {svg}");
        }
        assert!(!svg.contains("safe_halt"));
    }

    #[test]
    fn nothing_but_idling_is_no_graph() {
        assert!(Stacks::read("".as_bytes()).is_err());
    }

    #[test]
    fn frames_without_a_name_are_one() {
        let stack = "haproxy;[unknown];[unknown];[haproxy];[haproxy];f_[k];f_[k]";
        assert_eq!(tidy(stack), "haproxy;[unknown];[haproxy];f_[k];f_[k]");
    }

    #[test]
    fn names_of_files_are_plain() {
        let name = file_name("size-1k unix/tcp", "go io.Copy");
        assert_eq!(name, "size-1k-unix-tcp.go-io-Copy.svg");
    }

    #[test]
    fn hidden_symbols_are_seen() {
        assert!(!shows_addresses(
            "0000000000000000 T _stext\n0000000000000000 t a\n"
        ));
        assert!(shows_addresses(
            "0000000000000000 A fixed\nffffffff81000000 T _stext\n"
        ));
    }

    #[test]
    fn the_complaint_of_perf_is_found() {
        let said = "WARNING: Kernel address maps are restricted\n\nError:\nAccess to performance monitoring is limited.\nConsider\n";
        assert_eq!(
            complaint(said),
            "Access to performance monitoring is limited."
        );
        assert_eq!(complaint("\n"), "it says nothing");
    }
}
