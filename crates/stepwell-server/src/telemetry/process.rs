//! Metrics of this process: memory, CPU time, file descriptors and start time.

use std::time::{SystemTime, UNIX_EPOCH};

use metrics::Gauge;
use stepwell::store::Instruments;

/// Clock ticks per second in `/proc/self/stat` (`USER_HZ`, 100 on Linux).
const TICKS: f64 = 100.0;
/// Bytes per memory page. The common page size is assumed; it is not queried.
const PAGE: f64 = 4096.0;

/// Gauges that are updated on every metrics request.
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
        let about = "Always 1; the label `version` is the version of the build.";
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

    /// Updates the gauges. Without `/proc`, only the start time is set.
    pub(super) fn update(&self) {
        self.start.set(self.began);
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<f64>().ok());
        if let Some(pages) = number(read("statm").split(' ').nth(1)) {
            self.memory.set(pages * PAGE);
        }
        // The program name is in parentheses and may contain any character, so parse after the last parenthesis.
        let stat = read("stat");
        let mut after_name = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
        if let (Some(user), Some(system)) = (number(after_name.next()), number(after_name.next())) {
            self.cpu.set((user + system) / TICKS);
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            // One of them is the open directory itself.
            self.files.set(files.count().saturating_sub(1) as f64);
        }
    }
}
