"""A server of moto's, which plays AWS; prints its port, and runs until it is killed."""

import signal
import sys

from moto.server import ThreadedMotoServer

if __name__ == "__main__":
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=int(sys.argv[1]), verbose=False)
    server.start()
    print("ready", flush=True)
    signal.pause()
