//! What the document of the interface says about questions of proxies.

use serde_json::{Value, json};

use super::{PREFIX, PROFILES};

/// The path, as the document has it.
pub(crate) const PATH: &str = "/v1/forward-auth/{proxy}";

/// Its operations. A document has to name a method; the daemon takes any, and anything behind the path.
pub(crate) fn operations() -> Value {
    debug_assert!(PATH.starts_with(PREFIX), "the document's path is the daemon's");
    let names: Vec<&str> = PROFILES.iter().map(|profile| profile.name).collect();
    let text = || json!({ "schema": { "type": "string" } });
    // Which of them there are is said by `--headers`.
    let names_of_limits = ["X-RateLimit-", "RateLimit-"]
        .into_iter()
        .flat_map(|prefix| ["Limit", "Remaining", "Reset"].map(|name| format!("{prefix}{name}")))
        .chain(["RateLimit-Policy", "RateLimit"].map(str::to_owned));
    let limits: Value = names_of_limits.map(|name| (name, text())).collect();
    let mut denial = limits.clone();
    for name in ["Retry-After", "X-Tollbar-Decision-Id"] {
        denial[name] = text();
    }
    let refusal = |description: &str| {
        json!({
            "description": description,
            "content": {
                "application/json": { "schema": { "$ref": "#/components/schemas/Error" } },
                "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } },
            },
        })
    };
    let denied = |description: &str| {
        let mut response = refusal(description);
        response["headers"] = denial.clone();
        response
    };
    json!({ "get": {
        "operationId": "ForwardAuth",
        "summary": "May the request that a proxy holds pass? Charges it if so. Any method, and any path \
                    below, is taken",
        "description": "Facts about the request are in the headers that this proxy sets itself, and only \
                        trusted proxies are believed.",
        "security": [{ "proxyToken": [] }],
        "parameters": [{
            "name": "proxy",
            "in": "path",
            "required": true,
            "description": "Who asks",
            "schema": { "type": "string", "enum": names },
        }],
        "responses": {
            "200": { "description": "It may pass, and has paid", "headers": limits },
            "400": refusal("The proxy is not trusted, or does not tell what is needed; nothing was charged"),
            "403": denied("nginx: not now"),
            "404": refusal("There is no such proxy"),
            "422": denied("Never: it costs more than a limit can hold; nothing was charged"),
            "429": denied("Not now; nothing was charged"),
        },
    } })
}

/// How proxies show a token.
pub(crate) fn token() -> Value {
    json!({
        "type": "apiKey",
        "in": "header",
        "name": "X-Tollbar-Token",
        "description": "The token of --token-file, from proxies: their client's Authorization is not for us",
    })
}
