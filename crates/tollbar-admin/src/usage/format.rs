//! Usage for other programs: CSV for tables, and JSON lines.

use std::collections::HashMap;
use std::fmt::Write;

use schemars::JsonSchema;
use serde::Serialize;
use tollbar_daemon::rfc3339::Date;
use tollbar_daemon::usage::UsageRow;
use tollbar_rules::RuleSet;

/// The first line of CSV.
pub(crate) const CSV_HEADER: &str = "day,tenant,subject,ruleId,admitted,denied,client,tier,admittedRequests,deniedRequests,rule\r\n";

/// What was used in one day, with the name of its rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Daily")]
pub(crate) struct NamedUsageRow {
    #[serde(flatten)]
    pub(crate) row: UsageRow,
    /// The name of the rule; its identity if no rule in force has it.
    pub(crate) rule: String,
}

/// Names the rule of each row. People know a rule of the database by its name; its identity is a UUID.
pub(crate) fn name_rules(rows: Vec<UsageRow>, rules: &RuleSet) -> Vec<NamedUsageRow> {
    let mut known: HashMap<String, String> = HashMap::new();
    let with_name = |row: UsageRow| {
        let rule = known.entry(row.rule.clone()).or_insert_with(|| name_of_rule(&row.rule, rules));
        NamedUsageRow { rule: rule.clone(), row }
    };
    rows.into_iter().map(with_name).collect()
}

/// Writes a row as a line of CSV.
pub(crate) fn write_csv(usage: &NamedUsageRow, to: &mut String) {
    let NamedUsageRow { row, rule } = usage;
    let mut line = CsvLine::new(to);
    line.field(&Date(row.day).to_string()).field(&row.tenant).field(&row.subject).field(&row.rule);
    line.number(row.admitted_cost).number(row.denied_cost).field(&row.client).field(&row.tier);
    line.number(row.admitted_requests).number(row.denied_requests).field(rule);
    line.end();
}

/// Writes a row as an object in a line of its own.
pub(crate) fn write_json(row: &impl Serialize, to: &mut String) {
    to.push_str(&serde_json::to_string(row).unwrap_or_default());
    to.push('\n');
}

/// Returns the name of the rule with this identity, or the identity if it is not in force.
pub(crate) fn name_of_rule(id: &str, rules: &RuleSet) -> String {
    let rule = rules.rules().iter().find(|rule| **rule.identity() == *id);
    rule.map_or_else(|| id.to_owned(), |rule| rule.name.to_string())
}

/// A line of CSV in the making: RFC 4180, and nothing that a spreadsheet would take for a formula.
pub(crate) struct CsvLine<'t> {
    to: &'t mut String,
    is_begun: bool,
}

impl<'t> CsvLine<'t> {
    pub(crate) fn new(to: &'t mut String) -> Self {
        Self { to, is_begun: false }
    }

    pub(crate) fn number(&mut self, number: i64) -> &mut Self {
        self.separate();
        // Writing to a string cannot fail.
        write!(self.to, "{number}").unwrap_or_default();
        self
    }

    pub(crate) fn field(&mut self, text: &str) -> &mut Self {
        self.separate();
        // Subjects are what clients say they are: `=HYPERLINK(..)` is a name here, and must stay one.
        let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
        let apostrophe = if is_formula { "'" } else { "" };
        if text.contains(['"', ',', '\r', '\n']) {
            write!(self.to, "\"{apostrophe}{}\"", text.replace('"', "\"\"")).unwrap_or_default();
        } else {
            write!(self.to, "{apostrophe}{text}").unwrap_or_default();
        }
        self
    }

    pub(crate) fn end(self) {
        self.to.push_str("\r\n");
    }

    fn separate(&mut self) {
        if std::mem::replace(&mut self.is_begun, true) {
            self.to.push(',');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tenant: &str, subject: &str) -> NamedUsageRow {
        let row = UsageRow {
            day: 20_773,
            tenant: tenant.to_owned(),
            subject: subject.to_owned(),
            rule: "per_client".to_owned(),
            admitted_cost: 12,
            denied_cost: i64::MAX,
            client: subject.to_owned(),
            tier: tenant.to_owned(),
            admitted_requests: -3,
            denied_requests: 4,
        };
        NamedUsageRow { row, rule: "=per client".to_owned() }
    }

    #[test]
    fn csv_is_quoted_where_it_must_be_and_no_formula() {
        for (tenant, subject, expected) in [
            ("acme", "user:42", ["acme", "user:42"]),
            ("", "a,b", ["", "\"a,b\""]),
            ("", "a\"b\r\n", ["", "\"a\"\"b\r\n\""]),
            ("=1+1", "@x", ["'=1+1", "'@x"]),
            ("-1", "+1,2", ["'-1", "\"'+1,2\""]),
            ("\t=1", "", ["'\t=1", ""]),
        ] {
            let mut text = String::new();
            write_csv(&row(tenant, subject), &mut text);
            let ([tenant, subject], max) = (expected, i64::MAX);
            let who = format!("2026-11-16,{tenant},{subject},per_client");
            assert_eq!(text, format!("{who},12,{max},{subject},{tenant},-3,4,'=per client\r\n"));
        }
        assert_eq!(CSV_HEADER.split(',').count(), 11);
    }

    #[test]
    fn json_has_an_object_a_line() {
        let mut text = String::new();
        write_json(&row("", "a\n\"b"), &mut text);
        write_json(&row("acme", "x"), &mut text);
        let who = [r#""tenant":null,"subject":"a\n\"b""#, r#""tenant":"acme","subject":"x""#];
        let tail = [r#""client":"a\n\"b","tier":null"#, r#""client":"x","tier":"acme""#];
        let line = |at: usize| {
            format!(
                "{{\"day\":\"2026-11-16\",{},\"ruleId\":\"per_client\",\"admitted\":12,\"denied\":{},{},\
                 \"admittedRequests\":-3,\"deniedRequests\":4,\"rule\":\"=per client\"}}\n",
                who[at],
                i64::MAX,
                tail[at]
            )
        };
        let expected = line(0) + &line(1);
        assert_eq!(text, expected);
    }
}
