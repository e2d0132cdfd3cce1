# One verb per task; every verb makes the environment and fetches the model when they are missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JSON_ARG = $(if $(JSON),--json $(JSON))

.PHONY: demo serve test test-sglang sglang-env check browser conformance release-check
.PHONY: bench bench-smoke bench-policy bench-gateway bench-load docs model format lock clean

demo: model
	@$(BIN)/outrider demo

serve: model
	@$(BIN)/outrider serve $(ARGS)

# Two processes with a thread each are faster than one with two; to debug in one: ARGS="-n 0 ...".
test: model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not sglang and not conformance and not release" $(ARGS)

# Debian's Chromium, in which the tests open reports; where it cannot be installed they say NOT RUN.
browser:
	-@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

# Real SGLang on a CPU: its environment (1.5 GB, some minutes, once), and the tests of lanes that need it.
sglang-env: $(READY)
	@$(BIN)/outrider lanes env

# Where it cannot be built the end of the run says what was NOT RUN; OUTRIDER_REQUIRE_TOOLS=1 makes that a failure.
test-sglang: model
	-@$(BIN)/outrider lanes env
	$(BIN)/python -m pytest -m sglang tests/sglang tests/contract tests/e2e $(ARGS)

# Other makers' checkers of protocols, in an environment that is built first (once), and openai-python's own tests.
# Where it cannot be built: as above.
conformance: model
	-@PYTHONPATH=tests $(BIN)/python -m conformance.environment
	$(BIN)/python -m pytest -m conformance tests/conformance $(ARGS)

# The release, into dist/: wheel, source distribution, licences and list of parts; linters of all that ships; the wheel in
# empty environments; the images of gateway and engine, whose steps need root and Debian's buildah and debootstrap; alerts and
# queries, for which Debian's prometheus is asked.
release-check: model
	-@PYTHONPATH=tests $(BIN)/python -m release.environment
	$(BIN)/python -m pytest -m release tests/release $(ARGS)

bench: model
	@$(BIN)/outrider bench engine --suite tasks $(JSON_ARG) $(ARGS)

bench-policy: model
	@$(BIN)/outrider bench policy $(JSON_ARG) $(ARGS)

# One of everything against the embedded engine, under two minutes: that all of it works, not how fast it is.
bench-smoke: model
	@$(BIN)/outrider bench run smoke --out $(or $(OUT),$(shell mktemp -d)) $(ARGS)

bench-gateway: $(READY)
	@$(BIN)/outrider bench gateway $(JSON_ARG) $(ARGS)

# A thousand streams through one gateway; a soak: ARGS="--minutes 10".
bench-load: $(READY)
	@$(BIN)/outrider bench load $(JSON_ARG) $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The pages of docs/reference, from the code.
docs: $(READY)
	$(BIN)/python docs/generate.py

model: $(READY)
	@$(BIN)/outrider model pull

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

# Resolve anew in an empty environment; run it after a change of dependencies in pyproject.toml.
lock:
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet hatchling editables
	$(VENV)-lock/bin/python -m pip install --quiet --no-build-isolation --editable .[engine,plots,dev]
	$(VENV)-lock/bin/python -m pip freeze --exclude-editable | sed -E 's/^(torch==[0-9.]+)\+.*/\1/' > requirements.lock
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
