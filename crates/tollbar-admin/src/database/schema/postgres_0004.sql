-- Where a node counts: memory, redis or redis:NAMESPACE. Nodes of older versions do not say.
ALTER TABLE rate_limit_nodes ADD COLUMN store text;
