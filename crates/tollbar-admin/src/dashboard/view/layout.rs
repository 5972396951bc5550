//! The layout around every page: navigation, who is signed in, and what went well or wrong just now.

use tollbar::Timestamp;

use crate::dashboard::session::ActiveSession;
use crate::dashboard::view::assets::{ASSETS, Assets};
use crate::dashboard::view::untrusted_text::{UntrustedText, escape_invisible};
use crate::operations::auth::access::{Actor, Permission};
use tollbar_daemon::problem::Problem;
use tollbar_daemon::rfc3339::Rfc3339;

/// The layout of a page.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) nav_item: NavItem,
    pub(crate) assets: &'static Assets,
    /// How long something may last: values and names.
    pub(crate) spans: [(&'static str, &'static str); 5],
    /// `None` before somebody has signed in.
    pub(crate) owner: Option<TokenOwner>,
    pub(crate) csrf: String,
    pub(crate) permissions: Permissions,
    /// What was done.
    pub(crate) notice: Option<String>,
    /// What was not, and why.
    pub(crate) problem: Option<ProblemNotice>,
}

/// The token that somebody has signed in with.
#[derive(Debug, Clone)]
pub(crate) struct TokenOwner {
    pub(crate) name: UntrustedText,
    pub(crate) scopes: String,
}

/// What a token may do. Pages do not offer the rest, and operations refuse it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "templates ask for each by its name")]
pub(crate) struct Permissions {
    pub(crate) see: bool,
    pub(crate) see_all: bool,
    pub(crate) change: bool,
    pub(crate) change_all: bool,
    pub(crate) see_own_usage: bool,
}

/// The item of the navigation that a page belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NavItem {
    Overview,
    Rules,
    Keys,
    Exemptions,
    Usage,
    Explain,
    Tokens,
    OwnUsage,
    Other,
}

/// A link in the bar at the top.
#[derive(Debug)]
pub(crate) struct NavLink {
    pub(crate) name: &'static str,
    pub(crate) href: &'static str,
    pub(crate) is_current: bool,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProblemNotice {
    pub(crate) detail: String,
    pub(crate) fields: Vec<WrongField>,
}

/// A field to be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WrongField {
    pub(crate) field: String,
    pub(crate) detail: String,
}

/// How long something may last, as forms offer it.
const SPANS: [(&str, &str, u64); 5] = [
    ("1h", "1 hour", 3_600),
    ("1d", "1 day", 86_400),
    ("7d", "7 days", 604_800),
    ("30d", "30 days", 2_592_000),
    ("", "without end", 0),
];

impl Permissions {
    pub(crate) fn for_actor(actor: &Actor) -> Self {
        let may = |need| actor.reach(need).is_ok();
        Self {
            see: may(Permission::See),
            see_all: may(Permission::SeeAll),
            change: may(Permission::Change),
            change_all: may(Permission::ChangeAll),
            see_own_usage: may(Permission::SeeOwnUsage),
        }
    }

    /// Returns the first page for somebody with these permissions.
    pub(crate) fn home(self) -> &'static str {
        match self {
            Self { see_all: true, .. } => "/",
            Self { see: true, .. } => "/rules",
            _ => "/me",
        }
    }
}

impl Layout {
    /// Returns the layout for those who have not signed in.
    pub(crate) fn signed_out() -> Self {
        Self {
            nav_item: NavItem::Other,
            assets: &ASSETS,
            spans: SPANS.map(|(value, name, _)| (value, name)),
            owner: None,
            csrf: String::new(),
            permissions: Permissions::default(),
            notice: None,
            problem: None,
        }
    }

    /// Returns the layout for a session.
    pub(crate) fn signed_in(session: &ActiveSession, nav_item: NavItem) -> Self {
        let ActiveSession { actor, csrf, .. } = session;
        let scopes: Vec<String> = actor.scopes.iter().map(ToString::to_string).collect();
        let owner = TokenOwner { name: UntrustedText::new(&*actor.name), scopes: scopes.join(" ") };
        let (csrf, permissions) = (csrf.clone(), Permissions::for_actor(actor));
        Self { nav_item, owner: Some(owner), csrf, permissions, ..Self::signed_out() }
    }

    /// Returns the links that this token may follow.
    pub(crate) fn nav_links(&self) -> Vec<NavLink> {
        let Permissions { see, see_all, change_all, see_own_usage, .. } = self.permissions;
        let all = [
            (see_all, NavItem::Overview, "Overview", "/"),
            (see, NavItem::Rules, "Rules", "/rules"),
            (see, NavItem::Keys, "Keys", "/keys"),
            (see_all, NavItem::Exemptions, "Exemptions", "/exemptions"),
            (see, NavItem::Usage, "Usage", "/usage"),
            (see_all, NavItem::Explain, "Explain", "/explain"),
            (change_all, NavItem::Tokens, "Tokens", "/tokens"),
            (see_own_usage, NavItem::OwnUsage, "What is left", "/me"),
        ];
        let open = all.into_iter().filter(|link| link.0);
        let item = |(_, nav_item, name, href)| NavLink {
            name,
            href,
            is_current: nav_item == self.nav_item,
        };
        open.map(item).collect()
    }

    pub(crate) fn with_problem(self, problem: &Problem) -> Self {
        Self { problem: Some(ProblemNotice::from_problem(problem)), ..self }
    }
}

impl ProblemNotice {
    pub(crate) fn from_problem(problem: &Problem) -> Self {
        let field = |error: &tollbar_daemon::problem::FieldError| WrongField {
            field: escape_invisible(&error.field),
            detail: escape_invisible(&error.detail),
        };
        // One field is in the sentence already.
        let fields = match problem.fields.as_slice() {
            [] | [_] => Vec::new(),
            all => all.iter().map(field).collect(),
        };
        Self { detail: escape_invisible(&problem.detail), fields }
    }
}

/// The end of a span that begins now; `None` where it has none.
pub(crate) fn expiry_after(span: &str, now: Timestamp) -> Option<String> {
    let (.., seconds) = SPANS.into_iter().find(|(value, ..)| *value == span)?;
    let end = now.after(std::time::Duration::from_secs(seconds));
    (seconds > 0).then(|| Rfc3339(end).text().as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::auth::access::Scope;

    fn actor(scopes: &[&str]) -> Actor {
        Actor {
            token_id: 1,
            name: "x".to_owned(),
            scopes: scopes.iter().filter_map(|text| Scope::parse(text)).collect(),
            subject: None,
        }
    }

    #[test]
    fn nobody_is_offered_what_they_may_not_do() {
        let nav_links = |scopes: &[&str]| -> Vec<&str> {
            let layout = Layout {
                permissions: Permissions::for_actor(&actor(scopes)),
                ..Layout::signed_out()
            };
            layout.nav_links().iter().map(|link| link.name).collect()
        };
        assert!(nav_links(&["admin"]).contains(&"Tokens"));
        assert!(!nav_links(&["read"]).contains(&"Tokens"));
        assert_eq!(nav_links(&["tenant:acme"]), ["Rules", "Keys", "Usage"]);
        assert_eq!(nav_links(&["usage:me"]), ["What is left"]);
        assert!(nav_links(&[]).is_empty());
        assert_eq!(Permissions::for_actor(&actor(&["tenant:acme"])).home(), "/rules");
    }

    #[test]
    fn a_span_ends_or_does_not() {
        let now = Timestamp::from_micros(0);
        assert_eq!(expiry_after("1d", now).as_deref(), Some("1970-01-02T00:00:00.000Z"));
        assert_eq!(expiry_after("", now), None);
        assert_eq!(expiry_after("9y", now), None);
    }
}
