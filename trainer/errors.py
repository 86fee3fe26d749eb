"""The one error a person can cause: every entry point prints it as one line and exits with code 2."""

from __future__ import annotations


class UserError(Exception):
    """Bad input (config, data, path, network). The message says what is wrong, where, and what would be right."""
