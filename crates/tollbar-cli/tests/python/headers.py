"""Reads headers as structured fields (RFC 9651): a list of them on stdin as JSON, what they say on stdout."""

import json
import sys

import http_sf

LISTS = ("ratelimit-policy", "ratelimit")
ITEMS = ("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "retry-after")


def read(headers):
    told = {}
    for name in LISTS:
        if name in headers:
            items = http_sf.parse(headers[name].encode(), tltype="list")
            told[name] = [[str(item), dict(parameters)] for item, parameters in items]
    for name in ITEMS:
        if name in headers:
            told[name] = http_sf.parse(headers[name].encode(), tltype="item")[0]
    return told


json.dump([read(headers) for headers in json.load(sys.stdin)], sys.stdout)
