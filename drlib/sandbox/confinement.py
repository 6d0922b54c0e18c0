"""What holds the children of one template process: prepared once, shared by all of them.

`zygote.py` makes it when it starts and forks; the children, single calls (`child.py`) and the
keepers of sessions (`sessions.py`) with their states, read it and write nothing into it.
Standard library only, and no import of drlib outside this folder.
"""

from __future__ import annotations

import _signal  # the C functions alone: what `signal` puts around them costs touched pages
import contextlib
import fcntl
import math
import os
import signal

from drlib.sandbox import bounds, child, cleanup, layers, packages, seccomp

OPEN_FILES = 64  # of a call
MAX_THREADS = 512
WAITING_SIGNALS = 1024
WORK = "/box/work"  # of a call that has a file tree of its own


class Confinement:
    """Where calls work, the steps that a child takes before any code runs, the filter, and what the
    kernel's account of an ended child amounts to.

    Args:
        config: what the caller has sent to the template process: limits (timeout_s, memory_mb), the
            names of the layers that hold here, how root's powers are lost (drop), packages that
            may be imported with the folders that hold them (roots), and whether it is the one that
            has imported them (heavy).

    Attributes:
        work: the folder of a call, as the call sees it; "" until there is one.
        root: at level "strong" the file tree of all calls, otherwise "".
        before_fork: steps of the forking process.
        mount, enter, steps: steps of a child, in this order: a file system of its own over the work
            folder, the change to the file tree, and all the others but the filter.
        filter: the last step of a child that makes a call; None where the level has none.
    """

    def __init__(self, config: dict) -> None:
        self.config = config
        self.folder = os.getcwd()  # of the template, and empty
        self.work = ""
        self.root = ""
        self.before_fork: list[layers.LayerStep] = []
        self.mount: list[layers.LayerStep] = []
        self.enter: list[layers.LayerStep] = []
        self.steps: list[layers.LayerStep] = []
        self.filter: seccomp.SeccompFilter | None = None
        # One second more than the wall clock: one busy thread always ends as "timeout".
        self.cpu_s = math.ceil(config["timeout_s"]) + 1
        leave = None if config["heavy"] else child.EXIT_HEAVY
        self.packages = packages.Packages(config["packages"], config["roots"], leave)

    def has(self, layer: str) -> bool:
        """Whether children have this layer ("landlock", "namespaces", ...)."""
        return layer in self.config["layers"]

    def prepare(self) -> None:
        """Build what children share; `LayerError` where something cannot be done here."""
        allowed = self._make_tree() if self.has("namespaces") else self._make_folder()
        os.environ.update(HOME=self.work, TMPDIR=self.work)
        restrict: list[layers.LayerStep] = []
        if self.has("landlock"):
            ruleset = layers.landlock_ruleset(*self.packages.readable(), allowed)
            ruleset = fcntl.fcntl(ruleset, fcntl.F_DUPFD_CLOEXEC, child.HIGH)
            restrict = layers.landlock_restrict(ruleset)
        if self.has("seccomp"):
            self.filter = seccomp.SeccompFilter()
        # What does no harm to the template itself is inherited.
        layers.take(layers.limits({"CORE": 0, "MEMLOCK": 0, "MSGQUEUE": 0}))
        layers.take(layers.NO_HUGE_PAGES)
        if self.has("no_new_privileges"):
            layers.take(layers.NO_NEW_PRIVILEGES)
        self.steps = self._child_steps() + restrict

    def _make_folder(self) -> str:
        """The folder of all calls, emptied after each; nobody may write in the one around it."""
        box = os.path.join(self.folder, "box")
        self.work = os.path.join(box, "work")
        os.makedirs(self.work, 0o700)
        if self.config["drop"] == "setuid":
            os.chmod(".", 0o711)
            os.chown(self.work, layers.NOBODY, layers.NOBODY)
        os.chmod(box, 0o555)
        return self.work

    def _make_tree(self) -> str:
        """A file tree that holds what calls may read; over its one empty folder each call mounts a
        file system of its own. Landlock's rule must then stand on the folder around it."""
        home = layers.enter_namespaces()
        self.before_fork = layers.new_pid_namespace(home)
        self.root = os.path.join(self.folder, "root")
        os.mkdir(self.root)
        shown, hidden = self.packages.shown()
        layers.build_root(self.root, shown, hidden, WORK)
        place = self.root + WORK
        self.mount = layers.work_mount(place, bounds.WORK_BYTES, bounds.WORK_ENTRIES)
        self.enter = layers.change_root(self.root)
        self.work = WORK
        return os.path.dirname(place)

    def _child_steps(self) -> list[layers.LayerStep]:
        """What a child does, its file tree being in place, before it gets its descriptors. Fixed
        when the template starts, for later children and sessions alike: RLIMIT_NPROC leaves room
        for MAX_THREADS beside the threads that the user had then (with "setuid" that user is 65534,
        of every sandbox on the machine)."""
        setuid = self.config["drop"] == "setuid"
        user = layers.NOBODY if setuid else os.geteuid()
        sizes = {
            "AS": _address_space() + (self.config["memory_mb"] << 20),
            "CPU": self.cpu_s,
            "FSIZE": bounds.FILE_BYTES,
            "NOFILE": OPEN_FILES,
            "NPROC": bounds.count_tasks(user) + MAX_THREADS,
            "SIGPENDING": WAITING_SIGNALS,
        }
        return [
            ("setsid", os.setsid, ()),
            ("signals", _signal.signal, (_signal.SIGTERM, _signal.SIG_DFL)),
            *layers.limits(sizes),
            *(layers.nobody() if setuid else layers.NO_CAPABILITIES),
            ("work folder", os.chdir, (self.work,)),
            *layers.die_with_parent(signal.SIGKILL),
        ]

    def tidy(self) -> None:
        """After a call: empty the folder of all calls; a file system of its own is gone with it."""
        if not self.has("namespaces"):
            cleanup.wipe(self.work)

    def clear(self) -> None:
        """Remove all that `prepare` has made, as far as it came."""
        if not self.has("namespaces"):
            if self.work:
                os.chmod(os.path.dirname(self.work), 0o700)
            cleanup.wipe(self.folder)
        elif self.root:
            # Nothing in the tree is deleted, it is let go of: what it shows are the host's files.
            with contextlib.suppress(layers.LayerError):  # it was taken from us
                layers.remove_root(self.root)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(self.root)
        os.rmdir(self.folder)

    def account(
        self, cause: str, status: int, usage: object, duration: float, outputs: tuple[int, ...]
    ) -> dict:
        """How a call ended, by what the kernel says of its process, which is dead: why we killed it
        or "", its wait status and resource usage, seconds, and its output files."""
        code = os.waitstatus_to_exitcode(status)
        if not cause and max(os.fstat(fd).st_size for fd in outputs) >= bounds.FILE_BYTES:
            cause = "output_limit"
        return {
            "status": cause or self._classify(code, usage),
            "exit_code": code,
            "reason": "",
            "duration_s": duration,
        }

    def _classify(self, code: int, usage: object) -> str:
        """The status that the kernel's own account of a finished child amounts to."""
        if code == 0:
            return "ok"
        if code > 0:
            named = {child.EXIT_MEMORY: "memory_limit"}
            if not self.config["heavy"]:
                named[child.EXIT_HEAVY] = "heavy"
            return named.get(code, "error")
        spent = usage.ru_utime + usage.ru_stime
        if -code == signal.SIGXCPU or (-code == signal.SIGKILL and spent > self.cpu_s - 0.5):
            return "cpu_limit"
        return "killed"


def _address_space() -> int:
    """Bytes that this process has mapped; 0 where the system does not tell."""
    if not os.path.exists("/proc/self/statm"):
        return 0
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")
