-- Which rows the last thousand revisions changed, so that nodes read those and not all. An exemption is a
-- change of its rule. A mark tells a revision from another of the same number, which a database that was
-- restored may come to.
CREATE TABLE rate_limit_changes (
    revision INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('rule', 'key')),
    row_id INTEGER NOT NULL,
    mark INTEGER NOT NULL DEFAULT (random()),
    PRIMARY KEY (revision, kind, row_id)
) STRICT, WITHOUT ROWID;

-- A change is written down, and that makes it the next revision.
CREATE TRIGGER rate_limit_changes_inserted AFTER INSERT ON rate_limit_changes
BEGIN
    UPDATE rate_limit_revision SET rules = NEW.revision;
    DELETE FROM rate_limit_changes WHERE revision <= NEW.revision - 1000;
END;

DROP TRIGGER rate_limit_rules_inserted;
CREATE TRIGGER rate_limit_rules_inserted AFTER INSERT ON rate_limit_rules
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', NEW.id FROM rate_limit_revision;
END;
DROP TRIGGER rate_limit_rules_updated;
CREATE TRIGGER rate_limit_rules_updated AFTER UPDATE ON rate_limit_rules
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', NEW.id FROM rate_limit_revision;
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', OLD.id FROM rate_limit_revision WHERE OLD.id <> NEW.id;
END;
DROP TRIGGER rate_limit_rules_deleted;
CREATE TRIGGER rate_limit_rules_deleted AFTER DELETE ON rate_limit_rules
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', OLD.id FROM rate_limit_revision;
END;
DROP TRIGGER rate_limit_exemptions_inserted;
CREATE TRIGGER rate_limit_exemptions_inserted AFTER INSERT ON rate_limit_exemptions
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', NEW.rule_id FROM rate_limit_revision;
END;
DROP TRIGGER rate_limit_exemptions_updated;
CREATE TRIGGER rate_limit_exemptions_updated AFTER UPDATE ON rate_limit_exemptions
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', NEW.rule_id FROM rate_limit_revision;
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', OLD.rule_id FROM rate_limit_revision WHERE OLD.rule_id <> NEW.rule_id;
END;
DROP TRIGGER rate_limit_exemptions_deleted;
CREATE TRIGGER rate_limit_exemptions_deleted AFTER DELETE ON rate_limit_exemptions
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'rule', OLD.rule_id FROM rate_limit_revision;
END;
DROP TRIGGER rate_limit_keys_inserted;
CREATE TRIGGER rate_limit_keys_inserted AFTER INSERT ON rate_limit_keys
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'key', NEW.id FROM rate_limit_revision;
END;
DROP TRIGGER rate_limit_keys_updated;
CREATE TRIGGER rate_limit_keys_updated AFTER UPDATE ON rate_limit_keys
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'key', NEW.id FROM rate_limit_revision;
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'key', OLD.id FROM rate_limit_revision WHERE OLD.id <> NEW.id;
END;
DROP TRIGGER rate_limit_keys_deleted;
CREATE TRIGGER rate_limit_keys_deleted AFTER DELETE ON rate_limit_keys
BEGIN
    INSERT INTO rate_limit_changes (revision, kind, row_id)
    SELECT rules + 1, 'key', OLD.id FROM rate_limit_revision;
END;
