-- Usage by client and tier as well, and the requests. Earlier versions have counted no requests, and knew the client
-- only where it was what a rule counts.
ALTER TABLE usage_daily
    ADD COLUMN client text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN tier text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN admitted_requests bigint NOT NULL DEFAULT 0,
    ADD COLUMN denied_requests bigint NOT NULL DEFAULT 0;
UPDATE usage_daily SET client = subject
WHERE subject LIKE 'api:%' OR subject LIKE 'user:%' OR subject LIKE 'ip:%';
ALTER TABLE usage_daily
    DROP CONSTRAINT usage_daily_pkey,
    ADD PRIMARY KEY (day, tenant_id, subject, rule, client, tier);
CREATE INDEX usage_daily_client ON usage_daily (client, day);
