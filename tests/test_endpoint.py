"""ChatEndpoint against a misbehaving loopback server."""

import json
import threading
import time
from contextlib import suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from drlib.endpoint import MAX_REPLY, ChatEndpoint, EndpointError, EndpointTimeout

MESSAGES = [{"role": "user", "content": "Oslo?"}]


class Server(BaseHTTPRequestHandler):
    """Server whose behaviour is selected by the first part of the path; records requests."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append((self.path, body, headers))
        # a client past its deadline disconnects
        with suppress(BrokenPipeError, ConnectionResetError):
            getattr(self, self.path.split("/")[1])()

    def good(self):
        self.reply(json.dumps({"choices": [{"message": {"content": "Norway"}}]}).encode())

    def silent(self):
        self.reply(json.dumps({"choices": [{"message": {"content": None}}]}).encode())

    def junk(self):
        self.reply(b"[" * 100_000)

    def body(self):
        """Send the body that the test has set."""
        self.reply(self.server.body, **self.server.headers)

    def refuse(self):
        """Send the refusals that the test has set, one per request, then a completion."""
        if not self.server.refusals:
            return self.good()
        status, body, headers = self.server.refusals.pop(0)
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.reply(body, status, **headers)

    def long(self):
        self.reply(b" " * (MAX_REPLY + 1))

    def gone(self):
        self.reply(b"{}", status=404)

    def cut(self):
        self.reply(b'{"choices": ', **{"Content-Length": 1000})

    def moved(self):
        self.reply(b"", status=307, Location="/good/v1/chat/completions")

    def drip_head(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        self.drip(b"X-More: yes\r\n")

    def drip_body(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        self.drip(b" ")

    def drip(self, piece):
        while not self.server.over.wait(0.05):
            self.wfile.write(piece)
            self.wfile.flush()

    def reply(self, body, status=200, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads, server.seen, server.over = True, [], threading.Event()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()


def endpoint(server, kind, **options):
    return ChatEndpoint(f"http://127.0.0.1:{server.server_port}/{kind}/v1/", "tiny", **options)


def test_request_contains_key_and_options(server):
    chat = endpoint(server, "good", api_key="secret")
    assert chat.ask(MESSAGES, temperature=0) == "Norway"
    ((path, body, headers),) = server.seen
    assert path == "/good/v1/chat/completions" and headers["authorization"] == "Bearer secret"
    assert body == {"model": "tiny", "messages": MESSAGES, "temperature": 0}


def test_environment_keys_are_not_sent(server, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "of-another-server")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert endpoint(server, "good").ask(MESSAGES) == "Norway"
    ((_, _, headers),) = server.seen
    assert "of-another-server" not in str(headers) and "authorization" not in headers


def test_completion_without_text_returns_none(server):
    assert endpoint(server, "silent").ask(MESSAGES) is None


BODIES = {
    "page": (b"<!DOCTYPE html><title>Sign in</title>", "text/html; charset=utf-8", "Sign in"),
    "stream": (b'data: {"choices": []}\n\ndata: [DONE]', "text/event-stream", "data:"),
    "banner": (b"Ollama is running", "text/plain", "Ollama is running"),
    "list": (b'[{"choices": []}]', "application/json", "choices"),
    "text": (b'"Oslo"', "application/json", "Oslo"),
    "cut": (b'{"choices": [{"message"', "application/json", "message"),
    "lines": (b'{"response": "a"}\n{"response": "b"}', "application/x-ndjson", "response"),
    "binary": (b"\x1f\x8b\x00\xff", "application/octet-stream", "x00"),
    "nested": (b"[" * 100_000, "application/json", "[[["),
    "empty": (b"", "application/json", "no content"),
}


@pytest.mark.parametrize("name", BODIES)
def test_error_names_an_unexpected_body_and_its_address(server, name):
    server.body, kind, part = BODIES[name]
    server.headers = {"Content-Type": kind}
    chat = endpoint(server, "body")
    with pytest.raises(EndpointError) as caught:
        chat.ask(MESSAGES)
    message = str(caught.value)
    assert f"{server.server_port}/body/v1/chat/completions" in message and part in message
    assert kind.partition(";")[0] in message or not server.body
    assert caught.value.is_transient and len(message) < 700


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({"error": {"message": "no credits", "code": 402}}, 402, "no credits"),
        ({"error": "model is loading"}, None, "model is loading"),
        ({"object": "error", "message": "bad model", "code": 404}, 404, "bad model"),
        ({"error": {"code": "503", "message": "busy"}, "choices": []}, 503, "busy"),
    ],
)
def test_error_with_status_200_is_an_error(server, body, status, part):
    server.body, server.headers = json.dumps(body).encode(), {}
    with pytest.raises(EndpointError, match=part) as caught:
        endpoint(server, "body").ask(MESSAGES)
    assert caught.value.status == status


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "the cause"}},
        {"error": "the cause"},
        {"detail": "the cause"},
        {"detail": [{"loc": ["body", "x"], "msg": "the cause"}]},
        {"message": "the cause", "code": 1261},
        {"errors": [{"detail": "the cause"}]},
        [{"error": {"code": 400, "message": "the cause", "status": "INVALID_ARGUMENT"}}],
        {"error": {"code": "the cause"}},
        b"the cause",
    ],
)
def test_refusals_name_the_cause(server, body):
    server.refusals = [(400, body, {})]
    with pytest.raises(EndpointError, match="HTTP 400 .*the cause"):
        endpoint(server, "refuse").ask(MESSAGES)


TOO_LONG = [
    # llama.cpp, llama-cpp-python, Gemini, TGI, Groq
    (400, {"error": {"message": "the request exceeds the available context size", "code": 400}}),
    (500, {"error": {"message": "Requested tokens (2213) exceed context window of 2048"}}),
    (400, [{"error": {"message": "The input token count (9) exceeds the maximum number (5)."}}]),
    (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048"}),
    (413, {"error": {"message": "Request too large for model `x`: Limit 6000, Requested 9000"}}),
    # Anthropic, Mistral, SGLang, Moonshot, Zhipu, xAI, Bedrock, Alibaba, GitHub, LM Studio
    (400, {"error": {"message": "prompt is too long: 208310 tokens > 200000 maximum"}}),
    (400, {"message": "Prompt contains 65673 tokens, too large for model with 32768 maximum"}),
    (400, {"message": "The input (9 tokens) is longer than the model's context length (5)."}),
    (400, {"error": {"message": "Your request exceeded model token limit : 8192"}}),
    (400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}),
    (400, {"error": "This model's maximum prompt length is 13 but the request contains 53."}),
    (400, {"message": "Input is too long for requested model."}),
    (400, {"error": {"message": "Range of input length should be [1, 30720]"}}),
    (413, {"error": {"code": "tokens_limit_reached", "message": "Max size: 8000 tokens."}}),
    (400, {"error": "Trying to keep the first 9 tokens when context the overflows."}),
    (400, {"detail": "This model's maximum context length is 4096 tokens"}),
    (400, {"detail": [{"loc": ["body"], "msg": "too many tokens: exceeded by 11326"}]}),
    (400, {"error": {"code": "context_length_exceeded"}}),
    (400, {"error": "context_length_exceeded"}),
    (400, {"error": {"type": "exceed_context_size_error", "n_ctx": 512}}),
    (400, {"code": "string_above_max_length", "param": "messages"}),
    (
        400,
        {
            "error": {
                "message": "'max_tokens' is too large: 5000. This model's maximum context "
                "length is 4096 tokens and your request has 200"
            }
        },
    ),
    (429, {"error": {"message": "Request too large for x on tokens per min (TPM)"}}),
    (413, b"<html>413 Request Entity Too Large</html>"),
]
FILTERED = [
    (400, {"error": {"code": "content_filter", "message": "The response was filtered"}}),
    (400, {"error": {"innererror": {"code": "ResponsibleAIPolicyViolation"}}}),
    (400, {"error": {"message": "Content Exists Risk"}}),
    (400, {"code": "DataInspectionFailed", "message": "Input data may be inappropriate."}),
    (403, {"error": {"message": "Your chosen model requires moderation and was flagged"}}),
    (400, {"error": {"code": "invalid_prompt", "message": "violating our usage policy"}}),
    (422, {"detail": "blocked by the guardrail"}),
]
OTHER = [
    (400, {"error": {"message": "invalid role 'tool'"}}),
    (400, {"error": {"message": "Invalid 'messages[3].tool_calls[0].id': string too long."}}),
    (400, {"error": {"message": "Invalid 'tools': array too long. Expected at most 128"}}),
    (400, {"error": {"message": "max_tokens is too large: 9000. At most 4096 completion tokens"}}),
    (401, {"error": {"message": "no such key"}}),
    (429, {"error": {"message": "Rate limit reached on tokens per min (TPM): Limit 60000"}}),
    (404, {"error": {"message": "no model"}}),
    (400, {"detail": [{"msg": "invalid", "input": {"content": "the context length is"}}]}),
]


@pytest.mark.parametrize(("status", "body"), [*TOO_LONG, *FILTERED, *OTHER])
def test_refusals_of_length_and_content_are_recognised(server, status, body):
    server.refusals = [(status, body, {})]
    with pytest.raises(EndpointError) as caught:
        endpoint(server, "refuse").ask(MESSAGES)
    error = caught.value
    assert error.is_too_long == ((status, body) in TOO_LONG)
    assert error.is_filtered == ((status, body) in FILTERED)


REJECTIONS = {
    "stop": {
        "error": {"message": "Unsupported parameter: 'stop' is not supported", "param": "stop"}
    },
    "seed": {
        "detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs"}]
    },
    "logprobs": {"error": {"message": "property 'logprobs' is unsupported"}},
    "top_logprobs": {"error": 'json: unknown field "top_logprobs"'},
    "parallel_tool_calls": {"message": "Unrecognized argument supplied: parallel_tool_calls"},
}


@pytest.mark.parametrize("name", REJECTIONS)
@pytest.mark.parametrize("status", [400, 422])
def test_rejected_optional_parameters_are_left_out_once_and_for_all(server, name, status):
    server.refusals = [(status, REJECTIONS[name], {})]
    chat = endpoint(server, "refuse")
    options = dict.fromkeys(REJECTIONS, 1) | {"temperature": 0}
    with pytest.warns(UserWarning, match=name):
        assert chat.ask(MESSAGES, **options) == "Norway"
    assert chat.ask(MESSAGES, **options) == "Norway"
    sent = [set(body) & set(options) for _, body, _ in server.seen]
    assert sent == [set(options), set(options) - {name}, set(options) - {name}]


@pytest.mark.parametrize(
    ("ours", "other", "message"),
    [
        (
            "max_tokens",
            "max_completion_tokens",
            "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
        ),
        ("max_tokens", "max_completion_tokens", "max_tokens is deprecated for this model"),
        ("max_completion_tokens", "max_tokens", 'Unknown name "max_completion_tokens"'),
        ("max_completion_tokens", "max_tokens", "`max_completion_tokens` is not permitted"),
    ],
)
def test_other_name_of_the_token_limit_is_used(server, ours, other, message):
    server.refusals = [(400, {"error": {"message": message}}, {})]
    chat = endpoint(server, "refuse")
    assert [chat.ask(MESSAGES, **{ours: 7}) for _ in range(2)] == ["Norway"] * 2
    assert [body.get(ours) for _, body, _ in server.seen] == [7, None, None]
    assert [body.get(other) for _, body, _ in server.seen] == [None, 7, 7]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.5}, "'temperature' does not support 0.5. Only the default (1) value"),
        ({"top_p": 0.9}, "Unsupported parameter: 'top_p'"),
        ({"extra_body": {"top_k": 5}}, "Extra inputs are not permitted: top_k"),
    ],
)
def test_parameter_that_changes_the_sampling_must_be_left_out_by_name(server, options, message):
    (name,) = options.get("extra_body", options)
    refusal = (400, {"error": {"message": message}}, {})
    server.refusals = [refusal]
    with pytest.raises(EndpointError, match=f"--omit {name}"):
        endpoint(server, "refuse").ask(MESSAGES, **options)
    assert endpoint(server, "good", omit=[name]).ask(MESSAGES, **options) == "Norway"
    assert name not in server.seen[-1][1] and len(server.seen) == 2


def test_both_names_of_the_token_limit_may_be_rejected(server):
    server.refusals = [
        (400, {"error": {"message": f"unsupported parameter: {name}"}}, {})
        for name in ("max_tokens", "max_completion_tokens")
    ]
    with pytest.raises(EndpointError, match="--omit max_completion_tokens"):
        endpoint(server, "refuse").ask(MESSAGES, max_tokens=7)


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"Retry-After": "7"}, 7, 7),
        ({"Retry-After": lambda: formatdate(time.time() + 3600, usegmt=True)}, 3500, 3600),
        ({"Retry-After": lambda: formatdate(time.time() + 3600, localtime=True)}, 3500, 3600),
        ({"Retry-After": lambda: formatdate(0, usegmt=True)}, 0, 0),
        ({"retry-after-ms": "1500"}, 1.5, 1.5),
        ({"Retry-After": "nan"}, 0, 0),
        ({"Retry-After": "-3"}, 0, 0),
        ({"Retry-After": "soon"}, 0, 0),
        ({}, 0, 0),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(server, headers, least, most):
    # a date is made now: tests are collected long before they run
    headers = {name: value() if callable(value) else value for name, value in headers.items()}
    server.refusals = [(429, {"error": {"message": "busy"}}, headers)]
    with pytest.raises(EndpointError) as caught:
        endpoint(server, "refuse").ask(MESSAGES)
    assert least <= caught.value.retry_after_s <= most and caught.value.is_transient


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("gone", "HTTP 404 Not Found"),
        ("moved", "HTTP 307"),
        ("long", "exceeds 1000000 bytes"),
        ("cut", "RemoteProtocolError"),
    ],
)
def test_failing_server_is_requested_once(server, kind, reason):
    with pytest.raises(EndpointError, match=reason):
        endpoint(server, kind).ask(MESSAGES)
    assert len(server.seen) == 1


@pytest.mark.parametrize("kind", ["drip_head", "drip_body"])
def test_deadline_covers_the_whole_reply(server, kind):
    start = time.monotonic()
    with pytest.raises(EndpointTimeout, match=r"timeout: no complete reply within 0\.4 s"):
        endpoint(server, kind, timeout_s=0.4).ask(MESSAGES)
    assert time.monotonic() - start < 3


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/v1", "no address", "ftp://x", "http://[", "http://x:y/v1", ""]
)
def test_unreachable_address(url):
    with pytest.raises(EndpointError):
        ChatEndpoint(url, "tiny", timeout_s=5).ask(MESSAGES)


class Closing(BaseHTTPRequestHandler):
    """Server that keeps connections, but drops a request that comes on one idle for over 2 s."""

    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.server.connections += 1
        self.last = time.monotonic()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if time.monotonic() - self.last > 2.0:
            self.close_connection = True
            return
        body = json.dumps({"choices": [{"message": {"content": "Norway"}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.last = time.monotonic()

    def log_message(self, *_):
        pass


def test_idle_connections_are_not_used_again():
    with ThreadingHTTPServer(("127.0.0.1", 0), Closing) as server:
        server.daemon_threads, server.connections = True, 0
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        chat = endpoint(server, "good")
        assert [chat.ask(MESSAGES) for _ in range(2)] == ["Norway"] * 2
        assert server.connections == 1
        time.sleep(2.2)
        assert chat.ask(MESSAGES) == "Norway" and server.connections == 2
        server.shutdown()
