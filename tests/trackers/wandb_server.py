"""A stand-in for W&B's server on the loopback: it keeps the rows of history that the client uploads, by run.

It answers the calls that wandb 0.31 makes to begin, resume and finish a run; other answers are empty.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_PROJECT = {"id": "1", "name": "moves", "entity": {"id": "1", "name": "nobody"}}


class WandbServer(ThreadingHTTPServer):
    """`rows` has each run's history in the order of its lines."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def environment(self) -> dict[str, str]:
        return {
            "WANDB_BASE_URL": f"http://127.0.0.1:{self.server_port}",
            "WANDB_API_KEY": "a" * 40,
            "WANDB_SILENT": "true",
        }

    def answer(self, operation: str, values: dict[str, Any]) -> dict[str, Any]:
        """Return the data of a GraphQL call."""
        run_id = values.get("name") or ""
        if operation == "UpsertBucket":
            is_new = run_id not in self.rows
            rows = self.rows.setdefault(run_id, [])
            bucket = {
                "id": "1",
                "name": run_id,
                "displayName": run_id,
                "config": values.get("config") or "{}",
            }
            bucket |= {"project": _PROJECT, "historyLineCount": len(rows)}
            return {"upsertBucket": {"bucket": bucket, "inserted": is_new}}
        if operation == "RunResumeStatus":
            return {"model": {**_PROJECT, "bucket": self._resumed(run_id)}}
        if operation == "Viewer":
            return {"viewer": {"id": "1", "entity": "nobody", "flags": "{}", "teams": {"edges": []}}}
        if operation == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        if operation == "ServerInfo":
            return {"serverInfo": {"cliVersionInfo": {"max_cli_version": "1.0"}}}
        if operation == "CreateRunFiles":
            address = f"{self.environment()['WANDB_BASE_URL']}/file"
            files = [{"name": name, "uploadUrl": address} for name in values["files"]]
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
        return {}

    def _resumed(self, run_id: str) -> dict[str, Any] | None:
        rows = self.rows.get(run_id)
        if not rows:
            return None
        return {
            "id": "1",
            "name": run_id,
            "summaryMetrics": json.dumps({"_step": rows[-1]["_step"]}),
            "displayName": run_id,
            "logLineCount": 0,
            "historyLineCount": len(rows),
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(rows[-1])]),
            "eventsTail": "[]",
            "config": "{}",
            "tags": [],
            "wandbConfig": json.dumps({"t": 1}),
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self._reply({})

    def do_PUT(self) -> None:
        self._body()
        self._reply({})

    def do_POST(self) -> None:
        content = json.loads(self._body())
        if self.path.endswith("/file_stream"):
            part = (content.get("files") or {}).get("wandb-history.jsonl")
            if part is not None:
                rows = self.server.rows.setdefault(self.path.split("/")[-2], [])
                rows[part["offset"] :] = [json.loads(line) for line in part["content"]]
            self._reply({"exitcode": None, "limits": {}})
            return
        found = re.search(r"(?:query|mutation)\s+(\w+)", content["query"])
        operation = "" if found is None else found[1]
        self._reply({"data": self.server.answer(operation, content.get("variables") or {})})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _reply(self, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def wandb_server() -> Iterator[WandbServer]:
    """Serve until the block ends."""
    with WandbServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
