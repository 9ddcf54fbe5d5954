# SPDX-License-Identifier: GPL-2.0
#
# The one entry: `make help` lists what it does. The module itself is built by Kbuild.

.DEFAULT_GOAL := help
SHELL := /bin/sh

# Debian's compilers, not what happens to be first in PATH: the kernel, the module and the guest's programs
# are built with them. Both may be set on the command line.
CARGO ?= /usr/bin/cargo
RUSTC ?= /usr/bin/rustc
export CARGO RUSTC
# A default must not keep the lab from looking for the very compiler that built the tree at KDIR.
any_rustc := $(if $(filter file,$(origin RUSTC)),env -u RUSTC)
export PATH := $(if $(findstring /,$(CARGO)),$(abspath $(dir $(CARGO))):)$(PATH)

FLAVOR ?= trace
KDIR ?=
SHORT ?=

stress_flavor := $(if $(filter file,$(origin FLAVOR)),,$(FLAVOR))

target := userspace/target/x86_64-unknown-linux-gnu/release
lab := $(target)/blkrelay-lab
# RUSTC is the kernel's compiler, which may be older than what the userspace needs: cargo takes its own.
own_rustc := env -u RUSTC
cargo = cd userspace && $(own_rustc) $(CARGO)
# Called by name, not as `cargo fmt` and `cargo clippy`: cargo looks into ~/.cargo/bin before PATH, and
# another toolchain's clippy there would mix its objects with ours.
bin := $(if $(findstring /,$(CARGO)),$(abspath $(dir $(CARGO)))/)
cargo_fmt = cd userspace && $(bin)cargo-fmt
cargo_clippy = cd userspace && $(own_rustc) $(bin)cargo-clippy clippy
shell_scripts := qemu/install qemu/init .ci/run $(wildcard qemu/workloads/*.sh qemu/tests/*.sh)

# The order of prerequisites matters: nothing can be built before it is installed.
.NOTPARALLEL:
.PHONY: help demo test hotpath stress kernel module userspace bench lint fmt doc clean install cargo

help: ## this list
	@echo "usage: make TARGET [FLAVOR=trace|debug|kasan] [KDIR=DIR] [SHORT=1] [CARGO=...] [RUSTC=...]"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

demo: install userspace ## from a fresh machine to a traced workload and what tracing costs
	@$(lab) demo

test: install userspace ## from a fresh machine: every test, on the host and in guests
	@$(cargo) test --workspace --no-fail-fast
	@$(lab) test

hotpath: install userspace ## what an event costs without a reader, beside blktrace, ftrace and bare C, and the bars
	@$(lab) hotpath

# On both kernels that check themselves, unless one is named.
stress: install_more := $(if $(filter debug trace,$(stress_flavor)),,clang)
stress: install userspace ## what must not hurt, on the debug and kasan kernels: hours; with SHORT=1 minutes
	@$(lab) stress $(if $(SHORT),--short) $(addprefix --flavor ,$(stress_flavor))

kernel: userspace ## the test kernel of FLAVOR, in the cache
	@$(lab) kernel --flavor $(FLAVOR)

module: userspace ## blkrelay.ko for the kernel tree at KDIR, or for the test kernel of FLAVOR
	@$(if $(KDIR),$(any_rustc) $(lab) module --kdir '$(KDIR)',$(lab) module --flavor $(FLAVOR))

userspace: cargo ## the reader and the lab, static binaries in userspace/target
	@$(cargo) build --release --workspace
	@echo "built: $(target)/blkrelay $(lab)"

bench: cargo ## nanoseconds to pack and store a record on this machine, and cycles where it counts them
	@$(cargo) bench -p blkrelay-format --bench packing

# CONST_STRUCT: checkpatch takes each offsetof(struct file_operations, ...) for a variable.
lint: install userspace ## rustfmt, clippy, shellcheck; the kernel's rustfmt, clippy and checkpatch
	$(cargo_fmt) --all --check
	$(cargo_clippy) --workspace --all-targets -- -D warnings
	shellcheck --severity=warning $(shell_scripts)
	kdir=$$($(lab) kernel --flavor trace | sed -n 's/^kdir *//p') && \
	rustfmt --check --edition 2021 --config-path $$kdir/source/.rustfmt.toml module/*.rs && \
	perl $$kdir/source/scripts/checkpatch.pl --no-tree --quiet --strict --file \
		--max-line-length=110 --ignore CONST_STRUCT module/*.c module/*.h qemu/tests/floor/*.c
	$(lab) module --flavor trace --clippy

fmt: cargo ## formats all Rust
	$(cargo_fmt) --all
	rustfmt --edition 2021 module/*.rs

doc: cargo ## the documentation of the userspace crates, in userspace/target
	$(cargo) doc --workspace --no-deps

clean: ## removes what was built in the checkout; the cache stays
	rm -rf out userspace/target

# As root, or through sudo for the packages only. A moment where nothing is missing.
install:
	@qemu/install $(install_more)

cargo:
	@command -v $(CARGO) >/dev/null || { echo "$(CARGO) is missing: run qemu/install" >&2; exit 1; }
