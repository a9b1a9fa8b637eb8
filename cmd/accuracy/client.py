"""Makes the requests of a list, one after the other, on one connection.

argv[1]: JSON {"url", "requests": [{"target", "body" bytes, "think" seconds before it}]}
"""
import http.client
import json
import ssl
import sys
import time
from urllib.parse import urlsplit

plan = json.load(open(sys.argv[1]))
url = urlsplit(plan["url"])
if url.scheme == "https":
    conn = http.client.HTTPSConnection(url.hostname, url.port, timeout=30, context=ssl._create_unverified_context())
else:
    conn = http.client.HTTPConnection(url.hostname, url.port, timeout=30)
bodies = {}
for r in plan["requests"]:
    time.sleep(r["think"])
    n = r["body"]
    if n:
        conn.request("POST", r["target"], body=bodies.setdefault(n, b"x" * n))
    else:
        conn.request("GET", r["target"])
    conn.getresponse().read()
conn.close()
