"""A server that speaks as much of the Hub's protocol as one data set needs."""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlparse


@contextmanager
def hub_server():
    """Its address, and the files it holds by name; all are of one revision."""
    files = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(files))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", files
    finally:
        server.shutdown()
        server.server_close()


def revision(files):
    content = json.dumps({name: hashlib.sha1(text).hexdigest() for name, text in files.items()})
    return hashlib.sha1(content.encode()).hexdigest()


def handler_of(files):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def answer(self, content=b"", code=200, **headers):
            if not isinstance(content, bytes):
                content = json.dumps(content).encode()
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            path = unquote(urlparse(self.path).path)
            if "/resolve/" in path:
                name = path.split("/resolve/")[1].partition("/")[2]
                etag = hashlib.sha1(files[name]).hexdigest()
                self.answer(files[name], ETag=f'"{etag}"', X_Repo_Commit=revision(files))
            elif "/tree/" in path:
                rows = [
                    {
                        "type": "file",
                        "path": name,
                        "size": len(content),
                        "oid": hashlib.sha1(content).hexdigest(),
                    }
                    for name, content in files.items()
                ]
                self.answer(rows, Content_Type="application/json")
            elif path.startswith("/api/datasets/somebody/networks"):
                self.answer(
                    {
                        "id": "somebody/networks",
                        "sha": revision(files),
                        "private": False,
                        "siblings": [{"rfilename": name} for name in files],
                    },
                    Content_Type="application/json",
                )
            elif path.startswith("/api/datasets/"):
                self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
            else:
                self.answer(b"a page")

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/api/validate-yaml":
                self.answer({"errors": [], "warnings": []})
            elif self.path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked['organization']}/{asked['name']}"
                self.answer({"url": f"http://{self.headers['Host']}/datasets/{name}"})
            elif "/preupload/" in self.path:
                asked = [each["path"] for each in json.loads(body)["files"]]
                plain = [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in asked]
                self.answer({"files": plain})
            elif "/commit/" in self.path:
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        value = line["value"]
                        files[value["path"]] = base64.b64decode(value["content"])
                self.answer(
                    {
                        "success": True,
                        "commitOid": revision(files),
                        "commitUrl": f"http://{self.headers['Host']}/datasets/somebody/networks/commit/{revision(files)}",
                    }
                )
            else:
                self.answer({"error": "unknown"}, 404)

    return Handler
