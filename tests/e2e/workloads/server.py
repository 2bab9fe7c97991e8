"""A server of a model over HTTP, with its client; nothing is trained."""

import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch

import gpugauge.hook
from tests.e2e.workloads.loop import begun, model_and_optimizer

gpugauge.hook.watch()
model, _ = model_and_optimizer()
model.eval()


class Handler(BaseHTTPRequestHandler):
    """A handler that answers with the output of the model."""

    def do_GET(self) -> None:
        """Run the model."""
        with torch.inference_mode():
            answer = str(model(torch.randn(1, 64)).item()).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


http = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=http.serve_forever, daemon=True).start()
begun()
while True:
    urllib.request.urlopen(f"http://127.0.0.1:{http.server_port}/").read()
    time.sleep(0.1)
