# Every target sets up what it needs; a fresh machine wants Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: trial sweep ui test test-slow test-cuda check format bench lock clean

trial: $(VENV)/ready ## the smoketest trial on the embedded market
	$(BIN)/python -m trainer smoketest

test: $(VENV)/ready ## the default test suite
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(VENV)/ready ## the tests that take minutes: learning quality and whole trials
	$(BIN)/python -m pytest -m slow

test-cuda: $(VENV)/ready ## the tests that need an NVIDIA GPU
	$(BIN)/python -m pytest -m cuda

check: $(VENV)/ready ## lint, format and strict types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/ready ## side by side with peers on this machine's CPU; writes benchmarks/results/
	$(BIN)/python -m pip install -q -r requirements-benchmark.lock
	$(BIN)/python -m benchmarks.peers

lock: ## pin what a fresh resolution of pyproject.toml gives
	bash scripts/lock.sh

clean:
	rm -rf $(VENV) runs

$(VENV)/ready: requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements.lock
	touch $@

sweep: $(VENV)/ready ## the smoketest sweep on a local Ray, tracked in runs/mlflow.db
	RAY_ADDRESS=local $(BIN)/python -m search smoketest --out runs/sweep-$$(date +%Y%m%d-%H%M%S)

ui: $(VENV)/ready ## MLflow of all sweeps under runs/: http://127.0.0.1:5000, there "Model training"
	$(BIN)/mlflow ui --backend-store-uri sqlite:///runs/mlflow.db
