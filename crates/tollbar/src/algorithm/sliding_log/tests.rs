//! What no store shows: states that no check has written, and charges given back.
