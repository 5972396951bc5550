"""What redis-py gets from the daemon: argv[1] is its port, argv[2] the token, or nothing."""

import sys

import redis

port = int(sys.argv[1])
token = sys.argv[2] if len(sys.argv) > 2 else None

for protocol in (2, 3):
    client = redis.Redis(port=port, password=token, protocol=protocol, client_name="tester")
    assert client.ping() is True
    assert client.echo("hello") == b"hello"
    assert client.client_getname() in (b"tester", "tester")
    assert client.client_id() > 0
    assert client.info()["server_name"] == "tollbar"

    key = f"py{protocol}"
    assert client.execute_command("CL.THROTTLE", key, 1, 1, 3600) == [0, 2, 1, -1, 3600]
    pipeline = client.pipeline(transaction=False)
    for _ in range(100):
        pipeline.execute_command("CL.THROTTLE", key, 1, 1, 3600)
    answers = pipeline.execute()
    assert answers[0] == [0, 2, 0, -1, 7200], answers[0]
    assert all(it[:3] == [1, 2, 0] and 3590 <= it[3] <= 3600 for it in answers[1:]), answers

    try:
        client.execute_command("CL.THROTTLE", key)
        raise SystemExit("no error")
    except redis.ResponseError as error:
        assert "Usage: cl.throttle" in str(error), error

    answer = client.execute_command("TB.CHECK", "GET", "/v1/a", "WITH", "user", key)
    if protocol == 2:
        answer = dict(zip(answer[::2], answer[1::2]))
    assert answer[b"allowed"] in (1, True) and answer[b"rule"] == b"per_client", answer
    assert answer[b"limit"] == 10 and answer[b"retry_after_ms"] is None, answer

if token:
    try:
        redis.Redis(port=port).ping()
        raise SystemExit("no error")
    except redis.AuthenticationError:
        pass
print("all is well")
