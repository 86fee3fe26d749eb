#!/usr/bin/env bash
# Pins the versions that a fresh resolution of pyproject.toml gives: requirements.lock (with the dev extra) and
# requirements-benchmark.lock (what the peers need on top). The local label of a CPU build is cut off, so that
# the same lock brings each machine the torch build made for it; torch brings its own CUDA packages.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip="$work/venv/bin/python -m pip --disable-pip-version-check"
pins() { $pip freeze --exclude-editable | sed -E 's/\+cpu$//' | grep -viE '^(nvidia-|cuda-|triton|paceline)'; }
$pip install -q 'torch==2.13.0' '.[dev]'
pins > requirements.lock
$pip install -q '.[benchmark]'
pins | grep -vxFf requirements.lock > requirements-benchmark.lock
wc -l requirements.lock requirements-benchmark.lock
