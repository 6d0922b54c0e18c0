"""A loopback OpenAI-compatible server whose model is a function, with injectable faults.

`Scripted(say)`: `say(messages) -> text` is the model. `faults(number) -> str | None` is the fault
of the request of that number: "429", "500", "cut", "junk", "late", or None.
"""

import json
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Handles one request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = (
        True  # otherwise the body waits 40 ms for the acknowledgement of the header
    )

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server: Scripted = self.server
        with server.lock:
            number = server.asked
            server.asked += 1
            server.running += 1
            server.most = max(server.most, server.running)
            if server.keep:
                server.bodies.append(body)
        try:
            self.answer(server, number, body)
        finally:
            with server.lock:
                server.running -= 1

    def answer(self, server, number, body):
        time.sleep(server.delay_s)
        fault = server.faults(number)
        server.made[fault] += 1
        key = self.headers.get("Authorization", "")
        if server.key and key != f"Bearer {server.key}":
            return self.reply(401, {"error": {"message": "no such key"}})
        if body["model"] != server.model:
            return self.reply(404, {"error": {"message": f"no model {body['model']!r}"}})
        if fault == "late":
            time.sleep(server.late_s)
        if fault in ("429", "500"):
            return self.reply(int(fault), {"error": {"message": "not now"}})
        if fault == "junk":
            return self.reply(200, {"choices": "none"})
        whole = server.whole(body)
        if whole is not None:
            return self.reply(*(whole if isinstance(whole, tuple) else (200, whole)))
        said = server.say(body["messages"])
        if said is None:
            words = {"error": {"message": "the maximum context length is exceeded"}}
            return self.reply(400, words)
        message = said if isinstance(said, dict) else {"role": "assistant", "content": said}
        text = json.dumps(message)
        size = sum(len(str(m["content"]).split()) for m in body["messages"])
        usage = {"prompt_tokens": size, "completion_tokens": len(text.split())}
        whole = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
        return self.reply(200, whole, cut=fault == "cut")

    def reply(self, status, value, cut=False):
        body = json.dumps(value).encode()
        with suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if cut else body)
            if cut:
                self.wfile.flush()
                self.close_connection = True

    def log_message(self, *_):
        pass


class Scripted(ThreadingHTTPServer):
    """The server; a context manager that runs it."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, say, faults=lambda number: None, *, delay_s=0.0, late_s=0.0, key=""):
        super().__init__(("127.0.0.1", 0), Handler)
        self.say, self.faults, self.delay_s, self.late_s = say, faults, delay_s, late_s
        self.whole = lambda body: None  # another reply, or (status, reply)
        self.key, self.model, self.keep = key, "scripted", False
        self.lock, self.made, self.bodies = threading.Lock(), Counter(), []
        self.asked = self.running = self.most = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request, client_address):
        """Ignore clients that disconnect."""

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_exc):
        self.shutdown()
        self.server_close()
