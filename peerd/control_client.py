"""How a command talks to a daemon: HTTP over its control socket, with nothing but the standard library.

The daemon's side is control.py. Every failure becomes a PeerError. A daemon that does not run is exit code 3, with the
reason if the data directory tells.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import Any, Final
from urllib.parse import urlencode

from peerd.datadir import DataDir
from peerd.errors import Exit, PeerError
from peerd.words import ago

ANSWER_TIMEOUT_S: Final = 30.0


class _UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to a socket file."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class ControlClient:
    """The daemon of one data directory, as seen from a command."""

    def __init__(self, data: DataDir, option: str = "", *, token: str = "") -> None:
        self.data = data
        self._token = token  # Of a client, for whom this is asked.
        self._option = option  # How a command line names this peer, for hints: " -p 3".

    def get(self, path: str, *, timeout_s: float = ANSWER_TIMEOUT_S, **query: int | str | list[str]) -> Any:
        text = urlencode(query, doseq=True)
        return self._request("GET", f"{path}?{text}" if text else path, None, timeout_s)

    def post(self, path: str, body: object = None, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        return self._request("POST", path, json.dumps(body).encode(), timeout_s)

    def _request(self, method: str, target: str, body: bytes | None, timeout_s: float) -> Any:
        connection = _UnixConnection(str(self.data.socket_path), timeout_s)
        try:
            headers = {"Content-Type": "application/json"} if body else {}
            if self._token:
                headers["Authorization"] = f"Bearer {self._token}"
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
            raise self.unreachable() from error
        except TimeoutError as error:
            raise PeerError(
                f"the daemon did not answer within {timeout_s:.0f} s",
                hint=f'Its log may tell why; process {self.data.pid()} holds "{self.data.path}".',
                exit_code=Exit.TIMEOUT,
            ) from error
        except PermissionError as error:
            raise PeerError(
                f'not allowed to talk to the daemon at "{self.data.socket_path}"',
                hint="It belongs to another user: run the command as that user.",
                exit_code=Exit.UNREACHABLE,
            ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise PeerError(
                f'the daemon at "{self.data.path}" went away before it answered',
                detail=f"{type(error).__name__}: {error}",
                hint='"peer status" shows whether it is there again.',
                exit_code=Exit.UNREACHABLE,
            ) from error
        finally:
            connection.close()
        if response.status >= 400:
            raise PeerError.from_json(answer)
        return answer

    def unreachable(self) -> PeerError:
        """Why no daemon answers, as far as the data directory can tell."""
        path, running = self.data.path, self.data.is_held()
        option = self._option
        if running:
            error, hint = (
                "the daemon is starting or stopping",
                'Try again in a moment; if it lasts, "peer status" tells why.',
            )
        elif left := self.data.left():
            network, left_at = left
            error = f'this peer left the network "{network}" {ago(time.time() - left_at)}'
            hint = f'"peer up{option}" brings it back.'
        elif self.data.network_file.exists():
            error, hint = "the peer of this data directory is not running", f'Start it with "peer up{option}".'
        else:
            error = "there is no peer here"
            hint = (
                '"peer up --peers 5" starts a network on this machine; "peer init" or "peer join TOKEN" makes one peer.'
            )
        detail = f'Data directory "{path}"' + (
            f", process {self.data.pid()}." if running else "; no daemon answers there."
        )
        return PeerError(error, detail=detail, hint=hint, exit_code=Exit.UNREACHABLE)
