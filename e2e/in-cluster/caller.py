"""Calls a Service 50 times a second, and prints each second how many calls there were, what failed, and who answered.

Each call resolves the name, and opens a connection to one of its addresses. No call is repeated.
"""

import collections
import concurrent.futures
import http.client
import random
import socket
import sys
import threading
import time

HOST = sys.argv[1]
PERIOD = 1 / 50
LIMIT = 5

lock = threading.Lock()
failed = 0
answered = collections.Counter()


def call():
    global failed
    address = "no address"
    try:
        address = random.choice(socket.getaddrinfo(HOST, 80, type=socket.SOCK_STREAM))[4][0]
        connection = http.client.HTTPConnection(address, 80, timeout=LIMIT)
        connection.request("GET", "/", headers={"Host": HOST, "Connection": "close"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status != 200:
            raise OSError(f"status {answer.status}")
        with lock:
            answered[".".join(address.split(".")[:2])] += 1
    except (OSError, http.client.HTTPException) as error:
        with lock:
            failed += 1
        print(f"{time.strftime('%X')} {address}: {error!r}")


def report():
    while True:
        time.sleep(1)
        with lock:
            places = " ".join(f"{network}={count}" for network, count in sorted(answered.items()))
            print(f"calls={sum(answered.values()) + failed} failed={failed} {places}")


def main():
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=64)
    threading.Thread(target=report, daemon=True).start()
    due = time.monotonic()
    while True:
        pool.submit(call)
        due += PERIOD
        time.sleep(max(0, due - time.monotonic()))


main()
