# The two commands of the README are `make demo` and `make test`. Both install what they need.

.PHONY: build demo test lint install clean

BRICKMOON := target/release/brickmoon
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

build:
	@tools/setup build
	cargo build --release --locked

demo: build
	$(SUDO) $(BRICKMOON) demo $(DEMO)

lint:
	@tools/setup build
	cargo fmt --all --check
	cargo xtask tidy
	cargo clippy --workspace --all-targets --locked -- -D warnings

test:
	@tools/setup test
	@$(MAKE) --no-print-directory lint
	cargo build --release --locked
	cargo test --workspace --locked

install: build
	$(SUDO) install -D -m 755 $(BRICKMOON) $(DESTDIR)/usr/sbin/brickmoon
	$(SUDO) install -D -m 644 packaging/brickmoon.service $(DESTDIR)/lib/systemd/system/brickmoon.service
	[ -e $(DESTDIR)/etc/brickmoon.toml ] || $(SUDO) install -D -m 644 docs/brickmoon.toml $(DESTDIR)/etc/brickmoon.toml

clean:
	cargo clean
