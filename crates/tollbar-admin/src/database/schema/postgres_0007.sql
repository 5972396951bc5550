-- Whether a node knows loans: 1 if it does. Nodes of older versions do not say, and take the counter of a loaned key for
-- corrupt.
ALTER TABLE rate_limit_nodes ADD COLUMN knows_loans bigint;
