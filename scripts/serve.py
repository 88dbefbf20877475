"""Start the dashboard on the port asked for, or on the next free one."""

import os
import socket
import sys
from pathlib import Path

ADDRESS = "127.0.0.1"
TRIES = 100


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server does: a port in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError:
            return False
    return True


def main(argument: str) -> None:
    if not argument.isdecimal() or not 0 < int(argument) < 65536:
        sys.exit(f"PORT must be a number from 1 to 65535, not {argument!r}.")
    asked = int(argument)
    last = min(asked + TRIES, 65536) - 1
    port = next(filter(is_free, range(asked, last + 1)), None)
    if port is None:
        sys.exit(f"No free port from {asked} to {last}: choose another with make app PORT=...")
    if port != asked:
        print(f"Port {asked} is taken, so this is on {port}.")
    print(f"Roofline calculator: http://{ADDRESS}:{port}  (Ctrl-C stops it)", flush=True)
    streamlit = Path(sys.executable).with_name("streamlit")
    os.execv(streamlit, [str(streamlit), "run", "app.py", f"--server.port={port}"])


if __name__ == "__main__":
    main(sys.argv[1])
