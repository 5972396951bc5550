-- Who made a rule: operator, or tenant:<id>. A tenant changes its own rules only. Earlier versions did not keep this, but the
-- audit names the token that made a rule.
ALTER TABLE rate_limit_rules ADD COLUMN
    owner TEXT NOT NULL DEFAULT 'operator' CHECK (owner = 'operator' OR owner LIKE 'tenant:_%');
UPDATE rate_limit_rules SET owner = 'tenant:' || tenant_id
WHERE tenant_id IS NOT NULL AND tenant_id <> '' AND EXISTS (
    SELECT 1 FROM rate_limit_rule_audit AS made
    JOIN (
        SELECT id, CASE WHEN json_valid(scopes) THEN scopes ELSE '[]' END AS scopes FROM rate_limit_tokens
    ) AS token ON made.actor LIKE 'token:' || token.id || ' %'
    WHERE made.rule_id = rate_limit_rules.id AND made.kind = 'rule' AND made.action = 'insert'
    AND EXISTS (SELECT 1 FROM json_each(token.scopes) WHERE value = 'tenant:' || tenant_id)
    AND NOT EXISTS (SELECT 1 FROM json_each(token.scopes) WHERE value = 'admin')
);
