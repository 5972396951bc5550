//! The table of options: where each flag, variable and field of `--config` has an effect, and which test shows it.
//! An option that was given and has none is an error, and so are two that exclude each other: nothing that
//! somebody wrote is ignored in silence.
//!
//! Fields of `--config` are flags by another name, so that a row is about all three. The fields of rules are in the
//! tests beside this file: rules are shared by all protocols. A field that has no effect is refused by their reader, or
//! warned of by `Rule::warnings`.

mod source;
#[cfg(test)]
mod tests;

use thiserror::Error;
use tollbar_daemon::net::endpoint::Endpoint;

use super::Config;
pub(crate) use source::Sources;

/// A part of the daemon that is there or not, by what it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Always,
    Http,
    ForwardAuth,
    Grpc,
    Envoy,
    ExtAuthz,
    Resp,
    Gateway,
    /// A listener on an address, which speaks TLS.
    Tcp,
    Memory,
    Redis,
    Database,
}

/// An option, the parts on which it has an effect, and a test of each.
struct OptionRow {
    id: &'static str,
    cells: &'static [(Part, &'static str)],
    /// It has an effect only beside one of these.
    beside: &'static [&'static str],
}

/// Two options that exclude each other.
struct Conflict {
    options: [&'static str; 2],
    advice: &'static str,
}

use Part::{
    Always, Database, Envoy, ExtAuthz, ForwardAuth, Gateway, Grpc, Http, Memory, Redis, Resp, Tcp,
};

const fn row(id: &'static str, cells: &'static [(Part, &'static str)]) -> OptionRow {
    OptionRow { id, cells, beside: &[] }
}

impl OptionRow {
    const fn beside(self, beside: &'static [&'static str]) -> Self {
        Self { beside, ..self }
    }
}

#[rustfmt::skip]
const OPTIONS: &[OptionRow] = &[
    // Listeners
    row("listen", &[(Always, "a_unix_socket_is_for_the_group_and_goes_with_the_daemon")]),
    row("allowed_hosts", &[(Http, "no_web_page_resets_or_checks_anything_on_loopback")]),
    row("grpc", &[(Always, "a_client_may_be_there_before_the_daemon")]),
    row("resp", &[(Always, "it_can_be_switched_off_or_listen_on_a_path")]),
    row("health", &[(Always, "health_checks_are_answered_while_all_connections_are_held")]),
    row("admin", &[(Database, "a_daemon_is_asked_on_a_path_too")]),
    row("tenant_writes", &[(Database, "a_tenant_that_writes_too_often_is_told_when_to_write_again")]),
    row("upstream", &[(Gateway, "a_denial_can_be_asked_about")]),
    row("proxy", &[(Gateway, "a_denial_can_be_asked_about")]),
    row("insecure", &[(Always, "what_cannot_be_used_is_told_with_its_flag")]),
    row("tls_cert", &[(Tcp, "over_tls_only_the_right_daemon_is_told_the_token")]),
    row("tls_key", &[(Tcp, "over_tls_only_the_right_daemon_is_told_the_token")]),
    row("tls_client_ca", &[(Tcp, "with_an_authority_for_clients_only_those_it_signed_for_are_served")]),
    row("tls_client_crl", &[(Tcp, "a_revoked_client_is_refused_on_every_listener")]).beside(&["tls_client_ca"]),
    row("listen_tls", &[(Http, "each_listener_may_have_tls_of_its_own")]),
    row("grpc_tls", &[(Grpc, "each_listener_may_have_tls_of_its_own")]),
    row("resp_tls", &[(Resp, "each_listener_may_have_tls_of_its_own")]),
    row("proxy_tls", &[(Gateway, "each_listener_may_have_tls_of_its_own")]),
    row("admin_tls", &[(Database, "each_listener_may_have_tls_of_its_own")]),
    row("max_connections", &[(Always, "the_bound_holds_and_frees")]),
    row("handshake_timeout", &[(Tcp, "plain_text_is_refused_and_half_a_handshake_ends")])
        .beside(&["tls_cert", "proxy_protocol", "listen_tls", "grpc_tls", "resp_tls", "proxy_tls", "admin_tls"]),
    row("head_timeout", &[
        (Http, "a_head_or_a_body_that_never_ends_is_ended"),
        (ForwardAuth, "a_head_or_a_body_that_never_ends_is_ended"),
        (Gateway, "a_head_or_a_body_that_never_ends_is_ended"),
        (Database, "a_head_or_a_body_that_never_ends_is_ended"),
    ]),
    row("body_timeout", &[
        (Http, "a_head_or_a_body_that_never_ends_is_ended"),
        (Grpc, "a_message_that_does_not_come_is_not_waited_for"),
        (Envoy, "a_message_that_does_not_come_is_not_waited_for"),
        (ExtAuthz, "a_message_that_does_not_come_is_not_waited_for"),
        (Gateway, "a_body_that_trickles_is_ended_and_a_slow_upload_is_not"),
        (Database, "a_head_or_a_body_that_never_ends_is_ended"),
    ]),
    row("idle_timeout", &[(Always, "who_says_nothing_or_never_listens_loses_the_place")]),
    row("drain_timeout", &[(Always, "a_tunnel_that_does_not_end_is_cut_off_after_its_time")]),
    row("token_file", &[
        (Http, "tokens_are_read_again_on_a_hang_up_and_a_bad_file_leaves_them"),
        (ForwardAuth, "a_proxy_on_a_unix_socket_is_trusted_and_shows_its_token"),
        (Grpc, "a_daemon_with_a_token_answers_those_who_have_it"),
        (Envoy, "who_has_no_token_is_not_answered_and_counted_as_rejected"),
        (ExtAuthz, "every_call_of_ext_authz_that_cannot_be_read_is_denied_and_counted"),
        (Resp, "redis_cli_shows_the_token"),
    ]),

    // Rules
    row("rules", &[
        (Http, "http_answers_as_the_tables_say"),
        (ForwardAuth, "nginx_is_answered_as_the_tables_say"),
        (Grpc, "grpc_answers_as_the_tables_say"),
        (Envoy, "envoy_s_protocol_answers_as_the_tables_say"),
        (ExtAuthz, "ext_authz_answers_as_the_tables_say"),
        (Resp, "resp_answers_as_the_tables_say"),
        (Gateway, "rules_of_a_file_decide_about_the_proxy_too"),
        (Database, "rules_of_the_file_are_seen_and_not_changed"),
    ]),
    row("limit", &[
        (Http, "one_limit_holds_on_every_protocol"),
        (ForwardAuth, "one_limit_holds_on_every_protocol"),
        (Grpc, "one_limit_holds_on_every_protocol"),
        (Envoy, "limits_of_files_rules_of_the_database_and_the_one_limit_all_apply"),
        (ExtAuthz, "one_limit_holds_on_every_protocol"),
        (Resp, "one_limit_holds_on_every_protocol"),
        (Gateway, "an_upstream_and_a_limit_make_a_proxy"),
    ]),
    row("no_watch", &[(Always, "files_that_nobody_watches_are_read_when_asked")])
        .beside(&["rules", "envoy_config"]),
    row("envoy_config", &[(Envoy, "exactly_so_many_come_through_and_the_others_are_told")]),
    row("envoy_merge_domains", &[(Envoy, "files_of_one_domain_are_merged_where_that_is_wanted")])
        .beside(&["envoy_config"]),
    row("envoy_charge", &[(Envoy, "a_denied_request_pays_nothing_where_all_or_none_are_charged")]),
    row("envoy_metadata", &[(Envoy, "the_call_comes_back_as_metadata_where_that_is_wanted")]),

    // Clients
    row("headers", &[
        (Http, "clients_are_told_of_their_limits_in_the_headers_that_are_chosen"),
        (ForwardAuth, "clients_are_told_of_their_limits_in_the_headers_that_are_chosen"),
        (ExtAuthz, "clients_of_ext_authz_see_the_headers_that_are_chosen_and_come_back_at_different_times"),
        (Envoy, "exactly_so_many_come_through_and_the_others_are_told"),
        (Gateway, "clients_are_told_of_their_limits_in_the_headers_that_are_chosen"),
    ]),
    row("retry_jitter", &[
        (Http, "denied_clients_are_told_to_come_back_at_different_times"),
        (ForwardAuth, "denied_clients_are_told_to_come_back_at_different_times"),
        (ExtAuthz, "clients_of_ext_authz_see_the_headers_that_are_chosen_and_come_back_at_different_times"),
        (Envoy, "denied_clients_are_told_to_come_back_at_different_times"),
        (Gateway, "denied_clients_are_told_to_come_back_at_different_times"),
    ]),
    row("max_wait", &[
        (ForwardAuth, "an_operators_queue_of_an_hour_holds_nobody_beyond_the_cap"),
        (ExtAuthz, "a_request_waits_in_a_queue_as_the_flags_and_envoy_allow"),
        (Gateway, "an_operators_queue_of_an_hour_holds_nobody_beyond_the_cap"),
    ]),
    row("max_waiters", &[
        (ForwardAuth, "no_more_wait_than_have_a_place_and_others_charge_nothing"),
        (ExtAuthz, "a_request_waits_in_a_queue_as_the_flags_and_envoy_allow"),
        (Gateway, "no_more_wait_than_have_a_place_and_others_charge_nothing"),
    ]),
    row("trusted_proxies", &[
        (ForwardAuth, "only_trusted_proxies_are_answered"),
        (ExtAuthz, "the_client_behind_a_trusted_proxy_in_front_of_envoy_is_read_from_the_right"),
        (Gateway, "trusted_proxies_and_exempt_paths_are_as_told"),
    ]),
    row("trusted_headers", &[
        (ForwardAuth, "clients_are_counted_by_key_then_user_then_address"),
        (ExtAuthz, "a_named_header_that_is_there_twice_is_ignored_and_removed"),
        (Gateway, "clients_of_the_gateway_are_counted_by_key_then_user_then_address"),
    ]),
    row("api_keys", &[
        (ForwardAuth, "api_keys_are_read_again_on_a_hang_up_and_a_bad_file_leaves_them"),
        (ExtAuthz, "ext_authz_answers_as_the_tables_say"),
        (Gateway, "clients_of_the_gateway_are_counted_by_key_then_user_then_address"),
    ]),
    row("cost_header", &[
        (ForwardAuth, "cost_and_request_id_are_read_from_the_headers_that_are_named"),
        (ExtAuthz, "a_named_header_that_is_there_twice_is_ignored_and_removed"),
        (Gateway, "the_gateway_reads_cost_and_request_id_of_trusted_proxies_only"),
    ]),
    row("request_id_header", &[
        (ForwardAuth, "cost_and_request_id_are_read_from_the_headers_that_are_named"),
        (ExtAuthz, "a_named_header_that_is_there_twice_is_ignored_and_removed"),
        (Gateway, "the_gateway_reads_cost_and_request_id_of_trusted_proxies_only"),
    ]),
    row("criticality_header", &[
        (ForwardAuth, "the_criticality_that_a_trusted_proxy_sets_decides_who_is_shed"),
        (ExtAuthz, "without_a_store_rules_say_what_ext_authz_is_told"),
        (Gateway, "the_criticality_that_a_trusted_proxy_sets_decides_who_is_shed"),
    ]),

    // The gateway
    row("proxy_protocol", &[(Gateway, "proxy_headers_are_believed_of_trusted_peers_only")]),
    row("max_connections_per_address", &[(Gateway, "trusted_proxies_hold_any_number_and_the_clients_that_they_name_are_counted")]),
    row("min_body_rate", &[(Gateway, "a_body_that_trickles_is_ended_and_a_slow_upload_is_not")]),
    row("request_time_max", &[(Gateway, "a_body_has_a_time_in_all")]),
    row("exempt_paths", &[(Gateway, "trusted_proxies_and_exempt_paths_are_as_told")]),
    row("upstream_ca", &[(Gateway, "each_version_meets_each_other_over_tls")]),
    row("upstream_protocol", &[(Gateway, "each_version_meets_each_other_over_tls")]),
    row("upstream_host", &[(Gateway, "the_upstream_is_treated_as_the_flags_say")]),
    row("upstream_connect_timeout", &[(Gateway, "each_flag_sets_its_own_part_of_the_upstream")]),
    row("upstream_answer_timeout", &[(Gateway, "the_upstream_is_treated_as_the_flags_say")]),
    row("upstream_idle_timeout", &[(Gateway, "the_upstream_is_treated_as_the_flags_say")]),

    // Counters
    row("store", &[(Always, "two_daemons_share_a_limit_and_outlive_their_store")]),
    row("store_secret_file", &[(Redis, "daemons_with_different_secrets_in_one_namespace_are_told")]),
    row("store_ca", &[(Redis, "a_store_over_tls_is_trusted_by_its_authority_and_shown_a_certificate")]),
    row("store_cert", &[(Redis, "a_store_over_tls_is_trusted_by_its_authority_and_shown_a_certificate")]),
    row("store_key", &[(Redis, "a_store_over_tls_is_trusted_by_its_authority_and_shown_a_certificate")]),
    row("store_raw_keys", &[(Redis, "keys_in_redis_name_clients_only_where_that_is_asked_for")]),
    row("store_namespace", &[(Redis, "a_missing_permission_is_logged_with_the_line_that_grants_it")]),
    row("store_deadline", &[(Redis, "the_deadline_of_a_check_is_that_of_the_flag")]),
    row("loans", &[(Redis, "loans_are_on_or_off_as_the_flag_says")]),
    row("max_keys", &[(Memory, "each_flag_sizes_its_own_part_of_the_store")]),
    row("max_wide_keys", &[(Memory, "each_flag_sizes_its_own_part_of_the_store")]),
    row("max_log_stamps", &[(Memory, "each_flag_sizes_its_own_part_of_the_store")]),
    row("max_leases", &[(Memory, "each_flag_sizes_its_own_part_of_the_store")]),
    row("max_request_ids", &[(Memory, "request_ids_that_are_forgotten_early_are_counted_and_can_be_given_room")]),
    row("snapshot", &[(Memory, "a_snapshot_keeps_the_counters_over_a_restart")]),
    row("snapshot_every", &[(Memory, "a_snapshot_is_written_now_and_then")]).beside(&["snapshot"]),
    row("snapshot_required", &[(Memory, "a_required_snapshot_that_is_missing_or_damaged_is_not_started_without")]).beside(&["snapshot"]),
    row("receipt_secret_file", &[
        (Http, "with_a_secret_a_receipt_is_taken_after_a_restart"),
        (Grpc, "with_a_secret_receipts_and_leases_are_taken_after_a_restart"),
        (Resp, "with_a_secret_receipts_and_leases_are_taken_after_a_restart"),
    ]),
    row("request_id_replays", &[(Always, "an_id_that_is_replayed_too_often_pays_again")]),

    // Database
    row("database", &[(Always, "limits_of_files_rules_of_the_database_and_the_one_limit_all_apply")]),
    row("rules_cache", &[(Database, "a_daemon_starts_without_its_database_by_the_rules_that_it_said_last")]),
    row("node", &[(Database, "usage_is_shown_and_exported_and_nodes_are_listed")]),
    row("usage_flush", &[(Database, "a_killed_daemon_loses_no_more_than_since_its_last_write_and_the_next_doubles_nothing")]),
    row("usage_entries", &[(Database, "clients_beyond_the_entries_are_counted_as_other")]),

    // Logs and traces
    row("log_format", &[(Always, "a_log_in_json_has_an_object_a_line")]),
    row("log_level", &[(Always, "the_log_has_no_events_below_its_level")]),
    row("log_denials", &[(Always, "every_protocol_traces_and_logs_its_denials")]),
    row("otlp", &[(Always, "every_protocol_traces_and_logs_its_denials")]),
    row("trace_sample", &[(Always, "a_share_of_checks_begins_traces_which_are_sent_before_the_end")]).beside(&["otlp"]),
    row("config", &[(Always, "a_flag_goes_before_a_variable_that_before_the_file_and_that_before_the_default")]),
    row("check_config", &[(Always, "a_file_of_settings_is_checked_with_its_lines")]),
];

const CONFLICTS: &[Conflict] = &[
    Conflict {
        options: ["limit", "rules"],
        advice: "write the limit as a rule of the file, or leave one of them out",
    },
    Conflict {
        options: ["store_raw_keys", "store_secret_file"],
        advice: "keys are hashed under the secret or stand as they are: leave one of them out",
    },
];

/// An option that cannot be meant.
#[derive(Debug, Error)]
pub(crate) enum OptionError {
    #[error("{option} has no effect without {needed}: add that, or leave {option} out")]
    NoEffect { option: String, needed: String },
    #[error("{} and {} exclude each other: {advice}", options[0], options[1])]
    Conflict { options: [String; 2], advice: &'static str },
}

/// Refuses options that have no effect or exclude each other, all at once. Returns those that the file says and that
/// have none because a flag or a variable goes before the file: the file may be shared, so that they are no error.
pub(crate) fn check(config: &Config) -> Result<Vec<OptionError>, Vec<OptionError>> {
    let sources = &config.sources;
    let (mut errors, mut warnings) = (Vec::new(), Vec::new());
    for Conflict { options, advice } in CONFLICTS {
        if options.iter().all(|id| sources.is_on(id)) {
            let options = options.map(|id| sources.name_of(id));
            errors.push(OptionError::Conflict { options, advice });
        }
    }
    for row in OPTIONS.iter().filter(|row| sources.is_on(row.id)) {
        let Some(Missing { needed, deciders }) = row.missing(config) else { continue };
        let error = OptionError::NoEffect { option: sources.name_of(row.id), needed };
        let is_overridden = deciders.iter().any(|id| sources.goes_before_the_file(id));
        if sources.is_in_file(row.id) && is_overridden {
            warnings.push(error);
        } else {
            errors.push(error);
        }
    }
    if errors.is_empty() { Ok(warnings) } else { Err(errors) }
}

/// What an option lacks to have an effect, and the options that decide it.
struct Missing {
    needed: String,
    deciders: Vec<&'static str>,
}

impl OptionRow {
    fn missing(&self, config: &Config) -> Option<Missing> {
        let parts = || self.cells.iter().map(|(part, _)| *part);
        let is_beside =
            self.beside.is_empty() || self.beside.iter().any(|id| config.sources.is_on(id));
        if !parts().any(|part| part.is_in(config)) {
            let mut needed: Vec<String> = parts().map(|part| part.needed(config)).collect();
            needed.dedup();
            let deciders = parts().map(Part::decider).collect();
            return Some(Missing { needed: needed.join(" or "), deciders });
        }
        (!is_beside).then(|| {
            let needed: Vec<_> = self.beside.iter().map(|id| source::flag(id)).collect();
            Missing { needed: needed.join(" or "), deciders: self.beside.to_vec() }
        })
    }
}

impl Part {
    /// True where a daemon of this configuration has it.
    fn is_in(self, config: &Config) -> bool {
        let gateway = config.gateway.endpoint();
        match self {
            Self::Always => true,
            Self::Http | Self::ForwardAuth => config.listen != Endpoint::Off,
            Self::Grpc | Self::Envoy | Self::ExtAuthz => config.grpc != Endpoint::Off,
            Self::Resp => config.resp != Endpoint::Off,
            Self::Gateway => gateway != Endpoint::Off,
            Self::Tcp => {
                let admin = config.admin_endpoint();
                let endpoints = config.endpoints().map(|(_, endpoint)| endpoint);
                let mut endpoints = endpoints.into_iter().chain([&gateway, &admin]);
                endpoints.any(|endpoint| matches!(endpoint, Endpoint::Tcp(_)))
            }
            Self::Memory => config.store.is_memory(),
            Self::Redis => !config.store.is_memory(),
            Self::Database => config.database.database.is_some(),
        }
    }

    /// What to write for it to be there.
    fn needed(self, config: &Config) -> String {
        let has_upstream = config.gateway.upstream.is_some();
        match self {
            Self::Gateway if has_upstream => "a --proxy that is not off".to_owned(),
            Self::Gateway => "--upstream URL".to_owned(),
            Self::Tcp => "a listener on an address, such as --listen 127.0.0.1:8080".to_owned(),
            Self::Memory => "--store memory".to_owned(),
            Self::Redis => "--store redis://HOST".to_owned(),
            Self::Database => "--database DATABASE".to_owned(),
            _ => format!("a {} that is not off", source::flag(self.decider())),
        }
    }

    /// The option that says whether it is there.
    fn decider(self) -> &'static str {
        match self {
            Self::Always | Self::Http | Self::ForwardAuth | Self::Tcp => "listen",
            Self::Grpc | Self::Envoy | Self::ExtAuthz => "grpc",
            Self::Resp => "resp",
            Self::Gateway => "proxy",
            Self::Memory | Self::Redis => "store",
            Self::Database => "database",
        }
    }
}
