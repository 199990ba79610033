"""Build the wheels that this machine can build, and test each: `make wheels`, `make test-wheels`.

    python tools/wheels.py build      the matrix into dist/, with digests and a bill of materials
    python tools/wheels.py test       each wheel of dist/ in an environment of its own

The interpreter that runs this has torch, so its wheel has the library that links torch. Wheels of
other interpreters have none: that library is built into the user's cache there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_WORK = _ROOT / "build" / "wheels"
_DIST = _ROOT / "dist"
_MINORS = (10, 11, 12, 13, 14)
# Of the torch that the user has, never part of the wheel.
_OF_TORCH = ("libtorch*.so", "libc10*.so", "libgomp*.so*", "libshm.so")
_ENVIRONMENT = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def run(*argv: str | Path, **variables: str) -> str:
    """Runs a program and returns its standard output; its failure ends this program."""
    environment = {**os.environ, **_ENVIRONMENT, **variables}
    done = subprocess.run(
        [str(part) for part in argv], cwd=_WORK, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, argv))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def interpreters() -> dict[str, Path]:
    """The interpreters of this machine by Python tag: this one, then pyenv's and those on PATH."""
    found = {f"cp{sys.version_info[0]}{sys.version_info[1]}": Path(sys.executable)}
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in _MINORS:
        of_pyenv = sorted(root.glob(f"3.{minor}.*/bin/python"))
        on_path = shutil.which(f"python3.{minor}")
        candidates = [*of_pyenv, *([Path(on_path)] if on_path else [])]
        usable = [path for path in candidates if _is_minor(path, minor)]
        if usable:
            found.setdefault(f"cp3{minor}", usable[-1])
    return dict(sorted(found.items()))


def _is_minor(python: Path, minor: int) -> bool:
    """Whether it starts: a shim of pyenv may stand for a version that is not chosen."""
    program = "import sys; print(sys.version_info[1])"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return done.stdout.strip() == str(minor)


def environment(python: Path, name: str, *, fresh: bool = False) -> Path:
    """The interpreter of a virtual environment in the work folder."""
    folder = _WORK / name
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    made = folder / "bin" / "python"
    if not made.exists():
        run(python, "-m", "venv", folder)
    run(made, "-m", "pip", "install", "--quiet", "pip>=25.1")
    return made


def group(python: Path, name: str) -> None:
    """Installs a dependency group of pyproject.toml."""
    run(python, "-m", "pip", "install", "--quiet", "--group", f"{_ROOT / 'pyproject.toml'}:{name}")


def tool(name: str) -> Path:
    """A program of the dependency group `wheels`."""
    return _WORK / "tools" / "bin" / name


def build() -> None:
    """Builds, checks and describes every wheel."""
    shutil.rmtree(_DIST, ignore_errors=True)
    raw = _WORK / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    _DIST.mkdir()
    group(environment(Path(sys.executable), "tools"), "wheels")
    run(tool("python"), "-m", "build", "--sdist", "--outdir", _DIST, _ROOT)
    kernels = _WORK / "kernels"
    print(run(sys.executable, _ROOT / "tools" / "prebuild_kernels.py", kernels).strip(), flush=True)
    compiled_in: set[str] = set()
    for tag, python in interpreters().items():
        print(f"building {tag}", flush=True)
        began = time.monotonic()
        has_torch = python == Path(sys.executable)
        builder = python if has_torch else environment(python, f"build-{tag}")
        if not has_torch:
            group(builder, "build")
        options = ["--quiet", "--no-deps", "--no-build-isolation"]
        # As deep as the folder of `make build`: ccache compares relative paths.
        options += ["--config-settings", f"build-dir={_ROOT / 'build' / f'wheel-{tag}'}"]
        options += ["--config-settings", f"cmake.define.BRINGUP_PREBUILT_KERNELS={kernels}"]
        path = f"{builder.parent}{os.pathsep}{os.environ['PATH']}"
        run(builder, "-m", "pip", "wheel", *options, "--wheel-dir", raw, _ROOT, PATH=path)
        compiled_in.add(run(builder, "-c", "import nanobind; print(nanobind.__version__)").strip())
        print(f"built {tag} in {time.monotonic() - began:.0f} s", flush=True)
    if len(compiled_in) != 1:
        sys.exit(f"the wheels have different versions of nanobind in them: {sorted(compiled_in)}")
    for wheel in sorted(raw.glob("*.whl")):
        repair(wheel)
    wheels = sorted(_DIST.glob("*.whl"))
    for wheel in wheels:
        check_tag(wheel)
    run(tool("twine"), "check", "--strict", *sorted(_DIST.iterdir()))
    bill_of_materials(wheels[0], compiled_in.pop())
    described = [describe(wheel) for wheel in wheels]
    (_DIST / "wheels.json").write_text(json.dumps(described, indent=1) + "\n")
    files = sorted(path for path in _DIST.iterdir() if path.name != "SHA256SUMS")
    (_DIST / "SHA256SUMS").write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files))
    for one in described:
        print(f"{one['file']}: {one['bytes'] / 1e6:.1f} MB, {one['platform']}, {one['torch']}")


def repair(wheel: Path) -> None:
    """Gives a wheel the oldest manylinux tag that it keeps, and copies no library into it."""
    excluded = [part for name in _OF_TORCH for part in ("--exclude", name)]
    path = f"{tool('')}{os.pathsep}{os.environ['PATH']}"
    run(tool("auditwheel"), "repair", *excluded, "--wheel-dir", _DIST, wheel, PATH=path)


def check_tag(wheel: Path) -> None:
    """The versions of the system's symbols have to be those of the wheel's tag. auditwheel also
    looks for libraries that a wheel does not bring, and those of torch are the user's.
    """
    said = " ".join(run(tool("auditwheel"), "show", wheel).split())
    found = re.search(r'constrains the platform tag to "(\w+)"', said)
    if found is None or found[1] not in wheel.name:
        sys.exit(f"{wheel.name} has symbols of another tag:\n{said}")


def describe(wheel: Path) -> dict[str, object]:
    """What is in a wheel, as its manifests say; they have to be right after the repair."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        native = Path(folder) / "bringup" / "_native"
        artifacts = [
            artifact
            for manifest in sorted(native.rglob("manifest.json"))
            for artifact in checked(manifest)
        ]
    platform = re.search(r"manylinux_\d+_\d+_[a-z0-9_]+?(?=\.|$)", wheel.stem)
    torch = sorted({str(artifact["torch"]) for artifact in artifacts} - {""})
    return {
        "file": wheel.name,
        "sha256": sha256(wheel),
        "bytes": wheel.stat().st_size,
        "platform": platform[0] if platform else "not manylinux",
        "torch": f"torch {', '.join(torch)}" if torch else "no torch library",
        "artifacts": artifacts,
    }


def checked(manifest: Path) -> list[dict[str, object]]:
    """The artifacts of a manifest whose digests are those of the files."""
    artifacts: list[dict[str, object]] = json.loads(manifest.read_text())["artifacts"]
    for artifact in artifacts:
        found = sha256(manifest.parent / str(artifact["file"]))
        if found != artifact["sha256"]:
            sys.exit(f"{artifact['file']}: {manifest} has the digest of another file")
    return artifacts


def bill_of_materials(wheel: Path, nanobind: str) -> None:
    """A CycloneDX file of what a wheel brings, from an environment that has nothing else, and of
    what is compiled in, which no environment shows.
    """
    tag = wheel.name.split("-")[2]
    python = environment(interpreters()[tag], "materials", fresh=True)
    run(python, "-m", "pip", "install", "--quiet", wheel)
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")
    target = _DIST / f"{wheel.name.split('-')[0]}-{wheel.name.split('-')[1]}.cdx.json"
    options = ["--pyproject", _ROOT / "pyproject.toml", "--mc-type", "library"]
    options += ["--output-reproducible", "--of", "JSON", "-o", target]
    run(tool("cyclonedx-py"), "environment", *options, python)
    record = json.loads(target.read_text())
    add_compiled_in(record, "nanobind", nanobind, "_core and _torch")
    add_compiled_in(record, "pybind11", pybind11_of_torch(), "_distributed, from torch's headers")
    target.write_text(json.dumps(record, indent=2) + "\n")


def add_compiled_in(record: dict[str, Any], name: str, version: str, where: str) -> None:
    """Name a library of headers in a CycloneDX record, as one that the package depends on."""
    reference = f"{name}=={version}"
    record["components"].append({
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "description": f"compiled into bringup/_native: {where}",
        "licenses": [{"license": {"id": "BSD-3-Clause"}}],
        "purl": f"pkg:pypi/{name}@{version}",
    })  # fmt: skip
    root = record["metadata"]["component"]["bom-ref"]
    (of_root,) = (part for part in record["dependencies"] if part["ref"] == root)
    of_root["dependsOn"] = sorted([*of_root.get("dependsOn", []), reference])
    record["dependencies"].append({"ref": reference})


def pybind11_of_torch() -> str:
    """The version that torch's headers have in them."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    header = Path(torch.origin).parent / "include" / "pybind11" / "detail" / "common.h"
    parts = re.findall(r"#define PYBIND11_VERSION_(?:MAJOR|MINOR|MICRO) +(\d+)", header.read_text())
    if len(parts) != 3:
        sys.exit(f"{header} does not say which pybind11 it is")
    return ".".join(parts)


def sha256(path: Path) -> str:
    """The digest of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test() -> None:
    """Tries each wheel in an empty environment; ends at the first failure."""
    wheels = sorted(_DIST.glob("*.whl"))
    if not wheels:
        sys.exit(f"{_DIST} has no wheel: make wheels")
    known = interpreters()
    for described in json.loads((_DIST / "wheels.json").read_text()):
        wheel = _DIST / str(described["file"])
        if sha256(wheel) != described["sha256"]:
            sys.exit(f"{wheel} is not the one that was built: make wheels")
        tag = wheel.name.split("-")[2]
        began = time.monotonic()
        python = environment(known[tag], f"test-{tag}", fresh=True)
        expected = "none"
        if str(described["torch"]).startswith("torch "):
            expected = str(described["torch"]).split()[1].split("+")[0]
            run(python, _ROOT / "tools" / "install_torch.py", f"torch=={expected}")
            run(python, "-m", "pip", "install", "--quiet", f"{wheel}[demo]")
        run(python, "-m", "pip", "install", "--quiet", f"{wheel}[onnx]")
        print(f"{tag}: {tried(python, expected)} ({time.monotonic() - began:.0f} s)", flush=True)
    source_distribution()
    refused_by_python_39()


def tried(python: Path, torch: str) -> str:
    """What try_wheel.py says of the package that is installed there."""
    return run(
        python, _ROOT / "tools" / "try_wheel.py", torch, _ROOT / "tests" / "host"
    ).splitlines()[-1]


def source_distribution() -> None:
    """Where no wheel fits, pip builds the source distribution; without a compiler, one sentence."""
    (source,) = _DIST.glob("*.tar.gz")
    began = time.monotonic()
    python = environment(Path(sys.executable), "test-sdist", fresh=True)
    argv = [python, "-m", "pip", "install", "--no-deps", source]
    nothing_else = {"PATH": str(python.parent), "HOME": str(Path.home()), **_ENVIRONMENT}
    done = subprocess.run(argv, env=nothing_else, capture_output=True, text=True, check=False)
    missing = "bringup's native parts need a C++20 compiler, and there is none: apt-get install g++"
    if done.returncode == 0 or missing not in " ".join((done.stdout + done.stderr).split()):
        sys.exit(f"without a compiler pip said:\n{done.stdout}{done.stderr}")
    run(python, "-m", "pip", "install", "--quiet", f"{source}[onnx]")
    seconds = time.monotonic() - began
    print(f"source distribution: {tried(python, 'none')} ({seconds:.0f} s)", flush=True)


def refused_by_python_39() -> None:
    """Where there is a Python 3.9, pip has to refuse the source distribution by its version."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for python in sorted(root.glob("3.9.*/bin/python"))[-1:]:
        (source,) = _DIST.glob("*.tar.gz")
        argv = [python, "-m", "pip", "install", "--no-deps", "--dry-run", source]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode == 0 or "not in '>=3.10'" not in done.stderr:
            sys.exit(f"Python 3.9 was not refused by its version:\n{done.stdout}{done.stderr}")
        print("cp39: refused, needs >=3.10")


def main() -> None:
    """Does what the first argument says."""
    commands = {"build": build, "test": test}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    _WORK.mkdir(parents=True, exist_ok=True)
    commands[sys.argv[1]]()


if __name__ == "__main__":
    main()
