# `make run` and `make test` each work alone on a clean clone of a new machine.

VENV := .venv
PY := $(VENV)/bin/python
ifeq ($(origin CC),default)
CC := $(if $(shell command -v ccache),ccache gcc,gcc)
endif
export CC
# A newer OpenSSL than the system's, once it is there: see `make openssl`.
export PYLOG_OPENSSL := $(abspath $(wildcard $(or $(PYLOG_CACHE),.cache)/openssl))

BUILD_NEEDS := gcc=gcc stdlib.h=libc6-dev isa-l.h=libisal-dev lz4frame.h=liblz4-dev \
	zstd.h=libzstd-dev snappy-c.h=libsnappy-dev zlib.h=zlib1g-dev openssl/ssl.h=libssl-dev
PYTHON_NEEDS := python3=python3 python3-venv=python3-venv python3-config=python3-dev
TEST_NEEDS := kcat=kcat javac=default-jdk-headless mvn=maven etcd=etcd-server openssl=openssl \
	ip=iproute2 nft=nftables chromium=chromium mandoc=mandoc
TRIAL_NEEDS := $(if $(JAVA_HOME),,java=default-jre-headless)
RELEASE_NEEDS := nasm=nasm perl=perl dpkg-deb=dpkg mvn=maven aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu
OPENSSL_NEEDS := python3=python3 gcc=gcc dpkg-deb=dpkg objcopy=binutils
COMPAT_NEEDS := go=golang node=nodejs npm=npm
FUZZ_NEEDS := clang=clang clang=libclang-rt-14-dev
# The thread-safety analysis of C needs Clang 22: see tests/checks/locks.py.
TIDY_NEEDS := clang-22=clang-22
FUZZ_SECONDS ?= 60

.PHONY: run build openssl test compat asan tsan tsan-brokerd fuzz tidy docs docs-site docs-serve bench bench-vs bench-cluster bench-control bench-growth bench-spark soak soak-cluster simulate soak-log mutants trial trial-needs test-spark test-console soak-console wheel release release-check release-versions container clean

run: build
	@$(VENV)/bin/brokerd --version >&2
	exec $(VENV)/bin/brokerd --override metrics.listener=127.0.0.1:9644 $(ARGS)

# Debian's newest, from its archive and into the cache; encrypts for a fifth less CPU than 3.0.
openssl:
	@.ci/packages $(OPENSSL_NEEDS)
	python3 -m release.openssl

build: $(VENV)/.built
	@$(PY) setup.py -q build_ext --inplace

# More workers than a small machine has processors: most tests wait for a broker, a timer or a JVM.
WORKERS ?= 3
test: build $(VENV)/.tested
	$(PY) -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart 0 $(TESTS)

compat: build $(VENV)/.tested
	@.ci/packages $(COMPAT_NEEDS)
	$(PY) -m tests.compat $(ARGS)

# The sanitizers get a copy of the tree with build products of its own. LD_PRELOAD, because the
# interpreter itself is not built with them; a sanitizer in a JVM is of no use, hence not kafka.
asan: build $(VENV)/.tested
	$(call copied,asan,address)
	cd build/asan && LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
		PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
		PYTHONPATH=. $(CURDIR)/$(PY) -m pytest $(SANITIZED)

# Arrow's allocator takes more locks at a fork than TSan's search for deadlocks can hold: tests that
# load it run apart, without that search.
WITH_ARROW = tests/native/client/test_avro.py tests/native/client/test_batch_builder.py
UNDER_TSAN = cd build/tsan && LD_PRELOAD="$$(gcc -print-file-name=libtsan.so)" PYTHONPATH=. TSAN_OPTIONS=halt_on_error=1

tsan: build $(VENV)/.tested
	$(call copied,tsan,thread)
	$(UNDER_TSAN) $(CURDIR)/$(PY) -m pytest $(if $(TESTS),,$(addprefix --ignore=,$(WITH_ARROW))) $(SANITIZED)
	$(if $(TESTS),,$(UNDER_TSAN):detect_deadlocks=0 $(CURDIR)/$(PY) -m pytest $(filter-out tests/csrc,$(SANITIZED:tests/native=$(WITH_ARROW))))

# Only the brokers under a sanitizer: for tests whose own process has libraries that run under none
# (librdkafka, Arrow). What it finds ends a broker, which its test reports.
tsan-brokerd: build $(VENV)/.tested
	$(call copied,tsan,thread)
	BROKERD_TREE=$(CURDIR)/build/tsan BROKERD_PRELOAD="$$(gcc -print-file-name=libtsan.so)" \
		TSAN_OPTIONS=halt_on_error=1 $(PY) -m pytest -p no:cacheprovider \
		-m "not kafka and not memory and not spark" $(or $(TESTS),tests/wire)

SANITIZED = -p no:cacheprovider -m "not kafka and not memory" $(or $(TESTS),tests/csrc tests/native)

# A copy by time stamp: what is unchanged stays built, what is gone here goes there.
define copied
	@mkdir -p build/$(1)
	@find build/$(1) -type f ! -path 'build/$(1)/build/*' ! -name '*.so' ! -path '*/_native/*.c' -delete
	@git ls-files -coz --exclude-standard | xargs -0 sh -c 'for f; do [ -e "$$f" ] && echo "$$f"; done' - \
		| xargs cp -pP --parents -t build/$(1)
	cd build/$(1) && PYLOG_SANITIZE=$(2) $(CURDIR)/$(PY) setup.py -q build_ext --inplace
endef

fuzz: build
	@.ci/packages $(FUZZ_NEEDS)
	PYTHON=$(PY) tests/fuzz/run.sh $(FUZZ_SECONDS)

tidy: build $(VENV)/.tested
	@.ci/packages $(TIDY_NEEDS)
	$(PY) -m tests.checks.tidy
	$(PY) -m tests.checks.locks
	$(VENV)/bin/ruff check .
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cython-lint pylog/_native
	$(VENV)/bin/mypy

# The documents that are derived from tables.
docs: build $(VENV)/.develop
	$(PY) -m pylog.config.document docs/reference
	$(PY) -m pylog.protocol.document docs/reference/protocol.md
	$(PY) -m pylog.monitor.document docs/reference/metrics.md
	$(PY) -m pylog.tools.docs docs/reference/pylog.md
	$(PY) -m pylog.client.docs docs/reference/client-settings.md
	$(PY) -m release.messages docs/reference/messages.md
	$(PY) -m release.brokerd_page docs/reference/brokerd.md
	$(PY) -m release.site --contents
	$(PY) -m release.man docs/man
	$(PY) -m release.alerts docs/alerts/pylog.rules.yml docs/howto/alerts.md
	$(PY) -m release.dashboards docs/grafana
	$(PY) -m release.public_api

# The site, strict, one folder for each version, in build/site/html: see release/site.py.
docs-site: build
	$(PY) -m pip install -q --disable-pip-version-check --group docs
	$(PY) -m release.site $(ARGS)

# Build the site and serve it at http://localhost:8000/.
docs-serve: ARGS = --serve 8000
docs-serve: docs-site

bench: build $(VENV)/.tested
	$(PY) -m pytest bench $(ARGS)

bench-vs: build $(VENV)/.tested
	$(PY) -m bench.vs $(ARGS)

bench-cluster: build $(VENV)/.tested
	$(PY) -m bench.cluster $(ARGS)

bench-control: build $(VENV)/.tested
	$(PY) -m bench.control $(ARGS)

bench-growth: build $(VENV)/.tested
	$(PY) -m bench.growth $(ARGS)

bench-spark: build $(VENV)/.tested
	$(PY) -m spark.comparison $(ARGS)

# Spark's tests with their long variants: a cluster of two workers, jobs killed and resumed.
test-spark: build $(VENV)/.tested
	$(PY) -m pytest tests/spark --slow $(ARGS)

# 50 users of the console for 20 minutes; fails if its memory or descriptors grow.
soak-console: export SECONDS = 1200
soak-console: build $(VENV)/.tested
	$(PY) -m bench.console --records 0 --groups 0 --topics 0 --tail-seconds 0 --users 0 \
		--soak-seconds $(SECONDS) $(ARGS)

# The console's tests with their long variants: every flow in every mode with brokerd and Kafka.
test-console: build $(VENV)/.tested
	$(PY) -m pytest tests/console --slow $(ARGS)

# Load, brokerd killed with -9 every few seconds, validate: make soak SECONDS=600.
SECONDS ?= 60
soak: build $(VENV)/.tested
	$(PY) -m spark.soak --seconds $(SECONDS) $(ARGS)

# Three brokerds in networks of their own among faults of all kinds, under all kinds of clients, and
# whether what these were told is true: make soak-cluster SECONDS=1800 ARGS="--seed 4711".
soak-cluster: build $(VENV)/.tested
	$(PY) -m tests.chaos --seconds $(SECONDS) $(ARGS)

# Clusters on a virtual clock, one from each seed: make simulate SEEDS=10000 ARGS="--first 500".
SEEDS ?= 1000
simulate: build $(VENV)/.tested
	$(PY) -m tests.sim --seeds $(SEEDS) $(ARGS)

# Histories of a log on a simulated disk that fails: make soak-log SECONDS=600.
soak-log: build $(VENV)/.tested
	SECONDS=$(SECONDS) $(PY) -m pytest tests/durability/test_log_history.py --slow -k for_long $(ARGS)

# A sample of slips in the code against the tests: make mutants ARGS="--count 20 --part client".
mutants: build $(VENV)/.tested
	$(PY) -m tests.mutants $(ARGS)

# Load, validate and report in one command, on a separate brokerd. Names missing packages and stops;
# make trial INSTALL=1 installs them.
trial: export INSTALL ?= no
trial: trial-needs build $(VENV)/.develop
	$(PY) -m spark.trial $(or $(ARGS),--records 1000000)

trial-needs:
	@.ci/packages $(BUILD_NEEDS) $$(.ci/python >/dev/null || echo "$(PYTHON_NEEDS)") $(TRIAL_NEEDS)

# The sdist and wheels for this and other Linuxes, in dist/:
# make wheel ARGS="--target manylinux_2_28_x86_64 --python 3.11".
wheel: build $(VENV)/.release
	$(PY) -m release.wheels $(ARGS)

# Builds and checks all files of a release, and prints the commands that remain.
release: build $(VENV)/.release
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m release $(ARGS)

# The longer checks of the files in dist/: a second build has the same hashes, and the wheels work in
# a Debian that has only Python. Names the wheels that need an emulator that is missing here.
release-check: build $(VENV)/.release
	@.ci/packages debootstrap=debootstrap
	$(PY) -m release.reproduce $(ARGS)
	$(PY) -m release.bare --if-possible dist/pylog_broker-*-manylinux_*.whl

# The container image, from the wheel for Python 3.13 in dist/, and a test of it.
container: build $(VENV)/.release
	@.ci/packages debootstrap=debootstrap buildah=buildah
	$(PY) -m release.container dist/pylog_broker-*-cp313-*-manylinux_2_28_$$(uname -m).whl

# Tests with the lowest and the highest versions of all dependencies.
release-versions: build $(VENV)/.release
	$(PY) -m release.versions $(TESTS)

clean:
	rm -rf build $(VENV) pylog/_native/*/*.c pylog/_native/*/*.so *.egg-info

# Dependency groups (PEP 735) need pip 25.1. The editable install uses a .pth file: setuptools' import
# hooks would cost each start of brokerd 10 ms.
$(VENV)/.built: pyproject.toml
	@.ci/packages $(BUILD_NEEDS)
	@.ci/python >/dev/null || .ci/packages $(PYTHON_NEEDS)
	@python="$$(.ci/python)" || { echo "Python 3.11 or later with its headers is needed" >&2; exit 1; }; \
		[ -x $(PY) ] || "$$python" -m venv $(VENV)
	$(PY) -m pip install -q --disable-pip-version-check "pip>=25.1" "setuptools>=77,<83" "Cython>=3.3,<4"
	$(PY) -m pip install -q --disable-pip-version-check --no-build-isolation \
		--config-settings editable_mode=compat -e .
	@touch $@

$(VENV)/.tested: $(VENV)/.develop
	@.ci/packages $(TEST_NEEDS)
	@touch $@

# The Python packages of tests, benchmarks and Spark jobs.
$(VENV)/.develop: $(VENV)/.built
	$(PY) -m pip install -q --disable-pip-version-check --group dev
	@touch $@

# The tools that build releases.
$(VENV)/.release: $(VENV)/.built
	@.ci/packages $(RELEASE_NEEDS)
	$(PY) -m pip install -q --disable-pip-version-check --group release
	@touch $@
