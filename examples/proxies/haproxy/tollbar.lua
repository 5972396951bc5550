-- Asks a Tollbar daemon whether a request may pass. HAProxy 2.5 or later.
--
--   global
--       setenv TOLLBAR_URL http://127.0.0.1:8080
--       lua-load-per-thread tollbar.lua
--   frontend ..
--       http-request lua.tollbar
--       http-response lua.tollbar
--
-- TOLLBAR_URL has the daemon's address and port, without TLS: HAProxy looks names up each time, and waits meanwhile.
-- TOLLBAR_ON_FAILURE says what follows when the daemon is down: `deny` (503, as by default) or `allow`.
-- TOLLBAR_TOKEN is a token of the daemon's --token-file.

local url = os.getenv("TOLLBAR_URL") or "http://127.0.0.1:8080"
local on_failure = os.getenv("TOLLBAR_ON_FAILURE") or "deny"
local token = os.getenv("TOLLBAR_TOKEN")
if on_failure ~= "deny" and on_failure ~= "allow" then
    error("TOLLBAR_ON_FAILURE is `" .. on_failure .. "`: write deny or allow")
end

local authority, host, port = url:match("^http://((.+):(%d+))/?$")
if not authority then
    error("TOLLBAR_URL is `" .. url .. "`: write an address and a port such as http://127.0.0.1:8080")
end
host = host:gsub("[%[%]]", "")

-- A daemon that has not answered after so many seconds is as good as down.
local TIMEOUT_S = 3

-- The longest body of a denial.
local BODY_BYTES_MAX = 65536

-- What goes from the daemon's answer into the client's response.
local HEADERS = {
    "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "x-ratelimit-degraded",
    "ratelimit-policy", "ratelimit",
}

-- What of a denial besides.
local DENIAL_HEADERS = { "content-type", "cache-control", "retry-after", "x-tollbar-decision-id" }

-- The question, as HTTP/1.1. Nothing in it is the client's but three headers, the last of which says in what form a
-- denial is wanted.
local function question(txn)
    local lines = { "GET /v1/forward-auth/haproxy HTTP/1.1", "host: " .. authority, "connection: close" }
    local function add(name, value)
        -- HAProxy lets no line break through. Were there one, it must not begin another header.
        lines[#lines + 1] = name .. ": " .. tostring(value):gsub("%c", " ")
    end
    add("x-original-method", txn.f:method())
    add("x-original-uri", txn.f:pathq())
    add("x-real-ip", txn.f:src())
    for _, name in ipairs({ "authorization", "x-api-key", "accept" }) do
        -- The whole line, of which there must be one.
        local value = txn.sf:req_fhdr(name)
        if value ~= "" and tonumber(txn.sf:req_fhdr_cnt(name)) == 1 then
            add(name, value)
        end
    end
    if token then
        add("x-tollbar-token", token)
    end
    return table.concat(lines, "\r\n") .. "\r\n\r\n"
end

-- The daemon's answer, or nil. HAProxy's own HTTP client tries four times, each with its own timeout; this tries once,
-- and all of it takes at most TIMEOUT_S.
local function exchange(socket, text)
    local function seconds()
        local now = core.now()
        return now.sec + now.usec / 1000000
    end
    local deadline = seconds() + TIMEOUT_S
    local function receive(what)
        local left = deadline - seconds()
        if left <= 0 then
            return nil
        end
        socket:settimeout(left)
        return socket:receive(what)
    end

    socket:settimeout(TIMEOUT_S)
    if not socket:connect(host, tonumber(port)) or not socket:send(text) then
        return nil
    end
    local status = tonumber((receive("*l") or ""):match("^HTTP/1%.1 (%d%d%d)"))
    -- The daemon's own statuses are below 500.
    if not status or status < 200 or status >= 500 then
        return nil
    end
    local headers = {}
    local line = receive("*l")
    while line and line ~= "" do
        local name, value = line:match("^([^:]+):%s*(.-)%s*$")
        if not name then
            return nil
        end
        name = name:lower()
        headers[name] = headers[name] or value
        line = receive("*l")
    end
    local length = tonumber(headers["content-length"] or "0")
    if not line or not length or length > BODY_BYTES_MAX then
        return nil
    end
    local body = length > 0 and receive(length) or ""
    return #body == length and { status = status, headers = headers, body = body } or nil
end

local function ask(txn)
    local socket = core.tcp()
    local asked, answer = pcall(exchange, socket, question(txn))
    socket:close()
    return asked and answer or nil
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
        headers[name] = answer.headers[name]
    end
    if answer.status == 200 then
        -- Kept with the transaction until its response comes.
        txn:set_priv(headers)
        return
    end
    for _, name in ipairs(DENIAL_HEADERS) do
        headers[name] = answer.headers[name]
    end
    refuse(txn, answer.status, answer.body, headers)
end)

core.register_action("tollbar", { "http-res" }, function(txn)
    for name, value in pairs(txn:get_priv() or {}) do
        txn.http:res_set_header(name, value)
    end
end)
