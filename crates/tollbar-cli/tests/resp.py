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

    # The default pipeline of redis-py is a transaction.
    assert client.execute_command("CL.THROTTLE", f"{key}-multi", 1, 1, 3600)[0] == 0
    pipeline = client.pipeline()
    for _ in range(2):
        pipeline.execute_command("CL.THROTTLE", f"{key}-multi", 1, 1, 3600)
    pipeline.execute_command("TB.PEEK", "GET", "/v1/a", "WITH", "user", key)
    answers = pipeline.execute()
    assert [it[0] for it in answers[:2]] == [0, 1], answers
    assert len(answers) == 3 and b"remaining" in answers[2], answers
    assert client.pipeline().execute() == []
    pipeline = client.pipeline()
    pipeline.execute_command("CL.THROTTLE", f"{key}-multi", 1, 1, 3600)
    pipeline.execute_command("CL.THROTTLE", "nothing else")
    answers = pipeline.execute(raise_on_error=False)
    assert answers[0][0] == 1 and isinstance(answers[1], redis.ResponseError), answers
    pipeline = client.pipeline()
    pipeline.get("a")
    pipeline.ping()
    try:
        pipeline.execute()
        raise SystemExit("no error")
    except redis.ResponseError as error:
        assert "unknown command 'GET'" in str(error), error
    try:
        client.pipeline().watch("a")
        raise SystemExit("no error")
    except redis.ResponseError as error:
        assert "WATCH is not served" in str(error), error
    assert client.ping() is True

    denied = client.execute_command("CL.THROTTLE", f"{key}-multi", 1, 1, 3600, "WITHID")
    assert denied[0] == 1 and len(denied) == 6, denied
    assert b"`CL.THROTTLE` allows 1/3600s" in client.execute_command("TB.EXPLAIN", denied[5])

    def as_map(answer):
        return dict(zip(answer[::2], answer[1::2])) if isinstance(answer, list) else answer

    reserve = ("TB.RESERVE", "GET", "/v1/a", "COST", 4, "WITH", "user", f"{key}-reserve")
    receipt = as_map(client.execute_command(*reserve))[b"receipt"]
    settled = as_map(client.execute_command("TB.COMMIT", receipt, "COST", 1))
    charge = as_map(settled[b"charges"][0])
    assert (charge[b"reserved"], charge[b"spent"], charge[b"refunded"]) == (4, 1, 3), charge
    receipt = as_map(client.execute_command(*reserve))[b"receipt"]
    settled = as_map(client.execute_command("TB.CANCEL", receipt))
    assert as_map(settled[b"charges"][0])[b"refunded"] == 4, settled
    answer = as_map(client.execute_command("TB.PEEK", *reserve[1:3], *reserve[5:]))
    assert answer[b"remaining"] == 9, answer

if token:
    try:
        redis.Redis(port=port).ping()
        raise SystemExit("no error")
    except redis.AuthenticationError:
        pass
print("all is well")
