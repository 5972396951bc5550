-- Usage by client and tier as well, and the requests. Earlier versions have counted no requests, and knew the client
-- only where it was what a rule counts.
CREATE TABLE usage_daily_by_client (
    day INTEGER NOT NULL,
    tenant_id TEXT NOT NULL,
    subject TEXT NOT NULL,
    rule TEXT NOT NULL,
    client TEXT NOT NULL,
    tier TEXT NOT NULL,
    admitted_cost INTEGER NOT NULL,
    denied_cost INTEGER NOT NULL,
    admitted_requests INTEGER NOT NULL,
    denied_requests INTEGER NOT NULL,
    PRIMARY KEY (day, tenant_id, subject, rule, client, tier)
) STRICT, WITHOUT ROWID;
INSERT INTO usage_daily_by_client
SELECT day, tenant_id, subject, rule,
    CASE WHEN subject LIKE 'api:%' OR subject LIKE 'user:%' OR subject LIKE 'ip:%' THEN subject ELSE '' END,
    '', admitted_cost, denied_cost, 0, 0
FROM usage_daily;
DROP TABLE usage_daily;
ALTER TABLE usage_daily_by_client RENAME TO usage_daily;
CREATE INDEX usage_daily_tenant ON usage_daily (tenant_id, day);
CREATE INDEX usage_daily_subject ON usage_daily (subject, day);
CREATE INDEX usage_daily_client ON usage_daily (client, day);
