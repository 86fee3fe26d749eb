"""The command lines of all three packages tell their faults in one line."""

from __future__ import annotations

import argparse
from typing import NoReturn

from trainer.errors import UserError


class Parser(argparse.ArgumentParser):
    """Raises where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")
