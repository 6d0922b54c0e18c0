"""Hostile programs as data: access to files and named shared objects (see `hostile_cases.py`)."""

from __future__ import annotations

from tests.hostile_cases import SYS, breach, calls, listed, refused, useless

FILES = [
    refused("read a file", "print(open('<SECRET>').read())", leaks=True),
    refused("read in home", "print(open('<HOME>').read())", leaks=True),
    refused("read in tmp", "print(open('<TMP>').read())", leaks=True),
    refused(
        "read the repository",
        "print(open('<REPO>/tests/hostile_cases.py').read()[:1500])",
        leaks=True,
    ),
    refused("read this library", "print(open('<REPO>/drlib/sandbox/worker_process.py').read())"),
    refused("list the repository", breach("import os\nos.listdir('<REPO>')"), leaks=True),
    refused("import this library", breach("import drlib"), "ModuleNotFoundError"),
    refused(
        "import from the repository",
        "import sys\nsys.path.insert(0, '<REPO>')\n"
        "import tests.hostile_cases as c\nprint(c.REPOSITORY_CANARY)",
        leaks=True,
    ),
    refused(
        "load by path",
        "from importlib.machinery import SourceFileLoader as L\n"
        "print(L('c', '<REPO>/tests/hostile_cases.py').get_data("
        "'<REPO>/tests/hostile_cases.py')[:1500])",
        leaks=True,
    ),
    refused("run a path", breach("import runpy\nrunpy.run_path('<FOLDER>/module.py')"), leaks=True),
    refused(
        "import a zip",
        breach("import sys\nsys.path.append('<FOLDER>/z.zip')\nimport inside"),
        leaks=True,
    ),
    refused("import facts", breach("import babel"), "ModuleNotFoundError"),
    refused(
        "import facts by path",
        breach(
            "import sys, numpy, os\nsys.path.append(os.path.dirname(numpy.__path__[0]))\n"
            "import babel"
        ),
        "Errno|Error",
    ),
    useless(
        "list of packages",
        "import importlib.metadata as m\nif [d for d in m.distributions()]: print('<BREACH>')",
    ),
    useless(
        "site folders",
        "import site, numpy, os\n"
        "site.addsitedir(os.path.dirname(numpy.__path__[0]))\nimport yaml\nprint('<BREACH>')",
        statuses=("error",),
    ),
    refused("read /etc/passwd", "print(open('/etc/passwd').read())"),
    refused("read /etc/shadow", "print(open('/etc/shadow').read())"),
    refused("user data base", breach("import pwd\npwd.getpwall()[0]")),
    useless("walk the root", "import os\nprint(sum(len(f) for _, _, f in os.walk('/etc')))", "^0$"),
    refused("list the root", breach("import os\nos.listdir('/')")),
    refused(
        "list scratch folders",
        breach("import os\nos.listdir(os.path.dirname(os.path.dirname(os.getcwd())))"),
    ),
    useless(
        "list common folders",
        listed(
            ["/tmp", "/dev/shm", "/home", "/root", "/var", "/run", "/proc", "/sys", "/dev", "/etc"],
            "os.listdir(p)",
        ),
    ),
    useless(
        "devices",
        listed(
            [
                "/dev/mem",
                "/dev/kmsg",
                "/dev/tty",
                "/dev/ptmx",
                "/dev/fuse",
                "/dev/kvm",
                "/dev/full",
                "/dev/net/tun",
                "/proc/kcore",
                "/proc/kallsyms",
                "/sys/firmware",
                "/var/run/docker.sock",
                "/etc/hosts",
                "/etc/machine-id",
            ]
        ),
    ),
    refused("own environment", "print(open('/proc/self/environ').read())"),
    refused("environment of a process", "print(open('/proc/<VICTIM>/environ').read())", leaks=True),
    refused(
        "command line of a process", "print(open('/proc/<VICTIM>/cmdline').read())", leaks=True
    ),
    useless(
        "environment of all",
        "import glob\nfor p in glob.glob('/proc/[0-9]*/environ'):\n"
        "    try: print(open(p).read())\n    except OSError: pass",
    ),
    refused("own memory", breach("open('/proc/self/mem', 'wb')")),
    refused("memory of the template", breach("import os\nopen(f'/proc/{os.getppid()}/mem')")),
    refused("own maps", breach("open('/proc/self/maps').read()")),
    refused("magic link", "print(open('/proc/<VICTIM>/cwd/secret').read())", leaks=True),
    refused(
        "where a process works", breach("import os\nos.readlink('/proc/<VICTIM>/cwd')"), leaks=True
    ),
    refused(
        "path descriptor",
        "import os\nfd = os.open('<FOLDER>', os.O_PATH)\n"
        "print(os.read(os.open('secret', os.O_RDONLY, dir_fd=fd), 99))",
        leaks=True,
    ),
    refused(
        "path descriptor, reopened",
        "import os\nfd = os.open('<SECRET>', os.O_PATH)\nprint(open(f'/proc/self/fd/{fd}').read())",
        leaks=True,
    ),
    refused(
        "another folder",
        "import os\nos.chdir('<FOLDER>')\nprint(open('secret').read())",
        leaks=True,
    ),
    refused(
        "symbolic link",
        "import os\nos.symlink('<SECRET>', 's')\nprint(open('s').read())",
        leaks=True,
    ),
    refused(
        "hard link",
        "import os\nos.link('<SECRET>', '<FOLDER>/h')\n"
        "t = open('<FOLDER>/h').read()\nos.unlink('<FOLDER>/h')\nprint(t)",
        leaks=True,
    ),
    refused("link into the folder", "import os\nos.link('<SECRET>', 'h')\nprint(open('h').read())"),
    refused("rename into the folder", breach("import os\nos.rename('<SECRET>', 's')")),
    refused("rename out", breach("import os\nopen('a', 'w')\nos.rename('a', '<FOLDER>/a')")),
    refused("dot dot", breach("open('../escaped', 'w')")),
    refused(
        "many dot dots", "print(open('../../../../../../../../..<SECRET>').read())", leaks=True
    ),
    refused(
        "write outside",
        breach("import os\nopen('<FOLDER>/w', 'w')\nos.unlink('<FOLDER>/w')"),
        leaks=True,
    ),
    refused("write over", breach("open('<SECRET>', 'r+')"), leaks=True),
    refused("truncate", breach("import os\nos.truncate('<SECRET>', <SIZE>)"), leaks=True),
    refused("delete", breach("import os\nos.unlink('<SECRET>')")),
    refused(
        "make a folder",
        breach("import os\nos.mkdir('<FOLDER>/d')\nos.rmdir('<FOLDER>/d')"),
        leaks=True,
    ),
    refused("chmod", breach("import os\nos.chmod('<SECRET>', 0o666)"), leaks=True),
    refused(
        "chmod through a descriptor",
        breach("import os\nos.fchmod(os.open('f', os.O_CREAT | os.O_RDWR), 0o4777)"),
    ),
    refused("chown", breach("import os\nos.chown('<SECRET>', -1, -1)"), leaks=True),
    refused("touch", breach("import os\nos.utime('<SECRET>')")),
    refused("attribute", breach("import os\nos.setxattr('<SECRET>', 'user.a', b'1')")),
    refused(
        "inode flags",
        breach(
            "import fcntl, struct\nf = open('f', 'w')\n"
            "fcntl.ioctl(f, 0x40086602, struct.pack('l', 16))"
        ),
    ),
    refused(
        "named pipe",
        breach("import os\nos.mkfifo('<FOLDER>/p')\nos.unlink('<FOLDER>/p')"),
        leaks=True,
    ),
    refused("device file", breach("import os\nos.mknod('d', 0o20666, os.makedev(1, 1))")),
    refused(
        "sendfile", "import os\nfd = os.open('<SECRET>', 0)\nos.sendfile(1, fd, 0, 99)", leaks=True
    ),
    refused("copy", "import shutil\nprint(open(shutil.copy('<SECRET>', 'c')).read())", leaks=True),
    refused(
        "numpy", "import numpy as n\nprint(n.fromfile('<SECRET>', 'u1').tobytes())", leaks=True
    ),
    refused(
        "memory map",
        "import numpy as n\nprint(n.memmap('<SECRET>', 'u1', 'r').tobytes())",
        leaks=True,
    ),
    refused(
        "data base",
        breach("import sqlite3 as q\nq.connect('<FOLDER>/base').execute('select * from t')"),
        leaks=True,
    ),
    useless(
        "C library",
        SYS + "fd = libc.open(b'<SECRET>', 0)\nb = ctypes.create_string_buffer(99)"
        "\nlibc.read(fd, b, 99)\nprint(b.value)",
        leaks=True,
    ),
    refused("load as a library", "import ctypes\nctypes.CDLL('<SECRET>')", "OSError"),
    refused("line of a traceback", "exec(compile('1/0', '<SECRET>', 'exec'))", leaks=True),
    useless(
        "line of a warning",
        "import warnings\nwarnings.warn_explicit('w', UserWarning, '<SECRET>', 1)",
        leaks=True,
    ),
    useless(
        "completion of names",
        "import glob\nif glob.glob('<FOLDER>/*'): print('<BREACH>')",
        leaks=True,
    ),
    refused("standard library", breach("open('<STDLIB>/os.py', 'a')")),
    refused("numpy's files", breach("import numpy\nopen(numpy.__file__, 'a')")),
    refused("compiled files", breach("open('<STDLIB>/__pycache__/evil.pyc', 'w')")),
    refused("remove the own folder", breach("import os\nos.rmdir(os.getcwd())")),
    refused("rename the own folder", breach("import os\nos.rename(os.getcwd(), '../elsewhere')")),
    refused("temporary folder", breach("import tempfile\ntempfile.mkstemp(dir='/tmp')")),
    refused("shared memory folder", breach("open('/dev/shm/<TOKEN>', 'w')")),
    refused("fill shared memory", "while True: open('/dev/shm/<TOKEN>', 'ab').write(bytes(9999))"),
    refused(
        "shared memory block",
        breach(
            "from multiprocessing.shared_memory import SharedMemory as S\nS('<TOKEN>', True, 99)"
        ),
    ),
    useless(
        "system V shared memory",
        SYS + "n = libc.shmget(<KEY>, 4096, 0o1600)\n"
        "if n >= 0:\n    libc.shmctl(n, 0, None)\n    print('<BREACH>')",
        leaks=True,
    ),
    useless(
        "system V semaphores",
        SYS + "n = libc.semget(<KEY>, 1, 0o1600)\n"
        "if n >= 0:\n    libc.semctl(n, 0, 0)\n    print('<BREACH>')",
        leaks=True,
    ),
    useless(
        "message queues",
        SYS + "n = libc.msgget(<KEY>, 0o1600)\n"
        "if n >= 0:\n    libc.msgctl(n, 0, None)\n    print('<BREACH>')",
        leaks=True,
    ),
    useless("posix queue", calls("mq_open(b'/<TOKEN>', 0o102, 0o600, None)", ">=0")),
    useless(
        "posix semaphore",
        SYS + "libc.sem_open.restype = ctypes.c_void_p\n"
        "if libc.sem_open(b'/<TOKEN>', 0o100, 0o600, 1): print('<BREACH>')",
    ),
    refused("memory file", breach("import os\nos.memfd_create('x')"), leaks=True),
    refused("change of root", breach("import os\nos.chroot('.')")),
    useless("mount", calls("mount(b'none', b'.', b'tmpfs', 0, None)")),
    useless("new user namespace", calls("unshare(0x10000000)")),
    useless("new network namespace", calls("unshare(0x40000000)")),
]
