//! A report as text for people.

use std::fmt::Write as _;

use super::{Bound, Report, Row};

impl Report {
    /// Nanoseconds per check as a table: a line per subject, a column per workload, in a cell the
    /// figures for one, two.. threads.
    #[must_use]
    pub fn time_table(&self, title: &str, workloads: &[&str]) -> String {
        let rows: Vec<&Row> = self
            .rows
            .iter()
            .filter(|row| row.metric == "ns_per_check")
            .filter(|row| workloads.contains(&row.workload.as_str()))
            .collect();
        let subjects = in_order(rows.iter().map(|row| row.subject.as_str()));
        let workloads: Vec<&&str> = workloads
            .iter()
            .filter(|workload| rows.iter().any(|row| row.workload == **workload))
            .collect();
        if subjects.is_empty() {
            return String::new();
        }
        let mut lines = vec![vec![title.to_owned()]];
        lines[0].extend(workloads.iter().map(|workload| (**workload).to_owned()));
        for subject in subjects {
            let mut line = vec![subject.to_owned()];
            for workload in &workloads {
                let cell: Vec<String> = rows
                    .iter()
                    .filter(|row| row.subject == subject && row.workload == **workload)
                    .map(|row| figure(row.value))
                    .collect();
                line.push(cell.join(" / "));
            }
            lines.push(line);
        }
        aligned(&lines)
    }

    /// Nanoseconds per check as a list: a line per workload that is not in `except`.
    #[must_use]
    pub fn time_list(&self, title: &str, except: &[&str]) -> String {
        let rows: Vec<&Row> = self
            .rows
            .iter()
            .filter(|row| row.metric == "ns_per_check")
            .filter(|row| !except.contains(&row.workload.as_str()))
            .collect();
        let mut lines = vec![[title.to_owned(), String::new()]];
        for workload in in_order(rows.iter().map(|row| row.workload.as_str())) {
            let cell: Vec<String> = rows
                .iter()
                .filter(|row| row.workload == workload)
                .map(|row| figure(row.value))
                .collect();
            lines.push([workload.to_owned(), cell.join(" / ")]);
        }
        if lines.len() == 1 { String::new() } else { aligned(&lines) }
    }

    /// Every other figure, a line each.
    #[must_use]
    pub fn other_table(&self) -> String {
        let mut lines = vec![["other figures", "workload", "metric", "value"].map(str::to_owned)];
        for row in self.rows.iter().filter(|row| row.metric != "ns_per_check") {
            let workload = format!("{}_{}t", row.workload, row.threads);
            lines.push([row.subject.clone(), workload, row.metric.clone(), figure(row.value)]);
        }
        if lines.len() == 1 {
            return String::new();
        }
        aligned(&lines)
    }

    /// The targets and whether they were met.
    #[must_use]
    pub fn target_table(&self) -> String {
        if self.targets.is_empty() {
            return String::new();
        }
        let mut lines = vec![["targets", "measured", "aim", ""].map(str::to_owned)];
        for target in &self.targets {
            let sign = match target.bound {
                Bound::AtLeast => ">=",
                Bound::AtMost => "<=",
            };
            lines.push([
                target.name.clone(),
                figure(target.value),
                format!("{sign} {} {}", target.target, target.unit),
                if target.met { "met" } else { "MISSED" }.to_owned(),
            ]);
        }
        let met = self.targets.iter().filter(|target| target.met).count();
        format!("{}{met} of {} targets met\n", aligned(&lines), self.targets.len())
    }
}

/// The strings of `names` in the order in which each first appears.
fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen: Vec<&str> = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

fn figure(value: Option<f64>) -> String {
    match value {
        None => "absent".to_owned(),
        Some(value) if value.abs() >= 1_000.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 20.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}

/// Lines of cells as text, each column as wide as its widest cell.
fn aligned(lines: &[impl AsRef<[String]>]) -> String {
    let mut widths = Vec::new();
    for line in lines {
        for (column, cell) in line.as_ref().iter().enumerate() {
            widths.resize(widths.len().max(column + 1), 0);
            widths[column] = widths[column].max(cell.len());
        }
    }
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (cell, width) in line.as_ref().iter().zip(&widths) {
            let _ = write!(row, "{cell:<width$}  ");
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::report::tests::report;

    #[test]
    fn tables_say_absent_and_missed() {
        let mut report = report();
        report.targets[0].met = false;
        let table = report.time_table("ns", &["uniform_1m"]);
        let expected = "ns         uniform_1m\ntollbar    212.0\nlimitador  absent\n";
        assert_eq!(table, expected);
        assert!(report.target_table().contains("MISSED"));
        assert_eq!(report.time_table("ns", &["hot"]), "");
    }
}
