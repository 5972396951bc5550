//! What a request's answer means for whoever keeps accounts: which rule, whose subject, how much was
//! admitted or denied. Keeps none itself.

use crate::matcher::ItemId;
use crate::rule::subject::{KeyBuffer, write_key};
use crate::verdict::{Enforcement, StoredReason};
use crate::{OnMissing, Request, Rule, Verdict};

/// What one rule has admitted of a request, or denied.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct UsageRecord<'m> {
    /// The rule.
    pub rule: &'m Rule,
    /// The request's attribute `tenant`.
    pub tenant: Option<&'m str>,
    /// Whom the rule counts; [`readable`](crate::readable) makes a text of it.
    pub key: &'m [u8],
    /// What the request costs under the rule.
    pub cost: u64,
    /// Whether that was admitted, or denied by this rule.
    pub is_admitted: bool,
}

impl Verdict {
    /// Tells what this verdict on `request` means for accounts, rule by rule.
    ///
    /// What was admitted counts under every rule whose limits it has paid; where nothing limits it,
    /// under the unlimited rule, or the one it is exempt from. What was denied counts under the rules
    /// that denied it, or under which its subject is banned. Shadows and candidates count nothing, and so does what costs nothing.
    ///
    /// ```
    /// use tollbar_rules::{Engine, Request, RuleFile, readable};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = "rules: [{ name: a, limit: 9/s }, { name: b, per: [tenant], limit: 3/s }]";
    /// let engine = Engine::new(RuleFile::parse("rules.yaml", rules)?.rules);
    /// let attributes = [("user", "42"), ("tenant", "acme")];
    /// let request = Request::new("GET", "/")?.with_attributes(&attributes)?.with_cost(3);
    ///
    /// let mut told = Vec::new();
    /// for _ in 0..2 {
    ///     engine.check(&request).meter(&request, |record| {
    ///         let (rule, key) = (record.rule.name.to_string(), readable(record.key));
    ///         told.push((rule, key, record.cost, record.is_admitted));
    ///     });
    /// }
    /// let [a, b] = [("a".to_owned(), "user:42".to_owned()), ("b".to_owned(), "acme".to_owned())];
    /// let denied = (b.0.clone(), b.1.clone(), 3, false);
    /// assert_eq!(told, [(a.0, a.1, 3, true), (b.0, b.1, 3, true), denied]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn meter(&self, request: &Request<'_>, mut each: impl FnMut(UsageRecord<'_>)) {
        let request = &*self.snapshot.fold(request);
        if request.cost() == 0 {
            return;
        }
        let is_admitted = self.is_allowed();
        let mut told: Option<ItemId> = None;
        let mut tell = |at: ItemId, cost: u64| {
            // The limits of one rule stand side by side, and cost the same.
            if cost > 0 && told.replace(at) != Some(at) {
                let rule = self.snapshot.rule(at);
                let mut key = KeyBuffer::new();
                // Who lacks what the rule cannot do without is nobody in particular.
                let missing = match rule.missing {
                    OnMissing::Ip => OnMissing::Ip,
                    OnMissing::Shared | OnMissing::Skip | OnMissing::Deny => OnMissing::Shared,
                };
                write_key(&rule.per, missing, request, &mut key);
                let tenant = request.attribute("tenant");
                each(UsageRecord { rule, tenant, key: &key, cost, is_admitted });
            }
        };
        let live = self.decisions.iter().filter(|limit| limit.enforcement == Enforcement::Live);
        for limit in live.filter(|limit| limit.decision.is_allowed() == is_admitted) {
            tell(limit.rule, limit.cost);
        }
        match self.reason {
            StoredReason::Unlimited(at)
            | StoredReason::Exempt { rule: at, .. }
            | StoredReason::MissingAttribute { rule: at, .. }
            | StoredReason::InvalidCost { rule: at }
            | StoredReason::Banned { rule: Some(at), .. } => {
                tell(at, self.snapshot.cost(at, request));
            }
            _ => {}
        }
    }
}
