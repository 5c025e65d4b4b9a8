# `make` lists the targets. Each makes the environment (.venv) that it needs first; a second call finds it made.

PYTHON ?= python3
environment = $(PYTHON) scripts/environment.py
run = .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help environment quickstart quickstart-smollm quickstart-dpo sweep-dpo quickstart-iterative-dpo test check format bench mlflow mlflow-replay clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-25s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

environment:  ## make or repair the environment in .venv
	@$(environment) laptop

quickstart: environment  ## teach a tiny model from nothing and show what it learned (about three minutes)
	@$(run) scripts/quickstart.py brackets

quickstart-smollm:  ## the same workflow on SmolLM2-135M-Instruct (15 to 20 minutes)
	@$(environment) laptop smollm
	@$(run) scripts/quickstart.py smollm

quickstart-dpo: environment  ## DPO on pairs of verified rollouts, and the collapse that it can end in (about five minutes)
	@$(run) scripts/quickstart.py dpo

sweep-dpo: environment  ## DPO over loss, beta and learning rate with one reference precompute
	@$(run) scripts/quickstart.py sweep

quickstart-iterative-dpo: environment  ## iterative DPO beside GRPO at equal completions spent
	@$(run) scripts/quickstart.py iterative

test:  ## run every test; ARGS="-k name" to choose
	@$(environment) laptop dev
	@$(run) -m pytest $(ARGS)

check:  ## style, types, import contracts, registration without a cluster
	@$(environment) laptop dev
	@scripts/check.sh

format:  ## put imports and layout right
	@$(environment) laptop dev
	@.venv/bin/ruff check --quiet --select I --fix .
	@.venv/bin/ruff format .

bench: environment  ## speed beside named peers, as ratios (about a quarter of an hour); ARGS="--only NAME" for one
	@$(run) -m bench $(ARGS)

mlflow: environment  ## open the recorded runs in a browser
	@mkdir -p "$${POSTTRAIN_WORKSPACE:-workspace}" && cd "$${POSTTRAIN_WORKSPACE:-workspace}" && \
		"$$OLDPWD/.venv/bin/python" -m mlflow ui --host 127.0.0.1 --port $(or $(PORT),5000) --backend-store-uri sqlite:///mlflow.db

mlflow-replay: environment  ## send what waits in the workspace for an MLflow server that was away
	@$(run) -m posttrain.tracking_replay "$${POSTTRAIN_WORKSPACE:-workspace}"

clean:  ## remove the environment and the tools' caches; runs in the workspace stay
	rm -rf .venv .venv.old .venv.lock .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
