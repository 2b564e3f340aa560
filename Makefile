# Every target makes .venv by itself. PYTHON chooses the interpreter it is made with.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
# Where the service is installed, and below which root.
PREFIX ?= /opt/datahelix
DESTDIR ?=
UNITS := $(DESTDIR)/etc/systemd/system

.PHONY: help demo test check bench fuzz chaos npu-env clean install-service uninstall-service

help:
	@echo "make demo    train a small video model on 4 ranks through helixd (about three minutes)"
	@echo "make test    run the tests"
	@echo "make check   ruff, mypy, import-linter"
	@echo "make bench   hand-off times, and decoding against a tuned DataLoader and bare loops, with their targets; a short node benchmark"
	@echo "make fuzz    read 20,000 damaged files (about two minutes)"
	@echo "make chaos   kill, stop and confuse everything for 20 minutes, and check what ranks are given"
	@echo "make npu-env fetch torch_npu and build what it runs on without an NPU; make test uses it from then on"
	@echo "make install-service    as root: helixd under systemd, in $(PREFIX); uninstall-service takes it away"
	@echo "make clean   remove what the targets made"

$(READY): pyproject.toml .constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c .constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c .constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/python -m bench demo --out demo-out

# What is only computed runs on all cores; what starts daemons and looks at processes, one after the other.
# Of tests/system, what measures no time.
SIDE_BY_SIDE := $(patsubst %,tests/system/test_%.py,bad_input bad_samples broken_disk changed_files conversations \
    equality formats from_torch holding inline_and_state isolation kill mixtures odd_neighbours odd_plans parallel \
    planned_batches ranks replay set_weights several_items sound split tensors vlms)

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadfile --ignore tests/system --ignore tests/systemd --ignore tests/chaos --ignore tests/bench --ignore tests/npu
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/bench $(SIDE_BY_SIDE)
	$(BIN)/python -m pytest tests/system tests/systemd tests/chaos tests/npu $(addprefix --ignore=,$(SIDE_BY_SIDE))

bench: $(READY)
	mkdir -p bench-out
	failed=0; for name in handoff decode; do \
	    $(BIN)/python -m bench $$name --check --json bench-out/$$name.json || failed=1; \
	done; \
	rm -rf bench-out/node; \
	$(BIN)/python -m bench node --workloads uniform,heavy-tail --runs 1 --steps 16 --out bench-out/node || failed=1; \
	exit $$failed

fuzz: $(READY)
	HELIX_FUZZ=$${HELIX_FUZZ:-20000} $(BIN)/python -m pytest -s tests/fuzz

chaos: $(READY)
	$(BIN)/python -m tests.chaos --minutes $${HELIX_CHAOS_MINUTES:-20}

npu-env: $(READY)
	$(BIN)/python -m tests.npu.environment

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

install-service:
	$(PYTHON) -m venv $(DESTDIR)$(PREFIX)
	$(DESTDIR)$(PREFIX)/bin/python -m pip install --quiet --disable-pip-version-check -c .constraints.txt .
	install -d $(UNITS) $(DESTDIR)/etc/sysusers.d $(DESTDIR)/etc/tmpfiles.d $(DESTDIR)/etc/helix
	sed 's|@PREFIX@|$(PREFIX)|' systemd/helixd.service > $(UNITS)/helixd.service
	install -m 644 systemd/helixd.socket $(UNITS)/helixd.socket
	install -m 644 systemd/helixd.sysusers $(DESTDIR)/etc/sysusers.d/helixd.conf
	install -m 644 systemd/helixd.tmpfiles $(DESTDIR)/etc/tmpfiles.d/helixd.conf
	test -e $(DESTDIR)/etc/helix/helixd.toml || install -m 644 systemd/helixd.toml $(DESTDIR)/etc/helix/helixd.toml
	if [ -z "$(DESTDIR)" ] && [ -d /run/systemd/system ]; then \
	    systemd-sysusers && systemd-tmpfiles --create helixd.conf && systemctl daemon-reload; fi
	@echo "next: systemctl enable --now helixd.socket helixd.service"

# The configuration stays.
uninstall-service:
	if [ -z "$(DESTDIR)" ] && [ -d /run/systemd/system ]; then \
	    systemctl disable --now helixd.socket helixd.service; fi
	rm -f $(UNITS)/helixd.service $(UNITS)/helixd.socket
	rm -f $(DESTDIR)/etc/sysusers.d/helixd.conf $(DESTDIR)/etc/tmpfiles.d/helixd.conf
	rm -rf $(DESTDIR)$(PREFIX)
	if [ -z "$(DESTDIR)" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi

clean:
	rm -rf .venv demo-out bench-out *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
