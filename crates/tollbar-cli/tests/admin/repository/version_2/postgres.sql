-- A database of schema 2, as the daemon of that version made it: `pg_dump --no-owner --inserts`.
SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

CREATE FUNCTION public.rate_limit_rows_changed() RETURNS trigger
    LANGUAGE plpgsql
    AS $_$
DECLARE
    made bigint;
    mark bigint := (random() * 9007199254740992)::bigint;
    changed text;
BEGIN
    UPDATE rate_limit_revision SET rules = rules + 1 RETURNING rules INTO made;
    changed := CASE TG_OP
        WHEN 'UPDATE' THEN format('SELECT %1$I FROM new_rows UNION SELECT %1$I FROM old_rows', TG_ARGV[1])
        WHEN 'INSERT' THEN format('SELECT DISTINCT %I FROM new_rows', TG_ARGV[1])
        WHEN 'DELETE' THEN format('SELECT DISTINCT %I FROM old_rows', TG_ARGV[1])
    END;
    IF changed IS NOT NULL THEN
        EXECUTE format(
            'INSERT INTO rate_limit_changes (revision, kind, row_id, mark) '
            'SELECT $1, $2, it.*, $3 FROM (%s LIMIT 200) it', changed
        ) USING made, TG_ARGV[0], mark;
    END IF;
    DELETE FROM rate_limit_changes it WHERE it.revision <= made - 1000;
    PERFORM pg_notify('tollbar_revision', '');
    RETURN NULL;
END $_$;

CREATE FUNCTION public.rate_limit_tokens_changed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE rate_limit_revision SET tokens = tokens + 1;
    PERFORM pg_notify('tollbar_revision', '');
    RETURN NULL;
END $$;

SET default_tablespace = '';

SET default_table_access_method = heap;

CREATE TABLE public.rate_limit_changes (
    revision bigint NOT NULL,
    kind text NOT NULL,
    row_id bigint NOT NULL,
    mark bigint NOT NULL,
    CONSTRAINT rate_limit_changes_kind_check CHECK ((kind = ANY (ARRAY['rule'::text, 'key'::text])))
);

CREATE TABLE public.rate_limit_exemptions (
    id bigint NOT NULL,
    rule_id bigint NOT NULL,
    subject_type text NOT NULL,
    subject_value text NOT NULL,
    reason text,
    expires_at timestamp with time zone,
    created_by text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT rate_limit_exemptions_subject_type_check CHECK ((subject_type = ANY (ARRAY['api_key'::text, 'user'::text, 'ip_cidr'::text, 'service_account'::text])))
);

ALTER TABLE public.rate_limit_exemptions ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.rate_limit_exemptions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.rate_limit_keys (
    id bigint NOT NULL,
    rule text DEFAULT ''::text NOT NULL,
    subject text NOT NULL,
    effect text NOT NULL,
    factor_percent integer,
    reason text,
    expires_at timestamp with time zone,
    created_by text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT rate_limit_keys_check CHECK (((effect = 'boost'::text) = (factor_percent IS NOT NULL))),
    CONSTRAINT rate_limit_keys_effect_check CHECK ((effect = ANY (ARRAY['ban'::text, 'boost'::text]))),
    CONSTRAINT rate_limit_keys_factor_percent_check CHECK (((factor_percent >= 1) AND (factor_percent <= 100000)))
);

ALTER TABLE public.rate_limit_keys ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.rate_limit_keys_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.rate_limit_nodes (
    node text NOT NULL COLLATE pg_catalog."C",
    revision bigint NOT NULL,
    seen_at timestamp with time zone NOT NULL
);

CREATE TABLE public.rate_limit_revision (
    id integer NOT NULL,
    rules bigint NOT NULL,
    tokens bigint NOT NULL,
    CONSTRAINT rate_limit_revision_id_check CHECK ((id = 1))
);

CREATE TABLE public.rate_limit_rule_audit (
    id bigint NOT NULL,
    rule_id bigint,
    kind text NOT NULL,
    action text NOT NULL,
    version bigint,
    old_row json,
    new_row json,
    actor text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT rate_limit_rule_audit_action_check CHECK ((action = ANY (ARRAY['insert'::text, 'update'::text, 'delete'::text, 'enable'::text, 'disable'::text]))),
    CONSTRAINT rate_limit_rule_audit_kind_check CHECK ((kind = ANY (ARRAY['rule'::text, 'exemption'::text, 'token'::text, 'key'::text])))
);

ALTER TABLE public.rate_limit_rule_audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.rate_limit_rule_audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.rate_limit_rules (
    id bigint NOT NULL,
    rule_uuid uuid DEFAULT gen_random_uuid() NOT NULL,
    name text NOT NULL,
    scope text NOT NULL,
    tenant_id text,
    http_method text,
    path_pattern text,
    algorithm text,
    max_requests bigint,
    window_seconds bigint,
    burst_capacity bigint,
    priority integer DEFAULT 0 NOT NULL,
    enabled boolean DEFAULT true NOT NULL,
    spec json DEFAULT '{}'::json NOT NULL,
    version bigint DEFAULT 1 NOT NULL,
    deleted_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT rate_limit_rules_max_requests_check CHECK ((max_requests > 0)),
    CONSTRAINT rate_limit_rules_scope_check CHECK ((scope = ANY (ARRAY['global'::text, 'tenant'::text, 'endpoint'::text]))),
    CONSTRAINT rate_limit_rules_window_seconds_check CHECK ((window_seconds > 0))
);

ALTER TABLE public.rate_limit_rules ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.rate_limit_rules_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.rate_limit_schema (
    number bigint NOT NULL
);

CREATE TABLE public.rate_limit_tokens (
    id bigint NOT NULL,
    hash text NOT NULL,
    name text NOT NULL,
    scopes json NOT NULL,
    subject text,
    created_by text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    last_used_at timestamp with time zone,
    revoked_at timestamp with time zone
);

ALTER TABLE public.rate_limit_tokens ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.rate_limit_tokens_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.usage_daily (
    day date NOT NULL,
    tenant_id text NOT NULL COLLATE pg_catalog."C",
    subject text NOT NULL COLLATE pg_catalog."C",
    rule text NOT NULL COLLATE pg_catalog."C",
    admitted_cost bigint NOT NULL,
    denied_cost bigint NOT NULL
);

CREATE TABLE public.usage_flushes (
    node text NOT NULL,
    sequence bigint NOT NULL,
    flushed_at timestamp with time zone NOT NULL
);

INSERT INTO public.rate_limit_changes VALUES (2, 'rule', 1, 1880989495051710);
INSERT INTO public.rate_limit_changes VALUES (3, 'rule', 2, 7715212957912828);
INSERT INTO public.rate_limit_changes VALUES (4, 'rule', 3, 951287549238700);
INSERT INTO public.rate_limit_changes VALUES (5, 'rule', 4, 1879265645480116);
INSERT INTO public.rate_limit_changes VALUES (6, 'rule', 5, 6649519243851662);
INSERT INTO public.rate_limit_changes VALUES (7, 'rule', 6, 104413622865652);
INSERT INTO public.rate_limit_changes VALUES (8, 'rule', 7, 4240077788981356);
INSERT INTO public.rate_limit_changes VALUES (9, 'rule', 8, 4755262753557096);
INSERT INTO public.rate_limit_changes VALUES (10, 'rule', 9, 6616203510281696);
INSERT INTO public.rate_limit_changes VALUES (11, 'rule', 10, 2862945201835406);
INSERT INTO public.rate_limit_changes VALUES (12, 'rule', 11, 3686843032256154);
INSERT INTO public.rate_limit_changes VALUES (13, 'rule', 12, 7009020574934682);
INSERT INTO public.rate_limit_changes VALUES (14, 'rule', 13, 2315884489244626);
INSERT INTO public.rate_limit_changes VALUES (15, 'rule', 14, 4311234709530088);
INSERT INTO public.rate_limit_changes VALUES (16, 'rule', 1, 4687941410699010);
INSERT INTO public.rate_limit_changes VALUES (17, 'rule', 2, 5752608352839140);
INSERT INTO public.rate_limit_changes VALUES (18, 'rule', 2, 4411077966787882);
INSERT INTO public.rate_limit_changes VALUES (19, 'rule', 14, 4251112766398696);
INSERT INTO public.rate_limit_changes VALUES (20, 'rule', 2, 97646995261506);
INSERT INTO public.rate_limit_changes VALUES (21, 'rule', 2, 8985472501929584);
INSERT INTO public.rate_limit_changes VALUES (22, 'rule', 2, 7566920816917546);
INSERT INTO public.rate_limit_changes VALUES (23, 'rule', 2, 5839398245747756);
INSERT INTO public.rate_limit_changes VALUES (24, 'key', 1, 3268121199053954);
INSERT INTO public.rate_limit_changes VALUES (25, 'key', 2, 7945592878039808);
INSERT INTO public.rate_limit_changes VALUES (26, 'rule', 15, 3079633534160638);

INSERT INTO public.rate_limit_exemptions OVERRIDING SYSTEM VALUE VALUES (1, 2, 'api_key', 'internal', 'tests', '2030-01-01 00:00:00+00', 'ada', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_exemptions OVERRIDING SYSTEM VALUE VALUES (2, 2, 'user', '42', 'tests', '2030-01-01 00:00:00+00', 'ada', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_exemptions OVERRIDING SYSTEM VALUE VALUES (3, 2, 'ip_cidr', '10.0.0.0/8', 'tests', '2030-01-01 00:00:00+00', 'ada', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_exemptions OVERRIDING SYSTEM VALUE VALUES (4, 2, 'service_account', 'ci', 'tests', '2030-01-01 00:00:00+00', 'ada', '2027-01-15 08:00:14+00');

INSERT INTO public.rate_limit_keys OVERRIDING SYSTEM VALUE VALUES (1, '5dec77c1-6138-4fa4-8803-fdcb7b66f66b', 'user:7', 'boost', 150, NULL, NULL, 'ada', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_keys OVERRIDING SYSTEM VALUE VALUES (2, '', 'user:7', 'ban', NULL, NULL, NULL, 'ada', '2027-01-15 08:00:14+00');

INSERT INTO public.rate_limit_nodes VALUES ('node-a', 9, '2027-01-15 08:00:14+00');

INSERT INTO public.rate_limit_revision VALUES (1, 26, 2);

INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (1, 1, 'rule', 'insert', 1, NULL, '{"algorithm":"token_bucket","burstCapacity":20,"candidate":{"limit":"80/min"},"cost":{"GET /v1/search/all":5},"deletedAt":null,"description":"ünïcode 🚦 and \"quotes\" it''s","enabled":false,"exempt":[{"api_key":"internal"},{"ip":"10.0.0.0/8","reason":"office","until":"2027-01-01"}],"httpMethod":"GET","match":{"plan":["bulk","free"],"region":{"not":"eu"}},"maxRequests":100,"missing":"deny","mode":"shadow","name":"search","on_store_failure":{"shed":"critical"},"pathPattern":"/v1/users/{id}/**","per":["user","path"],"priority":-7,"ruleId":"99bde135-95ef-4f1b-b979-60938610c9ab","scope":"endpoint","stop":true,"tenantId":"acme","tiers":{"default":"free","free":"10/min","gold":{"burst":7,"limit":"50/min"}},"version":1,"windowSeconds":60}', 'ada', '2027-01-15 08:00:00+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (2, 2, 'rule', 'insert', 1, NULL, '{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":10,"name":"per_client","pathPattern":null,"priority":0,"ruleId":"5dec77c1-6138-4fa4-8803-fdcb7b66f66b","scope":"global","tenantId":null,"version":1,"windowSeconds":1}', 'ada', '2027-01-15 08:00:01+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (3, 3, 'rule', 'insert', 1, NULL, '{"algorithm":"fixed_window","burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":5,"name":"acme/sub","pathPattern":null,"priority":0,"ruleId":"b78ce437-701a-4f39-b59a-4c2016ef0f9b","scope":"tenant","staggered":true,"tenantId":"acme","version":1,"windowSeconds":3600}', 'ada', '2027-01-15 08:00:02+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (4, 4, 'rule', 'insert', 1, NULL, '{"algorithm":"concurrency","burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"lease":"30s","maxRequests":5,"name":"jobs","pathPattern":null,"per":[],"priority":0,"ruleId":"5682cd68-89ab-4943-a938-f60912c0a7c1","scope":"global","tenantId":null,"version":1,"windowSeconds":null}', 'ada', '2027-01-15 08:00:03+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (5, 5, 'rule', 'insert', 1, NULL, '{"algorithm":"leaky_queue","burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"limit":"20/s","maxRequests":null,"max_wait":"2s","name":"queue","pathPattern":null,"priority":0,"queue":100,"ruleId":"11176f5d-3db7-4ac6-8d20-58b8b0ee2a5f","scope":"global","tenantId":null,"version":1,"windowSeconds":null}', 'ada', '2027-01-15 08:00:04+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (6, 6, 'rule', 'insert', 1, NULL, '{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"limit":["10/s","10_000 per calendar month"],"maxRequests":null,"name":"quota","on_store_failure":"local","pathPattern":null,"priority":0,"ruleId":"d66bcb8e-37e4-44bd-b58f-5eb6ac4203b7","scope":"global","tenantId":null,"utc_offset":"+05:30","version":1,"windowSeconds":null}', 'ada', '2027-01-15 08:00:05+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (7, 7, 'rule', 'insert', 1, NULL, '{"algorithm":"sliding_window_strict","burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":20,"name":"strict","pathPattern":null,"priority":0,"ruleId":"4c4d5037-b138-47cd-b62f-d82edf642e87","scope":"global","subwindows":5,"tenantId":null,"version":1,"windowSeconds":61}', 'ada', '2027-01-15 08:00:06+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (8, 8, 'rule', 'insert', 1, NULL, '{"algorithm":null,"burstCapacity":50,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":100,"name":"warm","pathPattern":null,"priority":0,"ruleId":"01015844-14c4-4569-9d78-5e9f6d54e20a","scope":"global","tenantId":null,"version":1,"warm_up":{"over":"10min","start":10,"steps":4},"windowSeconds":1}', 'ada', '2027-01-15 08:00:07+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (9, 9, 'rule', 'insert', 1, NULL, '{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":null,"name":"health","pathPattern":"/health","priority":100,"ruleId":"da9df8ef-aca1-4df6-aaad-992f912ed951","scope":"endpoint","tenantId":null,"unlimited":true,"version":1,"windowSeconds":null}', 'ada', '2027-01-15 08:00:08+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (10, 10, 'rule', 'insert', 1, NULL, '{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"fallback":true,"httpMethod":null,"maxRequests":100,"name":"rest","pathPattern":null,"priority":0,"replaces":["per_client"],"ruleId":"1d3cd3f4-53e0-421a-8a5c-c016366db409","scope":"global","tenantId":null,"version":1,"windowSeconds":60}', 'ada', '2027-01-15 08:00:09+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (11, 11, 'rule', 'insert', 1, NULL, '{"algorithm":null,"burstCapacity":null,"cost":{"/v1/**":2,"attribute":"tokens","default":3},"deletedAt":null,"enabled":true,"httpMethod":null,"limit":"9/h","match":{"method":"POST","user":{"one_of":["a","b"],"prefix":"a"}},"maxRequests":null,"name":"by_attribute","pathPattern":null,"priority":0,"ruleId":"1286bc1a-3e29-487d-9aab-f8a951762455","scope":"global","tenantId":null,"version":1,"windowSeconds":null}', 'ada', '2027-01-15 08:00:10+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (12, 12, 'rule', 'insert', 1, NULL, '{"algorithm":"leaky_bucket","burst":3,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":6,"name":"leaky","pathPattern":null,"priority":0,"ruleId":"87d030c5-2a23-4b05-a2a1-f22a95d9ed3a","scope":"global","tenantId":null,"version":1,"windowSeconds":86400}', 'ada', '2027-01-15 08:00:11+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (13, 13, 'rule', 'insert', 1, NULL, '{"algorithm":"sliding_window_log","burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":6,"name":"log","pathPattern":null,"priority":0,"ruleId":"80c58e40-1190-4f05-a415-e3d423717ea7","scope":"global","tenantId":null,"version":1,"windowSeconds":604800}', 'ada', '2027-01-15 08:00:12+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (14, 14, 'rule', 'insert', 1, NULL, '{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":1,"name":"gone","pathPattern":null,"priority":0,"ruleId":"1a1973b1-7b32-4943-87c2-292f82222958","scope":"global","tenantId":null,"version":1,"windowSeconds":1}', 'ada', '2027-01-15 08:00:13+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (15, 1, 'rule', 'update', 2, '{"algorithm":"token_bucket","burstCapacity":20,"candidate":{"limit":"80/min"},"cost":{"GET /v1/search/all":5},"deletedAt":null,"description":"ünïcode 🚦 and \"quotes\" it''s","enabled":false,"exempt":[{"api_key":"internal"},{"ip":"10.0.0.0/8","reason":"office","until":"2027-01-01"}],"httpMethod":"GET","match":{"plan":["bulk","free"],"region":{"not":"eu"}},"maxRequests":100,"missing":"deny","mode":"shadow","name":"search","on_store_failure":{"shed":"critical"},"pathPattern":"/v1/users/{id}/**","per":["user","path"],"priority":-7,"ruleId":"99bde135-95ef-4f1b-b979-60938610c9ab","scope":"endpoint","stop":true,"tenantId":"acme","tiers":{"default":"free","free":"10/min","gold":{"burst":7,"limit":"50/min"}},"version":1,"windowSeconds":60}', '{"algorithm":"token_bucket","burstCapacity":20,"candidate":{"limit":"80/min"},"cost":{"GET /v1/search/all":5},"deletedAt":null,"description":"ünïcode 🚦 and \"quotes\" it''s","enabled":true,"exempt":[{"api_key":"internal"},{"ip":"10.0.0.0/8","reason":"office","until":"2027-01-01"}],"httpMethod":"GET","match":{"plan":["bulk","free"],"region":{"not":"eu"}},"maxRequests":200,"missing":"deny","mode":"shadow","name":"search","on_store_failure":{"shed":"critical"},"pathPattern":"/v1/users/{id}/**","per":["user","path"],"priority":-7,"ruleId":"99bde135-95ef-4f1b-b979-60938610c9ab","scope":"endpoint","stop":true,"tenantId":"acme","tiers":{"default":"free","free":"10/min","gold":{"burst":7,"limit":"50/min"}},"version":2,"windowSeconds":60}', 'bob', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (16, 2, 'rule', 'disable', 2, '{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":10,"name":"per_client","pathPattern":null,"priority":0,"ruleId":"5dec77c1-6138-4fa4-8803-fdcb7b66f66b","scope":"global","tenantId":null,"version":1,"windowSeconds":1}', '{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":false,"httpMethod":null,"maxRequests":10,"name":"per_client","pathPattern":null,"priority":0,"ruleId":"5dec77c1-6138-4fa4-8803-fdcb7b66f66b","scope":"global","tenantId":null,"version":2,"windowSeconds":1}', 'bob', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (17, 2, 'rule', 'enable', 3, '{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":false,"httpMethod":null,"maxRequests":10,"name":"per_client","pathPattern":null,"priority":0,"ruleId":"5dec77c1-6138-4fa4-8803-fdcb7b66f66b","scope":"global","tenantId":null,"version":2,"windowSeconds":1}', '{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":10,"name":"per_client","pathPattern":null,"priority":0,"ruleId":"5dec77c1-6138-4fa4-8803-fdcb7b66f66b","scope":"global","tenantId":null,"version":3,"windowSeconds":1}', 'bob', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (18, 14, 'rule', 'delete', 2, '{"algorithm":null,"burstCapacity":null,"deletedAt":null,"enabled":true,"httpMethod":null,"maxRequests":1,"name":"gone","pathPattern":null,"priority":0,"ruleId":"1a1973b1-7b32-4943-87c2-292f82222958","scope":"global","tenantId":null,"version":1,"windowSeconds":1}', '{"algorithm":null,"burstCapacity":null,"deletedAt":"2027-01-15T08:00:14.000Z","enabled":true,"httpMethod":null,"maxRequests":1,"name":"gone","pathPattern":null,"priority":0,"ruleId":"1a1973b1-7b32-4943-87c2-292f82222958","scope":"global","tenantId":null,"version":2,"windowSeconds":1}', 'bob', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (19, 2, 'exemption', 'insert', NULL, NULL, '{"exemptionId":1,"expiresAt":"2030-01-01T00:00:00Z","reason":"tests","ruleId":"5dec77c1-6138-4fa4-8803-fdcb7b66f66b","subjectType":"api_key","subjectValue":"internal"}', 'ada', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (20, 2, 'exemption', 'insert', NULL, NULL, '{"exemptionId":2,"expiresAt":"2030-01-01T00:00:00Z","reason":"tests","ruleId":"5dec77c1-6138-4fa4-8803-fdcb7b66f66b","subjectType":"user","subjectValue":"42"}', 'ada', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (21, 2, 'exemption', 'insert', NULL, NULL, '{"exemptionId":3,"expiresAt":"2030-01-01T00:00:00Z","reason":"tests","ruleId":"5dec77c1-6138-4fa4-8803-fdcb7b66f66b","subjectType":"ip_cidr","subjectValue":"10.0.0.0/8"}', 'ada', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (22, 2, 'exemption', 'insert', NULL, NULL, '{"exemptionId":4,"expiresAt":"2030-01-01T00:00:00Z","reason":"tests","ruleId":"5dec77c1-6138-4fa4-8803-fdcb7b66f66b","subjectType":"service_account","subjectValue":"ci"}', 'ada', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (23, NULL, 'key', 'insert', NULL, NULL, '{"effect":"boost","expiresAt":null,"factorPercent":150,"keyId":1,"reason":null,"rule":"5dec77c1-6138-4fa4-8803-fdcb7b66f66b","subject":"user:7"}', 'ada', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (24, NULL, 'key', 'insert', NULL, NULL, '{"effect":"ban","expiresAt":null,"factorPercent":null,"keyId":2,"reason":null,"rule":null,"subject":"user:7"}', 'ada', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_rule_audit OVERRIDING SYSTEM VALUE VALUES (25, NULL, 'token', 'insert', NULL, NULL, '{"expiresAt":null,"name":"ops","revokedAt":null,"scopes":["write"],"subject":null,"tokenId":1}', 'ada', '2027-01-15 08:00:14+00');

INSERT INTO public.rate_limit_rules OVERRIDING SYSTEM VALUE VALUES (3, 'b78ce437-701a-4f39-b59a-4c2016ef0f9b', 'acme/sub', 'tenant', 'acme', NULL, NULL, 'fixed_window', 5, 3600, NULL, 0, true, '{"staggered":true}', 1, NULL, '2027-01-15 08:00:02+00', '2027-01-15 08:00:02+00');
INSERT INTO public.rate_limit_rules OVERRIDING SYSTEM VALUE VALUES (4, '5682cd68-89ab-4943-a938-f60912c0a7c1', 'jobs', 'global', NULL, NULL, NULL, 'concurrency', 5, NULL, NULL, 0, true, '{"lease":"30s","per":[]}', 1, NULL, '2027-01-15 08:00:03+00', '2027-01-15 08:00:03+00');
INSERT INTO public.rate_limit_rules OVERRIDING SYSTEM VALUE VALUES (5, '11176f5d-3db7-4ac6-8d20-58b8b0ee2a5f', 'queue', 'global', NULL, NULL, NULL, 'leaky_queue', NULL, NULL, NULL, 0, true, '{"limit":"20/s","max_wait":"2s","queue":100}', 1, NULL, '2027-01-15 08:00:04+00', '2027-01-15 08:00:04+00');
INSERT INTO public.rate_limit_rules OVERRIDING SYSTEM VALUE VALUES (6, 'd66bcb8e-37e4-44bd-b58f-5eb6ac4203b7', 'quota', 'global', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, true, '{"limit":["10/s","10_000 per calendar month"],"on_store_failure":"local","utc_offset":"+05:30"}', 1, NULL, '2027-01-15 08:00:05+00', '2027-01-15 08:00:05+00');
INSERT INTO public.rate_limit_rules OVERRIDING SYSTEM VALUE VALUES (7, '4c4d5037-b138-47cd-b62f-d82edf642e87', 'strict', 'global', NULL, NULL, NULL, 'sliding_window_strict', 20, 61, NULL, 0, true, '{"subwindows":5}', 1, NULL, '2027-01-15 08:00:06+00', '2027-01-15 08:00:06+00');
INSERT INTO public.rate_limit_rules OVERRIDING SYSTEM VALUE VALUES (8, '01015844-14c4-4569-9d78-5e9f6d54e20a', 'warm', 'global', NULL, NULL, NULL, NULL, 100, 1, 50, 0, true, '{"warm_up":{"over":"10min","start":10,"steps":4}}', 1, NULL, '2027-01-15 08:00:07+00', '2027-01-15 08:00:07+00');
INSERT INTO public.rate_limit_rules OVERRIDING SYSTEM VALUE VALUES (9, 'da9df8ef-aca1-4df6-aaad-992f912ed951', 'health', 'endpoint', NULL, NULL, '/health', NULL, NULL, NULL, NULL, 100, true, '{"unlimited":true}', 1, NULL, '2027-01-15 08:00:08+00', '2027-01-15 08:00:08+00');
INSERT INTO public.rate_limit_rules OVERRIDING SYSTEM VALUE VALUES (10, '1d3cd3f4-53e0-421a-8a5c-c016366db409', 'rest', 'global', NULL, NULL, NULL, NULL, 100, 60, NULL, 0, true, '{"fallback":true,"replaces":["per_client"]}', 1, NULL, '2027-01-15 08:00:09+00', '2027-01-15 08:00:09+00');
INSERT INTO public.rate_limit_rules OVERRIDING SYSTEM VALUE VALUES (11, '1286bc1a-3e29-487d-9aab-f8a951762455', 'by_attribute', 'global', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, true, '{"cost":{"/v1/**":2,"attribute":"tokens","default":3},"limit":"9/h","match":{"method":"POST","user":{"one_of":["a","b"],"prefix":"a"}}}', 1, NULL, '2027-01-15 08:00:10+00', '2027-01-15 08:00:10+00');
INSERT INTO public.rate_limit_rules OVERRIDING SYSTEM VALUE VALUES (12, '87d030c5-2a23-4b05-a2a1-f22a95d9ed3a', 'leaky', 'global', NULL, NULL, NULL, 'leaky_bucket', 6, 86400, NULL, 0, true, '{"burst":3}', 1, NULL, '2027-01-15 08:00:11+00', '2027-01-15 08:00:11+00');
INSERT INTO public.rate_limit_rules OVERRIDING SYSTEM VALUE VALUES (13, '80c58e40-1190-4f05-a415-e3d423717ea7', 'log', 'global', NULL, NULL, NULL, 'sliding_window_log', 6, 604800, NULL, 0, true, '{}', 1, NULL, '2027-01-15 08:00:12+00', '2027-01-15 08:00:12+00');
INSERT INTO public.rate_limit_rules OVERRIDING SYSTEM VALUE VALUES (1, '99bde135-95ef-4f1b-b979-60938610c9ab', 'search', 'endpoint', 'acme', 'GET', '/v1/users/{id}/**', 'token_bucket', 200, 60, 20, -7, true, '{"candidate":{"limit":"80/min"},"cost":{"GET /v1/search/all":5},"description":"ünïcode 🚦 and \"quotes\" it''s","exempt":[{"api_key":"internal"},{"ip":"10.0.0.0/8","reason":"office","until":"2027-01-01"}],"match":{"plan":["bulk","free"],"region":{"not":"eu"}},"missing":"deny","mode":"shadow","on_store_failure":{"shed":"critical"},"per":["user","path"],"stop":true,"tiers":{"default":"free","free":"10/min","gold":{"burst":7,"limit":"50/min"}}}', 2, NULL, '2027-01-15 08:00:00+00', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_rules OVERRIDING SYSTEM VALUE VALUES (2, '5dec77c1-6138-4fa4-8803-fdcb7b66f66b', 'per_client', 'global', NULL, NULL, NULL, NULL, 10, 1, NULL, 0, true, '{}', 3, NULL, '2027-01-15 08:00:01+00', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_rules OVERRIDING SYSTEM VALUE VALUES (14, '1a1973b1-7b32-4943-87c2-292f82222958', 'gone', 'global', NULL, NULL, NULL, NULL, 1, 1, NULL, 0, true, '{}', 2, '2027-01-15 08:00:14+00', '2027-01-15 08:00:13+00', '2027-01-15 08:00:14+00');
INSERT INTO public.rate_limit_rules OVERRIDING SYSTEM VALUE VALUES (15, '00000000-0000-4000-8000-00000000000b', 'broken', 'global', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, true, '[]', 1, NULL, '2026-11-17 22:43:42.644002+00', '2026-11-17 22:43:42.644002+00');

INSERT INTO public.rate_limit_schema VALUES (1);
INSERT INTO public.rate_limit_schema VALUES (2);

INSERT INTO public.rate_limit_tokens OVERRIDING SYSTEM VALUE VALUES (1, '0707070707070707070707070707070707070707070707070707070707070707', 'ops', '["write"]', NULL, 'ada', '2027-01-15 08:00:14+00', NULL, NULL, NULL);

INSERT INTO public.usage_daily VALUES ('2024-10-04', 'acme', 'user:7', '5dec77c1-6138-4fa4-8803-fdcb7b66f66b', 5, 2);

INSERT INTO public.usage_flushes VALUES ('node-a', 1, '2027-01-15 08:00:14+00');

SELECT pg_catalog.setval('public.rate_limit_exemptions_id_seq', 4, true);

SELECT pg_catalog.setval('public.rate_limit_keys_id_seq', 2, true);

SELECT pg_catalog.setval('public.rate_limit_rule_audit_id_seq', 25, true);

SELECT pg_catalog.setval('public.rate_limit_rules_id_seq', 15, true);

SELECT pg_catalog.setval('public.rate_limit_tokens_id_seq', 1, true);

ALTER TABLE ONLY public.rate_limit_changes
    ADD CONSTRAINT rate_limit_changes_pkey PRIMARY KEY (revision, kind, row_id);

ALTER TABLE ONLY public.rate_limit_exemptions
    ADD CONSTRAINT rate_limit_exemptions_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.rate_limit_exemptions
    ADD CONSTRAINT rate_limit_exemptions_rule_id_subject_type_subject_value_key UNIQUE (rule_id, subject_type, subject_value);

ALTER TABLE ONLY public.rate_limit_keys
    ADD CONSTRAINT rate_limit_keys_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.rate_limit_keys
    ADD CONSTRAINT rate_limit_keys_rule_subject_effect_key UNIQUE (rule, subject, effect);

ALTER TABLE ONLY public.rate_limit_nodes
    ADD CONSTRAINT rate_limit_nodes_pkey PRIMARY KEY (node);

ALTER TABLE ONLY public.rate_limit_revision
    ADD CONSTRAINT rate_limit_revision_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.rate_limit_rule_audit
    ADD CONSTRAINT rate_limit_rule_audit_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.rate_limit_rules
    ADD CONSTRAINT rate_limit_rules_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.rate_limit_rules
    ADD CONSTRAINT rate_limit_rules_rule_uuid_key UNIQUE (rule_uuid);

ALTER TABLE ONLY public.rate_limit_schema
    ADD CONSTRAINT rate_limit_schema_pkey PRIMARY KEY (number);

ALTER TABLE ONLY public.rate_limit_tokens
    ADD CONSTRAINT rate_limit_tokens_hash_key UNIQUE (hash);

ALTER TABLE ONLY public.rate_limit_tokens
    ADD CONSTRAINT rate_limit_tokens_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.usage_daily
    ADD CONSTRAINT usage_daily_pkey PRIMARY KEY (day, tenant_id, subject, rule);

ALTER TABLE ONLY public.usage_flushes
    ADD CONSTRAINT usage_flushes_pkey PRIMARY KEY (node);

CREATE INDEX rate_limit_exemptions_rule ON public.rate_limit_exemptions USING btree (rule_id, id);

CREATE INDEX rate_limit_keys_subject ON public.rate_limit_keys USING btree (subject);

CREATE INDEX rate_limit_rule_audit_rule ON public.rate_limit_rule_audit USING btree (rule_id, id);

CREATE UNIQUE INDEX rate_limit_rules_name ON public.rate_limit_rules USING btree (name) WHERE (deleted_at IS NULL);

CREATE INDEX rate_limit_rules_tenant ON public.rate_limit_rules USING btree (tenant_id, id) WHERE (tenant_id IS NOT NULL);

CREATE INDEX usage_daily_subject ON public.usage_daily USING btree (subject, day);

CREATE INDEX usage_daily_tenant ON public.usage_daily USING btree (tenant_id, day);

CREATE TRIGGER rate_limit_exemptions_deleted AFTER DELETE ON public.rate_limit_exemptions REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION public.rate_limit_rows_changed('rule', 'rule_id');

CREATE TRIGGER rate_limit_exemptions_emptied AFTER TRUNCATE ON public.rate_limit_exemptions FOR EACH STATEMENT EXECUTE FUNCTION public.rate_limit_rows_changed('rule', 'rule_id');

CREATE TRIGGER rate_limit_exemptions_inserted AFTER INSERT ON public.rate_limit_exemptions REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION public.rate_limit_rows_changed('rule', 'rule_id');

CREATE TRIGGER rate_limit_exemptions_updated AFTER UPDATE ON public.rate_limit_exemptions REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION public.rate_limit_rows_changed('rule', 'rule_id');

CREATE TRIGGER rate_limit_keys_deleted AFTER DELETE ON public.rate_limit_keys REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION public.rate_limit_rows_changed('key', 'id');

CREATE TRIGGER rate_limit_keys_emptied AFTER TRUNCATE ON public.rate_limit_keys FOR EACH STATEMENT EXECUTE FUNCTION public.rate_limit_rows_changed('key', 'id');

CREATE TRIGGER rate_limit_keys_inserted AFTER INSERT ON public.rate_limit_keys REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION public.rate_limit_rows_changed('key', 'id');

CREATE TRIGGER rate_limit_keys_updated AFTER UPDATE ON public.rate_limit_keys REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION public.rate_limit_rows_changed('key', 'id');

CREATE TRIGGER rate_limit_rules_deleted AFTER DELETE ON public.rate_limit_rules REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION public.rate_limit_rows_changed('rule', 'id');

CREATE TRIGGER rate_limit_rules_emptied AFTER TRUNCATE ON public.rate_limit_rules FOR EACH STATEMENT EXECUTE FUNCTION public.rate_limit_rows_changed('rule', 'id');

CREATE TRIGGER rate_limit_rules_inserted AFTER INSERT ON public.rate_limit_rules REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION public.rate_limit_rows_changed('rule', 'id');

CREATE TRIGGER rate_limit_rules_updated AFTER UPDATE ON public.rate_limit_rules REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION public.rate_limit_rows_changed('rule', 'id');

CREATE TRIGGER rate_limit_tokens_changed AFTER INSERT OR DELETE OR UPDATE OF hash, scopes, subject, expires_at, revoked_at OR TRUNCATE ON public.rate_limit_tokens FOR EACH STATEMENT EXECUTE FUNCTION public.rate_limit_tokens_changed();

ALTER TABLE ONLY public.rate_limit_exemptions
    ADD CONSTRAINT rate_limit_exemptions_rule_id_fkey FOREIGN KEY (rule_id) REFERENCES public.rate_limit_rules(id) ON DELETE CASCADE;
