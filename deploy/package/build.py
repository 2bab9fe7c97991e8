"""Builds the Debian and the RPM package from the wheel and the lock file: `make packages`.

    python3 deploy/package/build.py [--format deb] [--format rpm] [--revision 1]

A package has a virtual environment at /opt/gpugauge, where the unit expects it, made with the Python that runs this
script. Its packages are those of the image, by hash. It needs the machine's Python of the same minor version, because
the compiled modules are for that one. The .deb is written here, because dpkg-deb would make it own /opt; dpkg and
rpmbuild do the rest: both are in Debian, and neither needs a tool beyond the distribution's.
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import os
import platform
import py_compile
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Callable, Iterable
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_SCRIPTS = Path(__file__).parent / "scripts"
_PREFIX = "opt/gpugauge"
_SUMMARY = "Prometheus exporter that tells whether PyTorch really uses the GPU"
_PYTHON = sys.version_info
# Where a file of the repository is in a package.
_FILES = {
    "deploy/systemd/gpugauge.service": "usr/lib/systemd/system/gpugauge.service",
    "deploy/systemd/gpugauge.socket": "usr/lib/systemd/system/gpugauge.socket",
    "deploy/systemd/gpugauge.sysusers.conf": "usr/lib/sysusers.d/gpugauge.conf",
    "deploy/systemd/gpugauge.env": "etc/default/gpugauge",
    "deploy/prometheus/slurm/prolog.sh": "usr/share/gpugauge/slurm/prolog.sh",
    "deploy/prometheus/slurm/epilog.sh": "usr/share/gpugauge/slurm/epilog.sh",
    "deploy/slurm/epilog-slurmctld.sh": "usr/share/gpugauge/slurm/epilog-slurmctld.sh",
    "deploy/node-check/slurm-health-check.sh": "usr/share/gpugauge/slurm/slurm-health-check.sh",
    "LICENSE": "usr/share/doc/gpugauge/copyright",
    "CHANGELOG.md": "usr/share/doc/gpugauge/CHANGELOG.md",
}
# A removed package keeps its configuration, and dpkg gives its version as that before. A removal that is given up
# starts the units again.
_CONFIGURE = """case $1 in
configure) old=$2 again=; test ! -e /run/gpugauge.again || again=yes; rm -f /run/gpugauge.again ;;
abort-remove) old=yes again=yes ;;
*) exit 0 ;;
esac"""
# scripts/NAME.sh in both formats: name and first lines for dpkg, section and first lines for rpm.
_MAINTAINER = {
    "installing": ("preinst", 'again=; test "$1" != install || again=$2', "pre", "again="),
    "installed": ("postinst", _CONFIGURE, "post", 'old= again=; test "$1" = 1 || old=yes'),
    "removing": ("prerm", 'test "$1" = remove || exit 0\nkeep=yes', "preun", 'test "$1" = 0 || exit 0\nkeep='),
    "removed": ("postrm", 'purge=; test "$1" != purge || purge=yes', "postun", "purge="),
}


class PackageError(Exception):
    """The package cannot be built; the message gives the command or the file, and the reason."""


def run(*command: str | Path) -> str:
    """Return the standard output of a command. Raises PackageError."""
    try:
        done = subprocess.run(command, cwd=_ROOT, check=False, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        raise PackageError(f"{command[0]} is not installed") from None
    if done.returncode:
        raise PackageError(f"failed with {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout.strip()


def environment(tree: Path, version: str, dist: Path) -> None:
    """Make the virtual environment below `tree`, as if it had been made at its final place."""
    target = tree / _PREFIX
    venv.create(target, with_pip=True, symlinks=True)
    python = target / "bin" / "python3"
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    run(*pip, "--require-hashes", "--requirement", _ROOT / "deploy" / "requirements" / "image.txt")
    run(*pip, "--no-index", "--no-deps", f"--find-links={dist}", f"gpugauge=={version}")
    run(python, Path(__file__).with_name("documents.py"), tree)
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")
    relocate(tree)
    # Hashes in place of times: the files of a package get their times from it. Paths are those after the installation.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(target / "lib", quiet=1, force=True, stripdir=tree, prependdir="/", invalidation_mode=mode)


def relocate(tree: Path) -> None:
    """Replace the path of the build in shebangs and pyvenv.cfg; remove scripts that only serve a shell or a build."""
    target = tree / _PREFIX
    for path in [*target.glob("bin/*"), target / "pyvenv.cfg"]:
        if path.name.lower().startswith("activate"):
            path.unlink()
        elif path.is_file() and not path.is_symlink():
            path.write_bytes(path.read_bytes().replace(bytes(tree), b""))
    # The interpreter of the distribution by its version: RHEL's python3 is another one than its python3.11.
    interpreter = f"python{_PYTHON.major}.{_PYTHON.minor}"
    for name in ("python", "python3", interpreter):
        (target / "bin" / name).unlink(missing_ok=True)
        (target / "bin" / name).symlink_to(f"/usr/bin/{interpreter}")
    config = target / "pyvenv.cfg"
    lines = [line for line in config.read_text().splitlines() if not line.startswith(("command", "executable", "home"))]
    config.write_text("\n".join(["home = /usr/bin", *lines]) + "\n")


def files(tree: Path) -> None:
    """Add what is outside of the virtual environment."""
    for source, target in _FILES.items():
        (tree / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_ROOT / source, tree / target)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/gpugauge").symlink_to(f"/{_PREFIX}/bin/gpugauge")
    for page in tree.glob("usr/share/man/man1/*.1"):
        page.with_name(page.name + ".gz").write_bytes(gzip.compress(page.read_bytes(), mtime=0))
        page.unlink()
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def scripts() -> dict[str, str]:
    """Return the body of each maintainer script."""
    return {name: (_SCRIPTS / f"{name}.sh").read_text() for name in _MAINTAINER}


def deb(tree: Path, version: str, revision: str, dist: Path) -> Path:
    """Write the Debian package and return its path."""
    architecture = run("dpkg", "--print-architecture")
    after = f"{_PYTHON.major}.{_PYTHON.minor + 1}"
    size = sum(path.lstat().st_size for path in tree.rglob("*") if not path.is_dir()) // 1024
    control = (
        f"Package: gpugauge\nVersion: {version}-{revision}\nArchitecture: {architecture}\nInstalled-Size: {size}\n"
        "Maintainer: gpugauge contributors\nSection: admin\nPriority: optional\n"
        "Homepage: https://github.com/gpugauge/gpugauge\n"
        f"Depends: python3 (>= {_PYTHON.major}.{_PYTHON.minor}), python3 (<< {after}), libc6, systemd (>= 247)\n"
        f"Description: {_SUMMARY}\n Per training process: how well the GPU is used, and if not well, why.\n"
    )
    path = dist / f"gpugauge_{version}-{revision}_{architecture}.deb"
    with tempfile.TemporaryDirectory() as folder:
        about, parts = Path(folder) / "control", [Path(folder) / name for name in ("control.tar.xz", "data.tar.xz")]
        about.mkdir()
        (about / "control").write_text(control)
        (about / "conffiles").write_text("/etc/default/gpugauge\n")
        for name, body in scripts().items():
            script, begin, _, _ = _MAINTAINER[name]
            (about / script).write_text(f"#!/bin/sh\nset -e\n{begin}\n{body}")
            (about / script).chmod(0o755)
        _tar(parts[0], about, about.iterdir())
        _tar(parts[1], tree, (each for each in tree.rglob("*") if each != tree / "opt"))
        _ar(path, {"debian-binary": b"2.0\n", **{part.name: part.read_bytes() for part in parts}})
    return path


def _tar(path: Path, root: Path, members: Iterable[Path]) -> None:
    """Write a tar file of these members of a folder, as root's."""

    def owned(info: tarfile.TarInfo) -> tarfile.TarInfo:
        for name, value in (("uid", 0), ("gid", 0), ("uname", "root"), ("gname", "root")):
            setattr(info, name, value)
        return info

    with tarfile.open(path, "w:xz", format=tarfile.GNU_FORMAT) as archive:
        for member in sorted(members):
            archive.add(member, f"./{member.relative_to(root)}", recursive=False, filter=owned)


def _ar(path: Path, members: dict[str, bytes]) -> None:
    """Write the archive that a Debian package is."""
    with path.open("wb") as file:
        file.write(b"!<arch>\n")
        for name, data in members.items():
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode())
            file.write(data + b"\n" * (len(data) % 2))


def rpm(tree: Path, version: str, revision: str, dist: Path) -> Path:
    """Write the RPM package and return its path."""
    paths = [path for path in tree.rglob("*") if not path.is_dir() or path.is_symlink()]
    listed = sorted(f"/{path.relative_to(tree)}" for path in paths if not path.is_relative_to(tree / _PREFIX))
    listed = [f"%config(noreplace) {path}" if path.startswith("/etc/") else path for path in listed]
    sections = [f"%{_MAINTAINER[name][2]}\n{_MAINTAINER[name][3]}\n{body}" for name, body in scripts().items()]
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "gpugauge.spec"
        spec.write_text(
            # The tree is complete: nothing is stripped or compiled, and nothing is derived from its files.
            "%global __os_install_post %{nil}\n%global debug_package %{nil}\n"
            "%global _build_id_links none\n"
            f"Name: gpugauge\nVersion: {version}\nRelease: {revision}\nSummary: {_SUMMARY}\nLicense: Apache-2.0\n"
            "URL: https://github.com/gpugauge/gpugauge\nAutoReqProv: no\n"
            f"Requires: python(abi) = {_PYTHON.major}.{_PYTHON.minor}, systemd >= 247\n"
            f"%description\n{_SUMMARY}.\n%install\nmkdir -p %{{buildroot}}\ncp -a {tree}/. %{{buildroot}}/\n"
            + "\n".join(sections)
            + "\n".join(["%files", "%defattr(-,root,root)", f"/{_PREFIX}", *listed])
            + "\n"
        )
        define = ["--define", f"_topdir {folder}", "--define", f"_rpmdir {folder}/out"]
        run("rpmbuild", "-bb", "--quiet", *define, spec)
        (built,) = Path(folder).glob("out/*/*.rpm")
        return Path(shutil.copy(built, dist / f"gpugauge-{version}-{revision}.{platform.machine()}.rpm"))


_FORMATS: dict[str, Callable[[Path, str, str, Path], Path]] = {"deb": deb, "rpm": rpm}


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", action="append", choices=_FORMATS, help="by default both")
    parser.add_argument("--revision", default="1", help="number of the package of the same version")
    parser.add_argument("--dist", type=Path, default=_ROOT / "dist", help="folder of the wheel and the packages")
    options = parser.parse_args()
    os.umask(0o022)  # the files of a package are for all users, whatever the umask of who builds it
    (version,) = re.findall(r'^__version__ = "(.+)"$', (_ROOT / "src/gpugauge/__init__.py").read_text(), re.MULTILINE)
    try:
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder) / "tree"
            environment(tree, version, options.dist.resolve())
            files(tree)
            for name in options.format or _FORMATS:
                path = _FORMATS[name](tree, version, options.revision, options.dist.resolve())
                sys.stdout.write(f"{path}\n")
    except (OSError, PackageError) as error:
        sys.stderr.write(f"packages: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
