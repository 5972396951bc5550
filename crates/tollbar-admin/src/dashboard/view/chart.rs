//! Charts as SVG, drawn here: areas one upon the other, a line without axes, bars by day. They have classes
//! and no colours, so that the style sheet has both its themes, and no text that would shrink on a phone.

use std::fmt::{self, Write};

use askama::filters::HtmlSafe;

/// What passed and what did not, in one step of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) allowed: u64,
    pub(crate) shadow_denied: u64,
    pub(crate) degraded: u64,
    pub(crate) denied: u64,
}

/// Areas one upon the other, over time, and marks where something changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StackedChart {
    /// The oldest first.
    pub(crate) columns: Vec<Column>,
    /// The length of a column.
    pub(crate) step_s: u64,
    pub(crate) marks: Vec<ChartMark>,
    /// What it shows, for those who do not see it.
    pub(crate) label: String,
}

/// Something that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChartMark {
    /// In which column.
    pub(crate) column: usize,
    /// What, for people.
    pub(crate) title: String,
}

/// A line without axes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sparkline(pub(crate) Vec<u64>);

/// Two bars one upon the other, for each day.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BarChart {
    pub(crate) days: Vec<DayBar>,
    /// What it shows, for those who do not see it.
    pub(crate) label: String,
}

/// One day of usage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DayBar {
    pub(crate) title: String,
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
}

/// A share as a bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meter {
    pub(crate) percent: u64,
    /// Which colour: the name of a class.
    pub(crate) class: &'static str,
}

/// Of the picture; how large it is shown, the style sheet says.
const HEIGHT: u64 = 1_000;
const WIDTH: u64 = 1_800;

impl HtmlSafe for StackedChart {}
impl HtmlSafe for Sparkline {}
impl HtmlSafe for BarChart {}
impl HtmlSafe for Meter {}

impl Column {
    fn total(self) -> u64 {
        self.heights()[0]
    }

    /// How high each area reaches, the highest first.
    fn heights(self) -> [u64; 4] {
        let shadow = self.allowed.saturating_add(self.shadow_denied);
        let degraded = shadow.saturating_add(self.degraded);
        [degraded.saturating_add(self.denied), degraded, shadow, self.allowed]
    }

    /// Another column's figures added.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            allowed: self.allowed.saturating_add(other.allowed),
            shadow_denied: self.shadow_denied.saturating_add(other.shadow_denied),
            degraded: self.degraded.saturating_add(other.degraded),
            denied: self.denied.saturating_add(other.denied),
        }
    }
}

impl StackedChart {
    /// Everything there is in it.
    pub(crate) fn sum(&self) -> Column {
        self.columns.iter().fold(Column::default(), |sum, column| sum.plus(*column))
    }

    /// The rate at its upper edge, a second.
    pub(crate) fn top(&self) -> u64 {
        let most = self.columns.iter().map(|column| column.total()).max().unwrap_or_default();
        nice(most.div_ceil(self.step_s.max(1)))
    }
}

impl fmt::Display for StackedChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "<svg class=\"stacked\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" \
             role=\"img\" aria-label=\"{}\">",
            EscapedText(&self.label)
        )?;
        for line in [250, 500, 750] {
            write!(f, "<path class=\"grid\" d=\"M0 {line}H{WIDTH}\"/>")?;
        }
        let top = self.top().saturating_mul(self.step_s.max(1)).max(1);
        // Each area reaches down to the ground and the lower ones are drawn over it, so that each needs
        // one edge only.
        for (at, class) in ["denied", "degraded", "shadow", "allowed"].into_iter().enumerate() {
            let heights: Vec<u64> =
                self.columns.iter().map(|column| column.heights()[at]).collect();
            if heights.iter().any(|height| *height > 0) {
                area(f, class, &heights, top)?;
            }
        }
        for ChartMark { column, title } in &self.marks {
            let x = x_of(*column, self.columns.len());
            write!(
                f,
                "<g class=\"mark\"><title>{}</title><path d=\"M{x} 0V{HEIGHT}\"/></g>",
                EscapedText(title)
            )?;
        }
        f.write_str("</svg>")
    }
}

impl fmt::Display for Sparkline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "<svg class=\"spark\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" \
             aria-hidden=\"true\"><path class=\"base\" d=\"M0 {HEIGHT}H{WIDTH}\"/>"
        )?;
        let top = self.0.iter().copied().max().unwrap_or_default();
        if top > 0 {
            area(f, "denied", &self.0, top)?;
        }
        f.write_str("</svg>")
    }
}

impl fmt::Display for BarChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "<svg class=\"bars\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" \
             role=\"img\" aria-label=\"{}\">",
            EscapedText(&self.label)
        )?;
        for line in [250, 500, 750] {
            write!(f, "<path class=\"grid\" d=\"M0 {line}H{WIDTH}\"/>")?;
        }
        let top = self.top();
        let count = self.days.len().max(1) as u64;
        for (at, day) in self.days.iter().enumerate() {
            let (left, right) = (at as u64 * WIDTH / count, (at as u64 + 1) * WIDTH / count);
            let gap = ((right - left) / 8).max(1);
            let (x, width) = (left + gap, (right - left).saturating_sub(2 * gap).max(1));
            let admitted = scaled(day.admitted, top);
            let denied = scaled(day.admitted.saturating_add(day.denied), top) - admitted;
            write!(f, "<g><title>{}</title>", EscapedText(&day.title))?;
            for (class, bottom, height) in
                [("allowed", admitted, admitted), ("denied", admitted + denied, denied)]
            {
                let y = HEIGHT - bottom;
                write!(
                    f,
                    "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>"
                )?;
            }
            f.write_str("</g>")?;
        }
        f.write_str("</svg>")
    }
}

impl BarChart {
    /// What its upper edge stands for.
    pub(crate) fn top(&self) -> u64 {
        let most = self.days.iter().map(|day| day.admitted.saturating_add(day.denied)).max();
        nice(most.unwrap_or_default())
    }
}

impl fmt::Display for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { percent, class } = self;
        write!(
            f,
            "<svg class=\"meter\" viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
             <rect class=\"base\" width=\"100\" height=\"10\"/>\
             <rect class=\"{class}\" width=\"{percent}\" height=\"10\"/></svg>"
        )
    }
}

/// The area below `heights`, of which `top` reaches the upper edge.
fn area(f: &mut fmt::Formatter<'_>, class: &str, heights: &[u64], top: u64) -> fmt::Result {
    write!(f, "<path class=\"{class}\" d=\"M0 {HEIGHT}")?;
    let mut last = None;
    for (at, height) in heights.iter().enumerate() {
        let y = HEIGHT - scaled(*height, top);
        let is_same = last == Some(y) && heights.get(at + 1).is_some_and(|next| *next == *height);
        // On a level only its ends need to be said.
        if !is_same {
            write!(f, "L{} {y}", x_of(at, heights.len()))?;
        }
        last = Some(y);
    }
    write!(f, "V{HEIGHT}Z\"/>")
}

fn x_of(column: usize, count: usize) -> u64 {
    column.min(count) as u64 * WIDTH / (count.max(2) as u64 - 1)
}

/// Rounded up, so that a single denial is a line and not nothing.
fn scaled(value: u64, top: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(HEIGHT);
    (scaled.div_ceil(u128::from(top.max(1))) as u64).min(HEIGHT)
}

/// The next 1, 2 or 5 with zeros behind it: 1,300 is below 2,000.
fn nice(value: u64) -> u64 {
    let mut power: u64 = 1;
    loop {
        for step in [1, 2, 5] {
            if power.saturating_mul(step) >= value {
                return power.saturating_mul(step);
            }
        }
        power = power.saturating_mul(10);
    }
}

/// Texts inside of attributes and titles.
struct EscapedText<'t>(&'t str);

impl fmt::Display for EscapedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(columns: &[(u64, u64)]) -> StackedChart {
        let column = |(allowed, denied): &(u64, u64)| Column {
            allowed: *allowed,
            denied: *denied,
            ..Column::default()
        };
        StackedChart {
            columns: columns.iter().map(column).collect(),
            step_s: 1,
            ..StackedChart::default()
        }
    }

    #[test]
    fn areas_stand_upon_each_other_and_fit() {
        // Of 8 and 2 the sum is 10, and 10 is the upper edge.
        let svg = chart(&[(8, 2), (4, 0), (4, 0)]).to_string();
        assert!(svg.contains("class=\"denied\" d=\"M0 1000L0 0L900 600L1800 600V1000Z\""), "{svg}");
        assert!(
            svg.contains("class=\"allowed\" d=\"M0 1000L0 200L900 600L1800 600V1000Z\""),
            "{svg}"
        );
        assert!(!svg.contains("style="), "the policy for content forbids it");
    }

    #[test]
    fn a_chart_of_nothing_is_empty_and_of_everything_no_overflow() {
        assert_eq!(chart(&[]).top(), 1);
        assert!(!chart(&[(0, 0), (0, 0)]).to_string().contains("class=\"allowed\""));
        let svg = chart(&[(u64::MAX / 2, u64::MAX / 2)]).to_string();
        assert!(svg.contains("L0 "), "{svg}");
        let _ = chart(&[(1, 0)]).to_string();
    }

    #[test]
    fn one_denial_among_a_million_can_be_seen() {
        let svg = Sparkline(vec![0, 1, 1_000_000]).to_string();
        assert!(svg.contains("L900 999"), "{svg}");
    }

    #[test]
    fn marks_stand_where_something_changed_and_say_what() {
        let mut chart = chart(&[(1, 0); 181]);
        chart.marks.push(ChartMark { column: 90, title: "version <2>".to_owned() });
        chart.label = "\"q\"".to_owned();
        let svg = chart.to_string();
        assert!(svg.contains("<title>version &lt;2&gt;</title><path d=\"M900 0V1000\"/>"), "{svg}");
        assert!(svg.contains("aria-label=\"&quot;q&quot;\""), "{svg}");
    }

    #[test]
    fn upper_edges_are_round() {
        for (value, edge) in [(0, 1), (1, 1), (3, 5), (11, 20), (1_300, 2_000), (5_001, 10_000)] {
            assert_eq!(nice(value), edge);
        }
        assert_eq!(nice(u64::MAX), u64::MAX);
    }

    #[test]
    fn days_have_their_bars() {
        let day = |admitted, denied| DayBar { title: "2026-11-16".to_owned(), admitted, denied };
        let svg = BarChart { days: vec![day(5, 5), day(0, 0)], label: String::new() }.to_string();
        assert!(
            svg.contains("class=\"allowed\" x=\"112\" y=\"500\" width=\"676\" height=\"500\""),
            "{svg}"
        );
        assert!(
            svg.contains("class=\"denied\" x=\"112\" y=\"0\" width=\"676\" height=\"500\""),
            "{svg}"
        );
    }
}
