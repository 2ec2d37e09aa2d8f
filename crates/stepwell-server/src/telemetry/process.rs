//! What the operating system says of this process: memory, processor time, file descriptors, and since when it is there.

use std::time::{SystemTime, UNIX_EPOCH};

use metrics::Gauge;
use stepwell::store::Instruments;

/// Clock ticks in a second, as Linux counts processor time for programs.
const TICKS: f64 = 100.0;
/// Bytes in a page, where nobody says otherwise.
const PAGE: f64 = 4096.0;

/// What is said of the process when somebody looks.
pub(super) struct Process {
    memory: Gauge,
    cpu: Gauge,
    files: Gauge,
    start: Gauge,
    began: f64,
}

impl Process {
    pub(super) fn new(with: Instruments<'_>) -> Self {
        let gauge = |name, about| with.gauge(name, about, &[]);
        let about = "1; the label says which build this is.";
        with.gauge("stepwell_build_info", about, &[("version", env!("CARGO_PKG_VERSION"))]).set(1);
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Process {
            memory: gauge("process_resident_memory_bytes", "Resident memory size in bytes."),
            cpu: gauge("process_cpu_seconds_total", "Total user and system CPU time spent in seconds."),
            files: gauge("process_open_fds", "Number of open file descriptors."),
            start: gauge(
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
            ),
            began: began.as_secs_f64(),
        }
    }

    /// Looks. Where there is no `/proc`, only the start is known.
    pub(super) fn look(&self) {
        self.start.set(self.began);
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<f64>().ok());
        if let Some(pages) = number(read("statm").split(' ').nth(1)) {
            self.memory.set(pages * PAGE);
        }
        // The name of the program is in parentheses and may have anything in it.
        let stat = read("stat");
        let mut after_name = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
        if let (Some(user), Some(system)) = (number(after_name.next()), number(after_name.next())) {
            self.cpu.set((user + system) / TICKS);
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            // One of them is the look itself.
            self.files.set(files.count().saturating_sub(1) as f64);
        }
    }
}
