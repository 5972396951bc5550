//! The two text formats of Prometheus: 0.0.4, and `OpenMetrics` 1.0, which has exemplars. What the metrics
//! are is in `families.rs`; here is how they are written.

use std::fmt::{Display, Write};

use super::histogram::{Exemplar, ExemplarId};

/// How metrics are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextFormat {
    Prometheus,
    OpenMetrics,
}

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetricType {
    Counter,
    Gauge,
    Histogram,
}

/// Names and values of a sample's labels.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// Metrics, as they are written.
#[derive(Debug)]
pub(super) struct Exposition {
    format: TextFormat,
    out: String,
    /// The metric whose samples follow.
    name: &'static str,
}

impl TextFormat {
    /// What a client that says `accept` likes best of the two. Prometheus' own format where it does not
    /// say: everybody reads that.
    pub(crate) fn wanted(accept: Option<&str>) -> Self {
        let mut best = (Self::Prometheus, 0.0);
        for range in accept.unwrap_or_default().split(',') {
            let mut parts = range.split(';').map(str::trim);
            let format = match parts.next().unwrap_or_default() {
                "application/openmetrics-text" => Self::OpenMetrics,
                "text/plain" => Self::Prometheus,
                _ => continue,
            };
            let quality = parts.find_map(|parameter| parameter.strip_prefix("q="));
            let quality = quality.map_or(1.0, |text| text.parse().unwrap_or(0.0));
            if quality > best.1 {
                best = (format, quality);
            }
        }
        best.0
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

impl Exposition {
    pub(super) fn new(format: TextFormat) -> Self {
        Self { format, out: String::with_capacity(16 * 1024), name: "" }
    }

    pub(super) fn is_open_metrics(&self) -> bool {
        self.format == TextFormat::OpenMetrics
    }

    /// Begins a metric. The name of a counter is without the `_total` of its samples.
    pub(super) fn family(&mut self, name: &'static str, kind: MetricType, help: &str) {
        self.name = name;
        let suffix = match (kind, self.format) {
            (MetricType::Counter, TextFormat::Prometheus) => "_total",
            _ => "",
        };
        let kind = match kind {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        };
        writeln!(self.out, "# HELP {name}{suffix} {help}").unwrap_or_default();
        writeln!(self.out, "# TYPE {name}{suffix} {kind}").unwrap_or_default();
    }

    /// A sample of a gauge.
    pub(super) fn gauge(&mut self, labels: Labels<'_>, value: impl Display) {
        self.sample("", labels, None, value);
        self.out.push('\n');
    }

    /// A sample of a counter.
    pub(super) fn counter(&mut self, labels: Labels<'_>, value: impl Display) {
        self.sample("_total", labels, None, value);
        self.out.push('\n');
    }

    /// The same, with a case that can be looked at.
    pub(super) fn counter_with(
        &mut self,
        labels: Labels<'_>,
        value: u64,
        exemplar: Option<Exemplar>,
    ) {
        self.sample("_total", labels, None, value);
        self.exemplar(exemplar, "1");
        self.out.push('\n');
    }

    /// A whole histogram: counts by class, each with its upper end in nanoseconds, the last without.
    pub(super) fn histogram(
        &mut self,
        bounds_ns: impl IntoIterator<Item = u64>,
        counts: &[u64],
        ns_sum: u128,
        exemplar: impl Fn(usize) -> Option<Exemplar>,
    ) {
        let mut bounds_ns = bounds_ns.into_iter();
        let mut sum = 0;
        for (class, count) in counts.iter().enumerate() {
            sum += count;
            let bound = bounds_ns.next().map_or_else(|| "+Inf".to_owned(), |ns| seconds(ns.into()));
            self.sample("_bucket", &[], Some(&bound), sum);
            let exemplar = exemplar(class);
            let took =
                exemplar.map(|exemplar| seconds(exemplar.took_ns.into())).unwrap_or_default();
            self.exemplar(exemplar, &took);
            self.out.push('\n');
        }
        self.sample("_sum", &[], None, seconds(ns_sum));
        self.out.push('\n');
        self.sample("_count", &[], None, sum);
        self.out.push('\n');
    }

    pub(super) fn finish(mut self) -> String {
        if self.is_open_metrics() {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    fn sample(&mut self, suffix: &str, labels: Labels<'_>, le: Option<&str>, value: impl Display) {
        self.out.push_str(self.name);
        self.out.push_str(suffix);
        let mut separator = '{';
        for (name, value) in labels.iter().copied().chain(le.map(|le| ("le", le))) {
            self.out.push(separator);
            self.out.push_str(name);
            self.out.push_str("=\"");
            escape(value, &mut self.out);
            self.out.push('"');
            separator = ',';
        }
        if separator == ',' {
            self.out.push('}');
        }
        write!(self.out, " {value}").unwrap_or_default();
    }

    fn exemplar(&mut self, exemplar: Option<Exemplar>, value: &str) {
        let Some(exemplar) = exemplar.filter(|_| self.is_open_metrics()) else {
            return;
        };
        let (name, id) = match exemplar.id {
            ExemplarId::Decision(id) => ("decision_id", id),
            ExemplarId::Trace(id) => ("trace_id", id),
        };
        let at = seconds(u128::from(exemplar.at.as_micros()) * 1_000);
        write!(self.out, " # {{{name}=\"{id:032x}\"}} {value} {at}").unwrap_or_default();
    }
}

/// Exactly, without an exponent: 1,500,000 ns are `0.0015`.
fn seconds(ns: u128) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    // One digit behind the point stays: some parsers want it.
    let shortest = text.trim_end_matches('0');
    if shortest.ends_with('.') { format!("{shortest}0") } else { shortest.to_owned() }
}

/// Whatever stands in a label: the line and the quotes stay whole.
fn escape(value: &str, out: &mut String) {
    for letter in value.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            letter => out.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use tollbar::Timestamp;

    use super::*;

    #[test]
    fn the_format_is_the_one_that_is_liked_best() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
             application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            (None, TextFormat::Prometheus),
            (Some("*/*"), TextFormat::Prometheus),
            (Some("text/html"), TextFormat::Prometheus),
            (Some("application/openmetrics-text"), TextFormat::OpenMetrics),
            (Some(prometheus), TextFormat::OpenMetrics),
            (Some("application/openmetrics-text;q=0.1, text/plain"), TextFormat::Prometheus),
            (Some("application/openmetrics-text; q=0"), TextFormat::Prometheus),
            (Some("application/openmetrics-text; q=x,,;;="), TextFormat::Prometheus),
        ] {
            assert_eq!(TextFormat::wanted(accept), format, "{accept:?}");
        }
    }

    #[test]
    fn seconds_are_exact() {
        for (ns, text) in [
            (0, "0.0"),
            (1_000, "0.000001"),
            (1_500_000, "0.0015"),
            (10_000_000_000, "10.0"),
            (u128::from(u64::MAX), "18446744073.709551615"),
        ] {
            assert_eq!(seconds(ns), text);
        }
    }

    #[test]
    fn each_format_has_its_own_names_exemplars_and_end() {
        let write = |format| {
            let mut text = Exposition::new(format);
            text.family("x", MetricType::Counter, "Things");
            let id = ExemplarId::Decision(0xabc);
            let exemplar = Exemplar { id, took_ns: 1_500, at: Timestamp::from_micros(2_500_000) };
            text.counter_with(&[("rule", "a\"\\\n<b>")], 7, Some(exemplar));
            text.family("y_seconds", MetricType::Histogram, "Times");
            let shown = |class| (class == 1).then_some(exemplar);
            text.histogram([1_000, 2_000], &[1, 2, 3], 4_500, shown);
            text.finish()
        };
        let prometheus = "# HELP x_total Things\n# TYPE x_total counter\n\
            x_total{rule=\"a\\\"\\\\\\n<b>\"} 7\n\
            # HELP y_seconds Times\n# TYPE y_seconds histogram\n\
            y_seconds_bucket{le=\"0.000001\"} 1\ny_seconds_bucket{le=\"0.000002\"} 3\n\
            y_seconds_bucket{le=\"+Inf\"} 6\ny_seconds_sum 0.0000045\ny_seconds_count 6\n";
        assert_eq!(write(TextFormat::Prometheus), prometheus);
        let id = "00000000000000000000000000000abc";
        let open_metrics = prometheus
            .replace("P x_total", "P x")
            .replace("E x_total", "E x")
            .replace("} 7\n", &format!("}} 7 # {{decision_id=\"{id}\"}} 1 2.5\n"))
            .replace("} 3\n", &format!("}} 3 # {{decision_id=\"{id}\"}} 0.0000015 2.5\n"));
        assert_eq!(write(TextFormat::OpenMetrics), format!("{open_metrics}# EOF\n"));
    }
}
