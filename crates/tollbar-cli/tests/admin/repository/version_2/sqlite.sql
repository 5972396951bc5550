-- A database of schema 2, as the daemon of that version made it: `sqlite3 rules.sqlite .dump`.
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE rate_limit_schema (number BIGINT NOT NULL PRIMARY KEY);
INSERT INTO rate_limit_schema VALUES(1);
INSERT INTO rate_limit_schema VALUES(2);
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
INSERT INTO rate_limit_rules VALUES(1,'fe97ba0f-4247-4126-877a-88cdd449c6d6','search','endpoint','acme','GET','/v1/users/{id}/**','token_bucket',200,60,20,-7,1,'{"candidate":{"limit":"80/min"},"cost":{"GET /v1/search/all":5},"description":"ünïcode 🚦 and \"quotes\" it''s","exempt":[{"api_key":"internal"},{"ip":"10.0.0.0/8","reason":"office","until":"2027-01-01"}],"match":{"plan":["bulk","free"],"region":{"not":"eu"}},"missing":"deny","mode":"shadow","on_store_failure":{"shed":"critical"},"per":["user","path"],"stop":true,"tiers":{"default":"free","free":"10/min","gold":{"burst":7,"limit":"50/min"}}}',2,NULL,1800000000000000,1800000014000000);
INSERT INTO rate_limit_rules VALUES(2,'4609fe03-e7c3-486f-9864-a19d4f0dcfd2','per_client','global',NULL,NULL,NULL,NULL,10,1,NULL,0,1,'{}',3,NULL,1800000001000000,1800000014000000);
INSERT INTO rate_limit_rules VALUES(3,'f8dde98a-319c-43f5-ae1d-02ed59d0f18b','acme/sub','tenant','acme',NULL,NULL,'fixed_window',5,3600,NULL,0,1,'{"staggered":true}',1,NULL,1800000002000000,1800000002000000);
INSERT INTO rate_limit_rules VALUES(4,'3b8afa8b-6d87-4e2d-ac9e-3e8e7460cf80','jobs','global',NULL,NULL,NULL,'concurrency',5,NULL,NULL,0,1,'{"lease":"30s","per":[]}',1,NULL,1800000003000000,1800000003000000);
INSERT INTO rate_limit_rules VALUES(5,'9dd8c691-751e-480e-a66c-d2c819b915bf','queue','global',NULL,NULL,NULL,'leaky_queue',NULL,NULL,NULL,0,1,'{"limit":"20/s","max_wait":"2s","queue":100}',1,NULL,1800000004000000,1800000004000000);
INSERT INTO rate_limit_rules VALUES(6,'3ea7557c-a7af-430e-9680-5154f9ec08ad','quota','global',NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,1,'{"limit":["10/s","10_000 per calendar month"],"on_store_failure":"local","utc_offset":"+05:30"}',1,NULL,1800000005000000,1800000005000000);
INSERT INTO rate_limit_rules VALUES(7,'521a75e2-03e1-4e56-8f55-109720d6d207','strict','global',NULL,NULL,NULL,'sliding_window_strict',20,61,NULL,0,1,'{"subwindows":5}',1,NULL,1800000006000000,1800000006000000);
INSERT INTO rate_limit_rules VALUES(8,'63bcdab5-ee12-4132-ac9e-d002244bbd35','warm','global',NULL,NULL,NULL,NULL,100,1,50,0,1,'{"warm_up":{"over":"10min","start":10,"steps":4}}',1,NULL,1800000007000000,1800000007000000);
INSERT INTO rate_limit_rules VALUES(9,'363bfb42-257c-4a2f-a468-791e7c207240','health','endpoint',NULL,NULL,'/health',NULL,NULL,NULL,NULL,100,1,'{"unlimited":true}',1,NULL,1800000008000000,1800000008000000);
INSERT INTO rate_limit_rules VALUES(10,'2d3696c5-4f96-48bc-add7-4e8cfca302a7','rest','global',NULL,NULL,NULL,NULL,100,60,NULL,0,1,'{"fallback":true,"replaces":["per_client"]}',1,NULL,1800000009000000,1800000009000000);
INSERT INTO rate_limit_rules VALUES(11,'14987de3-2fac-437f-bba4-a8f82041682b','by_attribute','global',NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,1,'{"cost":{"/v1/**":2,"attribute":"tokens","default":3},"limit":"9/h","match":{"method":"POST","user":{"one_of":["a","b"],"prefix":"a"}}}',1,NULL,1800000010000000,1800000010000000);
INSERT INTO rate_limit_rules VALUES(12,'819890cc-cea6-498b-8191-53dc38484cab','leaky','global',NULL,NULL,NULL,'leaky_bucket',6,86400,NULL,0,1,'{"burst":3}',1,NULL,1800000011000000,1800000011000000);
INSERT INTO rate_limit_rules VALUES(13,'dd1c01cf-0039-4019-adf8-ee1090da820d','log','global',NULL,NULL,NULL,'sliding_window_log',6,604800,NULL,0,1,'{}',1,NULL,1800000012000000,1800000012000000);
INSERT INTO rate_limit_rules VALUES(14,'dd59bf7c-4cf9-431e-98fa-d97a47108786','gone','global',NULL,NULL,NULL,NULL,1,1,NULL,0,1,'{}',2,1800000014000000,1800000013000000,1800000014000000);
INSERT INTO rate_limit_rules VALUES(15,'00000000-0000-4000-8000-00000000000b','broken','global',NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,1,'[]',1,NULL,1794955421213000,1794955421213000);
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
INSERT INTO rate_limit_exemptions VALUES(1,2,'api_key','internal','tests',1893456000000000,'ada',1800000014000000);
INSERT INTO rate_limit_exemptions VALUES(2,2,'user','42','tests',1893456000000000,'ada',1800000014000000);
INSERT INTO rate_limit_exemptions VALUES(3,2,'ip_cidr','10.0.0.0/8','tests',1893456000000000,'ada',1800000014000000);
INSERT INTO rate_limit_exemptions VALUES(4,2,'service_account','ci','tests',1893456000000000,'ada',1800000014000000);
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
INSERT INTO rate_limit_rule_audit VALUES(1,1,'rule','insert',1,NULL,'{"algorithm":"token_bucket","burstCapacity":20,"candidate":{"limit":"80/min"},"cost":{"GET /v1/search/all":5},"deletedAt":null,"description":"ünïcode 🚦 and \"quotes\" it''s","enabled":false,"exempt":[{"api_key":"internal"},{"ip":"10.0.0.0/8","reason":"office","until":"2027-01-01"}],"httpMethod":"GET","match":{"plan":["bulk","free"],"region":{"not":"eu"}},"maxRequests":100,"missing":"deny","mode":"shadow","name":"search","on_store_failure":{"shed":"critical"},"pathPattern":"/v1/users/{id}/**","per":["user","path"],"priority":-7,"ruleId":"fe97ba0f-4247-4126-877a-88cdd449c6d6","scope":"endpoint","stop":true,"tenantId":"acme","tiers":{"default":"free","free":"10/min","gold":{"burst":7,"limit":"50/min"}},"version":1,"windowSeconds":60}','ada',1800000000000000);
INSERT INTO rate_limit_rule_audit VALUES(2,2,'rule','insert',1,NULL,'{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":10,"name":"per_client","pathPattern":null,"priority":0,"ruleId":"4609fe03-e7c3-486f-9864-a19d4f0dcfd2","scope":"global","tenantId":null,"version":1,"windowSeconds":1}','ada',1800000001000000);
INSERT INTO rate_limit_rule_audit VALUES(3,3,'rule','insert',1,NULL,'{"algorithm":"fixed_window","burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":5,"name":"acme/sub","pathPattern":null,"priority":0,"ruleId":"f8dde98a-319c-43f5-ae1d-02ed59d0f18b","scope":"tenant","staggered":true,"tenantId":"acme","version":1,"windowSeconds":3600}','ada',1800000002000000);
INSERT INTO rate_limit_rule_audit VALUES(4,4,'rule','insert',1,NULL,'{"algorithm":"concurrency","burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"lease":"30s","maxRequests":5,"name":"jobs","pathPattern":null,"per":[],"priority":0,"ruleId":"3b8afa8b-6d87-4e2d-ac9e-3e8e7460cf80","scope":"global","tenantId":null,"version":1,"windowSeconds":null}','ada',1800000003000000);
INSERT INTO rate_limit_rule_audit VALUES(5,5,'rule','insert',1,NULL,'{"algorithm":"leaky_queue","burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"limit":"20/s","maxRequests":null,"max_wait":"2s","name":"queue","pathPattern":null,"priority":0,"queue":100,"ruleId":"9dd8c691-751e-480e-a66c-d2c819b915bf","scope":"global","tenantId":null,"version":1,"windowSeconds":null}','ada',1800000004000000);
INSERT INTO rate_limit_rule_audit VALUES(6,6,'rule','insert',1,NULL,'{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"limit":["10/s","10_000 per calendar month"],"maxRequests":null,"name":"quota","on_store_failure":"local","pathPattern":null,"priority":0,"ruleId":"3ea7557c-a7af-430e-9680-5154f9ec08ad","scope":"global","tenantId":null,"utc_offset":"+05:30","version":1,"windowSeconds":null}','ada',1800000005000000);
INSERT INTO rate_limit_rule_audit VALUES(7,7,'rule','insert',1,NULL,'{"algorithm":"sliding_window_strict","burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":20,"name":"strict","pathPattern":null,"priority":0,"ruleId":"521a75e2-03e1-4e56-8f55-109720d6d207","scope":"global","subwindows":5,"tenantId":null,"version":1,"windowSeconds":61}','ada',1800000006000000);
INSERT INTO rate_limit_rule_audit VALUES(8,8,'rule','insert',1,NULL,'{"algorithm":null,"burstCapacity":50,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":100,"name":"warm","pathPattern":null,"priority":0,"ruleId":"63bcdab5-ee12-4132-ac9e-d002244bbd35","scope":"global","tenantId":null,"version":1,"warm_up":{"over":"10min","start":10,"steps":4},"windowSeconds":1}','ada',1800000007000000);
INSERT INTO rate_limit_rule_audit VALUES(9,9,'rule','insert',1,NULL,'{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":null,"name":"health","pathPattern":"/health","priority":100,"ruleId":"363bfb42-257c-4a2f-a468-791e7c207240","scope":"endpoint","tenantId":null,"unlimited":true,"version":1,"windowSeconds":null}','ada',1800000008000000);
INSERT INTO rate_limit_rule_audit VALUES(10,10,'rule','insert',1,NULL,'{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"fallback":true,"httpMethod":null,"maxRequests":100,"name":"rest","pathPattern":null,"priority":0,"replaces":["per_client"],"ruleId":"2d3696c5-4f96-48bc-add7-4e8cfca302a7","scope":"global","tenantId":null,"version":1,"windowSeconds":60}','ada',1800000009000000);
INSERT INTO rate_limit_rule_audit VALUES(11,11,'rule','insert',1,NULL,'{"algorithm":null,"burstCapacity":null,"cost":{"/v1/**":2,"attribute":"tokens","default":3},"deletedAt":null,"enabled":true,"httpMethod":null,"limit":"9/h","match":{"method":"POST","user":{"one_of":["a","b"],"prefix":"a"}},"maxRequests":null,"name":"by_attribute","pathPattern":null,"priority":0,"ruleId":"14987de3-2fac-437f-bba4-a8f82041682b","scope":"global","tenantId":null,"version":1,"windowSeconds":null}','ada',1800000010000000);
INSERT INTO rate_limit_rule_audit VALUES(12,12,'rule','insert',1,NULL,'{"algorithm":"leaky_bucket","burst":3,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":6,"name":"leaky","pathPattern":null,"priority":0,"ruleId":"819890cc-cea6-498b-8191-53dc38484cab","scope":"global","tenantId":null,"version":1,"windowSeconds":86400}','ada',1800000011000000);
INSERT INTO rate_limit_rule_audit VALUES(13,13,'rule','insert',1,NULL,'{"algorithm":"sliding_window_log","burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":6,"name":"log","pathPattern":null,"priority":0,"ruleId":"dd1c01cf-0039-4019-adf8-ee1090da820d","scope":"global","tenantId":null,"version":1,"windowSeconds":604800}','ada',1800000012000000);
INSERT INTO rate_limit_rule_audit VALUES(14,14,'rule','insert',1,NULL,'{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":1,"name":"gone","pathPattern":null,"priority":0,"ruleId":"dd59bf7c-4cf9-431e-98fa-d97a47108786","scope":"global","tenantId":null,"version":1,"windowSeconds":1}','ada',1800000013000000);
INSERT INTO rate_limit_rule_audit VALUES(15,1,'rule','update',2,'{"algorithm":"token_bucket","burstCapacity":20,"candidate":{"limit":"80/min"},"cost":{"GET /v1/search/all":5},"deletedAt":null,"description":"ünïcode 🚦 and \"quotes\" it''s","enabled":false,"exempt":[{"api_key":"internal"},{"ip":"10.0.0.0/8","reason":"office","until":"2027-01-01"}],"httpMethod":"GET","match":{"plan":["bulk","free"],"region":{"not":"eu"}},"maxRequests":100,"missing":"deny","mode":"shadow","name":"search","on_store_failure":{"shed":"critical"},"pathPattern":"/v1/users/{id}/**","per":["user","path"],"priority":-7,"ruleId":"fe97ba0f-4247-4126-877a-88cdd449c6d6","scope":"endpoint","stop":true,"tenantId":"acme","tiers":{"default":"free","free":"10/min","gold":{"burst":7,"limit":"50/min"}},"version":1,"windowSeconds":60}','{"algorithm":"token_bucket","burstCapacity":20,"candidate":{"limit":"80/min"},"cost":{"GET /v1/search/all":5},"deletedAt":null,"description":"ünïcode 🚦 and \"quotes\" it''s","enabled":true,"exempt":[{"api_key":"internal"},{"ip":"10.0.0.0/8","reason":"office","until":"2027-01-01"}],"httpMethod":"GET","match":{"plan":["bulk","free"],"region":{"not":"eu"}},"maxRequests":200,"missing":"deny","mode":"shadow","name":"search","on_store_failure":{"shed":"critical"},"pathPattern":"/v1/users/{id}/**","per":["user","path"],"priority":-7,"ruleId":"fe97ba0f-4247-4126-877a-88cdd449c6d6","scope":"endpoint","stop":true,"tenantId":"acme","tiers":{"default":"free","free":"10/min","gold":{"burst":7,"limit":"50/min"}},"version":2,"windowSeconds":60}','bob',1800000014000000);
INSERT INTO rate_limit_rule_audit VALUES(16,2,'rule','disable',2,'{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":10,"name":"per_client","pathPattern":null,"priority":0,"ruleId":"4609fe03-e7c3-486f-9864-a19d4f0dcfd2","scope":"global","tenantId":null,"version":1,"windowSeconds":1}','{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":false,"httpMethod":null,"maxRequests":10,"name":"per_client","pathPattern":null,"priority":0,"ruleId":"4609fe03-e7c3-486f-9864-a19d4f0dcfd2","scope":"global","tenantId":null,"version":2,"windowSeconds":1}','bob',1800000014000000);
INSERT INTO rate_limit_rule_audit VALUES(17,2,'rule','enable',3,'{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":false,"httpMethod":null,"maxRequests":10,"name":"per_client","pathPattern":null,"priority":0,"ruleId":"4609fe03-e7c3-486f-9864-a19d4f0dcfd2","scope":"global","tenantId":null,"version":2,"windowSeconds":1}','{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":10,"name":"per_client","pathPattern":null,"priority":0,"ruleId":"4609fe03-e7c3-486f-9864-a19d4f0dcfd2","scope":"global","tenantId":null,"version":3,"windowSeconds":1}','bob',1800000014000000);
INSERT INTO rate_limit_rule_audit VALUES(18,14,'rule','delete',2,'{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":1,"name":"gone","pathPattern":null,"priority":0,"ruleId":"dd59bf7c-4cf9-431e-98fa-d97a47108786","scope":"global","tenantId":null,"version":1,"windowSeconds":1}','{"algorithm":null,"burstCapacity":null,"deletedAt":"2027-01-15T08:00:14.000Z","enabled":true,"httpMethod":null,"maxRequests":1,"name":"gone","pathPattern":null,"priority":0,"ruleId":"dd59bf7c-4cf9-431e-98fa-d97a47108786","scope":"global","tenantId":null,"version":2,"windowSeconds":1}','bob',1800000014000000);
INSERT INTO rate_limit_rule_audit VALUES(19,2,'exemption','insert',NULL,NULL,'{"exemptionId":1,"expiresAt":"2030-01-01T00:00:00Z","reason":"tests","ruleId":"4609fe03-e7c3-486f-9864-a19d4f0dcfd2","subjectType":"api_key","subjectValue":"internal"}','ada',1800000014000000);
INSERT INTO rate_limit_rule_audit VALUES(20,2,'exemption','insert',NULL,NULL,'{"exemptionId":2,"expiresAt":"2030-01-01T00:00:00Z","reason":"tests","ruleId":"4609fe03-e7c3-486f-9864-a19d4f0dcfd2","subjectType":"user","subjectValue":"42"}','ada',1800000014000000);
INSERT INTO rate_limit_rule_audit VALUES(21,2,'exemption','insert',NULL,NULL,'{"exemptionId":3,"expiresAt":"2030-01-01T00:00:00Z","reason":"tests","ruleId":"4609fe03-e7c3-486f-9864-a19d4f0dcfd2","subjectType":"ip_cidr","subjectValue":"10.0.0.0/8"}','ada',1800000014000000);
INSERT INTO rate_limit_rule_audit VALUES(22,2,'exemption','insert',NULL,NULL,'{"exemptionId":4,"expiresAt":"2030-01-01T00:00:00Z","reason":"tests","ruleId":"4609fe03-e7c3-486f-9864-a19d4f0dcfd2","subjectType":"service_account","subjectValue":"ci"}','ada',1800000014000000);
INSERT INTO rate_limit_rule_audit VALUES(23,NULL,'key','insert',NULL,NULL,'{"effect":"boost","expiresAt":null,"factorPercent":150,"keyId":1,"reason":null,"rule":"4609fe03-e7c3-486f-9864-a19d4f0dcfd2","subject":"user:7"}','ada',1800000014000000);
INSERT INTO rate_limit_rule_audit VALUES(24,NULL,'key','insert',NULL,NULL,'{"effect":"ban","expiresAt":null,"factorPercent":null,"keyId":2,"reason":null,"rule":null,"subject":"user:7"}','ada',1800000014000000);
INSERT INTO rate_limit_rule_audit VALUES(25,NULL,'token','insert',NULL,NULL,'{"expiresAt":null,"name":"ops","revokedAt":null,"scopes":["write"],"subject":null,"tokenId":1}','ada',1800000014000000);
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
INSERT INTO rate_limit_tokens VALUES(1,'0707070707070707070707070707070707070707070707070707070707070707','ops','["write"]',NULL,'ada',1800000014000000,NULL,NULL,NULL);
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
INSERT INTO rate_limit_keys VALUES(1,'4609fe03-e7c3-486f-9864-a19d4f0dcfd2','user:7','boost',150,NULL,NULL,'ada',1800000014000000);
INSERT INTO rate_limit_keys VALUES(2,'','user:7','ban',NULL,NULL,NULL,'ada',1800000014000000);
CREATE TABLE usage_daily (
    day INTEGER NOT NULL,
    tenant_id TEXT NOT NULL,
    subject TEXT NOT NULL,
    rule TEXT NOT NULL,
    admitted_cost INTEGER NOT NULL,
    denied_cost INTEGER NOT NULL,
    PRIMARY KEY (day, tenant_id, subject, rule)
) STRICT, WITHOUT ROWID;
INSERT INTO usage_daily VALUES(20000,'acme','user:7','4609fe03-e7c3-486f-9864-a19d4f0dcfd2',5,2);
CREATE TABLE usage_flushes (
    node TEXT PRIMARY KEY,
    sequence INTEGER NOT NULL,
    flushed_at INTEGER NOT NULL
) STRICT;
INSERT INTO usage_flushes VALUES('node-a',1,1800000014000000);
CREATE TABLE rate_limit_nodes (
    node TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    seen_at INTEGER NOT NULL
) STRICT;
INSERT INTO rate_limit_nodes VALUES('node-a',9,1800000014000000);
CREATE TABLE rate_limit_revision (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    rules INTEGER NOT NULL,
    tokens INTEGER NOT NULL
) STRICT;
INSERT INTO rate_limit_revision VALUES(1,26,2);
CREATE TABLE rate_limit_changes (
    revision INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('rule', 'key')),
    row_id INTEGER NOT NULL,
    mark INTEGER NOT NULL DEFAULT (random()),
    PRIMARY KEY (revision, kind, row_id)
) STRICT, WITHOUT ROWID;
INSERT INTO rate_limit_changes VALUES(2,'rule',1,5873949525339763741);
INSERT INTO rate_limit_changes VALUES(3,'rule',2,-451250149810045854);
INSERT INTO rate_limit_changes VALUES(4,'rule',3,6417624216046345979);
INSERT INTO rate_limit_changes VALUES(5,'rule',4,-7724506951054773392);
INSERT INTO rate_limit_changes VALUES(6,'rule',5,1673129750769665586);
INSERT INTO rate_limit_changes VALUES(7,'rule',6,864152139304981026);
INSERT INTO rate_limit_changes VALUES(8,'rule',7,1219970832659510528);
INSERT INTO rate_limit_changes VALUES(9,'rule',8,5168505556389036401);
INSERT INTO rate_limit_changes VALUES(10,'rule',9,-2518426934741451081);
INSERT INTO rate_limit_changes VALUES(11,'rule',10,8979212113827357385);
INSERT INTO rate_limit_changes VALUES(12,'rule',11,-144261735085973844);
INSERT INTO rate_limit_changes VALUES(13,'rule',12,3169476510324788062);
INSERT INTO rate_limit_changes VALUES(14,'rule',13,2235516005192578498);
INSERT INTO rate_limit_changes VALUES(15,'rule',14,197292891207950704);
INSERT INTO rate_limit_changes VALUES(16,'rule',1,-8539184110554293555);
INSERT INTO rate_limit_changes VALUES(17,'rule',2,-7047249252350658100);
INSERT INTO rate_limit_changes VALUES(18,'rule',2,-2495561651979700061);
INSERT INTO rate_limit_changes VALUES(19,'rule',14,-4499993034643602024);
INSERT INTO rate_limit_changes VALUES(20,'rule',2,5559144930744161356);
INSERT INTO rate_limit_changes VALUES(21,'rule',2,-3630901723658158965);
INSERT INTO rate_limit_changes VALUES(22,'rule',2,6658246502176428291);
INSERT INTO rate_limit_changes VALUES(23,'rule',2,-4649310945548605551);
INSERT INTO rate_limit_changes VALUES(24,'key',1,-7140428261220155931);
INSERT INTO rate_limit_changes VALUES(25,'key',2,6487465814589886203);
INSERT INTO rate_limit_changes VALUES(26,'rule',15,6124145188057765307);
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('rate_limit_rules',15);
INSERT INTO sqlite_sequence VALUES('rate_limit_rule_audit',25);
INSERT INTO sqlite_sequence VALUES('rate_limit_exemptions',4);
INSERT INTO sqlite_sequence VALUES('rate_limit_keys',2);
INSERT INTO sqlite_sequence VALUES('rate_limit_tokens',1);
CREATE UNIQUE INDEX rate_limit_rules_name ON rate_limit_rules (name) WHERE deleted_at IS NULL;
CREATE INDEX rate_limit_rules_tenant ON rate_limit_rules (tenant_id, id) WHERE tenant_id IS NOT NULL;
CREATE INDEX rate_limit_exemptions_rule ON rate_limit_exemptions (rule_id, id);
CREATE INDEX rate_limit_rule_audit_rule ON rate_limit_rule_audit (rule_id, id);
CREATE INDEX rate_limit_keys_subject ON rate_limit_keys (subject);
CREATE INDEX usage_daily_tenant ON usage_daily (tenant_id, day);
CREATE INDEX usage_daily_subject ON usage_daily (subject, day);
CREATE TRIGGER rate_limit_tokens_inserted AFTER INSERT ON rate_limit_tokens
BEGIN UPDATE rate_limit_revision SET tokens = tokens + 1; END;
CREATE TRIGGER rate_limit_tokens_updated
AFTER UPDATE OF hash, scopes, subject, expires_at, revoked_at ON rate_limit_tokens
BEGIN UPDATE rate_limit_revision SET tokens = tokens + 1; END;
CREATE TRIGGER rate_limit_tokens_deleted AFTER DELETE ON rate_limit_tokens
BEGIN UPDATE rate_limit_revision SET tokens = tokens + 1; END;
CREATE TRIGGER rate_limit_changes_inserted AFTER INSERT ON rate_limit_changes
BEGIN
    UPDATE rate_limit_revision SET rules = NEW.revision;
    DELETE FROM rate_limit_changes WHERE revision <= NEW.revision - 1000;
END;
CREATE TRIGGER rate_limit_rules_inserted AFTER INSERT ON rate_limit_rules
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', NEW.id FROM rate_limit_revision;
END;
CREATE TRIGGER rate_limit_rules_updated AFTER UPDATE ON rate_limit_rules
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', NEW.id FROM rate_limit_revision;
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', OLD.id FROM rate_limit_revision WHERE OLD.id <> NEW.id;
END;
CREATE TRIGGER rate_limit_rules_deleted AFTER DELETE ON rate_limit_rules
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', OLD.id FROM rate_limit_revision;
END;
CREATE TRIGGER rate_limit_exemptions_inserted AFTER INSERT ON rate_limit_exemptions
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', NEW.rule_id FROM rate_limit_revision;
END;
CREATE TRIGGER rate_limit_exemptions_updated AFTER UPDATE ON rate_limit_exemptions
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', NEW.rule_id FROM rate_limit_revision;
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', OLD.rule_id FROM rate_limit_revision WHERE OLD.rule_id <> NEW.rule_id;
END;
CREATE TRIGGER rate_limit_exemptions_deleted AFTER DELETE ON rate_limit_exemptions
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', OLD.rule_id FROM rate_limit_revision;
END;
CREATE TRIGGER rate_limit_keys_inserted AFTER INSERT ON rate_limit_keys
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'key', NEW.id FROM rate_limit_revision;
END;
CREATE TRIGGER rate_limit_keys_updated AFTER UPDATE ON rate_limit_keys
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'key', NEW.id FROM rate_limit_revision;
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'key', OLD.id FROM rate_limit_revision WHERE OLD.id <> NEW.id;
END;
CREATE TRIGGER rate_limit_keys_deleted AFTER DELETE ON rate_limit_keys
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'key', OLD.id FROM rate_limit_revision;
END;
COMMIT;
