# `make` lists what there is; CI runs the same targets a person does.
.DEFAULT_GOAL := help
.PHONY: help setup build demo test check unit net vm containerd kube node neutron peer bench clean

TARGET := $(shell uname -m)-unknown-linux-musl
CARGO_TARGET_DIR ?= target

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what building and testing need: packages, the musl target (skips what is there)
	@lanes/setup

build: setup bin/weft-cni bin/weft ## both programs, static and stripped, in bin/

# One cargo call each: what the agent needs of a shared crate must not end up in weft-cni.
bin/weft-cni: PACKAGE := weft-cni
bin/weft-cni: PROFILE := release
# It ends where it panics: nobody looks for a frame to unwind.
bin/weft-cni: FLAGS := -C link-arg=-Wl,--no-eh-frame-hdr -C link-arg=-Wl,-T,$(CURDIR)/crates/weft-cni/weft-cni.ld
bin/weft: PACKAGE := weft
bin/weft: PROFILE := command
bin/%: FORCE
	cargo rustc --profile $(PROFILE) --locked --target $(TARGET) -p $(PACKAGE) --bin $* -- $(FLAGS)
	@mkdir -p bin
	@install -m 0755 $(CARGO_TARGET_DIR)/$(TARGET)/$(PROFILE)/$* $@
FORCE:

demo: build ## a pod with four networks on this machine, shown and removed again
	@bin/weft demo

test: setup ## everything that can run here, and a table of what did not and why
	@lanes/run

check: ## formatting and lints
	@lanes/run check
unit: ## what needs nothing but cargo
	@lanes/run unit
net: ## the kernel, in namespaces of each test's own (root)
	@lanes/run net
peer: ## theirs calls ours, ours calls theirs: the Go reference plugins, podman
	@lanes/run peer
vm: ## the kernel of Debian under qemu, for links that this machine's kernel lacks
	@lanes/run vm
containerd: ## a real containerd and runc
	@lanes/run containerd
kube: ## a real etcd and kube-apiserver
	@lanes/run kube
node: ## a whole node: kubelet, containerd, control plane
	@lanes/run node
neutron: ## a real Neutron with ML2/OVN
	@lanes/run neutron

bench: build ## side by side with the peers in PEERS=DIR or PEERS=debian, by ratio
	@benches/run $(PEERS)
	@benches/cri-proxy
	@benches/kube-adds
	@benches/neutron

clean: ## remove what was built
	cargo clean
	rm -rf bin
