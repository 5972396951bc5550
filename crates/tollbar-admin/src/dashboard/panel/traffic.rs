//! What was decided over time, as a chart: columns that stand still while time goes on, and the rules'
//! changes among them.

use askama::Template;

use crate::dashboard::view::chart::{ChartMark, Column, StackedChart};
use crate::dashboard::view::formatting::{ClockTime, Rate, Share, ShortCount};
use tollbar::Timestamp;
use tollbar_daemon::metrics::{History, HistorySeries, MINUTES_MAX, Point, SECONDS_MAX};

/// Columns of a chart.
const COLUMNS: usize = 180;

/// Ticks below a chart.
const TICKS: u64 = 4;

/// How far back a chart goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeRange {
    /// 15 minutes.
    Minutes,
    /// 24 hours.
    Day,
}

/// A chart with what is said around it.
#[derive(Debug, Template)]
#[template(path = "part/traffic.html")]
pub(crate) struct TrafficPanel {
    legend: Vec<LegendEntry>,
    pub(crate) chart: StackedChart,
    /// For how long there has been anything to show.
    pub(crate) known_s: u64,
    top: ShortCount,
    ticks: Vec<String>,
    is_empty: bool,
}

#[derive(Debug)]
struct LegendEntry {
    class: &'static str,
    name: &'static str,
    rate: Rate,
    share: Share,
}

impl TimeRange {
    pub(crate) fn from_name(name: &str) -> Self {
        if name == "24h" { Self::Day } else { Self::Minutes }
    }

    /// The points of a chart, and how many make a column.
    fn series(self, history: &History, rule: Option<&str>) -> (Option<HistorySeries>, u64) {
        match self {
            Self::Minutes => (history.seconds(rule, SECONDS_MAX), (SECONDS_MAX / COLUMNS) as u64),
            Self::Day => (history.minutes(rule, MINUTES_MAX), (MINUTES_MAX / COLUMNS) as u64),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Minutes => "15 minutes",
            Self::Day => "24 hours",
        }
    }
}

impl TrafficPanel {
    /// Of everything, or of one rule.
    pub(crate) fn new(history: &History, rule: Option<&str>, range: TimeRange) -> Self {
        let (series, per_column) = range.series(history, rule);
        match series {
            Some(series) => Self::from_history(&series, per_column, history, range),
            None => Self::with_legend(StackedChart::default(), Vec::new(), 0),
        }
    }

    fn from_history(
        series: &HistorySeries,
        per_column: u64,
        history: &History,
        range: TimeRange,
    ) -> Self {
        let step_s = u64::from(series.step_s) * per_column;
        let start = series.start.as_micros() / 1_000_000;
        let end = start + series.points.len() as u64 * u64::from(series.step_s);
        // Columns begin at multiples of their length, so that they stay what they are from second to
        // second. The last one is not over and would look like a fall: it is left out.
        let last = end / step_s;
        let first = last.saturating_sub(COLUMNS as u64);
        let mut columns = vec![Column::default(); COLUMNS];
        for (at, point) in series.points.iter().enumerate() {
            let column = (start + at as u64 * u64::from(series.step_s)) / step_s;
            if (first..last).contains(&column) {
                let place = &mut columns[(column - first) as usize];
                *place = place.plus(Column::from_point(*point));
            }
        }
        let marks = history.rules_changes().filter_map(|change| {
            let column = (change.at.as_micros() / 1_000_000 / step_s).checked_sub(first)?;
            let title = format!(
                "Rules changed at {} UTC (v{})",
                ClockTime(change.at),
                change.rules_version
            );
            (column < COLUMNS as u64).then_some(ChartMark { column: column as usize, title })
        });
        let marks: Vec<ChartMark> = marks.collect();
        let sum = columns.iter().fold(Column::default(), |sum, column| sum.plus(*column));
        let label = format!(
            "Decisions of the last {}: {} allowed, {} denied, {} denied in shadow, {} degraded; rules \
             changed {} times",
            range.words(),
            sum.allowed,
            sum.denied,
            sum.shadow_denied,
            sum.degraded,
            marks.len()
        );
        let ticks = (0..TICKS).map(|tick| {
            let second = (first + tick * (last - first) / (TICKS - 1)) * step_s;
            ClockTime(Timestamp::from_micros(second * 1_000_000)).to_string()[..5].to_owned()
        });
        let ticks = ticks.collect();
        let known_s = (end - start).min(COLUMNS as u64 * step_s);
        Self::with_legend(StackedChart { columns, step_s, marks, label }, ticks, known_s)
    }

    fn with_legend(chart: StackedChart, ticks: Vec<String>, known_s: u64) -> Self {
        let sum = chart.sum();
        let whole = sum.allowed + sum.denied + sum.shadow_denied + sum.degraded;
        let entry = |class, name, count| LegendEntry {
            class,
            name,
            rate: Rate { count, seconds: known_s },
            share: Share { part: count, whole },
        };
        Self {
            legend: vec![
                entry("allowed", "Allowed", sum.allowed),
                entry("denied", "Denied", sum.denied),
                entry("shadow", "Shadow", sum.shadow_denied),
                entry("degraded", "Degraded", sum.degraded),
            ],
            known_s,
            top: ShortCount(chart.top()),
            is_empty: whole == 0,
            chart,
            ticks,
        }
    }
}

impl Column {
    fn from_point(point: Point) -> Self {
        Self {
            allowed: point.allowed.into(),
            shadow_denied: point.shadow_denied.into(),
            degraded: point.degraded.into(),
            denied: point.denied.into(),
        }
    }
}

/// The newest points in so many columns, the oldest first.
pub(crate) fn sums(points: &[Point], columns: usize, of: impl Fn(&Point) -> u64) -> Vec<u64> {
    let per_column = SECONDS_MAX.div_ceil(columns.max(1));
    let mut sums: Vec<u64> =
        points.rchunks(per_column).map(|some| some.iter().map(&of).sum()).collect();
    sums.resize(columns, 0);
    sums.reverse();
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_charts_end_with_now() {
        let point = |denied| Point { denied, ..Point::default() };
        let points: Vec<Point> = (0..30).map(|second| point(u32::from(second >= 15))).collect();
        let sums = sums(&points, 60, |point| point.denied.into());
        assert_eq!(sums.len(), 60);
        assert_eq!(sums[58..], [0, 15]);
        assert_eq!(sums[..58].iter().sum::<u64>(), 0);
    }

    #[test]
    fn a_chart_without_a_past_says_so() {
        let traffic = TrafficPanel::new(&History::default(), None, TimeRange::Minutes);
        assert!(traffic.is_empty);
        assert!(traffic.render().unwrap().contains("No checks in this time"));
    }
}
