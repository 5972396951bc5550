-- Instants are microseconds since 1970, days are days since 1970-01-01, and what is yes or no is 1 or 0.

CREATE TABLE rate_limit_rules (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    rule_uuid TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    scope TEXT NOT NULL CHECK (scope IN ('global', 'tenant', 'endpoint')),
    tenant_id TEXT,
    http_method TEXT,
    path_pattern TEXT,
    algorithm TEXT,
    max_requests INTEGER CHECK (max_requests > 0),
    window_seconds INTEGER CHECK (window_seconds > 0),
    burst_capacity INTEGER,
    priority INTEGER NOT NULL DEFAULT 0,
    enabled INTEGER NOT NULL DEFAULT TRUE,
    spec TEXT NOT NULL DEFAULT '{}',
    version INTEGER NOT NULL DEFAULT 1,
    deleted_at INTEGER,
    created_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    updated_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))
) STRICT;
CREATE UNIQUE INDEX rate_limit_rules_name ON rate_limit_rules (name) WHERE deleted_at IS NULL;
CREATE INDEX rate_limit_rules_tenant ON rate_limit_rules (tenant_id, id) WHERE tenant_id IS NOT NULL;

CREATE TABLE rate_limit_exemptions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    rule_id INTEGER NOT NULL REFERENCES rate_limit_rules (id) ON DELETE CASCADE,
    subject_type TEXT NOT NULL CHECK (subject_type IN ('api_key', 'user', 'ip_cidr', 'service_account')),
    subject_value TEXT NOT NULL,
    reason TEXT,
    expires_at INTEGER,
    created_by TEXT NOT NULL,
    created_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    UNIQUE (rule_id, subject_type, subject_value)
) STRICT;
CREATE INDEX rate_limit_exemptions_rule ON rate_limit_exemptions (rule_id, id);

-- Rows of it outlive what they are about, so nothing is referenced.
CREATE TABLE rate_limit_rule_audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    rule_id INTEGER,
    kind TEXT NOT NULL CHECK (kind IN ('rule', 'exemption', 'token', 'key')),
    action TEXT NOT NULL CHECK (action IN ('insert', 'update', 'delete', 'enable', 'disable')),
    version INTEGER,
    old_row TEXT,
    new_row TEXT,
    actor TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX rate_limit_rule_audit_rule ON rate_limit_rule_audit (rule_id, id);

CREATE TABLE rate_limit_tokens (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    hash TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    scopes TEXT NOT NULL,
    subject TEXT,
    created_by TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    last_used_at INTEGER,
    revoked_at INTEGER
) STRICT;

-- A rule of '' is all rules. The factor is there for boosts, and not for bans.
CREATE TABLE rate_limit_keys (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    rule TEXT NOT NULL DEFAULT '',
    subject TEXT NOT NULL,
    effect TEXT NOT NULL CHECK (effect IN ('ban', 'boost')),
    factor_percent INTEGER CHECK (factor_percent BETWEEN 1 AND 100000),
    reason TEXT,
    expires_at INTEGER,
    created_by TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    UNIQUE (rule, subject, effect),
    CHECK ((effect = 'boost') = (factor_percent IS NOT NULL))
) STRICT;
CREATE INDEX rate_limit_keys_subject ON rate_limit_keys (subject);

CREATE TABLE usage_daily (
    day INTEGER NOT NULL,
    tenant_id TEXT NOT NULL,
    subject TEXT NOT NULL,
    rule TEXT NOT NULL,
    admitted_cost INTEGER NOT NULL,
    denied_cost INTEGER NOT NULL,
    PRIMARY KEY (day, tenant_id, subject, rule)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_daily_tenant ON usage_daily (tenant_id, day);
CREATE INDEX usage_daily_subject ON usage_daily (subject, day);

-- The last batch of each node that was added: none is added twice.
CREATE TABLE usage_flushes (
    node TEXT PRIMARY KEY,
    sequence INTEGER NOT NULL,
    flushed_at INTEGER NOT NULL
) STRICT;

CREATE TABLE rate_limit_nodes (
    node TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    seen_at INTEGER NOT NULL
) STRICT;

-- One row: numbers that grow with every change, whoever makes it, by hand too.
CREATE TABLE rate_limit_revision (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    rules INTEGER NOT NULL,
    tokens INTEGER NOT NULL
) STRICT;
INSERT INTO rate_limit_revision (id, rules, tokens) VALUES (1, 1, 1);

CREATE TRIGGER rate_limit_rules_inserted AFTER INSERT ON rate_limit_rules
BEGIN UPDATE rate_limit_revision SET rules = rules + 1; END;
CREATE TRIGGER rate_limit_rules_updated AFTER UPDATE ON rate_limit_rules
BEGIN UPDATE rate_limit_revision SET rules = rules + 1; END;
CREATE TRIGGER rate_limit_rules_deleted AFTER DELETE ON rate_limit_rules
BEGIN UPDATE rate_limit_revision SET rules = rules + 1; END;
CREATE TRIGGER rate_limit_exemptions_inserted AFTER INSERT ON rate_limit_exemptions
BEGIN UPDATE rate_limit_revision SET rules = rules + 1; END;
CREATE TRIGGER rate_limit_exemptions_updated AFTER UPDATE ON rate_limit_exemptions
BEGIN UPDATE rate_limit_revision SET rules = rules + 1; END;
CREATE TRIGGER rate_limit_exemptions_deleted AFTER DELETE ON rate_limit_exemptions
BEGIN UPDATE rate_limit_revision SET rules = rules + 1; END;
CREATE TRIGGER rate_limit_keys_inserted AFTER INSERT ON rate_limit_keys
BEGIN UPDATE rate_limit_revision SET rules = rules + 1; END;
CREATE TRIGGER rate_limit_keys_updated AFTER UPDATE ON rate_limit_keys
BEGIN UPDATE rate_limit_revision SET rules = rules + 1; END;
CREATE TRIGGER rate_limit_keys_deleted AFTER DELETE ON rate_limit_keys
BEGIN UPDATE rate_limit_revision SET rules = rules + 1; END;
CREATE TRIGGER rate_limit_tokens_inserted AFTER INSERT ON rate_limit_tokens
BEGIN UPDATE rate_limit_revision SET tokens = tokens + 1; END;
CREATE TRIGGER rate_limit_tokens_updated
AFTER UPDATE OF hash, scopes, subject, expires_at, revoked_at ON rate_limit_tokens
BEGIN UPDATE rate_limit_revision SET tokens = tokens + 1; END;
CREATE TRIGGER rate_limit_tokens_deleted AFTER DELETE ON rate_limit_tokens
BEGIN UPDATE rate_limit_revision SET tokens = tokens + 1; END;
