//! A metric of a kind: a row of its table, and how its samples are written.

use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

/// A kind that is measured.
pub(super) trait Measured: Metadata<Ty = ObjectMeta> + Sized + 'static {
    /// The label that names an object.
    const NAME: &'static str;
    /// Whether samples say the object's uid, too.
    const HAS_UID: bool;
    /// Its metrics.
    const FAMILIES: &'static [Family<Self>];
}

/// One metric of a kind.
#[derive(Debug)]
pub(super) struct Family<K> {
    /// As Prometheus knows it.
    pub(super) name: &'static str,
    /// What it says.
    pub(super) help: &'static str,
    /// What an object adds to it.
    pub(super) samples: fn(&K, &mut Samples),
}

impl<K> Family<K> {
    /// How Prometheus is to take it: what only grows says so by its name.
    pub(super) fn kind(&self) -> &'static str {
        if self.name.ends_with("_total") { "counter" } else { "gauge" }
    }
}

/// A row of a table.
pub(super) const fn row<K>(
    name: &'static str,
    help: &'static str,
    samples: fn(&K, &mut Samples),
) -> Family<K> {
    Family { name, help, samples }
}

/// What is said of a metric before its samples.
pub(super) fn header(page: &mut String, name: &str, help: &str, kind: &str) {
    page.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
}

/// The samples of one object.
#[derive(Debug, Default)]
pub(super) struct Samples {
    name: &'static str,
    /// The labels that all of them have.
    common: String,
    text: String,
}

impl Samples {
    /// A sample with these labels besides the object's own.
    pub(super) fn add(&mut self, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(self.name);
        self.text.push('{');
        self.text.push_str(&self.common);
        for (name, value) in labels {
            push_label(&mut self.text, name, value);
        }
        // Every label has put a comma behind itself.
        self.text.pop();
        self.text.push_str(&format!("}} {value}\n"));
    }

    /// A sample with no labels of its own.
    pub(super) fn value(&mut self, value: f64) {
        self.add(&[], value);
    }

    /// A moment, if it is known.
    pub(super) fn moment(&mut self, time: Option<&Time>) {
        if let Some(time) = time {
            self.value(time.0.as_second() as f64);
        }
    }

    /// The three states of a condition, one of which it is in.
    pub(super) fn condition(&mut self, labels: &[(&str, &str)], label: &str, status: &str) {
        for state in ["true", "false", "unknown"] {
            let is_so = status.eq_ignore_ascii_case(state);
            let all: Vec<_> = labels.iter().copied().chain([(label, state)]).collect();
            self.add(&all, f64::from(u8::from(is_so)));
        }
    }
}

/// What was written of one object: its samples, metric by metric.
#[derive(Debug)]
pub(super) struct Written {
    text: Box<str>,
    /// Where the samples of each metric end.
    ends: Box<[u32]>,
}

impl Written {
    /// Writes down an object.
    pub(super) fn of<K: Measured>(object: &K) -> Self {
        let metadata = object.metadata();
        let mut common = String::new();
        push_label(&mut common, "namespace", metadata.namespace.as_deref().unwrap_or_default());
        push_label(&mut common, K::NAME, metadata.name.as_deref().unwrap_or_default());
        if K::HAS_UID {
            push_label(&mut common, "uid", metadata.uid.as_deref().unwrap_or_default());
        }
        let mut samples = Samples { common, ..Samples::default() };
        let ends = K::FAMILIES.iter().map(|family| {
            samples.name = family.name;
            (family.samples)(object, &mut samples);
            u32::try_from(samples.text.len()).unwrap_or(u32::MAX)
        });
        let ends = ends.collect();
        Self { text: samples.text.into(), ends }
    }

    /// The samples of one metric.
    pub(super) fn samples(&self, family: usize) -> &str {
        let end = |index: usize| self.ends.get(index).map_or(0, |end| *end as usize);
        let begin = if family == 0 { 0 } else { end(family - 1) };
        self.text.get(begin..end(family)).unwrap_or_default()
    }

    /// How much room it takes.
    pub(super) fn bytes(&self) -> usize {
        self.text.len() + self.ends.len() * size_of::<u32>()
    }
}

fn push_label(text: &mut String, name: &str, value: &str) {
    text.push_str(name);
    text.push_str("=\"");
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            letter => text.push(letter),
        }
    }
    text.push_str("\",");
}
