"""A loopback server in place of a language model that extracts facts."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from drlib.worlds import triples


class Model(BaseHTTPRequestHandler):
    """Server that answers with `server.replies(text)`.

    The reply is a list of rows, bytes (whole body), an integer (status) or None (no answer).
    """

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = order["messages"][-1]["content"]
        self.server.seen.append((self.path, order["model"], self.headers["Authorization"], text))
        reply = self.server.replies(text)
        if reply is None:
            self.server.over.wait(20)
            return
        if isinstance(reply, int):
            self.send_error(reply)
            return
        if isinstance(reply, list):
            rows = [
                dict(zip(triples.KEYS, row, strict=True)) if isinstance(row, tuple) else row
                for row in reply
            ]
            content = f"Here you are:\n```json\n{json.dumps(rows)}\n```"
            reply = json.dumps({"choices": [{"message": {"content": content}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_):
        pass


@contextmanager
def model_server(replies):
    """Start a server whose model answers `replies(text)`; `seen` records the requests."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    server.daemon_threads = True
    server.seen = []
    server.over = threading.Event()
    server.replies = replies
    server.url = f"http://127.0.0.1:{server.server_port}/v1"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()
