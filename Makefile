# The two commands of the README are `make demo` and `make test`. Both install what they need.

.PHONY: build demo test test-vm lint models instructions install clean

BRICKMOON := target/release/brickmoon
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

build:
	@tools/setup build
	cargo build --release --locked $$(tools/features)

demo: build
	$(SUDO) $(BRICKMOON) demo $(DEMO)

lint:
	@tools/setup build
	cargo fmt --all --check
	cargo xtask tidy
	cargo clippy --workspace --all-targets --locked -- -D warnings
	[ -z "$$(tools/features)" ] || cargo clippy -p brickmoon -p bm-port-dpdk -p bm-eval --all-targets --locked \
		$$(tools/features) -- -D warnings

test:
	@tools/setup test
	@$(MAKE) --no-print-directory lint
	cargo build --release --locked $$(tools/features)
	cargo test --workspace --locked $$(tools/features)
	[ -z "$$(tools/features)" ] || cargo test -p bm-port-dpdk --locked
	@$(MAKE) --no-print-directory instructions
	@$(MAKE) --no-print-directory models

# Every order in which threads can meet, where tables and links are shared without locks. A build of its own.
models:
	RUSTFLAGS="--cfg loom" cargo test --locked --release --target-dir target/loom -p bm-fib -p bm-link --lib model

# What a packet costs, counted: fails when it has risen over the record in xtask/instructions.toml.
instructions:
	cargo xtask instructions

# Debian's kernel in QEMU without KVM, some eight minutes: what an older kernel takes, VLANs and VRFs of its own, and
# network cards driven by DPDK.
test-vm:
	@tools/setup vm
	tests/vm/run

install: build
	$(SUDO) install -D -m 755 $(BRICKMOON) $(DESTDIR)/usr/sbin/brickmoon
	$(SUDO) install -D -m 644 packaging/brickmoon.service $(DESTDIR)/lib/systemd/system/brickmoon.service
	$(SUDO) install -D -m 644 -t $(DESTDIR)/usr/share/doc/brickmoon README.md CHANGELOG.md ARCHITECTURE.md
	$(SUDO) install -D -m 644 -t $(DESTDIR)/usr/share/doc/brickmoon/docs docs/*.md docs/*.toml docs/*.svg
	$(SUDO) install -D -m 644 -t $(DESTDIR)/usr/share/doc/brickmoon/docs/decisions docs/decisions/*.md
	[ -e $(DESTDIR)/etc/brickmoon/brickmoon.toml ] || $(SUDO) install -D -m 644 docs/brickmoon.toml $(DESTDIR)/etc/brickmoon/brickmoon.toml

clean:
	cargo clean
