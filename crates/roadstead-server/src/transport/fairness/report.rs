//! What operators see of priority levels: metrics under upstream's names, and upstream's dumps.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use roadstead_plan::flow_control::queues::Refusal;

use super::{ActiveLevel, Class, Configuration, Counts, Fairness};

const PREFIX: &str = "apiserver_flowcontrol_";

impl Fairness {
    /// Appends all figures in the text format of Prometheus.
    pub(crate) fn write_metrics(&self, out: &mut String) {
        let config = self.now();
        type Figure = fn(&Counts) -> &AtomicU64;
        let figures: [(&str, &str, Figure, &str); 5] = [
            ("dispatched_requests", "counter", |c| &c.dispatched, "Requests that were served"),
            ("current_inqueue_requests", "gauge", |c| &c.waiting, "Requests that wait"),
            ("current_inqueue_seats", "gauge", |c| &c.seats_waiting, "Seats that they want"),
            ("current_executing_requests", "gauge", |c| &c.executing, "Requests under way"),
            ("current_executing_seats", "gauge", |c| &c.seats_in_use, "Seats that they have"),
        ];
        for (name, form, figure, help) in figures {
            head(out, name, form, help);
            let end = if form == "counter" { "_total" } else { "" };
            for class in &config.classes {
                let number = figure(&class.counts).load(Ordering::Relaxed);
                let _ = writeln!(out, "{PREFIX}{name}{end}{{{}}} {number}", labels(class));
            }
        }
        head(out, "rejected_requests", "counter", "Requests that were refused");
        for class in &config.classes {
            for refusal in Refusal::ALL {
                let (count, reason) = (class.counts.refusals(refusal), refusal.word());
                if count > 0 {
                    let name = "rejected_requests_total";
                    let labels = labels(class);
                    let _ = writeln!(out, "{PREFIX}{name}{{{labels},reason=\"{reason}\"}} {count}");
                }
            }
        }
        let name = "request_wait_duration_seconds";
        head(out, name, "histogram", "How long requests waited");
        for class in &config.classes {
            class.counts.write_waits(&format!("{PREFIX}{name}"), &labels(class), out);
        }
        write_limits(&config, out);
    }

    /// One line for each level, as upstream's `dump_priority_levels` has it.
    pub(crate) fn dump_levels(&self) -> String {
        let config = self.now();
        let mut rows = vec![
            [
                "PriorityLevelName",
                "ActiveQueues",
                "IsIdle",
                "IsQuiescing",
                "WaitingRequests",
                "ExecutingRequests",
                "DispatchedRequests",
                "RejectedRequests",
                "TimedoutRequests",
                "CancelledRequests",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        for level in &config.levels {
            let (totals, queues) = level.line.look();
            let own = || {
                let of = |class: &&std::sync::Arc<Class>| class.schema.level == level.level.name;
                config.classes.iter().filter(of).map(|class| &class.counts)
            };
            let sum = |figure: &dyn Fn(&Counts) -> u64| own().map(|c| figure(c)).sum::<u64>();
            let refused = sum(&|c| Refusal::ALL.map(|why| c.refusals(why)).into_iter().sum());
            let active = queues.iter().filter(|queue| queue.waiting > 0).count();
            let idle = totals.executing + totals.waiting == 0;
            rows.push(vec![
                level.level.name.clone(),
                active.to_string(),
                idle.to_string(),
                "false".to_owned(),
                totals.waiting.to_string(),
                totals.executing.to_string(),
                sum(&|c| c.dispatched.load(Ordering::Relaxed)).to_string(),
                refused.to_string(),
                sum(&|c| c.refusals(Refusal::TimeOut)).to_string(),
                sum(&|c| c.cancelled.load(Ordering::Relaxed)).to_string(),
            ]);
        }
        aligned(&rows)
    }

    /// One line for each queue that somebody is in, as upstream's `dump_queues` has it for all.
    pub(crate) fn dump_queues(&self) -> String {
        let mut rows = vec![
            [
                "PriorityLevelName",
                "Index",
                "PendingRequests",
                "ExecutingRequests",
                "SeatsInUse",
                "NextDispatchR",
                "InitialSeatsSum",
                "MaxSeatsSum",
                "TotalWorkSum",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        for level in &self.now().levels {
            for queue in level.line.look().1 {
                rows.push(vec![
                    level.level.name.clone(),
                    queue.index.to_string(),
                    queue.waiting.to_string(),
                    queue.executing.to_string(),
                    queue.seats_in_use.to_string(),
                    format!("{:.8}ss", queue.next),
                    queue.seats_waiting.to_string(),
                    queue.seats_waiting.to_string(),
                    format!("{:.8}ss", queue.backlog),
                ]);
            }
        }
        aligned(&rows)
    }
}

fn labels(class: &Class) -> String {
    // Names have no quotes in them.
    format!("priority_level=\"{}\",flow_schema=\"{}\"", class.schema.level, class.schema.name)
}

fn head(out: &mut String, name: &str, form: &str, help: &str) {
    let _ = writeln!(out, "# HELP {PREFIX}{name} {help}.\n# TYPE {PREFIX}{name} {form}");
}

fn write_limits(config: &Configuration, out: &mut String) {
    type Figure = fn(&ActiveLevel) -> u32;
    let figures: [(&str, Figure, &str); 4] = [
        ("nominal_limit_seats", |l| l.limits.nominal, "Seats of a level by its shares"),
        ("lower_limit_seats", |l| l.limits.lower, "Seats that it never lends"),
        ("upper_limit_seats", |l| l.limits.upper, "Seats with all that it may borrow"),
        ("current_limit_seats", |l| l.line.limit(), "Seats that it has now"),
    ];
    for (name, figure, help) in figures {
        head(out, name, "gauge", help);
        for level in &config.levels {
            let (own, seats) = (&level.level.name, figure(level));
            let _ = writeln!(out, "{PREFIX}{name}{{priority_level=\"{own}\"}} {seats}");
        }
    }
}

/// Columns that begin below each other, with commas.
fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let lengths = rows.iter().filter_map(|row| row.get(column)).map(String::len);
        (lengths.max().unwrap_or(0) + 2).max(8)
    };
    let mut out = String::new();
    for row in rows {
        let (last, cells) = row.split_last().map_or(("", &[][..]), |(last, cells)| (last, cells));
        for (column, cell) in cells.iter().enumerate() {
            let (cell, width) = (format!("{cell},"), width(column));
            let _ = write!(out, "{cell:width$}");
        }
        let _ = writeln!(out, "{last}");
    }
    out
}

#[test]
fn columns() {
    let rows = [["PriorityLevelName", "IsIdle", "Last"], ["a", "true", "0"]];
    let rows = rows.map(|row| row.map(str::to_owned).to_vec());
    assert_eq!(aligned(&rows), "PriorityLevelName, IsIdle, Last\na,                 true,   0\n");
}
