"""A foreign client of tollbar.v1: grpcio, with stubs made of the .proto by its own tools, and with none at
all but what reflection says. Called as: grpc_stub.py ADDRESS PROTO_DIR TOKEN; the daemon has the rule
`five`, five requests a day for each client."""

import importlib
import os
import sys
import tempfile

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_tools import protoc

TIME_S = 20
ENVOY = "envoy.service.ratelimit.v3.RateLimitService"


def main(address, proto_dir, token):
    channel = grpc.insecure_channel(address)
    bearer = (("authorization", f"Bearer {token}"),)
    health(channel)
    reflection(address, token)
    messages, services = stubs(proto_dir)
    limiter = services.LimiterStub(channel)
    unary(limiter, messages, bearer)
    stream(limiter, messages, bearer)
    mistakes(limiter, messages, bearer)
    print("all is well")


def health(channel):
    """Open to whoever has no token."""
    stub = health_pb2_grpc.HealthStub(channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    for service in ["", "tollbar.v1.Limiter", ENVOY]:
        asked = health_pb2.HealthCheckRequest(service=service)
        assert stub.Check(asked, timeout=TIME_S).status == serving, service
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=""), timeout=TIME_S)
    assert next(watch).status == serving
    watch.cancel()
    asked = health_pb2.HealthCheckRequest(service="nothing")
    assert refused(lambda: stub.Check(asked, timeout=TIME_S)) == grpc.StatusCode.NOT_FOUND


class Bearer(grpc.StreamStreamClientInterceptor):
    def __init__(self, token):
        self.token = token

    def intercept_stream_stream(self, call, details, requests):
        details = details._replace(metadata=[("authorization", f"Bearer {self.token}")])
        return call(details, requests)


def reflection(address, token):
    """A message is put together of nothing but what the daemon tells."""
    channel = grpc.intercept_channel(grpc.insecure_channel(address), Bearer(token))
    database = ProtoReflectionDescriptorDatabase(channel)
    pool = descriptor_pool.DescriptorPool(database)

    def method(service, name):
        assert service in database.get_services(), database.get_services()
        described = pool.FindServiceByName(service).FindMethodByName(name)
        request = message_factory.GetMessageClass(described.input_type)
        response = message_factory.GetMessageClass(described.output_type)
        call = grpc.insecure_channel(address).unary_unary(
            f"/{service}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        metadata = (("authorization", f"Bearer {token}"),)
        return lambda **fields: call(request(**fields), timeout=TIME_S, metadata=metadata)

    answer = method("tollbar.v1.Limiter", "Check")(attributes={"user": "reflected"})
    assert answer.allowed and answer.rule == "five" and answer.remaining == 4, answer
    # Envoy's service, described with all that it imports.
    descriptor = {"entries": [{"key": "user", "value": "envoy"}], "hits_addend": {"value": 2}}
    answer = method(ENVOY, "ShouldRateLimit")(domain="d", descriptors=[descriptor])
    assert answer.overall_code == answer.OK, answer
    status = answer.statuses[0]
    assert (status.current_limit.name, status.limit_remaining) == ("five", 3), answer
    assert status.duration_until_reset.seconds > 0, answer


def stubs(proto_dir):
    out = tempfile.mkdtemp()
    well_known = os.path.join(os.path.dirname(protoc.__file__), "_proto")
    arguments = ["protoc", f"-I{proto_dir}", f"-I{well_known}", f"--python_out={out}"]
    arguments += [f"--grpc_python_out={out}", os.path.join(proto_dir, "tollbar/v1/tollbar.proto")]
    assert protoc.main(arguments) == 0
    sys.path.insert(0, out)
    messages = importlib.import_module("tollbar.v1.tollbar_pb2")
    return messages, importlib.import_module("tollbar.v1.tollbar_pb2_grpc")


def unary(limiter, messages, bearer):
    asked = messages.CheckRequest(method="GET", path="/x", attributes={"user": "1"})
    answers = [limiter.Check(asked, timeout=TIME_S, metadata=bearer) for _ in range(6)]
    assert [it.allowed for it in answers] == [True] * 5 + [False]
    assert [it.remaining for it in answers] == [4, 3, 2, 1, 0, 0]
    denied = answers[-1]
    assert denied.outcome == messages.OUTCOME_DENY and denied.HasField("retry_after")
    assert denied.retry_after.ToTimedelta().total_seconds() > 0
    assert denied.reset_at.ToDatetime().year >= 2024
    free = limiter.Peek(asked, timeout=TIME_S, metadata=bearer)
    assert free.remaining == 0
    limiter.Reset(messages.ResetRequest(rule="five", subject="user:1"), timeout=TIME_S, metadata=bearer)
    assert limiter.Peek(asked, timeout=TIME_S, metadata=bearer).remaining == 5


def stream(limiter, messages, bearer):
    def requests():
        for number in range(200):
            request = messages.CheckRequest(attributes={"user": f"s{number % 20}"})
            yield messages.CheckManyRequest(id=number, request=request)

    answers = list(limiter.CheckMany(requests(), timeout=TIME_S, metadata=bearer))
    assert [it.id for it in answers] == list(range(200))
    # Ten requests each of twenty clients.
    assert sum(it.answer.allowed for it in answers) == 100


def mistakes(limiter, messages, bearer):
    code = grpc.StatusCode
    asked = messages.CheckRequest()
    assert refused(lambda: limiter.Check(asked, timeout=TIME_S)) == code.UNAUTHENTICATED
    wrong = (("authorization", "Bearer nobody's"),)
    assert refused(lambda: limiter.Check(asked, timeout=TIME_S, metadata=wrong)) == code.UNAUTHENTICATED
    asked = messages.CheckRequest(rule="six")
    assert refused(lambda: limiter.Check(asked, timeout=TIME_S, metadata=bearer)) == code.NOT_FOUND
    asked = messages.CheckRequest(path="x" * 300_000)
    assert refused(lambda: limiter.Check(asked, timeout=TIME_S, metadata=bearer)) == code.OUT_OF_RANGE


def refused(call):
    try:
        return f"answered: {call()}"
    except grpc.RpcError as error:
        return error.code()


main(*sys.argv[1:])
