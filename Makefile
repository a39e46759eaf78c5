# `make` lists the targets; CI runs the same targets as a developer.
.DEFAULT_GOAL := help
.PHONY: help setup build programs dist dist-check docs demo test check unit net vm containerd kube node neutron peer bench bench-report clean

TARGET := $(shell uname -m)-unknown-linux-musl
CARGO_TARGET_DIR ?= target
# Directory of the built programs.
OUT ?= bin

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install missing packages and the musl target, for building and testing
	@lanes/setup

build: setup bin/weft-cni bin/weft ## both programs, static and stripped, in bin/

# Directories of the builder, which panic messages of the programs must not contain. The last one that matches counts.
CARGO_HOME ?= $(HOME)/.cargo
SYSROOT = $(shell rustc --print sysroot)
REMAP = $(HOME)=/builder $(CARGO_HOME)=/cargo $(SYSROOT)=/rust $(CURDIR)=/weft $(abspath $(CARGO_TARGET_DIR))=/weft/target
comma := ,
empty :=
# These add to the flags in .cargo/config.toml. A variable RUSTFLAGS replaces both, and then the search below fails.
RUSTC_FLAGS = [$(subst $(empty) ,$(comma),$(REMAP:%="--remap-path-prefix=%"))]

FOREIGN = $(filter-out /,$(HOME)) $(CARGO_HOME) $(SYSROOT) $(CURDIR) $(abspath $(CARGO_TARGET_DIR))

# One cargo call for each program, so that features which only the agent needs are not compiled into weft-cni.
bin/weft-cni: PACKAGE := weft-cni
bin/weft-cni: PROFILE := release
# It aborts on a panic, so it needs no tables for unwinding. Without position independence there are no relocations: each
# start takes 0.05 ms less (docs/security.md, "Programs"). LTO applies the model to all crates.
bin/weft-cni: FLAGS := -C relocation-model=static -C link-arg=-Wl,--no-eh-frame-hdr -C link-arg=-Wl,-T,$(CURDIR)/crates/weft-cni/weft-cni.ld
# Position-independent. Packed relocations are a hundredth as large, and the program starts 0.5 ms earlier.
bin/weft: FLAGS := -C link-arg=-Wl,-z,pack-relative-relocs
bin/weft: PACKAGE := weft
bin/weft: PROFILE := command
bin/%: FORCE
	cargo rustc --profile $(PROFILE) --locked --target $(TARGET) --config 'target.$(TARGET).rustflags=$(RUSTC_FLAGS)' \
	  -p $(PACKAGE) --bin $* -- $(FLAGS)
	@mkdir -p $(OUT)
	@install -m 0755 $(CARGO_TARGET_DIR)/$(TARGET)/$(PROFILE)/$* $(OUT)/$*
	@found=$$(grep -aoF $(FOREIGN:%=-e '%/') $(OUT)/$* | sort | uniq -c); \
	  [ -z "$$found" ] || { printf '%s contains paths of the builder:\n%s\n' $(OUT)/$* "$$found" >&2; exit 1; }
FORCE:

# Both programs for TARGET, into OUT.
programs: bin/weft-cni bin/weft

docs: ## the documentation site in target/site, with every link verified
	@release/site

dist: setup ## a release in dist/: archives, packages, images, charts, checksums
	@release/build

dist-check: ## verify the release in dist/
	@release/check

demo: build ## attach two pods to four networks on a simulated host, show them and remove everything again
	@bin/weft demo

test: setup ## run every test that can run here, and list the skipped tests with reasons
	@lanes/run

check: ## check formatting, lints and the documentation site
	@lanes/run check
unit: ## tests that need only cargo
	@lanes/run unit
net: ## tests with the kernel, each in its own namespaces (root)
	@lanes/run net
peer: ## tests with other implementations: the Go plugins, firewalld
	@lanes/run peer
vm: ## tests with Debian's kernel under qemu, for kinds of links that this kernel lacks
	@lanes/run vm
containerd: ## tests with a real containerd and runc
	@lanes/run containerd
kube: ## tests with a real etcd and kube-apiserver
	@lanes/run kube
node: ## tests with a whole node: kubelet, containerd, control plane
	@lanes/run node
neutron: ## tests with a real Neutron with ML2/OVN
	@lanes/run neutron

bench: build ## measure weft beside the peers in PEERS=DIR or PEERS=debian, with ratios
	@benches/run $(PEERS)
	@benches/cri-proxy
	@benches/kube-adds
	@benches/neutron

bench-report: build ## measure once, and write docs/performance.md, its plots and the table of README.md
	@benches/report $(PEERS)

clean: ## remove everything that was built
	cargo clean
	rm -rf bin
