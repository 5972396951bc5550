-- Which rows the last thousand revisions changed, so that nodes read those and not all. An exemption is a
-- change of its rule. A mark tells a revision from another of the same number, which a database that was
-- restored may come to.
CREATE TABLE rate_limit_changes (
    revision bigint NOT NULL,
    kind text NOT NULL CHECK (kind IN ('rule', 'key')),
    row_id bigint NOT NULL,
    mark bigint NOT NULL,
    PRIMARY KEY (revision, kind, row_id)
);

-- Of a statement that changes many rows, some are written down: more than anybody reads one by one. Of one
-- that empties a table none are, which nodes see too. The arguments: what the rows are, and the column that
-- tells which.
CREATE FUNCTION rate_limit_rows_changed() RETURNS trigger LANGUAGE plpgsql AS $$
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
END $$;

DROP TRIGGER rate_limit_rules_changed ON rate_limit_rules;
CREATE TRIGGER rate_limit_rules_inserted AFTER INSERT ON rate_limit_rules
REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rows_changed('rule', 'id');
CREATE TRIGGER rate_limit_rules_updated AFTER UPDATE ON rate_limit_rules
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rows_changed('rule', 'id');
CREATE TRIGGER rate_limit_rules_deleted AFTER DELETE ON rate_limit_rules
REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rows_changed('rule', 'id');
CREATE TRIGGER rate_limit_rules_emptied AFTER TRUNCATE ON rate_limit_rules
FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rows_changed('rule', 'id');
DROP TRIGGER rate_limit_exemptions_changed ON rate_limit_exemptions;
CREATE TRIGGER rate_limit_exemptions_inserted AFTER INSERT ON rate_limit_exemptions
REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rows_changed('rule', 'rule_id');
CREATE TRIGGER rate_limit_exemptions_updated AFTER UPDATE ON rate_limit_exemptions
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rows_changed('rule', 'rule_id');
CREATE TRIGGER rate_limit_exemptions_deleted AFTER DELETE ON rate_limit_exemptions
REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rows_changed('rule', 'rule_id');
CREATE TRIGGER rate_limit_exemptions_emptied AFTER TRUNCATE ON rate_limit_exemptions
FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rows_changed('rule', 'rule_id');
DROP TRIGGER rate_limit_keys_changed ON rate_limit_keys;
CREATE TRIGGER rate_limit_keys_inserted AFTER INSERT ON rate_limit_keys
REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rows_changed('key', 'id');
CREATE TRIGGER rate_limit_keys_updated AFTER UPDATE ON rate_limit_keys
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rows_changed('key', 'id');
CREATE TRIGGER rate_limit_keys_deleted AFTER DELETE ON rate_limit_keys
REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rows_changed('key', 'id');
CREATE TRIGGER rate_limit_keys_emptied AFTER TRUNCATE ON rate_limit_keys
FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_rows_changed('key', 'id');
DROP FUNCTION rate_limit_rules_changed();
