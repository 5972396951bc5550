//! Requests against rules: what applies, what it costs, what is answered when things go wrong.

mod ahead;
mod alone;
mod bypass;
mod changed;
mod changing;
mod choosing;
mod documents;
mod edges;
mod explain;
mod failing;
mod judged;
mod leases;
mod limits;
mod metering;
mod once;
mod one_rule;
mod overrides;
mod permits;
mod receipts;
mod reload;
mod reporting;
mod subjects;
mod support;
mod tallies;
