//! Usage for other programs: CSV for tables, and JSON lines.

use std::fmt::Write;

use tollbar_daemon::rfc3339::Date;
use tollbar_daemon::usage::UsageRow;

/// The first line of CSV.
pub(crate) const CSV_HEADER: &str = "day,tenant,subject,ruleId,admitted,denied\r\n";

/// Writes a row as a line of CSV: RFC 4180, and nothing that a spreadsheet would take for a formula.
pub(crate) fn write_csv(row: &UsageRow, to: &mut String) {
    // Writing to a string cannot fail.
    write!(to, "{},", Date(row.day)).unwrap_or_default();
    for text in [&row.tenant, &row.subject, &row.rule] {
        write_field(text, to);
        to.push(',');
    }
    write!(to, "{},{}\r\n", row.admitted_cost, row.denied_cost).unwrap_or_default();
}

/// Writes a row as an object in a line of its own.
pub(crate) fn write_json(row: &UsageRow, to: &mut String) {
    to.push_str(&serde_json::to_string(row).unwrap_or_default());
    to.push('\n');
}

fn write_field(text: &str, to: &mut String) {
    // Subjects are what clients say they are: `=HYPERLINK(..)` is a name here, and must stay one.
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let apostrophe = if is_formula { "'" } else { "" };
    if text.contains(['"', ',', '\r', '\n']) {
        write!(to, "\"{apostrophe}{}\"", text.replace('"', "\"\"")).unwrap_or_default();
    } else {
        write!(to, "{apostrophe}{text}").unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tenant: &str, subject: &str) -> UsageRow {
        let [tenant, subject] = [tenant, subject].map(str::to_owned);
        let (day, rule) = (20_773, "per_client".to_owned());
        UsageRow { day, tenant, subject, rule, admitted_cost: 12, denied_cost: u64::MAX }
    }

    #[test]
    fn csv_is_quoted_where_it_must_be_and_no_formula() {
        for (tenant, subject, expected) in [
            ("acme", "user:42", "2026-11-16,acme,user:42"),
            ("", "a,b", "2026-11-16,,\"a,b\""),
            ("", "a\"b\r\n", "2026-11-16,,\"a\"\"b\r\n\""),
            ("=1+1", "@x", "2026-11-16,'=1+1,'@x"),
            ("-1", "+1,2", "2026-11-16,'-1,\"'+1,2\""),
            ("\t=1", "", "2026-11-16,'\t=1,"),
        ] {
            let mut text = String::new();
            write_csv(&row(tenant, subject), &mut text);
            assert_eq!(text, format!("{expected},per_client,12,18446744073709551615\r\n"));
        }
    }

    #[test]
    fn json_has_an_object_a_line() {
        let mut text = String::new();
        write_json(&row("", "a\n\"b"), &mut text);
        write_json(&row("acme", "x"), &mut text);
        let expected = "\
{\"day\":\"2026-11-16\",\"tenant\":null,\"subject\":\"a\\n\\\"b\",\"ruleId\":\"per_client\",\"admitted\":12,\"denied\":18446744073709551615}
{\"day\":\"2026-11-16\",\"tenant\":\"acme\",\"subject\":\"x\",\"ruleId\":\"per_client\",\"admitted\":12,\"denied\":18446744073709551615}
";
        assert_eq!(text, expected);
    }
}
