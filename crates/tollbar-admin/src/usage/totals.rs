//! Usage added up by tenant, client, rule or tier. A request under several rules is one request, and tokens of
//! different rules are never added up: a group has a line with its requests and one for each rule with its tokens.

use std::collections::BTreeMap;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use tollbar_rules::{RuleSet, UsageAmounts};

use crate::database::{UsageGroup, UsageTotal};
use crate::usage::format::{CsvLine, name_of_rule};

/// One line of totals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TotalsLine {
    pub(crate) by: UsageGroup,
    pub(crate) kind: LineKind,
    /// The tenant, client or tier; empty in the totals of all, and if usage is added up by rule.
    pub(crate) group: String,
    /// The rule whose tokens these are, by its identity and its name. The requests of all rules if there is none.
    pub(crate) rule: Option<(String, String)>,
    /// Admitted and denied: tokens under a rule, else requests.
    pub(crate) admitted: i64,
    pub(crate) denied: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// Of one tenant, client, rule or tier.
    Group,
    /// Of all of them.
    Total,
}

/// The name of a group, its requests, and its tokens by rule.
type GroupSums = (String, UsageAmounts, Vec<(String, UsageAmounts)>);

/// Makes lines of the sums of a database, which come in the order of groups.
#[derive(Debug)]
pub(crate) struct Totals {
    by: UsageGroup,
    /// The group that is being read.
    group: Option<GroupSums>,
    all: UsageAmounts,
    rules: BTreeMap<String, UsageAmounts>,
}

impl Totals {
    pub(crate) fn new(by: UsageGroup) -> Self {
        Self { by, group: None, all: UsageAmounts::default(), rules: BTreeMap::new() }
    }

    /// What usage is added up by.
    pub(crate) fn by(&self) -> UsageGroup {
        self.by
    }

    /// Reads the next sum. Returns the lines of the group before, once that is complete.
    pub(crate) fn read(&mut self, total: UsageTotal, rules: &RuleSet) -> Vec<TotalsLine> {
        let UsageTotal { group, rule, amounts } = total;
        self.all.add(amounts);
        if self.by == UsageGroup::Rule {
            return vec![self.line(LineKind::Group, "", Some(&rule), amounts, rules)];
        }
        self.rules.entry(rule.clone()).or_default().add(amounts);
        match &mut self.group {
            Some((name, sum, of_rules)) if *name == group => {
                sum.add(amounts);
                of_rules.push((rule, amounts));
                Vec::new()
            }
            before => {
                let before = before.replace((group, amounts, vec![(rule, amounts)]));
                self.lines_of(before, rules)
            }
        }
    }

    /// Returns the last lines: the totals of all.
    pub(crate) fn finish(&mut self, rules: &RuleSet) -> Vec<TotalsLine> {
        let last = self.group.take();
        let mut lines = self.lines_of(last, rules);
        lines.push(self.line(LineKind::Total, "", None, self.all, rules));
        let of_rules = self.rules.iter();
        lines.extend(
            of_rules.map(|(rule, sum)| self.line(LineKind::Total, "", Some(rule), *sum, rules)),
        );
        lines
    }

    fn lines_of(&self, group: Option<GroupSums>, rules: &RuleSet) -> Vec<TotalsLine> {
        let Some((name, sum, of_rules)) = group else {
            return Vec::new();
        };
        let mut lines = vec![self.line(LineKind::Group, &name, None, sum, rules)];
        for (rule, amounts) in of_rules {
            lines.push(self.line(LineKind::Group, &name, Some(&rule), amounts, rules));
        }
        lines
    }

    fn line(
        &self,
        kind: LineKind,
        group: &str,
        rule: Option<&str>,
        amounts: UsageAmounts,
        rules: &RuleSet,
    ) -> TotalsLine {
        let (admitted, denied) = match rule {
            Some(_) => (amounts.admitted, amounts.denied),
            None => (amounts.admitted_requests, amounts.denied_requests),
        };
        let rule = rule.map(|id| (id.to_owned(), name_of_rule(id, rules)));
        TotalsLine { by: self.by, kind, group: group.to_owned(), rule, admitted, denied }
    }
}

impl TotalsLine {
    /// The first line of CSV.
    pub(crate) fn csv_header(by: UsageGroup) -> String {
        let group = match by {
            UsageGroup::Rule => String::new(),
            by => format!("{},", by.name()),
        };
        format!("line,{group}rule,ruleId,unit,admitted,denied\r\n")
    }

    /// Writes it as a line of CSV.
    pub(crate) fn write_csv(&self, to: &mut String) {
        let mut line = CsvLine::new(to);
        line.field(self.kind_name());
        if self.by != UsageGroup::Rule {
            line.field(&self.group);
        }
        let (id, name) = self.rule.as_ref().map_or(("", ""), |(id, name)| (id, name));
        line.field(name).field(id).field(self.unit()).number(self.admitted).number(self.denied);
        line.end();
    }

    fn kind_name(&self) -> &'static str {
        match self.kind {
            LineKind::Group => self.by.name(),
            LineKind::Total => "total",
        }
    }

    fn unit(&self) -> &'static str {
        if self.rule.is_some() { "tokens" } else { "requests" }
    }
}

impl Serialize for TotalsLine {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("line", self.kind_name())?;
        if self.by != UsageGroup::Rule {
            let group = Some(&self.group).filter(|group| !group.is_empty());
            map.serialize_entry(self.by.name(), &group)?;
        }
        let (id, name) = self.rule.as_ref().map(|(id, name)| (id, name)).unzip();
        map.serialize_entry("rule", &name)?;
        map.serialize_entry("ruleId", &id)?;
        map.serialize_entry("unit", self.unit())?;
        map.serialize_entry("admitted", &self.admitted)?;
        map.serialize_entry("denied", &self.denied)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(group: &str, rule: &str, tokens: i64, requests: i64) -> UsageTotal {
        let amounts = UsageAmounts {
            admitted: tokens,
            denied: 1,
            admitted_requests: requests,
            denied_requests: 0,
        };
        UsageTotal { group: group.to_owned(), rule: rule.to_owned(), amounts }
    }

    fn csv(by: UsageGroup, sums: Vec<UsageTotal>) -> Vec<String> {
        let (rules, mut totals, mut text) = (RuleSet::empty(), Totals::new(by), String::new());
        let mut lines = Vec::new();
        for sum in sums {
            lines.extend(totals.read(sum, &rules));
        }
        lines.extend(totals.finish(&rules));
        for line in &lines {
            line.write_csv(&mut text);
        }
        text.split_terminator("\r\n").map(str::to_owned).collect()
    }

    #[test]
    fn a_group_has_its_requests_once_and_its_tokens_by_rule() {
        let sums =
            vec![total("", "a", 1, 1), total("acme", "a", 3, 3), total("acme", "tokens", 400, 0)];
        let expected = [
            "tenant,,,,requests,1,0",
            "tenant,,a,a,tokens,1,1",
            "tenant,acme,,,requests,3,0",
            "tenant,acme,a,a,tokens,3,1",
            "tenant,acme,tokens,tokens,tokens,400,1",
            "total,,,,requests,4,0",
            "total,,a,a,tokens,4,2",
            "total,,tokens,tokens,tokens,400,1",
        ];
        assert_eq!(csv(UsageGroup::Tenant, sums), expected);
        assert_eq!(TotalsLine::csv_header(UsageGroup::Tenant).split(',').count(), 7);
    }

    #[test]
    fn rules_have_tokens_and_all_together_have_requests() {
        let sums = vec![total("a", "a", 3, 2), total("b", "b", 5, 0)];
        let expected = ["rule,a,a,tokens,3,1", "rule,b,b,tokens,5,1", "total,,,requests,2,0"];
        assert_eq!(csv(UsageGroup::Rule, sums), expected);
        assert_eq!(TotalsLine::csv_header(UsageGroup::Rule).split(',').count(), 6);
    }

    #[test]
    fn nothing_used_is_a_total_of_zero() {
        assert_eq!(csv(UsageGroup::Tier, Vec::new()), ["total,,,,requests,0,0"]);
    }
}
