"""Run as a program in a process of its own: `download_weights` under a guard that counts attempts to connect.

Prints the folder or the error's line, then the number of attempts. Arguments: model id, source.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

attempts: list[object] = []


def refuse(*arguments: object, **_: object) -> Any:
    attempts.append(arguments)
    raise OSError("connections are not allowed here")


def main() -> None:
    guarded: Any = socket
    guarded.socket.connect = refuse
    guarded.socket.connect_ex = refuse
    guarded.socket.sendto = refuse
    guarded.getaddrinfo = refuse
    guarded.create_connection = refuse
    from text_generation_server.download import DownloadError, download_weights

    try:
        print(download_weights(sys.argv[1], source=sys.argv[2]))
    except DownloadError as error:
        print(error)
    print(len(attempts))


if __name__ == "__main__":
    main()
