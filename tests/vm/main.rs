//! End-to-end tests in lane `vm` that only the guest can run: they move the machine's hardware.
//!
//! `lanes/vm/run` starts them in a virtual machine, with those tests in lane `net` that this machine's kernel
//! cannot run.

#![cfg(test)]

mod host_device;
