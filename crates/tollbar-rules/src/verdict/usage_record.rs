//! What a verdict or a settlement means for accounts: which rule, which client, how much was admitted or
//! denied. Keeps no account itself.
//!
//! A reservation is admitted with what it reserves. Its hold carries a note of whose account that was, so that
//! whatever node settles it corrects the same account, on the day of the charge.

use std::borrow::Cow;

use tollbar::Timestamp;
use tollbar::receipt::{Charge, Content};

use crate::matcher::ItemId;
use crate::rule::alternative::rule_of_counter;
use crate::rule::subject::{KeyBuffer, readable, write_facts, write_key, write_text};
use crate::verdict::{Enforcement, GLOBAL_BAN, StoredReason};
use crate::{OnMissing, Per, Request, Rule, Verdict};

/// The longest tenant, tier, client and subject that are kept as they are.
const NAME_BYTES_MAX: usize = 256;

/// The beginning that is kept of a longer one, before the hash that tells it from others.
const PREFIX_BYTES: usize = 200;

/// The longest note of an account.
pub(crate) const NOTE_BYTES_MAX: usize = 3 * (NAME_BYTES_MAX + 2) + 4 + u8::MAX as usize;

const DAY_US: u64 = 86_400_000_000;

/// What one rule has admitted or denied of a request, or what a settlement has changed about that.
#[derive(Debug, Clone, Copy)]
pub struct UsageRecord<'m> {
    /// The identity of the rule, or a name that no rule has for what none limits.
    pub rule: &'m str,
    /// The request's attribute `tenant`; empty if it has none.
    pub tenant: &'m str,
    /// The tier of the first rule that has tiers, or the request's attribute `tier`; empty if there is neither.
    pub tier: &'m str,
    /// The key of the client; [`readable`] makes a text of it.
    pub client: &'m [u8],
    /// The key of the subject that the rule counts; [`readable`] makes a text of it.
    pub key: &'m [u8],
    /// How much.
    pub amounts: UsageAmounts,
}

/// Tokens and requests that were admitted and denied. A correction may be below zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageAmounts {
    /// Tokens that were paid.
    pub admitted: i64,
    /// Tokens that were asked for and denied.
    pub denied: i64,
    /// Requests that passed. A request under several rules is in the record of the first only.
    pub admitted_requests: i64,
    /// Requests that were denied, in the same way.
    pub denied_requests: i64,
}

impl UsageAmounts {
    /// The amounts of a request that was admitted or denied at this cost under one rule.
    #[must_use]
    pub fn of_request(cost: u64, is_admitted: bool, counts_request: bool) -> Self {
        let (cost, requests) = (to_i64(cost), i64::from(counts_request));
        if is_admitted {
            Self { admitted: cost, admitted_requests: requests, ..Self::default() }
        } else {
            Self { denied: cost, denied_requests: requests, ..Self::default() }
        }
    }

    /// Adds `other`. A sum that does not fit stays at the largest that does.
    pub fn add(&mut self, other: Self) {
        self.admitted = self.admitted.saturating_add(other.admitted);
        self.denied = self.denied.saturating_add(other.denied);
        self.admitted_requests = self.admitted_requests.saturating_add(other.admitted_requests);
        self.denied_requests = self.denied_requests.saturating_add(other.denied_requests);
    }
}

/// Whose usage a request is.
struct Account<'m> {
    tenant: Cow<'m, str>,
    tier: Cow<'m, str>,
    client: KeyBuffer,
}

impl Account<'_> {
    fn record<'m>(
        &'m self,
        rule: &'m str,
        key: &'m [u8],
        amounts: UsageAmounts,
    ) -> UsageRecord<'m> {
        let Self { tenant, tier, client } = self;
        UsageRecord { rule, tenant, tier, client, key, amounts }
    }
}

impl Verdict {
    /// Tells what this verdict on `request` means for accounts, rule by rule.
    ///
    /// What was admitted counts under every rule whose limits it has paid; where nothing limits it,
    /// under the unlimited rule, or the one it is exempt from. What was denied counts under the rules
    /// that denied it, or under which its subject is banned, or under [`GLOBAL_BAN`]. Shadows and candidates
    /// count nothing, and neither does what costs nothing, or has paid [before](Self::repeat_of).
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
    ///         let amounts = record.amounts;
    ///         let tokens = amounts.admitted - amounts.denied;
    ///         let requests = amounts.admitted_requests + amounts.denied_requests;
    ///         told.push(format!("{} {} {tokens} {requests}", record.rule, readable(record.key)));
    ///     });
    /// }
    /// assert_eq!(told, ["a user:42 3 1", "b acme 3 0", "b acme -3 1"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn meter(&self, request: &Request<'_>, mut each: impl FnMut(UsageRecord<'_>)) {
        let request = &*self.snapshot.fold(request);
        if request.cost() == 0 || self.repeat_of.is_some() {
            return;
        }
        let account = self.account(request);
        let is_admitted = self.is_allowed();
        let mut last: Option<ItemId> = None;
        let mut tell = |at: ItemId, cost: u64, own_per: Option<&[Per]>| {
            // The limits of one rule stand side by side, and cost the same.
            if cost > 0 && last != Some(at) {
                let amounts = UsageAmounts::of_request(cost, is_admitted, last.is_none());
                last = Some(at);
                let rule = self.snapshot.rule(at);
                let key = subject_key(rule, own_per, request, &account);
                each(account.record(rule.identity(), &key, amounts));
            }
        };
        for limit in self.decisions().filter(|limit| limit.enforcement() == Enforcement::Live) {
            // What is paid is the usage of the counter that was charged, and what is denied that of the rule's subject.
            if limit.is_paid() {
                tell(limit.inner.rule, limit.cost(), limit.rule().own_per(limit.limit()));
            } else if !is_admitted && limit.denies() {
                tell(limit.inner.rule, limit.cost(), None);
            }
        }
        match self.reason {
            StoredReason::Unlimited(at)
            | StoredReason::Exempt { rule: at, .. }
            | StoredReason::MissingAttribute { rule: at, .. }
            | StoredReason::InvalidCost { rule: at }
            | StoredReason::Banned { rule: Some(at), .. } => {
                tell(at, self.snapshot.cost(at, request), None);
            }
            StoredReason::Banned { rule: None, .. } => {
                let amounts = UsageAmounts::of_request(request.cost(), false, true);
                each(account.record(GLOBAL_BAN, &account.client, amounts));
            }
            _ => {}
        }
    }

    fn account<'m>(&'m self, request: &'m Request<'_>) -> Account<'m> {
        let mut client = KeyBuffer::new();
        write_key(&[Per::Client], OnMissing::Shared, request, &mut client);
        bound_key(&mut client);
        let live = |limit: &&super::RuleDecision<'_>| limit.enforcement() == Enforcement::Live;
        let tier = self.decisions().filter(|limit| live(&limit)).find_map(|limit| limit.tier());
        let tier = tier.or_else(|| self.unlimited_tier(request));
        let tier = tier.or_else(|| request.attribute("tier")).unwrap_or_default();
        let tenant = request.attribute("tenant").unwrap_or_default();
        Account { tenant: bound_text(tenant), tier: bound_text(tier), client }
    }

    /// The tier of a rule that it lifts all limits of.
    fn unlimited_tier(&self, request: &Request<'_>) -> Option<&str> {
        let StoredReason::Unlimited(at) = self.reason else {
            return None;
        };
        match self.snapshot.tier(at, request) {
            crate::rule::Tier::At(tier) => Some(&self.snapshot.rule(at).tiers.limits[tier].0),
            crate::rule::Tier::Rule => None,
        }
    }

    /// Returns a note of whose usage a reservation is that was charged at `at`: the day, the account, and which
    /// of its charges are usage.
    pub(crate) fn usage_note(&self, request: &Request<'_>, at: Timestamp) -> Box<[u8]> {
        let request = &*self.snapshot.fold(request);
        let day = (self.repeat_of.unwrap_or(at).as_micros() / DAY_US) as u32;
        let Account { tenant, tier, client } = self.account(request);
        let mut note = day.to_le_bytes().to_vec();
        for part in [tenant.as_bytes(), tier.as_bytes(), &client] {
            note.extend((part.len() as u16).to_le_bytes());
            note.extend(part);
        }
        let mut last: Option<ItemId> = None;
        // A shadow that denies has paid nothing, and neither have alternatives but one: they are not among the charges.
        let paid = self.decisions.iter().filter(|limit| limit.pays && limit.decision.is_allowed());
        for (place, limit) in (0..u8::MAX).zip(paid) {
            let is_live = limit.enforcement == Enforcement::Live;
            if is_live && limit.cost > 0 && last.replace(limit.rule) != Some(limit.rule) {
                note.push(place);
            }
        }
        note.into()
    }
}

/// Tells by how much the usage of a reservation differs from what was reserved, now that it came to `spent`
/// (`None`: as much as was reserved), and at which time that counts. A request that came to nothing was never
/// served, and counts as no request. Nothing is told of a reservation without a note.
pub(crate) fn meter_settlement(
    content: &Content,
    spent: Option<u64>,
    mut each: impl FnMut(Timestamp, UsageRecord<'_>),
) {
    let (Some(spent), Some((day, account, places))) = (spent, read_note(&content.note)) else {
        return;
    };
    let at = Timestamp::from_micros(u64::from(day) * DAY_US);
    let charges = places.iter().filter_map(|place| content.charges.get(usize::from(*place)));
    for (number, Charge { key, policy, reserved, factor, .. }) in charges.enumerate() {
        let is_cancelled = spent == 0 && number == 0;
        let amounts = UsageAmounts {
            admitted: to_i64(spent.saturating_mul(*factor)) - to_i64(*reserved),
            admitted_requests: -i64::from(is_cancelled),
            ..UsageAmounts::default()
        };
        if amounts == UsageAmounts::default() {
            continue;
        }
        let mut subject = KeyBuffer::from_slice(key);
        bound_key(&mut subject);
        let rule = rule_of_counter(policy.name().unwrap_or_default());
        each(at, account.record(rule, &subject, amounts));
    }
}

/// Reads the day, the account and the places of the charges; `None` if there is no note, or another version
/// wrote it.
fn read_note(note: &[u8]) -> Option<(u32, Account<'_>, &[u8])> {
    let (day, mut rest) = note.split_first_chunk()?;
    let mut part = || {
        let (len, after) = rest.split_first_chunk()?;
        let (part, after) = after.split_at_checked(u16::from_le_bytes(*len).into())?;
        rest = after;
        Some(part)
    };
    let [tenant, tier, client] = [part()?, part()?, part()?];
    let text = |bytes| Some(Cow::Borrowed(str::from_utf8(bytes).ok()?));
    let client = KeyBuffer::from_slice(client);
    let account = Account { tenant: text(tenant)?, tier: text(tier)?, client };
    Some((u32::from_le_bytes(*day), account, rest))
}

/// Tells what a limit that stands in no rule has admitted or denied of a request with these facts. Its client is
/// its API key, its user or its address and, if it has none of them, all of what it is counted by.
pub fn meter_standalone(
    rule: &str,
    facts: &[(&str, &str)],
    amounts: UsageAmounts,
    each: impl FnOnce(UsageRecord<'_>),
) {
    let fact = |name: &str| facts.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    let (mut client, mut key) = (KeyBuffer::new(), KeyBuffer::new());
    write_facts(facts, &mut key);
    let link = ["api_key", "user", "ip"].into_iter().find_map(|name| Some([(name, fact(name)?)]));
    write_facts(link.as_ref().map_or(facts, |link| link), &mut client);
    bound_key(&mut client);
    bound_key(&mut key);
    let [tenant, tier] = ["tenant", "tier"].map(|name| bound_text(fact(name).unwrap_or_default()));
    each(Account { tenant, tier, client }.record(&bound_text(rule), &key, amounts));
}

/// Whom a rule counts. A request that lacks what the rule cannot do without is nobody in particular.
fn subject_key(
    rule: &Rule,
    own_per: Option<&[Per]>,
    request: &Request<'_>,
    account: &Account<'_>,
) -> KeyBuffer {
    let per = own_per.unwrap_or(&rule.per);
    if *per == [Per::Client] {
        return account.client.clone();
    }
    let missing = match rule.missing {
        OnMissing::Ip => OnMissing::Ip,
        OnMissing::Shared | OnMissing::Skip | OnMissing::Deny => OnMissing::Shared,
    };
    let mut key = KeyBuffer::new();
    write_key(per, missing, request, &mut key);
    bound_key(&mut key);
    key
}

fn bound_text(text: &str) -> Cow<'_, str> {
    if text.len() <= NAME_BYTES_MAX { text.into() } else { shortened(text).into() }
}

fn bound_key(key: &mut KeyBuffer) {
    if key.len() > NAME_BYTES_MAX {
        let text = shortened(&readable(key));
        key.clear();
        write_text(&text, key);
    }
}

/// The beginning, and a hash by which it is known on every node and after a restart.
fn shortened(text: &str) -> String {
    let prefix = &text[..text.floor_char_boundary(PREFIX_BYTES)];
    let hash = blake3::hash(text.as_bytes()).to_hex();
    format!("{prefix}…{}", &hash[..16])
}

fn to_i64(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}
