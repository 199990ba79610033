"""`pip install --no-build-isolation .` into somebody's environment works and leaves torch alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_plain_install_works_outside_the_source_tree_and_brings_no_torch(tmp_path: Path) -> None:
    target = tmp_path / "site"
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    }
    install = ["install", "--quiet", "--no-build-isolation", "--no-deps", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", *install, str(ROOT)], check=True, env=environment)
    (metadata,) = target.glob("bringup-*.dist-info/METADATA")
    needs = [line for line in metadata.read_text().splitlines() if "Requires-Dist: torch" in line]
    assert all("extra ==" in line for line in needs), needs  # only who asks for the extra gets it
    assert needs
    program = (
        "import pathlib, sys, bringup, torch\n"
        "from bringup import _native\n"
        "assert bringup.__file__.startswith(sys.argv[1]), bringup.__file__\n"
        "assert str(_native.include_dir()).startswith(sys.argv[1]), _native.include_dir()\n"
        "assert str(_native.sim_driver_path()).startswith(sys.argv[1])\n"
        "_native.torch_library()\n"
        "from bringup._native import _find\n"  # what another torch's library is built from
        "assert str(_find.source_folder()) == sys.argv[1] + '/bringup/source'\n"
        "found = _find.in_folder(_native.library_dir() / str(_find.running_key()))\n"
        "assert next(found).artifact.torch == torch.__version__\n"
        "assert _find.core_build_key(_native.library_dir()) == _find.source_digest(\n"
        "    _find.source_folder())\n"
        "from bringup.cli import _new_command\n"
        "for kind in ('kernel', 'pass'):\n"
        "    _new_command.write_package(kind, f'a_{kind}', pathlib.Path(sys.argv[2]))\n"
        "print('works')\n"
    )
    # -S leaves the editable install's finder out, which would answer for `bringup` first.
    site_packages = os.pathsep.join(p for p in sys.path if p.endswith("site-packages"))
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", program, str(target), str(tmp_path)],
        env=environment | {"PYTHONPATH": f"{target}{os.pathsep}{site_packages}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "works", done.stderr
