"""A chat-completions endpoint on this machine: it answers with what a script says, and keeps what it was asked."""

import json
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def endpoint(script, status=200, delay_s=0.0):
    """(base url, list of request bodies); `script(body, number)` gives the assistant's message, or raw bytes."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body | {"path": self.path, "key": self.headers["Authorization"]})
            time.sleep(delay_s)
            answer = script(body, len(asked) - 1)
            if not isinstance(answer, bytes):
                answer = json.dumps({"choices": [{"index": 0, "message": answer}]}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            with suppress(OSError):  # a client that has stopped waiting
                self.wfile.write(answer)

        def log_message(self, format, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def tool_call(name, arguments, number=0):
    """An assistant's message with one call object."""
    function = {"name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}
