"""Print the shared libpython of this interpreter; nothing where it has none."""

import sysconfig
from pathlib import Path

name = sysconfig.get_config_var("INSTSONAME") or sysconfig.get_config_var("LDLIBRARY") or ""
folders = [sysconfig.get_config_var(key) or "" for key in ("LIBDIR", "LIBPL")]
if sysconfig.get_config_var("Py_ENABLE_SHARED") and name:
    found = [path for path in (Path(folder) / name for folder in folders) if path.is_file()]
    print(found[0] if found else "")
