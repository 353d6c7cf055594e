"""The optional dependencies of the server, which some settings need."""

import importlib.util

from millrace.setting_problems import shown_value


def is_installed(module: str) -> bool:
    """Whether a module can be imported, as far as can be known without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # A parent package is missing.
        return False


def check_installed(value: str, library: str, extra: str, module: str | None = None) -> None:
    """Raises ValueError, which says how to install it, if a library is missing that a setting needs.

    Args:
        value: The value of the setting.
        library: The library, as users know it.
        extra: The extra of the distribution that installs it.
        module: What is imported of it; by default a module of its name.
    """
    if not is_installed(module or library):
        raise ValueError(
            f"is {shown_value(value)}, which needs {library}; install it with: pip install 'millrace-server[{extra}]'"
        )
