"""Fleets with a known truth: jobs as each scheduler starts them, drawn at random, as files of /proc and the kubelet."""

from __future__ import annotations

import hashlib
import random
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpugauge.workload.procfs import Procfs
from gpugauge.workload.users import Users
from gpugauge.workload.workloads import Workloads
from qa.worlds.trees import Made, pod_logs, v1, v2

# Names of which one is the beginning of another, and that look like the names that controllers make.
NAMES = ("train", "train-worker", "train-0", "bert", "bert-master", "a", "a-node-0", "llm-7b-v2")
NAMESPACES = ("ml", "research", "ml-dev")
PEOPLE = ("ann", "bob")
FORGER = "mallory"  # copies what others' processes say about their jobs
_FORGED = frozenset({"slurm", "declared", "distributed", "mpi", "ray", "container"})
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
# What some call a separator of lines. The kernel allows them in the names of cgroups, and escapes only "\n".
_SEPARATORS = ("\x0b", "\x0c", "\r", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
# Services that start what one of their users submits, and where they put it.
_BATCH = (
    ("pbs_mom", "/pbs_jobs.service/jobs/{}.pbs"),
    ("pbs_mom", "/pbs_jobs.service/jobid/{}.pbs"),
    ("pbs_mom", "/system.slice/pbs.service"),
    ("res", "/system.slice/lsfd.service"),
    ("condor_starter", "/system.slice/condor.service/slot_{}"),
    ("sge_shepherd", "/system.slice/sge_execd.service"),
    ("rsession", "/system.slice/rstudio-server.service"),
    ("Runner.Worker", "/system.slice/actions.runner.lab-gpu.{}.service"),
    ("konsole", "/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.kde.konsole@{}.service"),
    ("gnome-terminal-", "/user.slice/user-1000.slice/user@1000.service/app.slice/gnome-terminal-server.service"),
)
# Programs of trainings, also such as have the name of a display server.
_PROGRAMS = (["python3", "train.py"], ["python3", "-m", "river"], ["Xorg", "train.py"])
_LATEST_NAME_SECONDS = 50.0


class Accounts(Users):
    """The accounts of a host. A directory service answers from second `due` on."""

    def __init__(self, numbers: Mapping[str, int], known: bool, due: float, clock: Callable[[], float]) -> None:
        super().__init__(known)
        self.numbers, self._due, self._clock = numbers, due, clock

    def _look_up(self, uid: int) -> None:
        if self._clock() >= self._due:
            self._names |= {number: name for name, number in self.numbers.items() if number == uid}


@dataclass(eq=False)
class Host:
    """A machine of the fleet. Names of machines repeat, addresses do not."""

    number: int
    made: Made
    name: str
    pids: Iterator[int]
    accounts: Accounts
    late: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    workloads: Workloads | None = None

    @property
    def address(self) -> str:
        return f"10.0.0.{self.number + 1}"


@dataclass(frozen=True)
class Drawn:
    """A process, and the job that it belongs to; None for none."""

    host: Host
    pid: int
    job: int | None


class Fleet:
    """Draws jobs; `drawn` has every process that ever lived."""

    def __init__(self, root: Path, seed: int, hosts: int) -> None:
        self.random, self.now = random.Random(seed), 0.0
        # In containers the daemons know no names of users; the numbers are equal where a directory has them.
        self._names_known = self.random.random() < 0.6
        self.hosts = [self._host(root / str(number), number) for number in range(hosts)]
        self.drawn: list[Drawn] = []
        self.kinds: dict[int, str] = {}
        self._slurm = iter(range(70, 10_000))
        self._pods: set[tuple[str, str]] = set()
        self._controllers: set[tuple[str, str, str]] = set()
        self._rendezvous: set[tuple[str, str, int]] = set()  # person, address, port
        self._restarts: list[Callable[[], object]] = []
        self._said: dict[int, tuple[Mapping[str, str], str]] = {}  # by job, environment and cgroup of a process
        self._forged: set[int] = set()
        self._submitters: list[Mapping[str, str]] = [{}]  # environments from which Slurm jobs are submitted

    def draw(self, count: int) -> None:
        """Add jobs of every kind, in a random order."""
        makers = [*self._makers()] * (count // len(self._makers()) + 1)
        self.random.shuffle(makers)
        for kind, maker in makers[:count]:
            number = len(self.kinds)
            self.kinds[number] = kind
            if not maker(number):
                self.kinds[number] = ""

    def restart(self) -> None:
        """Replace the processes of some jobs, as their scheduler does."""
        for restart in self.random.sample(self._restarts, len(self._restarts) // 2):
            restart()

    def _host(self, root: Path, number: int) -> Host:
        random_files = root / "proc/sys/kernel/random"
        random_files.mkdir(parents=True)
        (random_files / "boot_id").write_text(f"{uuid.UUID(int=self.random.getrandbits(128))}\n")
        name = self.random.choice(("ubuntu", "gpu01", "gpu02"))
        (random_files.parent / "hostname").write_text(f"{name}\n")
        made = Made(root / "proc")
        made.process(1, ["init"], comm="systemd", uid=0, parent=0, network="host")
        made.process(2, ["sshd"], comm="sshd")
        local = self._names_known and self.random.random() < 0.5
        numbers = dict(zip(PEOPLE, (1001, 1000) if local and number % 2 else (1000, 1001), strict=True))
        numbers[FORGER] = 1002
        due = self.random.choice((0.0, self.random.random() * _LATEST_NAME_SECONDS))
        accounts = Accounts(numbers, self._names_known, due, lambda: self.now)
        for uid in numbers.values():  # the pid of a person's shell is the uid
            made.process(uid, ["-bash"], parent=2, uid=uid, comm="bash", session=uid, terminal=34816)
        host = Host(number, made, name, iter(range(2000, 100_000)), accounts)
        host.workloads = Workloads(
            Procfs(str(made.root)), pod_logs=root / "log", users=accounts, clock=lambda: self.now
        )
        return host

    def _makers(self) -> Sequence[tuple[str, Callable[[int], bool]]]:
        pods = [
            ("pytorchjob", self._pytorchjob),
            ("jobset", self._jobset),
            ("job", self._indexed_job),
            ("mpijob", self._mpijob),
            ("volcano", self._volcano),
            ("raycluster", self._raycluster),
            ("leaderworkerset", self._leader_worker_set),
            ("statefulset", self._stateful_set),
            ("deployment", self._deployment),
            ("distributed", self._pods_that_meet),
            ("pod", self._pod_alone),
        ]
        hosts = [
            ("slurm", self._slurm_job),
            ("slurm", self._slurm_job),
            ("declared", self._declared),
            ("distributed", self._torchrun),
            ("mpi", self._mpi),
            ("ray", self._ray),
            ("container", self._container),
            ("unit", self._unit),
            ("launch", self._launch),
            ("launch", self._batch),
            ("launch", self._system_container),
            ("", self._display),
            ("forged", self._forgery),
        ]
        return pods + hosts

    # Pods.

    def _pytorchjob(self, job: int) -> bool:
        name, namespace = self._controller("pytorchjob")
        pods = [f"{name}-master-0", *(f"{name}-worker-{i}" for i in range(self.random.randint(1, 3)))]
        old = self.random.random() < 0.3
        environment = {"MASTER_PORT": "23456", "WORLD_SIZE": str(len(pods))}
        masters = {pod: "localhost" if old and pod.endswith("master-0") else f"{name}-master-0" for pod in pods}
        return self._place(job, namespace, {pod: environment | {"MASTER_ADDR": masters[pod]} for pod in pods})

    def _jobset(self, job: int) -> bool:
        name, namespace = self._controller("jobset")
        part, replicas, size = (
            self.random.choice(("node", "workers")),
            self.random.randint(1, 2),
            self.random.randint(1, 3),
        )
        variable = self.random.choice(("MASTER_ADDR", "PET_MASTER_ADDR"))
        pods: dict[str, dict[str, str]] = {}
        for replica in range(replicas):
            for index in range(size):
                host = f"{name}-{part}-{replica}-{index}"
                own = {"HOSTNAME": host, "JOB_COMPLETION_INDEX": str(index), "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"}
                pods[f"{host}-{self._suffix()}"] = own | {variable: f"{name}-{part}-0-0.{name}"}
        return self._place(job, namespace, pods, again=True)

    def _indexed_job(self, job: int) -> bool:
        name, namespace = self._controller("job")
        pods: dict[str, dict[str, str]] = {}
        for index in range(self.random.randint(1, 4)):
            pods[f"{name}-{index}-{self._suffix()}"] = {
                "HOSTNAME": f"{name}-{index}",
                "JOB_COMPLETION_INDEX": str(index),
            }
        return self._place(job, namespace, pods, again=True)

    def _mpijob(self, job: int) -> bool:
        name, namespace = self._controller("mpijob")
        pods = [f"{name}-worker-{i}" for i in range(self.random.randint(2, 3))]
        environment = {"OMPI_COMM_WORLD_SIZE": str(2 * len(pods)), "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        return self._place(job, namespace, dict.fromkeys(pods, environment))

    def _volcano(self, job: int) -> bool:
        name, namespace = self._controller("volcano")
        task = self.random.choice(("worker", "trainer"))
        pods = [f"{name}-{task}-{i}" for i in range(self.random.randint(1, 3))]
        hosts = ",".join(f"{pod}.{name}" for pod in pods)
        variable = f"VC_{task.upper()}_HOSTS"
        return self._place(job, namespace, {pod: {variable: hosts, "VC_TASK_INDEX": pod[-1]} for pod in pods})

    def _raycluster(self, job: int) -> bool:
        name, namespace = self._controller("raycluster")
        pods = [f"{name}-head-{self._suffix()}"]
        pods += [f"{name}-gpu-worker-{self._suffix()}" for _ in range(self.random.randint(0, 2))]
        environment = {"RAY_CLUSTER_NAME": name, "RAY_USAGE_STATS_KUBERAY_IN_USE": "1"}
        return self._place(job, namespace, dict.fromkeys(pods, environment))

    def _leader_worker_set(self, job: int) -> bool:
        name, namespace = self._controller("leaderworkerset")
        pods: dict[str, dict[str, str]] = {}
        for group in range(self.random.randint(1, 2)):
            leader = {"LWS_LEADER_ADDRESS": f"{name}-{group}.{name}.{namespace}"}
            pods |= {f"{name}-{group}{end}": leader for end in ("", "-1", "-2")[: self.random.randint(1, 3)]}
        return self._place(job, namespace, pods)

    def _stateful_set(self, job: int) -> bool:
        name, namespace = self._controller("statefulset")
        environment = {"MASTER_ADDR": f"{name}-0.{name}", "MASTER_PORT": "29500", "WORLD_SIZE": "4"}
        return self._place(job, namespace, {f"{name}-{i}": environment for i in range(self.random.randint(2, 3))})

    def _deployment(self, job: int) -> bool:
        name, namespace = self._controller("deployment")
        template = "".join(self.random.choice("456789bcdf") for _ in range(self.random.randint(8, 10)))
        pods = [f"{name}-{template}-{self._suffix()}" for _ in range(self.random.randint(1, 3))]
        return self._place(job, namespace, {pod: {} for pod in pods}, again=True)

    def _pods_that_meet(self, job: int) -> bool:
        """Return whether there was place for pods without a controller that meet at the address of the first one."""
        name, namespace = self.random.choice(NAMES), self.random.choice(NAMESPACES)
        pods = [f"{name}-{self._suffix()}" for _ in range(self.random.randint(2, 3))]
        address = self.random.choice((f"{pods[0]}.train.{namespace}.svc.cluster.local", f"10.244.{job}.7"))
        world = {"WORLD_SIZE": str(8 * len(pods)), "LOCAL_WORLD_SIZE": "8"}
        return self._place(
            job, namespace, dict.fromkeys(pods, world | {"MASTER_ADDR": address, "MASTER_PORT": "29500"})
        )

    def _pod_alone(self, job: int) -> bool:
        """Return whether there was place for a pod by hand, with `generateName`, or numbered in a sweep."""
        name, namespace = self.random.choice(NAMES), self.random.choice(NAMESPACES)
        pod = f"{name}-{self.random.choice((self._suffix(), str(self.random.randint(0, 9)), 'x'))}"
        single = {"MASTER_ADDR": pod, "MASTER_PORT": "29500", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        mpi = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        return self._place(job, namespace, {pod: self.random.choice((single, mpi, {}))})

    # Hosts.

    def _slurm_job(self, job: int) -> bool:
        """A job may be submitted from within another one, whose environment it inherits. Slurm replaces only what it
        sets for the new job.
        """
        number, person = next(self._slurm), self.random.choice(PEOPLE)
        hosts, in_cgroups = self._some_hosts(), self.random.random() < 0.7
        shape = self.random.choice(("plain", "array", "het"))
        numbers = [number if shape != "het" or part == 0 else next(self._slurm) for part in range(len(hosts))]
        environment = dict(self.random.choice(self._submitters)) | {"SLURM_JOB_ID": str(number)}
        if shape == "array":
            array = self.random.choice((number, max(70, number - 1)))
            environment |= {"SLURM_ARRAY_JOB_ID": str(array), "SLURM_ARRAY_TASK_ID": str(self.random.randint(0, 3))}
        if shape == "het":
            # Each part has an id and a cgroup of its own. Its tasks see the id of the leader.
            environment |= {f"SLURM_JOB_ID_HET_GROUP_{part}": str(own) for part, own in enumerate(numbers)}
        self._submitters.append(environment)
        for host, own in zip(hosts, numbers, strict=True):
            path, old = f"/system.slice/slurmstepd.scope/job_{own}/step_0", f"/slurm/uid_1000/job_{own}/step_0"
            group = self.random.choice((v2(path), v1(old))) if in_cgroups else v2("/system.slice/slurmd.service")
            argv = self.random.choice(_PROGRAMS) if in_cgroups else _PROGRAMS[0]
            self._process(job, host, environment, group, uid=host.accounts.numbers[person], argv=argv)
        return True

    def _declared(self, job: int) -> bool:
        name, person = self.random.choice(NAMES), self.random.choice(PEOPLE)
        if ("declared", person, name) in self._controllers:
            return False
        self._controllers.add(("declared", person, name))
        for host in self._some_hosts():
            uid = host.accounts.numbers[person]
            self._process(job, host, {"GPUGAUGE_JOB": name}, uid=uid, parent=uid)
        return True

    def _torchrun(self, job: int) -> bool:
        """Return whether the person does not use the port already; another one may use it before or after. The agents
        start their ranks again with another port, and the job is the same.
        """
        hosts, person = self._some_hosts(least=2), self.random.choice(PEOPLE)
        port = self.random.choice((29_500, 20_000 + job))
        used = {(person, hosts[0].address, at) for at in (port, port + 10_000)}
        if used & self._rendezvous:
            return False
        self._rendezvous |= used
        run = self.random.choice(("none", "exp", "100"))
        uids = [host.accounts.numbers[person] for host in hosts]
        agents = [
            (host, uid, self._quiet(host, ["torchrun", "train.py"], uid, uid))
            for host, uid in zip(hosts, uids, strict=True)
        ]

        def start(at: int) -> None:
            world = {"WORLD_SIZE": str(2 * len(hosts)), "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": run}
            meets = world | {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(at)}
            for host, uid, agent in agents:
                for _ in range(2):
                    self._process(job, host, meets, uid=uid, parent=agent)

        start(port)
        self._restarts.append(lambda: start(port + 10_000))
        return True

    def _mpi(self, job: int) -> bool:
        hosts = self._some_hosts(least=2)
        size = {"OMPI_COMM_WORLD_SIZE": str(len(hosts))}
        old = {"OMPI_MCA_orte_hnp_uri": f"{1000 + job}.0;tcp://{hosts[0].address},172.17.0.1:{30_000 + job}"}
        new = {"PMIX_NAMESPACE": f"prterun-{hosts[0].name}-{4000 + job}@1"}
        environment, person = size | self.random.choice((old, new)), self.random.choice(PEOPLE)
        for host in hosts:
            uid = host.accounts.numbers[person]
            self._process(job, host, environment, uid=uid, parent=self._quiet(host, ["orted"], uid, 1))
        return True

    def _ray(self, job: int) -> bool:
        person = self.random.choice(PEOPLE)
        for host in self._some_hosts():
            uid = host.accounts.numbers[person]
            raylet = self._quiet(host, ["raylet", f"--session-name={_session(job)}"], uid, 1, comm="raylet")
            self._process(job, host, {"RAY_JOB_ID": "01000000"}, uid=uid, parent=raylet)
        return True

    def _container(self, job: int) -> bool:
        host, identity = self.random.choice(self.hosts), hashlib.sha256(f"c{job}".encode()).hexdigest()
        path = self.random.choice((f"/system.slice/docker-{identity}.scope", f"/docker/{identity}"))
        local = {"MASTER_ADDR": identity[:12], "MASTER_PORT": "29500", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        for _ in range(2):
            self._process(job, host, self.random.choice((local, {})), self.random.choice((v2, v1))(path))
        return True

    def _unit(self, job: int) -> bool:
        host = self.random.choice(self.hosts)
        if ("unit", str(host.number), "train.service") in self._controllers:
            return False
        self._controllers.add(("unit", str(host.number), "train.service"))

        def start() -> None:
            self._process(job, host, {}, v2("/system.slice/train.service"))

        start()
        self._restarts.append(start)
        return True

    def _launch(self, job: int) -> bool:
        host = self.random.choice(self.hosts)
        uid = host.accounts.numbers[self.random.choice(PEOPLE)]
        service = self.random.choice(("/user.slice/user-1000.slice/session-2.scope", "/system.slice/cron.service"))
        single = {"MASTER_ADDR": host.name, "MASTER_PORT": "29500", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        agent = self._quiet(host, ["torchrun", "train.py"], uid, uid)
        for _ in range(2):
            self._process(job, host, single, v2(service), uid=uid, parent=agent)
        return True

    def _batch(self, job: int) -> bool:
        """A job of a batch system, or a command in a terminal of a desktop."""
        host, (starter, place) = self.random.choice(self.hosts), self.random.choice(_BATCH)
        uid = host.accounts.numbers[self.random.choice(PEOPLE)]
        group = v2(place.format(1000 + job % 3))
        manager = self._quiet(host, [starter], self.random.choice((0, uid)), 1, comm=starter)
        script = self._quiet(host, ["bash", "/var/spool/job.sh"], uid, manager, comm="bash")
        for _ in range(2):
            self._process(job, host, {}, group, uid=uid, parent=script, argv=_PROGRAMS[0])
        return True

    def _system_container(self, job: int) -> bool:
        """A command in a container that has a system of its own, with names that its root chooses."""
        host, uid = self.random.choice(self.hosts), 100_000 + self.random.choice((0, 1000))
        machine = f"c{self.random.randint(1, 2)}"
        top = self.random.choice(
            (
                f"/lxc.payload.{machine}",
                f"/lxc/{machine}/ns",
                f"/machine.slice/systemd-nspawn@{machine}.service/payload",
                f"/machine.slice/machine-{machine}.scope/payload",
            )
        )
        places = [
            "/system.slice/train.service",
            "/user.slice/user-1000.slice/session-3.scope",
            "/user.slice/user-1000.slice/user@1000.service/app.slice/train.service",
            "/system.slice/slurmstepd.scope/job_70/step_0",
            f"/kubepods/pod{uuid.UUID(int=7)}/{'7' * 64}",
            f"/docker/{'8' * 64}",
        ]
        init = self._quiet(host, ["/sbin/init"], 100_000, 1, comm="systemd")
        agent = self._quiet(host, ["torchrun", "train.py"], uid, init)
        group = self.random.choice((v1, v2))(top + self.random.choice(places))
        for _ in range(2):
            self._process(job, host, {}, group, uid=uid, parent=agent, network=machine)
        return True

    def _display(self, job: int) -> bool:
        host = self.random.choice(self.hosts)
        pid = next(host.pids)
        host.made.process(pid, ["/usr/lib/xorg/Xorg", ":0"], cgroup=v2("/system.slice/gdm.service"), uid=0)
        self.drawn.append(Drawn(host, pid, None))
        return True

    def _forgery(self, job: int) -> bool:
        """Return whether there was another user's job to copy: its environment, its Ray node, the id of its container.
        The copy is a job of its own.
        """
        copied = next((number for number in self._said if number not in self._forged), None)
        if copied is None:
            return False
        self._forged.add(copied)
        host, kind, (environment, group) = self.random.choice(self.hosts), self.kinds[copied], self._said[copied]
        uid, place = host.accounts.numbers[FORGER], "/user.slice/user-1002.slice"
        comm, argv = (
            ("raylet", ["raylet", f"--session-name={_session(copied)}"]) if kind == "ray" else ("bash", ["bash"])
        )
        parent = self._quiet(host, argv, uid, 1, comm=comm)
        identity = re.search("[0-9a-f]{64}", group)
        # A folder whose name has what looks like the end of a line, and the copied path below it.
        below = f"/x{self.random.choice(_SEPARATORS)}0::{group.splitlines()[-1].split(':', 2)[2]}"
        place += f"/user@1002.service/libpod-{identity[0]}.scope" if identity else "/session-3.scope"
        self.kinds[job] = kind
        place += self.random.choice(("", below))
        self._process(job, host, environment, v2(place), uid=uid, parent=parent)
        self._said.pop(job, None)
        return True

    # Parts.

    def _controller(self, kind: str) -> tuple[str, str]:
        free = [(n, s) for n in NAMES for s in NAMESPACES if (kind, s, n) not in self._controllers]
        name, namespace = self.random.choice(free)
        self._controllers.add((kind, namespace, name))
        return name, namespace

    def _place(self, job: int, namespace: str, pods: Mapping[str, Mapping[str, str]], *, again: bool = False) -> bool:
        """Return whether the names of the pods were free in the namespace. Restarted pods have `again` another name."""
        if any((namespace, pod) in self._pods for pod in pods):
            return False
        self._pods |= {(namespace, pod) for pod in pods}
        places = {pod: self.random.choice(self.hosts) for pod in pods}

        def start() -> None:
            for pod, environment in pods.items():
                name = f"{pod[:-5]}{self._suffix()}" if again else pod
                # A variable that was in the image, or in what a user copied into the manifest.
                copied = self.random.choice(({}, {}, {"SLURM_JOB_ID": "70"}))
                self._start_pod(job, places[pod], namespace, name, {"HOSTNAME": pod} | dict(environment) | copied)

        start()
        self._restarts.append(start)
        return True

    def _start_pod(self, job: int, host: Host, namespace: str, pod: str, environment: Mapping[str, str]) -> None:
        identity = str(uuid.UUID(int=self.random.getrandbits(128)))
        container = f"{self.random.getrandbits(256):064x}"
        slice_ = f"kubepods-burstable-pod{identity.replace('-', '_')}.slice"
        group = self.random.choice(
            (
                v2(f"/kubepods.slice/kubepods-burstable.slice/{slice_}/cri-containerd-{container}.scope"),
                v2(f"/kubepods.slice/kubepods-burstable.slice/{slice_}/crio-{container}.scope"),
                v1(f"/kubepods/burstable/pod{identity}/{container}"),
            )
        )
        network, argv = self.random.choice(("host", identity)), self.random.choice(_PROGRAMS)
        for _ in range(self.random.randint(1, 2)):
            uid = self.random.choice((0, 1000))
            self._process(job, host, environment, group, uid=uid, network=network, argv=argv)
        containers = {"main": container} if self.random.random() < 0.7 else {}
        due = self.now + self.random.random() * _LATEST_NAME_SECONDS
        log = host.made.root.parent / "log"
        host.late.append((due, lambda: pod_logs(log, namespace, pod, identity, containers)))

    def _process(
        self,
        job: int,
        host: Host,
        environment: Mapping[str, str],
        group: str = "0::/user.slice/user-1000.slice/session-2.scope\n",
        uid: int = 1000,
        parent: int = 1,
        network: str = "host",
        argv: list[str] = _PROGRAMS[0],
    ) -> None:
        pid = next(host.pids)
        host.made.process(
            pid, argv, cgroup=group, environ=environment, uid=uid, parent=parent, session=pid, network=network
        )
        self.drawn.append(Drawn(host, pid, job))
        if self.kinds[job] in _FORGED and "kubepods" not in group:
            self._said[job] = environment, group

    def _quiet(self, host: Host, argv: list[str], uid: int, parent: int, comm: str = "") -> int:
        """Return the pid of a new process that uses no GPU."""
        pid = next(host.pids)
        host.made.process(pid, argv, uid=uid, parent=parent, session=parent, comm=comm or argv[0])
        return pid

    def _some_hosts(self, least: int = 1) -> list[Host]:
        return self.random.sample(self.hosts, self.random.randint(least, min(3, len(self.hosts))))

    def _suffix(self) -> str:
        return "".join(self.random.choice(_ALPHABET) for _ in range(5))


def _session(job: int) -> str:
    """Return the session of the Ray cluster of a job."""
    return f"session_2026-01-02_03-04-05_{job:06}_23"
