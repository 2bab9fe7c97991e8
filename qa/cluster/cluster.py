"""A real Kubernetes on this machine: etcd, the API server, controllers, scheduler, and two nodes with containerd and
kubelet. It must run in a network namespace of its own (`python -m qa.cluster` makes one), where it ends with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.certificates import Authority
from tests.e2e.documents import ROOT
from tests.needs import need

ADDRESS, SERVICE = "10.99.0.1", "10.96.0.1"
NODES = {"gpu-1": "10.99.0.11", "gpu-2": "10.99.0.12"}
LIMIT = 400  # seconds; also a machine with other work needs less
NEWEST = "1.33.13"  # as in build.sh
CONTROL = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
# Who a token belongs to: user, group.
_TOKENS = {
    "admin": ("admin", "system:masters"),
    "manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
} | {name: (f"system:node:{name}", "system:nodes") for name in NODES}


def cache() -> Path:
    """Return the folder with what is built once."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("CLUSTER") or Path(base) / "gpugauge-cluster")


def programs() -> Path:
    """Return the folder with Kubernetes' programs: by default the newest ones that build.sh has built."""
    built = [name for name in (NEWEST, "debian") if (cache() / name / "kubelet").exists()]
    return cache() / (os.environ.get("KUBERNETES") or next(iter(built), NEWEST))


def until(condition: Callable[[], Any], message: str) -> Any:
    """Ask each second until the condition returns something true, and return it. Fails after LIMIT seconds."""
    end = time.monotonic() + LIMIT
    while not (result := condition()):
        assert time.monotonic() < end, f"not within {LIMIT} s: {message}"
        time.sleep(1)
    return result


def version() -> tuple[int, ...]:
    """Return major and minor version of those programs."""
    name = programs().name
    return (1, 20) if name == "debian" else tuple(int(part) for part in name.split(".")[:2])


@dataclass
class Cluster:
    """A running cluster; its files are below `folder`."""

    folder: Path
    images: Path
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("pki", "kubeconfigs"):
            (self.folder / name).mkdir()
        self._pki, self._server = self.folder / "pki", f"https://{ADDRESS}"

    @property
    def kubeconfig(self) -> Path:
        """Return the kubeconfig of the administrator."""
        return self.folder / "kubeconfigs" / "admin"

    def start_control(self) -> None:
        """Start all that needs no node."""
        _network()
        self._credentials()
        data, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        self._start(
            *(need("etcd"), f"--data-dir={self.folder / 'etcd'}", "--unsafe-no-fsync"),
            *(f"--listen-client-urls={data}", f"--advertise-client-urls={data}", f"--listen-peer-urls={peer}"),
            *(f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"),
        )
        self.start_api()
        # What the API server calls a kubelet by; a group of a certificate would need more of the authority.
        self.kubectl(
            "create", "clusterrolebinding", "calls-kubelets", "--clusterrole=cluster-admin", "--user=kubelet-client"
        )
        self._start(
            *(
                str(programs() / "kube-controller-manager"),
                *self._options("manager"),
                "--use-service-account-credentials",
            ),
            *(
                f"--service-account-private-key-file={self._pki / 'accounts.key'}",
                f"--root-ca-file={self._pki / 'ca.pem'}",
            ),
            "--node-monitor-grace-period=20s",
        )
        self._start(str(programs() / "kube-scheduler"), *self._options("scheduler"))
        # Pods are refused until their namespace has it.
        until(lambda: self.get("serviceaccount", "default"), "the controllers work")

    def start_api(self) -> None:
        """Start the API server, and wait until it answers."""
        key = self._pki / "accounts.key"
        # It exits where other programs leave it no time, and starts again, as a static pod does.
        again = 'while :; do "$@"; sleep 1; done'
        self._api = self._start(
            *("sh", "-c", again, "sh"),
            *(
                str(programs() / "kube-apiserver"),
                "--etcd-servers=http://127.0.0.1:2379",
                f"--advertise-address={ADDRESS}",
            ),
            *("--bind-address=0.0.0.0", "--secure-port=443", "--allow-privileged=true"),
            *(
                f"--tls-cert-file={self._pki / 'apiserver.pem'}",
                f"--tls-private-key-file={self._pki / 'apiserver.key'}",
            ),
            *(f"--client-ca-file={self._pki / 'ca.pem'}", f"--token-auth-file={self._pki / 'tokens.csv'}"),
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            *("--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/16"),
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            *(
                "--kubelet-preferred-address-types=InternalIP",
                f"--kubelet-certificate-authority={self._pki / 'ca.pem'}",
            ),
            f"--kubelet-client-certificate={self._pki / 'kubelet-client.pem'}",
            f"--kubelet-client-key={self._pki / 'kubelet-client.key'}",
            log="kube-apiserver",
            start_new_session=True,
        )
        until(self._ready, f"the API server is ready; its log is in {self.folder}")

    def stop_api(self) -> None:
        """End the API server, until start_api()."""
        os.killpg(self._api.pid, signal.SIGKILL)
        self._api.wait(20)

    def start_nodes(self) -> None:
        """Start the nodes, and wait until they are ready and have GPUs."""
        old = ["--container-runtime=remote"] if version() < (1, 24) else []
        environment = {
            **os.environ,
            "PKI": str(self._pki),
            "BIN": str(programs()),
            "IMAGES": str(self.images),
            "KUBECONFIGS": str(self.folder / "kubeconfigs"),
            "KUBELET_OPTIONS": " ".join([*old, "--node-labels=nvidia.com/gpu.present=true"]),
            "PYTHON": sys.executable,
        }
        for number, name in enumerate(NODES, 1):
            folder = self.folder / name
            folder.mkdir()
            enter = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
            node = str(Path(__file__).with_name("node.sh"))
            process = self._start(*enter, node, name, str(number), str(folder), env=environment, cwd=ROOT, log=name)
            time.sleep(0.5)  # until it has its namespace
            ends = f"node{number}", f"control{number}"
            _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            _ip("link", "set", ends[0], "netns", str(process.pid))
            _ip("link", "set", ends[1], "master", "nodes", "up")
            _ip("route", "add", f"10.244.{number}.0/24", "via", NODES[name])
        until(lambda: all(map(self._has_gpus, NODES)), f"the nodes are ready; their logs are in {self.folder}")

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True) -> str:
        """Run kubectl and return its standard output, or both outputs if it may fail."""
        command = [need("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        for _ in range(5):
            done = subprocess.run(
                command, input=input, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=ROOT
            )
            if done.returncode == 0 or "(Timeout)" not in done.stderr:  # the server has other work
                break
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return done.stdout if check else done.stdout + done.stderr

    def get(self, *arguments: str) -> Any:
        """Return the object or the list as JSON, None if there is none."""
        text = self.kubectl("get", *arguments, "--output=json", "--ignore-not-found")
        return json.loads(text) if text else None

    def items(self, *arguments: str) -> list[Any]:
        """Return the objects of a kind."""
        found = self.get(*arguments)
        return found["items"] if found else []

    def events(self, kind: str, name: str, namespace: str) -> str:
        """Return the messages of the events of an object."""
        chosen = f"--field-selector=involvedObject.kind={kind},involvedObject.name={name}"
        return "\n".join(each["message"] for each in self.items("events", "-n", namespace, chosen))

    def stop(self) -> None:
        """End all programs, the nodes first."""
        for process in reversed(self._running):
            process.kill()
            process.wait(20)
        self._running.clear()

    def _start(self, *command: str, log: str = "", **options: Any) -> subprocess.Popen[bytes]:
        with (self.folder / f"{log or Path(command[0]).name}.log").open("ab") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, **options)
        self._running.append(process)
        return process

    def _options(self, name: str) -> list[str]:
        path = self.folder / "kubeconfigs" / name
        kinds = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        return [*(f"--{kind}={path}" for kind in kinds), "--leader-elect=false", "--bind-address=127.0.0.1"]

    def _ready(self) -> bool:
        return self.kubectl("get", "--raw=/readyz", check=False) == "ok"

    def _has_gpus(self, name: str) -> bool:
        node = self.get("node", name)
        ready = node and any(
            each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"]
        )
        return bool(ready) and node["status"]["allocatable"].get("nvidia.com/gpu") == "2"

    def _credentials(self) -> None:
        authority = Authority("kubernetes")
        (self._pki / "ca.pem").write_bytes(authority.pem)
        authority.issue(self._pki, "apiserver", ADDRESS, SERVICE, "127.0.0.1", "kubernetes.default.svc")
        authority.issue(self._pki, "kubelet-client", "kubelet-client")
        for name, address in NODES.items():
            authority.issue(self._pki, name, name, address)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        form = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        (self._pki / "accounts.key").write_bytes(key.private_bytes(*form))
        lines = []
        for name, (user, group) in _TOKENS.items():
            lines.append(f'token-{name},{user},{name},"{group}"\n')
            context = {"name": "it", "context": {"cluster": "it", "user": "it"}}
            cluster = {"server": self._server, "certificate-authority": str(self._pki / "ca.pem")}
            config = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "it", "cluster": cluster}],
                "users": [{"name": "it", "user": {"token": f"token-{name}"}}],
                "contexts": [context],
                "current-context": "it",
            }
            (self.folder / "kubeconfigs" / name).write_text(json.dumps(config))
        (self._pki / "tokens.csv").write_text("".join(lines))


def _ip(*arguments: str) -> None:
    subprocess.run([need("ip"), *arguments], check=True)


def _network() -> None:
    """Make the network of the control plane, in a namespace that has none."""
    links = json.loads(subprocess.run([need("ip"), "-json", "link"], check=True, capture_output=True, text=True).stdout)
    assert [link["ifname"] for link in links] == ["lo"], "not in a network namespace of its own: use make cluster-check"
    _ip("link", "set", "lo", "up")
    _ip("addr", "add", f"{SERVICE}/32", "dev", "lo")
    _ip("link", "add", "nodes", "type", "bridge")
    _ip("addr", "add", f"{ADDRESS}/24", "dev", "nodes")
    _ip("link", "set", "nodes", "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
