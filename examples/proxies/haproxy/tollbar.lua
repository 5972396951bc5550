-- Asks a Tollbar daemon whether a request may pass. HAProxy 2.5 or later.
--
--   global
--       setenv TOLLBAR_URL http://127.0.0.1:8080
--       lua-load-per-thread tollbar.lua
--   frontend ..
--       http-request lua.tollbar
--       http-response lua.tollbar
--
-- TOLLBAR_ON_FAILURE says what follows when the daemon is down: `deny` (503, as by default) or `allow`.
-- TOLLBAR_TOKEN is a token of the daemon's --token-file.

local url = os.getenv("TOLLBAR_URL") or "http://127.0.0.1:8080"
local on_failure = os.getenv("TOLLBAR_ON_FAILURE") or "deny"
local token = os.getenv("TOLLBAR_TOKEN")
if on_failure ~= "deny" and on_failure ~= "allow" then
    error("TOLLBAR_ON_FAILURE is `" .. on_failure .. "`: write deny or allow")
end

-- A daemon that does not answer soon is as good as down.
local TIMEOUT_MS = 1000

-- What goes from the daemon's answer into the client's response.
local HEADERS = {
    "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-ratelimit-degraded",
    "ratelimit-policy", "ratelimit",
}

-- What of a denial besides.
local DENIAL_HEADERS = { "content-type", "cache-control", "retry-after", "x-tollbar-decision-id" }

-- The first line of a header in the daemon's answer.
local function first(headers, name)
    return headers[name] and headers[name][0]
end

-- The question. Nothing in it is the client's but three headers, the last of which says in what form a
-- denial is wanted.
local function question(txn)
    local headers = {
        ["x-original-method"] = { txn.f:method() },
        ["x-original-uri"] = { txn.f:pathq() },
        ["x-real-ip"] = { tostring(txn.f:src()) },
    }
    for _, name in ipairs({ "authorization", "x-api-key", "accept" }) do
        -- The whole line, of which there must be one.
        local value = txn.sf:req_fhdr(name)
        if value ~= "" and tonumber(txn.sf:req_fhdr_cnt(name)) == 1 then
            headers[name] = { value }
        end
    end
    if token then
        headers["x-tollbar-token"] = { token }
    end
    return headers
end

local function ask(txn)
    local asked, answer = pcall(function()
        return core.httpclient():get{
            url = url .. "/v1/forward-auth/haproxy",
            headers = question(txn),
            timeout = TIMEOUT_MS,
        }
    end)
    -- Without an answer the status is 0 or, from HAProxy itself, 5xx. The daemon's own are below.
    if asked and answer and answer.status and answer.status >= 200 and answer.status < 500 then
        return answer
    end
    return nil
end

local function refuse(txn, status, body, headers)
    local reply = txn:reply()
    reply:set_status(status)
    for name, value in pairs(headers) do
        reply:add_header(name, value)
    end
    reply:set_body(body)
    txn:done(reply)
end

core.register_action("tollbar", { "http-req" }, function(txn)
    local answer = ask(txn)
    if not answer then
        if on_failure == "deny" then
            local body = '{"error":"unavailable","message":"Limits cannot be checked"}'
            refuse(txn, 503, body, { ["content-type"] = "application/json" })
        end
        return
    end
    local headers = {}
    for _, name in ipairs(HEADERS) do
        headers[name] = first(answer.headers, name)
    end
    if answer.status == 200 then
        -- Kept with the transaction until its response comes.
        txn:set_priv(headers)
        return
    end
    for _, name in ipairs(DENIAL_HEADERS) do
        headers[name] = first(answer.headers, name)
    end
    refuse(txn, answer.status, answer.body, headers)
end)

core.register_action("tollbar", { "http-res" }, function(txn)
    for name, value in pairs(txn:get_priv() or {}) do
        txn.http:res_set_header(name, value)
    end
end)
