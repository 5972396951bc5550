//! Requests against rules: what applies, what it costs, what is answered when things go wrong.

#![allow(clippy::let_underscore_must_use, reason = "tests may drop what they do not look at")]

mod accuracy;
mod ahead_of_clock;
mod alternatives;
mod bounds;
mod bypass;
mod changes_under_load;
mod counters_outlive_rules;
mod criticality;
mod documents;
mod edges;
mod explain;
mod fast_path;
mod leases;
mod limits;
mod look_up;
mod metering;
mod new_keys;
mod outage;
mod overrides;
mod paths;
mod permits;
mod readings;
mod receipts;
mod reload;
mod reporting;
mod request_ids;
mod reserve;
mod rule_handle;
mod rule_set_changes;
mod selection;
mod subjects;
mod support;
mod tallies;
