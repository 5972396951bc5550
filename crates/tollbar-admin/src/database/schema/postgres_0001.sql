CREATE TABLE rate_limit_rules (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    rule_uuid uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    name text NOT NULL,
    scope text NOT NULL CHECK (scope IN ('global', 'tenant', 'endpoint')),
    tenant_id text,
    http_method text,
    path_pattern text,
    algorithm text,
    max_requests bigint CHECK (max_requests > 0),
    window_seconds bigint CHECK (window_seconds > 0),
    burst_capacity bigint,
    priority integer NOT NULL DEFAULT 0,
    enabled boolean NOT NULL DEFAULT true,
    spec json NOT NULL DEFAULT '{}',
    version bigint NOT NULL DEFAULT 1,
    deleted_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX rate_limit_rules_name ON rate_limit_rules (name) WHERE deleted_at IS NULL;
CREATE INDEX rate_limit_rules_tenant ON rate_limit_rules (tenant_id, id) WHERE tenant_id IS NOT NULL;

CREATE TABLE rate_limit_exemptions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    rule_id bigint NOT NULL REFERENCES rate_limit_rules (id) ON DELETE CASCADE,
    subject_type text NOT NULL CHECK (subject_type IN ('api_key', 'user', 'ip_cidr', 'service_account')),
    subject_value text NOT NULL,
    reason text,
    expires_at timestamptz,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (rule_id, subject_type, subject_value)
);
CREATE INDEX rate_limit_exemptions_rule ON rate_limit_exemptions (rule_id, id);

-- Rows of it outlive what they are about, so nothing is referenced.
CREATE TABLE rate_limit_rule_audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    rule_id bigint,
    kind text NOT NULL CHECK (kind IN ('rule', 'exemption', 'token', 'key')),
    action text NOT NULL CHECK (action IN ('insert', 'update', 'delete', 'enable', 'disable')),
    version bigint,
    old_row json,
    new_row json,
    actor text NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX rate_limit_rule_audit_rule ON rate_limit_rule_audit (rule_id, id);

CREATE TABLE rate_limit_tokens (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    hash text NOT NULL UNIQUE,
    name text NOT NULL,
    scopes json NOT NULL,
    subject text,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    last_used_at timestamptz,
    revoked_at timestamptz
);

-- A rule of '' is all rules. The factor is there for boosts, and not for bans.
CREATE TABLE rate_limit_keys (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    rule text NOT NULL DEFAULT '',
    subject text NOT NULL,
    effect text NOT NULL CHECK (effect IN ('ban', 'boost')),
    factor_percent integer CHECK (factor_percent BETWEEN 1 AND 100000),
    reason text,
    expires_at timestamptz,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL,
    UNIQUE (rule, subject, effect),
    CHECK ((effect = 'boost') = (factor_percent IS NOT NULL))
);
CREATE INDEX rate_limit_keys_subject ON rate_limit_keys (subject);

-- By bytes, as SQLite orders texts, so that pages are the same everywhere.
CREATE TABLE usage_daily (
    day date NOT NULL,
    tenant_id text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    rule text COLLATE "C" NOT NULL,
    admitted_cost bigint NOT NULL,
    denied_cost bigint NOT NULL,
    PRIMARY KEY (day, tenant_id, subject, rule)
);
CREATE INDEX usage_daily_tenant ON usage_daily (tenant_id, day);
CREATE INDEX usage_daily_subject ON usage_daily (subject, day);

-- The last batch of each node that was added: none is added twice.
CREATE TABLE usage_flushes (
    node text PRIMARY KEY,
    sequence bigint NOT NULL,
    flushed_at timestamptz NOT NULL
);

CREATE TABLE rate_limit_nodes (
    node text COLLATE "C" PRIMARY KEY,
    revision bigint NOT NULL,
    seen_at timestamptz NOT NULL
);

-- One row: numbers that grow with every change, whoever makes it, by hand too.
CREATE TABLE rate_limit_revision (
    id integer PRIMARY KEY CHECK (id = 1),
    rules bigint NOT NULL,
    tokens bigint NOT NULL
);
INSERT INTO rate_limit_revision (id, rules, tokens) VALUES (1, 1, 1);

CREATE FUNCTION rate_limit_rules_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE rate_limit_revision SET rules = rules + 1;
    PERFORM pg_notify('tollbar_revision', '');
    RETURN NULL;
END $$;
CREATE FUNCTION rate_limit_tokens_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE rate_limit_revision SET tokens = tokens + 1;
    PERFORM pg_notify('tollbar_revision', '');
    RETURN NULL;
END $$;

CREATE TRIGGER rate_limit_rules_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON rate_limit_rules
FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rules_changed();
CREATE TRIGGER rate_limit_exemptions_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON rate_limit_exemptions
FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rules_changed();
CREATE TRIGGER rate_limit_keys_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON rate_limit_keys
FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rules_changed();
CREATE TRIGGER rate_limit_tokens_changed
AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF hash, scopes, subject, expires_at, revoked_at ON rate_limit_tokens
FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_tokens_changed();
