//! Requests against rules: what applies, what it costs, what is answered when things go wrong.

mod ahead;
mod changing;
mod choosing;
mod edges;
mod failing;
mod leases;
mod limits;
mod metering;
mod once;
mod one_rule;
mod overrides;
mod permits;
mod receipts;
mod reporting;
mod subjects;
mod support;
mod tallies;
