"""Optional dependencies of the server, which some settings need."""

import importlib.util

from millrace.setting_problems import shown_value


def is_installed(module: str) -> bool:
    """Whether a module is installed; it is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # A parent package is missing.
        return False


def check_installed(value: str, library: str, extra: str, module: str | None = None) -> None:
    """Raises ValueError, with instructions, if a library that a setting needs is not installed.

    Args:
        value: The value of the setting.
        library: The name of the library.
        extra: The extra of the distribution that installs it.
        module: The module that is imported, if its name differs.
    """
    if not is_installed(module or library):
        raise ValueError(
            f"is {shown_value(value)}, which needs {library}; install it with: pip install 'millrace-server[{extra}]'"
        )
