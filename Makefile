# The two commands of the README are `make demo` and `make test`. Both install what they need.

.PHONY: build demo test test-vm test-debian13 test-kernel test-frr test-asan soak lint tidy clippy check models instructions install deb clean

# Not BRICKMOON, which names a binary for the tests in the environment.
PROGRAM := $(or $(CARGO_TARGET_DIR),target)/release/brickmoon
# What `brickmoon bench` and `brickmoon demo` run.
BENCH := $(PROGRAM)-bench
# What strongSwan preloads to send its SAs to brickmoon.
XFRM_LIBRARY := $(dir $(PROGRAM))libbrickmoon-xfrm.so
# In the profile of everything else, so that what it needs is compiled once.
XTASK := cargo run --quiet --release --locked --package xtask --
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

build:
	@tools/setup build
	cargo build --release --locked $$(tools/features)

demo: build
	$(SUDO) $(PROGRAM) demo $(DEMO)

lint:
	@tools/setup build
	@$(MAKE) --no-print-directory tidy clippy

tidy:
	cargo fmt --all --check
	$(XTASK) tidy

clippy:
	cargo clippy --release --workspace --all-targets --locked $$(tools/features) -- -D warnings
	[ -z "$$(tools/features)" ] || cargo clippy --release -p bm-port-dpdk -p bm-ipsec --all-targets --locked -- -D warnings
	@tools/deny

# What tests need on a machine, and what is skipped if it is missing.
check:
	@tools/check

# In the release profile, so that what is tested is what is shipped. PROGRAMS="kept auto" builds and runs only those.
# Clippy runs beside the test programs, which wait half the time.
test:
	@tools/setup test
	@tools/check
	@[ -n "$(PROGRAMS)" ] || $(MAKE) --no-print-directory tidy
	$(XTASK) test $(PROGRAMS)

# Loom models: every interleaving of threads that share tables and links without locks. Part of `make test`.
models:
	$(XTASK) test models

# Counts the instructions per packet; fails if they exceed the record in xtask/instructions.toml. Part of `make test`.
instructions:
	$(XTASK) instructions

# Debian's kernel in QEMU without KVM, some eight minutes: an older kernel, VLANs and VRFs, and network cards with DPDK.
test-vm:
	@tools/setup vm
	tests/vm/run

# A build in a root folder of Debian 13, and a start of it there (tests/README.md); BM_DEBIAN13_PROFILE=dev for a faster one.
test-debian13:
	$(SUDO) env "PATH=$$PATH" "HOME=$$HOME" tools/debian13

# The kernel's selftests on forwarding with brickmoon in every router of theirs, beside Linux alone (tests/README.md):
# make test-kernel [TESTS="pmtu nft_nat"] [BM_KERNEL_VM=1]
test-kernel:
	$(SUDO) env "PATH=$$PATH" "HOME=$$HOME" tests/kernel/run $(TESTS)

# FRR's topotests likewise: make test-frr TREE=~/frr [TESTS=ospf]
test-frr:
	@[ -n "$(TREE)" ] || { echo 'which tree? make test-frr TREE=DIR, the root of a checkout of FRRouting/frr'; exit 2; }
	$(SUDO) env "PATH=$$PATH" "HOME=$$HOME" tests/frr/run $(TREE) $(TESTS)

# An hour with a full table that changes 10,000 times a second, reloads, requests and a link that flaps, on both paths
# at once; SOAK=60 for a minute. The report goes to the terminal and to target/soak.txt. `make test` runs 20 s of it.
soak: build
	@tools/setup test
	@rm -f target/soak.txt
	cargo test --release --locked --package bm-tests --test lifecycle --no-run
	$(SUDO) env "PATH=$$PATH" "HOME=$$HOME" BM_SOAK=$(or $(SOAK),3600) BM_REPORT=$$PWD/target/soak.txt \
		cargo test --release --locked --package bm-tests --test lifecycle soak::both_paths

# Random steps of an administrator in Linux alone and beside all paths (tests/README.md), an hour or SECONDS; the report
# and the scripts of what it found go to target/model. `make test` runs a minute of it.
.PHONY: model
model: build
	@tools/setup test
	@rm -rf target/model
	@mkdir -p target/model
	cargo test --release --locked --package bm-tests --test paths --no-run
	$(SUDO) env "PATH=$$PATH" "HOME=$$HOME" BM_MODEL_SECONDS=$(or $(SECONDS),3600) BM_SEED=$(SEED) \
		BM_MODEL_SCRIPTS=$$PWD/target/model BM_REPORT=$$PWD/target/model/report.txt \
		cargo test --release --locked --package bm-tests --test paths model::

install: build
	$(SUDO) install -D -m 755 $(PROGRAM) $(DESTDIR)/usr/sbin/brickmoon
	$(SUDO) install -D -m 755 $(BENCH) $(DESTDIR)/usr/sbin/brickmoon-bench
	$(SUDO) install -D -m 644 packaging/brickmoon.service $(DESTDIR)/lib/systemd/system/brickmoon.service
	$(SUDO) install -D -m 644 $(XFRM_LIBRARY) $(DESTDIR)/usr/lib/brickmoon/libbrickmoon-xfrm.so
	$(SUDO) install -D -m 644 -t $(DESTDIR)/usr/share/doc/brickmoon/strongswan packaging/strongswan.service.d/brickmoon.conf packaging/brickmoon.service.d/strongswan.conf packaging/apparmor-charon
	$(SUDO) install -D -m 644 -t $(DESTDIR)/usr/share/doc/brickmoon README.md CHANGELOG.md ARCHITECTURE.md SECURITY.md
	$(SUDO) install -D -m 644 -t $(DESTDIR)/usr/share/doc/brickmoon/docs docs/*.md docs/*.toml docs/*.json docs/*.svg docs/*.png
	$(SUDO) install -D -m 644 -t $(DESTDIR)/usr/share/doc/brickmoon/docs/guides docs/guides/*.md
	$(SUDO) install -D -m 644 -t $(DESTDIR)/usr/share/doc/brickmoon/docs/decisions docs/decisions/*.md
	$(SUDO) install -D -m 644 -t $(DESTDIR)/usr/share/doc/brickmoon/docs/experiments docs/experiments/*.md
	$(SUDO) install -D -m 644 -t $(DESTDIR)/usr/share/doc/brickmoon/clients/python clients/python/pyproject.toml
	$(SUDO) install -D -m 644 -t $(DESTDIR)/usr/share/doc/brickmoon/clients/python/brickmoon clients/python/brickmoon/__init__.py clients/python/brickmoon/py.typed
	$(SUDO) install -D -m 644 -t $(DESTDIR)/usr/share/doc/brickmoon/packaging/grafana packaging/grafana/brickmoon.json
	$(SUDO) install -D -m 644 -t $(DESTDIR)/usr/share/doc/brickmoon/packaging/prometheus packaging/prometheus/brickmoon.rules.yml
	$(SUDO) $(PROGRAM) man $(DESTDIR)/usr/share/man/man8
	$(PROGRAM) completion bash | $(SUDO) install -D -m 644 /dev/stdin $(DESTDIR)/usr/share/bash-completion/completions/brickmoon
	$(PROGRAM) completion zsh | $(SUDO) install -D -m 644 /dev/stdin $(DESTDIR)/usr/share/zsh/vendor-completions/_brickmoon
	$(PROGRAM) completion fish | $(SUDO) install -D -m 644 /dev/stdin $(DESTDIR)/usr/share/fish/vendor_completions.d/brickmoon.fish
	[ -e $(DESTDIR)/etc/brickmoon/brickmoon.toml ] || $(SUDO) install -D -m 644 docs/brickmoon.toml $(DESTDIR)/etc/brickmoon/brickmoon.toml

# A Debian package and its debug symbols in target/deb (docs/packages.md). Contains what `make build` builds, DPDK ports
# if DPDK is installed: BRICKMOON_DPDK=off for a package that does not need DPDK's libraries.
deb: build
	@tools/setup deb
	tools/deb
	lintian --fail-on error,warning target/deb/brickmoon_*.deb

clean:
	cargo clean

# The tests of crates with unsafe code, and those in namespaces, under AddressSanitizer: half an hour on two cores. Needs
# Rust's nightly toolchain.
test-asan:
	@tools/setup test
	tools/asan $(ASAN)

# Coverage-guided fuzzing (fuzz/README.md), ten minutes for each target: make fuzz [TARGETS="netlink config"] [BM_FUZZ_SECONDS=60]
# Needs Rust's nightly toolchain. The same targets are tests of `make test`, without coverage.
.PHONY: fuzz
fuzz:
	@tools/setup test
	$(SUDO) env "PATH=$$PATH" BM_FUZZ_SECONDS="$(BM_FUZZ_SECONDS)" tools/fuzz $(TARGETS)

# Mutation tests (tests/README.md): a sample of the crates that decide about packets, or those in MUTANTS:
# make mutants MUTANTS="-p bm-filter". Needs cargo-mutants.
.PHONY: mutants
MUTANTS ?= -p bm-wire -p bm-filter -p bm-fib -p bm-forward --shard 0/25
mutants:
	@cargo mutants --version >/dev/null 2>&1 || { echo 'needs cargo-mutants: cargo install --locked cargo-mutants'; exit 2; }
	CARGO_PROFILE_DEV_OPT_LEVEL=3 CARGO_PROFILE_DEV_DEBUG=0 cargo mutants --jobs 1 --timeout 120 --sharding round-robin \
	    --output target/mutants $(MUTANTS) -- --tests

.PHONY: test-snabb
# The tests of Snabb's public tree, run on brickmoon: make test-snabb TREE=~/snabb [SNABB="--only lib.yang"]
test-snabb: build
	@[ -n "$(TREE)" ] || { echo 'which tree? make test-snabb TREE=DIR, the root of a checkout of snabbco/snabb'; exit 2; }
	$(SUDO) env "PATH=$$PATH" $(XTASK) snabb $(TREE) $(SNABB)
