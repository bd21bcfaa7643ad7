"""A PostgreSQL server of a test's own, from the system's packages: nobody else's is touched."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

PASSWORD = "geheim/4711@x"


@dataclass(frozen=True)
class Server:
    """A running server that asks for passwords, reached by a socket in its folder."""

    folder: Path

    def url(self, user: str = "boss", password: str | None = PASSWORD, database: str = "db") -> str:
        own = "" if password is None else f":{quote(password, safe='')}"
        return f"postgresql://{user}{own}@/{database}?host={self.folder}"

    def ask(self, *statements: str, database: str = "db") -> list[tuple[Any, ...]]:
        """Carry out statements as the superuser; return the rows of the last."""
        import psycopg

        rows: list[tuple[Any, ...]] = []
        with psycopg.connect(self.url(database=database), autocommit=True) as link:
            for statement in statements:
                found = link.execute(statement)  # type: ignore[arg-type]
                rows = found.fetchall() if found.description else []
        return rows


def programs() -> Path:
    """Return the folder with initdb and postgres; a test is skipped without them."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pasearch[postgres]")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: each.parent.name)
    on_path = [Path(each).resolve().parent for each in [shutil.which("initdb") or ""] if each]
    for folder in [*reversed(found), *on_path]:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    pytest.skip("PostgreSQL is not installed (initdb, postgres)")


def unprivileged() -> dict[str, Any]:
    """Return how a process is started as somebody: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            who = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL does not run as root, and there is nobody else on this machine")


@contextmanager
def server(*, durable: bool = False) -> Iterator[Server]:
    """Start a server, and end it; a durable one syncs what it commits, as is usual."""
    programs_, who = programs(), unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path is short
    try:
        (folder / "password").write_text(PASSWORD)
        if who:
            for path in (folder, folder / "password"):
                os.chown(path, who["user"], who["group"])
        quiet: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, **who}
        subprocess.run(
            [programs_ / "initdb", "-D", folder / "data", "-U", "boss", "-A", "scram-sha-256",
             "--pwfile", folder / "password", "--no-sync", "-E", "UTF8", "--locale", "C"],
            check=True, stderr=subprocess.PIPE, **quiet,
        )  # fmt: skip
        settings = {
            "listen_addresses": "", "unix_socket_directories": folder, "max_connections": 40,
            "fsync": "on" if durable else "off",
        }  # fmt: skip
        options = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
        with subprocess.Popen(
            [programs_ / "postgres", "-D", folder / "data", *options],
            stderr=subprocess.DEVNULL, **quiet,
        ) as process:  # fmt: skip
            try:
                yield _answering(Server(folder))
            finally:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answering(made: Server) -> Server:
    import psycopg

    for _ in range(200):
        try:
            made.ask("CREATE DATABASE db", database="postgres")
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return made
    pytest.fail("PostgreSQL did not start")
