//! What a token may do. Every operation asks here before it does anything, whoever calls it.

use std::fmt;

use crate::database::{Owner, TokenRow};
use tollbar_daemon::problem::Problem;

/// One thing that a token is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Everything.
    Admin,
    /// To see everything but tokens.
    Read,
    /// To see and change the sub-limits of this tenant.
    Tenant(String),
    /// To see what is left to the token's own subject.
    UsageMe,
}

/// Who asks, as far as is known by their token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Actor {
    pub(crate) token_id: i64,
    /// What the token is called.
    pub(crate) name: String,
    pub(crate) scopes: Vec<Scope>,
    /// Who they are for `usage:me`: `user:42`.
    pub(crate) subject: Option<String>,
}

/// How far somebody may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach<'a> {
    All,
    /// What is named after this tenant: it sees those rules, and changes those that it has made.
    Tenant(&'a str),
}

impl Reach<'_> {
    /// Returns the owner of the rules that are made with this reach.
    pub(crate) fn owner(self) -> Owner {
        match self {
            Self::All => Owner::Operator,
            Self::Tenant(tenant) => Owner::Tenant(tenant.to_owned()),
        }
    }

    /// True if rules of this owner may be changed.
    pub(crate) fn may_change(self, owner: &Owner) -> bool {
        self == Self::All || self.owner() == *owner
    }
}

/// What an operation requires of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permission {
    /// To see what there is; tenants, what is theirs.
    See,
    /// To see what has no owner.
    SeeAll,
    /// To change what there is; tenants, what is theirs.
    Change,
    /// To change what has no owner, and who may do what.
    ChangeAll,
    /// To see the usage of the token's own subject.
    SeeOwnUsage,
    /// To see the token itself: every token may.
    SeeOwnToken,
}

/// A [`Permission`] as a type, for handlers to name in their arguments.
pub(crate) trait RequiredPermission: Send + 'static {
    const PERMISSION: Permission;
}

macro_rules! permissions {
    ($($name:ident)*) => {$(
        #[doc = concat!("[`Permission::", stringify!($name), "`].")]
        #[derive(Debug)]
        pub(crate) enum $name {}

        impl RequiredPermission for $name {
            const PERMISSION: Permission = Permission::$name;
        }
    )*};
}

permissions! { See SeeAll Change ChangeAll SeeOwnUsage SeeOwnToken }

/// The longest name of a tenant.
const TENANT_BYTES_MAX: usize = 64;

impl Scope {
    /// `admin`, `read`, `tenant:acme` or `usage:me`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "admin" => Some(Self::Admin),
            "read" => Some(Self::Read),
            "usage:me" => Some(Self::UsageMe),
            text => {
                let tenant = text.strip_prefix("tenant:")?;
                is_tenant(tenant).then(|| Self::Tenant(tenant.to_owned()))
            }
        }
    }
}

/// A tenant that can have a token. Its name begins those of its rules, so it is made of what they
/// are made of, but for the `/` that ends it there.
fn is_tenant(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    (1..=TENANT_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_part)
}

impl Permission {
    /// Returns the kinds of scope that grant it, for the document.
    pub(crate) fn scopes(self) -> &'static [&'static str] {
        match self {
            Self::See => &["admin", "read", "tenant"],
            Self::SeeAll => &["admin", "read"],
            Self::Change => &["admin", "tenant"],
            Self::ChangeAll => &["admin"],
            Self::SeeOwnUsage => &["usage:me"],
            Self::SeeOwnToken => &["admin", "read", "tenant", "usage:me"],
        }
    }
}

impl Actor {
    /// Returns the actor of a token. Scopes that are not known here, of a newer version, allow nothing.
    pub(crate) fn new(row: &TokenRow) -> Self {
        Self {
            token_id: row.id,
            name: row.name.clone(),
            scopes: row.scopes.iter().filter_map(|text| Scope::parse(text)).collect(),
            subject: row.subject.clone(),
        }
    }

    /// Returns how far the actor may go with this permission, or why it has none.
    pub(crate) fn reach(&self, permission: Permission) -> Result<Reach<'_>, Problem> {
        let has = |scope: &Scope| self.scopes.contains(scope);
        let tenant = self.scopes.iter().find_map(|scope| match scope {
            Scope::Tenant(tenant) => Some(Reach::Tenant(tenant)),
            _ => None,
        });
        let sees_all = (has(&Scope::Admin) || has(&Scope::Read)).then_some(Reach::All);
        let changes_all = has(&Scope::Admin).then_some(Reach::All);
        let reach = match permission {
            Permission::See => sees_all.or(tenant),
            Permission::SeeAll => sees_all,
            Permission::Change => changes_all.or(tenant),
            Permission::ChangeAll => changes_all,
            Permission::SeeOwnUsage => has(&Scope::UsageMe).then_some(Reach::All),
            Permission::SeeOwnToken => Some(Reach::All),
        };
        reach.ok_or_else(|| {
            let scopes = permission.scopes().join("`, `");
            Problem::forbidden(format!("this token may not do that: use one of scope `{scopes}`"))
        })
    }

    /// Returns the name that the audit has for this actor.
    pub(crate) fn audit_name(&self) -> String {
        format!("token:{} {}", self.token_id, self.name)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admin => f.write_str("admin"),
            Self::Read => f.write_str("read"),
            Self::Tenant(tenant) => write!(f, "tenant:{tenant}"),
            Self::UsageMe => f.write_str("usage:me"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_read_as_it_is_written_and_nothing_else_is() {
        for text in ["admin", "read", "usage:me", "tenant:acme", "tenant:A.b-c_1", "tenant:a:b"] {
            assert_eq!(Scope::parse(text).map(|scope| scope.to_string()).as_deref(), Some(text));
        }
        let long = format!("tenant:{}", "x".repeat(65));
        let table =
            ["", "Admin", "admin ", "tenant:", "tenant:a/b", "tenant:a b", "tenant:é", &long];
        for text in table {
            assert_eq!(Scope::parse(text), None, "{text}");
        }
    }

    #[test]
    fn scopes_add_up_and_a_tenant_never_reaches_all() {
        let actor = |scopes: &[&str]| Actor {
            token_id: 1,
            name: "x".to_owned(),
            scopes: scopes.iter().map(|text| Scope::parse(text).unwrap()).collect(),
            subject: None,
        };
        let both = actor(&["read", "tenant:acme"]);
        assert_eq!(both.reach(Permission::See), Ok(Reach::All));
        assert_eq!(both.reach(Permission::Change), Ok(Reach::Tenant("acme")));
        assert!(both.reach(Permission::ChangeAll).is_err());
        let tenant = actor(&["tenant:acme"]);
        assert_eq!(tenant.reach(Permission::See), Ok(Reach::Tenant("acme")));
        assert!(
            tenant.reach(Permission::SeeAll).is_err()
                && tenant.reach(Permission::SeeOwnUsage).is_err()
        );
        let me = actor(&["usage:me"]);
        assert!(me.reach(Permission::See).is_err() && me.reach(Permission::SeeOwnToken).is_ok());
    }
}
