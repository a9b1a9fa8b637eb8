# Runs a step's requests over one connection, one after the other. Arguments:
# address, port, TLS server name or "-" for plain HTTP, the requests' body, and
# for each request its method, path and header fields as Name=value.
import http.client
import socket
import ssl
import sys

address, port, name, body = sys.argv[1:5]
sock = socket.create_connection((address, int(port)), timeout=30)
sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
host = address
if name != "-":
    context = ssl.create_default_context()
    context.check_hostname = False  # the certificate is the stand-in's own
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    sock = context.wrap_socket(sock, server_hostname=name)
    host = name

connection = http.client.HTTPConnection(host, int(port))
connection.sock = sock
for request in sys.argv[5:]:
    method, path, *fields = request.split()
    headers = dict(field.split("=", 1) for field in fields)
    connection.request(method, path, body if method == "POST" else None, headers)
    response = connection.getresponse()
    response.read()
    if response.status != 200:
        sys.exit(f"{request}: the answer is {response.status}")
connection.close()
