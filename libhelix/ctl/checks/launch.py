"""What launchers have set: which rank this is, where the first node is, how other nodes reach this one."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from libhelix.ctl.checks.finding import Finding, ok, problem, warning
from libhelix.errors import UsageError
from libhelix.meeting import is_loopback, own_host, several_nodes
from libhelix.place import LAUNCHERS, Place, job_name, resolve

RESOLVE_LIMIT_S = 5.0
_LATE = f"no answer within {RESOLVE_LIMIT_S:.0f} s"
_IN_A_LAUNCHER = "run it as ranks are run, such as srun helixctl doctor, to see what the launcher says there"


@dataclass(frozen=True)
class Network:
    """`master`: addresses of MASTER_ADDR, `master_error`: why there are none. `host`: where other nodes would
    look for this one, `host_error`: why nothing can listen there. All empty where nothing asks for them."""

    master: tuple[str, ...] = ()
    master_error: str = ""
    host: str = ""
    host_error: str = ""


def read(environ: Mapping[str, str] = os.environ) -> Network:
    """Resolve and bind, for as long as RESOLVE_LIMIT_S."""
    master: tuple[str, ...] = ()
    master_error = host = host_error = ""
    if environ.get("MASTER_ADDR"):
        master, master_error = _resolved(environ["MASTER_ADDR"])
    if environ.get("HELIX_PEER_HOST") or (several_nodes(environ) and not master_error):
        try:
            host = own_host(environ)
            host_error = listening_error(host)
        except UsageError as e:
            host_error = str(e)
    return Network(master, master_error, host, host_error)


def _resolved(host: str) -> tuple[tuple[str, ...], str]:
    """Addresses of a name, or why there are none. The resolver has no time limit of its own."""
    found: list[tuple[tuple[str, ...], str]] = []

    def look() -> None:
        try:
            infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found.append((tuple(dict.fromkeys(str(info[4][0]) for info in infos)), ""))
        except (OSError, UnicodeError) as e:
            found.append(((), getattr(e, "strerror", None) or str(e)))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(RESOLVE_LIMIT_S)
    return found[0] if found else ((), _LATE)


def listening_error(host: str) -> str:
    """Why no socket can listen at any port of an address; nothing where one can."""
    addresses, error = _resolved(host)
    if error:
        return error
    try:
        family = socket.AF_INET6 if ":" in addresses[0] else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((addresses[0], 0))
            probe.listen(1)
    except OSError as e:
        return e.strerror or str(e)
    return ""


def judge(environ: Mapping[str, str], network: Network) -> list[Finding]:
    """Rank, job, the first node's address, and this one's."""
    return [*_ranks(environ), _master(environ, network), _peers(environ, network)]


def _ranks(environ: Mapping[str, str]) -> list[Finding]:
    try:
        place = resolve(None, None, 0, 1, environ=environ)
    except UsageError as e:
        return [problem("launcher", str(e), "unset what another launcher has left, or start with one alone")]
    wrong = [*_halves(environ), *_locals(environ), *_others(environ)]
    if wrong:
        return wrong
    return [_job(environ, place)]


def _halves(environ: Mapping[str, str]) -> list[Finding]:
    """Half a rank is passed over, and the next launcher's believed."""
    _, rank_name, size_name = LAUNCHERS[0]
    there = [name for name in (rank_name, size_name) if name in environ]
    if len(there) != 1:
        return []
    other = size_name if there[0] == rank_name else rank_name
    return [
        warning(
            "launcher",
            f"{there[0]}={environ[there[0]]} is set and {other} is not: neither is heeded",
            f"set {other}, too, or unset {there[0]}",
        )
    ]


def _locals(environ: Mapping[str, str]) -> list[Finding]:
    """A rank's number on its node has to be one of the node, and the node part of the job."""
    numbers = {}
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        with contextlib.suppress(KeyError, ValueError):
            numbers[name] = int(environ[name])
    found = []
    for less, more, strictly in (
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE", True),
        ("LOCAL_WORLD_SIZE", "WORLD_SIZE", False),
    ):
        if less in numbers and more in numbers and numbers[less] + strictly > numbers[more]:
            found.append(
                problem(
                    "launcher",
                    f"{less}={numbers[less]} and {more}={numbers[more]} exclude each other",
                    "unset what another launcher has left, or start with torchrun alone",
                )
            )
    return found


def _others(environ: Mapping[str, str]) -> list[Finding]:
    """Launchers that count otherwise. One inside another may: torchrun in an srun step for each node."""
    counts = []
    for origin, rank_name, size_name in LAUNCHERS:
        with contextlib.suppress(KeyError, ValueError):
            counts.append((origin, int(environ[rank_name]), int(environ[size_name])))
    if len(counts) < 2:
        return []
    (first, rank, size), others = counts[0], counts[1:]
    if first == "torchrun" and "TORCHELASTIC_RUN_ID" in environ:
        return _torchruns_of_a_node(environ, size)
    for origin, its_rank, its_size in others:
        if (its_rank, its_size) != (rank, size) and its_size > 1:
            names = "RANK and WORLD_SIZE" if first == "torchrun" else first
            # With one size and two ranks, several processes say that they are one, and train on the same.
            grade = problem if its_size == size else warning
            return [
                grade(
                    "launcher",
                    f"{names} say rank {rank} of {size}, which is believed; {origin} says rank {its_rank} of "
                    f"{its_size}",
                    f"set RANK in each process (from {origin}'s number there), not in the script that starts "
                    "them, or unset RANK and WORLD_SIZE, or give dp_rank= and dp_size=",
                )
            ]
    return []


def _torchruns_of_a_node(environ: Mapping[str, str], size: int) -> list[Finding]:
    nodes, tasks = environ.get("SLURM_NNODES", ""), environ.get("SLURM_NTASKS", "")
    if not ("SLURM_PROCID" in environ and nodes.isdigit() and tasks.isdigit() and int(tasks) > int(nodes)):
        return []
    return [
        warning(
            "launcher",
            f"Slurm started {tasks} tasks on {nodes} nodes, and torchrun in each: {size} ranks in all",
            "start one torchrun for each node (srun --ntasks-per-node=1), with --nproc-per-node ranks",
        )
    ]


def _job(environ: Mapping[str, str], place: Place) -> Finding:
    try:
        name = job_name(None, place.size, environ)
    except UsageError as e:
        return problem("launcher", str(e), "set HELIX_JOB to one name for all ranks")
    if place.size == 1:
        inside = "SLURM_JOB_ID" in environ and "SLURM_PROCID" not in environ
        found = "inside a Slurm allocation, but not started by srun" if inside else "no launcher"
        return ok("launcher", f"{found}: one rank, job {name!r}; {_IN_A_LAUNCHER}")
    return ok("launcher", f"rank {place.rank} of {place.size}, job {name!r}")


def _master(environ: Mapping[str, str], network: Network) -> Finding:
    name, host, port = "master", environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if port and not (port.isdigit() and 0 < int(port) < 1 << 16):
        return problem(name, f"MASTER_PORT={port} is no port", "set it to a number from 1024 to 65535")
    if not host:
        if environ.get("WORLD_SIZE", "1") != "1":
            return warning(
                name,
                "MASTER_ADDR is not set: torch.distributed cannot meet by the environment",
                "start with torchrun, or set MASTER_ADDR to the first node and MASTER_PORT",
            )
        return ok(name, "MASTER_ADDR is not set, and one process needs none")
    if network.master_error:
        return problem(
            name,
            f"MASTER_ADDR={host} has no address: {network.master_error}",
            "set it to the first node's name or IP address as this node knows it; compare getent hosts",
        )
    found = f"MASTER_ADDR={host} is {', '.join(network.master)}" if network.master else f"MASTER_ADDR={host}"
    if several_nodes(environ) and network.master and all(map(is_loopback, network.master)):
        cure = "set it to the address of the first node in the network that nodes share"
        if host == "localhost" or is_loopback(host):
            return problem(name, f"{found}: on every node another machine, itself", cure)
        return warning(
            name,
            f"{found}, which is this node: right on the first node alone",
            f"{cure}, or take the name out of the line of 127.0.0.1 or 127.0.1.1 in /etc/hosts",
        )
    return ok(name, found)


def _peers(environ: Mapping[str, str], network: Network) -> Finding:
    name, said = "other nodes", environ.get("HELIX_PEERS", "")
    if said not in ("", "off"):
        return warning(name, f"HELIX_PEERS={said} means nothing", "the only value is off; unset it")
    if not several_nodes(environ) and not network.host:
        return ok(name, "ranks are on this node alone, as far as the launcher says")
    if said == "off":
        return ok(name, "HELIX_PEERS=off: every node plans for itself, and describes all samples")
    cure = "set HELIX_PEER_HOST to the address of this node in the network that nodes share"
    if network.host_error:
        # What cannot listen costs that every node describes all samples, but an address that is not found
        # ends the job.
        grade = warning if network.host else problem
        where = f"no daemon can listen at {network.host}: " if network.host else ""
        return grade(name, f"{where}{network.host_error}", cure)
    if not network.host:
        return ok(name, "not looked at: MASTER_ADDR has no address")
    found = f"other nodes reach this one at {network.host}, at any free port of TCP"
    if is_loopback(network.host) or network.host == "localhost":
        return (problem if several_nodes(environ) else warning)(name, f"{found}: they cannot", cure)
    return ok(name, found)
